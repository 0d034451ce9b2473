"""FADNet and FADNet++ wired as their authors published them, on our modules and weights.

float32, NCHW, stride-1 transposed convolutions, batch norms of their own, correlation by a loop
over slices, each view through the siamese layers by itself.
"""

from __future__ import annotations

import copy
import types

from torch import Tensor, nn

from vizoo.stereo.fadnet import FADNetPlus


def published(net: nn.Module) -> nn.Module:
    """A copy of the network with the published wiring."""
    net = copy.deepcopy(net)
    for stage in (net.cunet, net.dispnetres):
        stage.layered = True
        for level in range(6):
            setattr(stage, f"iconv{level}", _transposed(getattr(stage, f"iconv{level}")))
    net._stages = types.MethodType(_stages, net)
    return net


def _transposed(conv: nn.Conv2d) -> nn.ConvTranspose2d:
    transposed = nn.ConvTranspose2d(conv.in_channels, conv.out_channels, 3, padding=1)
    weight = conv.weight.detach().flip(2, 3).transpose(0, 1)
    transposed.load_state_dict({"weight": weight, "bias": conv.bias.detach()})
    return transposed


def _stages(self: nn.Module, left: Tensor, right: Tensor) -> tuple[tuple[Tensor, ...], ...]:
    lefts, rights = self.extract_network(left), self.extract_network(right)
    volume = _correlation(lefts[2], rights[2], self.shifts, isinstance(self, FADNetPlus))
    stage1 = self.cunet([left, *lefts], volume)
    warped = self._warp(right, stage1[0])
    error = self._colour_error(left, warped)
    return stage1, self.dispnetres((left, right, warped, stage1[0], error), stage1)


def _correlation(left: Tensor, right: Tensor, shifts: int, plus: bool) -> Tensor:
    volume = left.new_zeros(left.shape[0], shifts, *left.shape[2:])
    for shift in range(shifts):
        if 0 < shift < left.shape[3]:
            volume[:, shift, :, shift:] = (left[..., shift:] * right[..., :-shift]).mean(1)
        elif plus or not shift:
            volume[:, shift] = (left * right).mean(1)
    return volume.contiguous()
