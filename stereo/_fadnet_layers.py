"""The parts of FADNet and FADNet++: see `fadnet`, which names the papers.

The decoder has the form it trains fastest in on a CPU. oneDNN is slow where channels fill no
vector, as in up + 1 + skip of them joined: the convolution of the join is taken as the sum of its
parts' convolutions. At the finest level nothing but the prediction reads `iconv0`, and no
activation is between: the prediction's nine taps are multiplied into its weight, which leaves nine
output channels to shift and add. Zeros between the two layers are kept, since the taps are shifted
after the first.

The forms that run fastest in inference follow, which `vision.inference.optimize` uses. Batch norms
are folded, activations and shortcuts part of the convolutions. The finest level, most of the thin
networks' time, runs at half size: its last two layers are linear, so they are one convolution, over
2x2 pixels side by side in the channels. Predictions stay float32 throughout.
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
from ..vision.fused import FusedConv2d, FusedUpsampling2d, blocked_weight, depth_to_space

Width = int | Value


class ResBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, with batch norms."""

    conv1: nn.Conv2d | _SlicedConv2d

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


class _SlicedConv2d(nn.Module):
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
    block.conv1 = _SlicedConv2d(stored_channels, out_channels, 3)
    cast(nn.Sequential, block.shortcut)[0] = _SlicedConv2d(stored_channels, out_channels, 1)
    return block


class FeatureEncoder(nn.Module):
    """Features at 1/2, 1/4 and 1/8."""

    def __init__(self, in_channels: int, widths: Sequence[Width]) -> None:
        super().__init__()
        first = elastic.Conv2d(in_channels, widths[0], 7, 2, 3)
        self.conv1 = nn.Sequential(first, nn.LeakyReLU(0.1))
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
            flow = getattr(self, f"upflow{level + 1}to{level}")(predictions[0].to(up.dtype))
            parts = up, flow, skips[level]
            iconv, head = getattr(self, f"iconv{level}"), getattr(self, f"{self.head}{level}")
            if by_parts and not level:
                prediction = _predict_finest(iconv, head, parts)
            else:
                x = _convolve_joined(iconv, parts) if by_parts else iconv(torch.cat(parts, 1))
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
        at_half = self.conv1(torch.cat([part.to(inputs[0].dtype) for part in inputs], 1))
        at_quarter = self.conv2(at_half)
        skips = [inputs[0], at_half, at_quarter, self.conv3_1(self.conv3(at_quarter))]
        return tuple(F.relu(p) for p in self._encode_decode(skips, base))


def _convolve_joined(conv: nn.Conv2d, parts: Sequence[Tensor]) -> Tensor:
    """`conv(torch.cat(parts, 1))` for a 3x3 convolution with padding 1."""
    return _sum_of_parts(parts, *_parameters(conv))


def _predict_finest(conv: nn.Conv2d, head: nn.Conv2d, parts: Sequence[Tensor]) -> Tensor:
    """`head(conv(torch.cat(parts, 1)))` for 3x3 convolutions with padding 1, one output channel."""
    weight, bias = _parameters(conv)
    taps = _parameters(head)[0][0].flatten(1)  # (C, 9)
    if len(taps) <= taps.shape[1]:
        return head(_convolve_joined(conv, parts))
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


class _FusedBlock(nn.Module):
    """A `ResBlock`; `channels` is how many of the stored input channels come."""

    def __init__(self, block: ResBlock, dtype: torch.dtype, channels: int | None = None) -> None:
        super().__init__()
        self.stride = block.stride
        self.conv1 = _folded(block.conv1, block.bn1, dtype, 0.0, channels)
        self.conv2 = _folded(block.conv2, block.bn2, dtype, 0.0)
        self.shortcut = None
        if block.shortcut is not None:
            conv, norm = cast("tuple[nn.Conv2d | _SlicedConv2d, nn.BatchNorm2d]", block.shortcut)
            self.shortcut = _folded(conv, norm, dtype, None, channels)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(x)
        if self.shortcut is not None:
            x = self.shortcut(x[:, :, :: self.stride, :: self.stride])
        return self.conv2(y, x)


def _folded(
    conv: nn.Conv2d | _SlicedConv2d,
    norm: nn.BatchNorm2d,
    dtype: torch.dtype,
    slope: float | None,
    channels: int | None = None,
) -> FusedConv2d:
    plain = conv.conv if isinstance(conv, _SlicedConv2d) else conv
    return FusedConv2d.of(plain, norm, channels=channels, slope=slope, dtype=dtype)


def _block(channels: int) -> tuple[int, int]:
    """How many outputs to compute at once, so that they fill a vector of 16."""
    return {2: (4, 2), 4: (2, 2), 8: (2, 1)}.get(channels, (1, 1))


class FusedEncoder(nn.Module):
    """A `FeatureEncoder`."""

    def __init__(self, encoder: FeatureEncoder | RefinementStage, dtype: torch.dtype) -> None:
        super().__init__()
        first = cast(nn.Conv2d, encoder.conv1[0])
        self.conv1 = FusedConv2d.of(first, slope=0.1, dtype=dtype, block=_block(first.out_channels))
        self.conv2 = _FusedBlock(encoder.conv2, dtype)
        self.conv3 = _FusedBlock(encoder.conv3, dtype)

    forward = FeatureEncoder.forward


class _Finest(nn.Module):
    """Level 0: `upconv0`, `upflow1to0`, `iconv0` and the prediction.

    No activation is between the last two, so they are one 5x5 convolution. Its input has 2x2
    pixels in the channels; it gives 4x4 pixels at a time, strip by strip to stay in the cache.
    Between the two layers the border is padded with zeros, which the single convolution cannot
    know: the outermost pixels are computed once more, as two layers.
    """

    strip_bytes = 4 << 20

    def __init__(
        self,
        upconv: nn.ConvTranspose2d,
        upflow: nn.ConvTranspose2d,
        iconv: nn.Conv2d,
        head: nn.Conv2d,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.dtype = dtype
        self.upconv = FusedUpsampling2d(upconv.weight, slope=0.1, dtype=dtype)
        self.upflow = FusedUpsampling2d(upflow.weight)
        first, second = iconv.weight.detach(), head.weight.detach()
        self.iconv = FusedConv2d.of(iconv, dtype=dtype)
        self.head = FusedConv2d.of(head)
        weight = F.conv2d(first.transpose(0, 1), second.flip(2, 3), padding=2).transpose(0, 1)
        bias = (second.sum((2, 3)) * cast(Tensor, iconv.bias).detach()).sum(1)
        weight = blocked_weight(weight, 1, (4, 4))  # (16, C, 8, 8)
        self.parts = [upconv.out_channels, 1]
        weight, of_image = weight[:, :-3], weight[:, -3:]
        self.of_image = FusedConv2d(of_image, bias.repeat(16), stride=4, padding=2, dtype=dtype)
        weight = weight.unflatten(3, (4, 2)).unflatten(2, (4, 2)).permute(0, 3, 5, 1, 2, 4)
        weight = torch.cat([part.flatten(1, 3) for part in weight.split(self.parts, 3)], 1)
        self.conv = FusedConv2d(weight, None, stride=2, padding=(0, 1), dtype=dtype)

    def forward(self, x: Tensor, flow: Tensor, image: Tensor) -> Tensor:
        """Level-1 features and prediction and the image to the prediction, unrectified."""
        height = x.shape[2]
        flow = self.upflow.blocked(flow).to(self.dtype)
        image = image.to(self.dtype).contiguous(memory_format=torch.channels_last)
        image_part = self.of_image(image)
        row = x.shape[0] * x.shape[3] * 4 * sum(self.parts) * self.dtype.itemsize
        rows = max(2, self.strip_bytes // max(1, row) // 2 * 2)
        if x.device.type != "cpu":  # one launch rather than many
            rows = height
        strips, first_columns, last_columns = [], [], []
        for start in range(0, height, rows):
            stop = min(start + rows, height)
            low, high = max(start - 1, 0), min(stop + 1, height)
            # One row more on either side, for which the strip's end would be the border.
            outer = max(low - 1, 0)
            up = self.upconv.blocked(x[:, :, outer : high + 1])[:, :, low - outer : high - outer]
            part = torch.cat((up, flow[:, :, low:high]), 1)
            above, below = int(start == 0), int(stop == height)
            padded = F.pad(part, (0, 0, above, below)) if above + below else part
            strips.append(self.conv(padded, image_part[:, :, start // 2 : stop // 2]))
            if above:
                top = part[:, :, :2]
            if below:
                bottom = part[:, :, -2:]
            own = part[:, :, start - low : stop - low]
            first_columns.append(own[..., :2])
            last_columns.append(own[..., -2:])
        y = depth_to_space(torch.cat(strips, 2), (4, 4)).float()
        images = torch.cat((image[:, :, :4], image[:, :, -4:]))
        upper, lower = self._exact(torch.cat((top, bottom)), images).chunk(2)
        y[:, :, 0], y[:, :, -1] = upper[:, :, 0], lower[:, :, -1]
        columns = torch.cat((torch.cat(first_columns, 2), torch.cat(last_columns, 2)))
        images = torch.cat((image[..., :4], image[..., -4:]))
        before, after = self._exact(columns, images).chunk(2)
        y[..., 0], y[..., -1] = before[..., 0], after[..., -1]
        return y

    def _exact(self, x: Tensor, image: Tensor) -> Tensor:
        parts = x.split([4 * part for part in self.parts], 1)
        parts = [depth_to_space(part, (2, 2)) for part in parts]
        return self.head(self.iconv(torch.cat((*parts, image), 1)))


class _FusedHourglass(nn.Module):
    def __init__(self, stage: CorrelationStage | RefinementStage, dtype: torch.dtype) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            nn.Sequential(
                _FusedBlock(getattr(stage, f"conv{level}"), dtype),
                _FusedBlock(getattr(stage, f"conv{level}_1"), dtype),
            )
            for level in (4, 5, 6)
        )
        heads = [getattr(stage, f"{stage.head}{level}") for level in range(7)]
        self.heads = nn.ModuleList(
            FusedConv2d.of(heads[level], block=(4, 4) if level < 5 else (1, 1))
            for level in range(1, 7)
        )
        upconvs = [getattr(stage, f"upconv{level}") for level in range(6)]
        upflows = [getattr(stage, f"upflow{level + 1}to{level}") for level in range(6)]
        iconvs = [getattr(stage, f"iconv{level}") for level in range(6)]
        self.finest = _Finest(upconvs[0][0], upflows[0], iconvs[0], heads[0], dtype)
        self.upconvs = nn.ModuleList(
            FusedUpsampling2d(conv.weight, slope=0.1, dtype=dtype) for conv, _ in upconvs[1:]
        )
        self.upflows = nn.ModuleList(FusedUpsampling2d(flow.weight) for flow in upflows[1:])
        blocks = [_block(conv.out_channels) for conv in iconvs[1:5]] + [(1, 1)]
        self.iconvs = nn.ModuleList(
            FusedConv2d.of(conv, dtype=dtype, block=block)
            for conv, block in zip(iconvs[1:], blocks, strict=True)
        )
        self.dtype = dtype

    def _encode_decode(
        self, skips: list[Tensor], base: tuple[Tensor, ...] | None = None
    ) -> list[Tensor]:
        x = skips[-1]
        skips = list(skips)
        for blocks in self.down:
            x = blocks(x)
            skips.append(x)
        predictions = [self._predict(6, x, base)]
        for level in (5, 4, 3, 2, 1):
            up, flow = self.upconvs[level - 1](x), self.upflows[level - 1](predictions[0])
            parts = [part.to(self.dtype) for part in (up, flow, skips[level])]
            x = self.iconvs[level - 1](torch.cat(parts, 1))
            predictions.insert(0, self._predict(level, x, base))
        finest = self.finest(x, predictions[0], skips[0])
        return [finest if base is None else finest + base[0], *predictions]

    def _predict(self, level: int, x: Tensor, base: tuple[Tensor, ...] | None) -> Tensor:
        x = self.heads[level - 1](x)
        return x if base is None else x + base[level]


class FusedCorrelationStage(_FusedHourglass):
    """A `CorrelationStage`; `shifts` is how many correlation channels come."""

    def __init__(self, stage: CorrelationStage, shifts: int, dtype: torch.dtype) -> None:
        super().__init__(stage, dtype)
        self.conv_redir = _FusedBlock(stage.conv_redir, dtype)
        channels = stage.conv_redir.conv2.out_channels + shifts
        self.conv3_1 = _FusedBlock(stage.conv3_1, dtype, channels)

    forward = CorrelationStage.forward


class FusedRefinementStage(_FusedHourglass):
    """A `RefinementStage`."""

    def __init__(self, stage: RefinementStage, dtype: torch.dtype) -> None:
        super().__init__(stage, dtype)
        self.encoder = FusedEncoder(stage, dtype)
        self.conv3_1 = _FusedBlock(stage.conv3_1, dtype)

    def forward(self, inputs: tuple[Tensor, ...], base: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        joined = torch.cat([part.to(self.dtype) for part in inputs], 1)
        at_half, at_quarter, at_eighth = self.encoder(joined)
        skips = [inputs[0], at_half, at_quarter, self.conv3_1(at_eighth)]
        return tuple(F.relu(p) for p in self._encode_decode(skips, base))
