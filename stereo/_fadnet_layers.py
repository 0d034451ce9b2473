"""The parts of FADNet and FADNet++: see `fadnet`, which names the papers.

The decoder has the form it trains fastest in on a CPU. oneDNN is slow where channels fill no
vector, as in up + 1 + skip of them joined: the convolution of the join is taken as the sum of its
parts' convolutions. At the finest level nothing but the prediction reads `iconv0`, and no
activation is between: the prediction's nine taps are multiplied into its weight, which leaves nine
output channels to shift and add. Zeros between the two layers are kept, since the taps are shifted
after the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..nas import elastic
from ..nas.elastic.conv import ElasticConv2d
from ..nas.values import Value, concat

Width = int | Value


def _conv(in_channels: Width, out_channels: Width, kernel: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        elastic.Conv2d(in_channels, out_channels, kernel, stride, kernel // 2), nn.LeakyReLU(0.1)
    )


class ResBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, with batch norms."""

    conv1: nn.Conv2d | SlicedConv2d

    def __init__(self, in_channels: Width, out_channels: Width, stride: int = 1) -> None:
        super().__init__()
        self.stride = stride
        self.conv1 = elastic.Conv2d(in_channels, out_channels, 3, stride, 1)
        self.bn1 = elastic.BatchNorm2d(out_channels)
        self.conv2 = elastic.Conv2d(out_channels, out_channels, 3, 1, 1)
        self.bn2 = elastic.BatchNorm2d(out_channels)
        self.shortcut = None
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                elastic.Conv2d(in_channels, out_channels, 1), elastic.BatchNorm2d(out_channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.shortcut is not None:
            # Subsampled first: a strided 1x1 convolution crashes oneDNN's channels-last backward.
            x = self.shortcut(x[:, :, :: self.stride, :: self.stride])
        return F.relu(y + x)


class SlicedConv2d(nn.Module):
    """A convolution without bias that uses its first input channels only."""

    def __init__(self, stored_channels: Width, out_channels: Width, kernel: int) -> None:
        super().__init__()
        self.conv = elastic.Conv2d(
            stored_channels, out_channels, kernel, 1, kernel // 2, bias=False
        )

    def forward(self, x: Tensor) -> Tensor:
        weight = elastic.weight_in_use(self.conv)
        return F.conv2d(x, weight[:, : x.shape[1]], padding=self.conv.padding)


def sliced_block(stored_channels: Width, out_channels: Width) -> ResBlock:
    """A ResBlock whose input may have fewer channels than are stored."""
    block = ResBlock(stored_channels, out_channels)
    block.conv1 = SlicedConv2d(stored_channels, out_channels, 3)
    cast(nn.Sequential, block.shortcut)[0] = SlicedConv2d(stored_channels, out_channels, 1)
    return block


class FeatureEncoder(nn.Module):
    """Features at 1/2, 1/4 and 1/8."""

    def __init__(self, in_channels: int, widths: Sequence[Width]) -> None:
        super().__init__()
        self.conv1 = _conv(in_channels, widths[0], 7, 2)
        self.conv2 = ResBlock(widths[0], widths[1], 2)
        self.conv3 = ResBlock(widths[1], widths[2], 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        at_half = self.conv1(x)
        at_quarter = self.conv2(at_half)
        return at_half, at_quarter, self.conv3(at_quarter)


class _Hourglass(nn.Module):
    """From features at 1/8 down to 1/64 and up again, predicting at each of seven scales."""

    head: str  # published name of the prediction layers
    layered = False  # True: layer by layer in training on a CPU too

    def __init__(self, encoder: Sequence[Width], decoder: Sequence[Width]) -> None:
        super().__init__()
        for level in (4, 5, 6):
            self.add_module(f"conv{level}", ResBlock(encoder[level - 2], encoder[level - 1], 2))
            self.add_module(f"conv{level}_1", ResBlock(encoder[level - 1], encoder[level - 1]))
        self.add_module(f"{self.head}6", elastic.Conv2d(encoder[5], 1, 3, 1, 1, bias=False))
        below = encoder[5]
        skips = (3, *encoder[:5])
        for level, width in zip((5, 4, 3, 2, 1, 0), decoder, strict=True):
            up = elastic.ConvTranspose2d(below, width, 4, 2, 1, bias=False)
            self.add_module(f"upconv{level}", nn.Sequential(up, nn.LeakyReLU(0.1)))
            upflow = nn.ConvTranspose2d(1, 1, 4, 2, 1, bias=False)
            self.add_module(f"upflow{level + 1}to{level}", upflow)
            joined = concat(width, 1, skips[level])
            self.add_module(f"iconv{level}", elastic.Conv2d(joined, width, 3, 1, 1))
            self.add_module(f"{self.head}{level}", elastic.Conv2d(width, 1, 3, 1, 1, bias=False))
            below = width

    def _encode_decode(
        self, skips: list[Tensor], base: tuple[Tensor, ...] | None = None
    ) -> list[Tensor]:
        """Unrectified predictions, finest first.

        Args:
            skips: image and features at 1/2, 1/4, 1/8.
            base: predictions to refine, finest first.
        """
        x = skips[-1]
        skips = list(skips)
        for level in (4, 5, 6):
            x = getattr(self, f"conv{level}_1")(getattr(self, f"conv{level}")(x))
            skips.append(x)
        by_parts = self.training and not self.layered and x.device.type == "cpu"
        predictions = [self._refine(6, getattr(self, f"{self.head}6")(x), base)]
        for level in (5, 4, 3, 2, 1, 0):
            up = getattr(self, f"upconv{level}")(x)
            flow = getattr(self, f"upflow{level + 1}to{level}")(predictions[0])
            parts = up, flow, skips[level]
            iconv, head = getattr(self, f"iconv{level}"), getattr(self, f"{self.head}{level}")
            if by_parts and not level:
                prediction = predict_finest(iconv, head, parts)
            else:
                x = convolve_joined(iconv, parts) if by_parts else iconv(torch.cat(parts, 1))
                prediction = head(x)
            predictions.insert(0, self._refine(level, prediction, base))
        return predictions

    @staticmethod
    def _refine(level: int, prediction: Tensor, base: tuple[Tensor, ...] | None) -> Tensor:
        # Half types hold 100 pixels to a quarter of a pixel only.
        prediction = prediction.to(torch.promote_types(prediction.dtype, torch.float32))
        return prediction if base is None else prediction + base[level]


class CorrelationStage(_Hourglass):
    """Stage 1 behind the siamese features: correlation, then the hourglass."""

    head = "pred_flow"

    def __init__(
        self, encoder: Sequence[Width], decoder: Sequence[Width], redirect: Width, fuse: ResBlock
    ) -> None:
        super().__init__(encoder, decoder)
        self.conv_redir = ResBlock(encoder[2], redirect)
        self.conv3_1 = fuse

    def forward(self, skips: list[Tensor], volume: Tensor) -> tuple[Tensor, ...]:
        """Seven predictions, finest first; only the finest is rectified.

        Args:
            skips: left image and left features at 1/2, 1/4, 1/8.
            volume: correlation at 1/8, (B, shifts, H/8, W/8).
        """
        fused = torch.cat((self.conv_redir(skips[3]), F.leaky_relu(volume, 0.1)), 1)
        predictions = self._encode_decode([*skips[:3], self.conv3_1(fused)])
        return F.relu(predictions[0]), *predictions[1:]


class RefinementStage(_Hourglass):
    """Stage 2: residuals for every prediction of stage 1."""

    head = "pred_res"

    def __init__(self, encoder: Sequence[Width], decoder: Sequence[Width]) -> None:
        super().__init__(encoder, decoder)
        features = FeatureEncoder(11, encoder[:3])
        self.conv1, self.conv2, self.conv3 = features.conv1, features.conv2, features.conv3
        self.conv3_1 = ResBlock(encoder[2], encoder[2])

    def forward(self, inputs: tuple[Tensor, ...], base: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Seven rectified predictions, finest first.

        Args:
            inputs: left, right, warped right, disparity and colour error, (B, C, H, W).
            base: predictions of stage 1, finest first.
        """
        at_half = self.conv1(torch.cat(inputs, 1))
        at_quarter = self.conv2(at_half)
        at_eighth = self.conv3_1(self.conv3(at_quarter))
        skips = [inputs[0], at_half, at_quarter, at_eighth]
        return tuple(F.relu(p) for p in self._encode_decode(skips, base))


def convolve_joined(conv: nn.Conv2d, parts: Sequence[Tensor]) -> Tensor:
    """`conv(torch.cat(parts, 1))` for a 3x3 convolution with padding 1."""
    return _sum_of_parts(parts, *_parameters(conv))


def predict_finest(conv: nn.Conv2d, head: nn.Conv2d, parts: Sequence[Tensor]) -> Tensor:
    """`head(conv(torch.cat(parts, 1)))` for 3x3 convolutions with padding 1, one output channel."""
    weight, bias = _parameters(conv)
    taps = _parameters(head)[0][0].flatten(1)  # (C, 9)
    if len(taps) <= taps.shape[1]:
        return head(convolve_joined(conv, parts))
    with torch.autocast(weight.device.type, enabled=False):
        weight = torch.einsum("ot,oikl->tikl", taps, weight)
        bias = taps.T @ bias
    shifts = torch.eye(9, dtype=weight.dtype, device=weight.device).view(1, 9, 3, 3)
    return F.conv2d(_sum_of_parts(parts, weight, bias), shifts, padding=1)


def _sum_of_parts(parts: Sequence[Tensor], weight: Tensor, bias: Tensor) -> Tensor:
    weights = weight.split([part.shape[1] for part in parts], 1)
    total = F.conv2d(parts[0], weights[0], bias, padding=1)
    for part, own in zip(parts[1:], weights[1:], strict=True):
        total += F.conv2d(part, own, padding=1)
    return total


def _parameters(conv: nn.Conv2d) -> tuple[Tensor, Tensor]:
    weight, bias = conv.weight, conv.bias
    if isinstance(conv, ElasticConv2d):
        weight, bias = conv.weight_in_use(conv.active), conv.bias_in_use(conv.active)
    return weight, cast(Tensor, bias)
