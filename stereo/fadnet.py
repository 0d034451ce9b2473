"""FADNet and FADNet++: disparity by two stacked encoder-decoders.

Papers: Wang et al., "FADNet: A Fast and Accurate Network for Disparity Estimation", ICRA 2020,
arXiv 2003.10758; Wang et al., "FADNet++: Real-Time and Accurate Disparity Estimation with
Configurable Networks", arXiv 2110.02582.

Stage 1 correlates siamese features at 1/8 and predicts disparity at seven scales; stage 2 sees
the images, the right image warped by that disparity and the colour error, and adds a residual at
every scale. All scales hold full-resolution pixel values.

What differs from the published programs: images enter in [0, 1] and are normalised inside; any
size is accepted (padded inside, cropped back); both views pass the siamese layers as one batch, so
in training they share batch statistics; stage 1 is `extract_network` and `cunet` in FADNet too;
stride-1 transposed convolutions are the convolutions they equal (`convert_published` turns them).
Kept, since the weights depend on it: FADNet++ samples its warp half a pixel off the grid, and
repeats the zero-shift correlation for shifts beyond the width. New: `fadnet_plus_elastic`, the
same network with elastic widths.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..nas.space import Choice
from ..nas.supernet import subnet_of
from ..nas.values import concat
from ..vision.hub.registry import register_model
from ..vision.layers import check_normalization, normalize_pair, pad_to
from ..vision.ops import correlation, warp_by_disparity
from ._fadnet_layers import (
    CorrelationStage,
    FeatureEncoder,
    FusedCorrelationStage,
    FusedEncoder,
    FusedRefinementStage,
    RefinementStage,
    ResBlock,
    Width,
    sliced_block,
)
from ._weights import FADNET_PLUS_TINY

__all__ = [
    "FADNet",
    "FADNetPlus",
    "convert_published",
    "fadnet",
    "fadnet_plus_elastic",
    "fadnet_plus_full",
    "fadnet_plus_micro",
    "fadnet_plus_mobile",
    "fadnet_plus_slight",
    "fadnet_plus_tiny",
    "fadnet_plus_x",
]

_MULTIPLE = 64  # the deepest features are at 1/64
_STORED_SHIFTS = 400 // 8 + 16  # FADNet++ stores weights for disparities up to 407


class _TwoStage(nn.Module):
    """What FADNet and FADNet++ share."""

    output_names = ("disparity",)
    shifts: int

    def __init__(
        self,
        encoder: Sequence[Width],
        decoder: Sequence[Width],
        redirect: Width,
        fuse: ResBlock,
        normalization: str,
    ) -> None:
        super().__init__()
        check_normalization(normalization)
        self.normalization = normalization
        self.extract_network = FeatureEncoder(3, encoder[:3])
        self.cunet = CorrelationStage(encoder, decoder, redirect, fuse)
        self.dispnetres = RefinementStage(encoder, decoder)
        for name, module in self.named_modules():
            if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
                nn.init.kaiming_normal_(
                    module.weight, mode="fan_out" if ".iconv" in name else "fan_in"
                )
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Disparity of the left view.

        Args:
            left: (B, 3, H, W), RGB in [0, 1], any size.
            right: the same shape, rectified to the left one.

        Returns:
            (B, 1, H, W), non-negative, in pixels.

        Raises:
            ValueError: the views differ in shape or are not RGB.
        """
        height, width = left.shape[-2:]
        pair = normalize_pair(left, right, self.normalization)
        left, right = (pad_to(view, _MULTIPLE) for view in pair)
        finest = self._stages(*self._match(left, right))[1][0]
        return finest[:, :, finest.shape[2] - height :, :width]

    def forward_stages(self, left: Tensor, right: Tensor) -> tuple[tuple[Tensor, ...], ...]:
        """The predictions of both stages at every scale, for training.

        Args:
            left: (B, 3, H, W), RGB in [0, 1]; H and W are multiples of 64.
            right: the same shape, rectified to the left one.

        Returns:
            For each of the two stages seven disparities (B, 1, H / 2^k, W / 2^k), k = 0 to 6, in
            full-resolution pixels. Stage 1 is signed but for its finest scale.

        Raises:
            ValueError: a size is no multiple of 64, or the views differ or are not RGB.
        """
        return self.forward_volumes(left, right)[0]

    def forward_volumes(
        self, left: Tensor, right: Tensor
    ) -> tuple[tuple[tuple[Tensor, ...], ...], list[tuple[Tensor, float]]]:
        """As `forward_stages`, and the matching scores that they come from, for `matching_loss`.

        Returns:
            The stages; and the scores of the correlation, (B, D, H / 8, W / 8), high where the
            match is good, with the pixels of full resolution between two candidates.
        """
        if left.shape[-2] % _MULTIPLE or left.shape[-1] % _MULTIPLE:
            raise ValueError(
                f"training images must have sizes that are multiples of {_MULTIPLE}, not "
                f"{left.shape[-2]}x{left.shape[-1]}: crop or pad them (inference takes any size)"
            )
        left, right = normalize_pair(left, right, self.normalization)
        skips, right, volume = self._match(left, right)
        # The correlation is the mean over the channels; beyond the width is no candidate.
        scores = volume[:, : volume.shape[-1]] * skips[-1].shape[1]
        return self._stages(skips, right, volume), [(scores, 8.0)]

    def fused(self, dtype: torch.dtype) -> nn.Module:
        """The network with its parts replaced by faster ones, see `inference.optimize`."""
        net = copy.copy(self)
        net._modules = {
            "extract_network": FusedEncoder(self.extract_network, dtype),
            "cunet": FusedCorrelationStage(self.cunet, self.shifts, dtype),
            "dispnetres": FusedRefinementStage(self.dispnetres, dtype),
        }
        return net

    def _match(self, left: Tensor, right: Tensor) -> tuple[list[Tensor], Tensor, Tensor]:
        """The left image and its features, the right image, and their features' correlation."""
        left, right = self._layout(left), self._layout(right)
        features = self.extract_network(torch.cat((left, right)))
        lefts, rights = zip(*(level.chunk(2) for level in features), strict=True)
        return [left, *lefts], right, self._correlate(lefts[2], rights[2])

    def _stages(
        self, skips: list[Tensor], right: Tensor, volume: Tensor
    ) -> tuple[tuple[Tensor, ...], ...]:
        left, stage1 = skips[0], self.cunet(skips, volume)
        warped = self._layout(self._warp(right, stage1[0]))
        error = self._colour_error(left, warped)
        return stage1, self.dispnetres((left, right, warped, stage1[0], error), stage1)

    def _layout(self, image: Tensor) -> Tensor:
        """The image in the weights' memory layout: one tensor in another makes `cat` fall back."""
        weight = (*self.extract_network.parameters(), image)[0]
        if weight.is_contiguous(memory_format=torch.channels_last):
            return image.contiguous(memory_format=torch.channels_last)
        return image

    def _correlate(self, left: Tensor, right: Tensor) -> Tensor:
        return correlation(left, right, self.shifts)

    def _warp(self, right: Tensor, disparity: Tensor) -> Tensor:
        return warp_by_disparity(right, disparity, padding="border")

    def _colour_error(self, left: Tensor, warped: Tensor) -> Tensor:
        return torch.linalg.vector_norm(left - warped, dim=1, keepdim=True)


class FADNet(_TwoStage):
    """FADNet (ICRA 2020): 144 M parameters, correlation over 40 shifts of 8 pixels.

    Args:
        normalization: `imagenet` or `instance`, see `vision.layers.normalize_images`.
    """

    shifts = 40

    def __init__(self, *, normalization: str = "imagenet") -> None:
        encoder = (64, 128, 256, 512, 512, 1024)
        decoder = (512, 256, 128, 64, 32, 16)
        fuse = ResBlock(32 + self.shifts, encoder[2])
        super().__init__(encoder, decoder, 32, fuse, normalization)


class FADNetPlus(_TwoStage):
    """FADNet++: the same two stages with configurable widths.

    Args:
        encoder: channels at 1/2, 1/4, … 1/64, or values for an elastic network.
        decoder: channels at 1/32, 1/16, … 1/2 and full size.
        max_disparity: in pixels, 1 to 407; sets the number of correlation channels and does not
            bound the output. One weight file serves any value.
        normalization: `imagenet` or `instance`, see `vision.layers.normalize_images`.

    Raises:
        ValueError: `max_disparity` is out of range.
    """

    def __init__(
        self,
        encoder: Sequence[Width],
        decoder: Sequence[Width],
        *,
        max_disparity: int = 192,
        normalization: str = "imagenet",
    ) -> None:
        if not 1 <= max_disparity < 8 * (_STORED_SHIFTS - 15):
            raise ValueError(f"max_disparity must be from 1 to 407 pixels, not {max_disparity}")
        fuse = sliced_block(concat(encoder[0], _STORED_SHIFTS), encoder[2])
        super().__init__(encoder, decoder, encoder[0], fuse, normalization)
        self.shifts = max_disparity // 8 + 16

    def _correlate(self, left: Tensor, right: Tensor) -> Tensor:
        volume = super()._correlate(left, right)
        beyond = torch.arange(self.shifts, device=left.device) >= left.shape[-1]
        return torch.where(beyond.view(1, -1, 1, 1), volume[:, :1], volume)

    def _warp(self, right: Tensor, disparity: Tensor) -> Tensor:
        return warp_by_disparity(right, disparity, padding="zeros", align_corners=False)

    def _colour_error(self, left: Tensor, warped: Tensor) -> Tensor:
        return torch.sqrt((left - warped).square().sum(1, keepdim=True) + 1e-8)


_PLUS_RATIOS = {
    "fadnet_plus_x": (32, 32),
    "fadnet_plus_full": (16, 16),
    "fadnet_plus_mobile": (8, 8),
    "fadnet_plus_slight": (4, 4),
    "fadnet_plus_tiny": (2, 1),
    "fadnet_plus_micro": (1, 1),
}


def convert_published(state: dict[str, Tensor]) -> tuple[str, dict[str, object], dict[str, Tensor]]:
    """Recognise a published checkpoint and rename its tensors.

    Reads FADNet (`dispnetc`, `dispnetres`), FADNet++ (`extract_network`, `cunet`, `dispnetres`)
    and FADNet++ files from before that split. The maximum disparity is not in the file.

    Args:
        state: tensors by published name, without a `module.` prefix.

    Returns:
        Name of the variant, its architecture arguments, and its state dict.

    Raises:
        ValueError: the tensors belong to no variant.
    """
    siamese = tuple(f"dispnetc.conv{level}." for level in (1, 2, 3))
    renamed = {}
    for name, tensor in state.items():
        if name.startswith(siamese):
            name = name.replace("dispnetc.", "extract_network.", 1)
        elif name.startswith("dispnetc."):
            name = name.replace("dispnetc.", "cunet.", 1)
        if ".iconv" in name and tensor.dim() == 4:
            tensor = tensor.flip(2, 3).transpose(0, 1).contiguous()
        renamed[name] = tensor
    first, last = "extract_network.conv1.0.weight", "cunet.upconv0.0.weight"
    if first not in renamed or last not in renamed:
        raise ValueError(
            "these are not the weights of FADNet or FADNet++: "
            f"no {first.replace('extract_network', 'dispnetc')} or no {last}"
        )
    if "cunet.conv3_1.conv1.conv.weight" not in renamed:
        return "fadnet", {}, renamed
    ratios = (renamed[first].shape[0] // 2, renamed[last].shape[1] // 2)
    for variant, known in _PLUS_RATIOS.items():
        if ratios == known:
            return variant, {}, renamed
    raise ValueError(f"FADNet++ with encoder and decoder ratios {ratios} is no published variant")


@register_model(task="stereo")
def fadnet(*, normalization: str = "imagenet") -> FADNet:
    """FADNet, 144.3 M parameters."""
    return FADNet(normalization=normalization)


def _plus(name: str, max_disparity: int, normalization: str) -> FADNetPlus:
    """A published variant: half the channels at 1/2, and half those at full size."""
    encoder, decoder = _PLUS_RATIOS[name]
    return FADNetPlus(
        [2 * encoder * 2**level for level in range(6)],
        [2 * decoder * 2**level for level in (4, 3, 2, 1, 0, 0)],
        max_disparity=max_disparity,
        normalization=normalization,
    )


@register_model(task="stereo")
def fadnet_plus_x(*, max_disparity: int = 192, normalization: str = "imagenet") -> FADNetPlus:
    """FADNet++ extra-large, 497.1 M parameters."""
    return _plus("fadnet_plus_x", max_disparity, normalization)


@register_model(task="stereo")
def fadnet_plus_full(*, max_disparity: int = 192, normalization: str = "imagenet") -> FADNetPlus:
    """FADNet++, 124.4 M parameters."""
    return _plus("fadnet_plus_full", max_disparity, normalization)


@register_model(task="stereo")
def fadnet_plus_mobile(*, max_disparity: int = 192, normalization: str = "imagenet") -> FADNetPlus:
    """FADNet++ mobile, 31.2 M parameters."""
    return _plus("fadnet_plus_mobile", max_disparity, normalization)


@register_model(task="stereo")
def fadnet_plus_slight(*, max_disparity: int = 192, normalization: str = "imagenet") -> FADNetPlus:
    """FADNet++ slight, 7.8 M parameters."""
    return _plus("fadnet_plus_slight", max_disparity, normalization)


@register_model(task="stereo", weights=FADNET_PLUS_TINY)
def fadnet_plus_tiny(*, max_disparity: int = 192, normalization: str = "imagenet") -> FADNetPlus:
    """FADNet++ tiny, 1.6 M parameters."""
    return _plus("fadnet_plus_tiny", max_disparity, normalization)


@register_model(task="stereo")
def fadnet_plus_micro(*, max_disparity: int = 192, normalization: str = "imagenet") -> FADNetPlus:
    """FADNet++ micro, 0.5 M parameters."""
    return _plus("fadnet_plus_micro", max_disparity, normalization)


@register_model(task="stereo")
def fadnet_plus_elastic(
    *,
    max_disparity: int = 192,
    normalization: str = "imagenet",
    subnet: Mapping[str, Any] | None = None,
) -> FADNetPlus:
    """FADNet++'s supernet, 7.8 M parameters, up to the widths of slight, or one of its subnets."""
    encoder = [Choice(f"encoder.{i}", (2, 4, 6, 8)) * 2**i for i in range(6)]
    decoder = [Choice(f"decoder.{i}", (2, 4, 6, 8)) * 2**i for i in (4, 3, 2, 1)]
    last = Choice("decoder.0", (2, 4, 6, 8))
    net = FADNetPlus(
        encoder, [*decoder, last, last], max_disparity=max_disparity, normalization=normalization
    )
    return subnet_of(net, subnet)
