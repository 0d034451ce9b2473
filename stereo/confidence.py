"""How sure a disparity is: the chance that it is within a matched pixel of the truth.

Four things tell, as far as they are there: whether both images look alike where the disparity
puts them (normalised cross-correlation of 9x9 windows), whether neighbours have about the same
disparity, how much of a network's matching scores lies in the peak it took (of a guided network:
the chance that its fusion gives it), and whether the right image's own disparity agrees. A logistic
function of their logarithms turns them into a chance; its coefficients are fitted on generated
scenes (`python -m benchmarks.stereo_confidence --fit`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from ..vision.windows import brightness, correlation, moments

__all__ = ["Coefficients", "confidence", "evidence", "left_right_difference"]

_WINDOW = 9
_STRIP = 1 << 18  # pixels that are worked on at once
_LEAST = 1e-2  # of what a logarithm is taken of
_FARTHEST = 20.0  # pixels of disagreement beyond which more means nothing


class Coefficients(NamedTuple):
    """Of the logistic function; 0 for what is not there."""

    constant: float
    alike: float  #: of log((1 + correlation) / 2)
    rough: float  #: of log(standard deviation of the disparity in a window + 0.01 px)
    peak: float  #: of log(share of the chances in the peak), guided of log(odds of being right)
    agree: float  #: of log(difference of left and right + 0.01 px)


#: By whether there is a share of the peak, and the right image's disparity.
_FITTED = {
    (False, False): Coefficients(-0.639, 2.009, -0.601, 0.0, 0.0),
    (False, True): Coefficients(-0.596, 1.532, -0.440, 0.0, -0.390),
    (True, False): Coefficients(0.952, 0.348, -0.707, 3.469, 0.0),
    (True, True): Coefficients(0.575, 0.0, -0.474, 2.495, -0.546),
}

#: Of guided networks, which always know the chance that they are right. How alike views are as they
#: came tells nothing of those that were matched, and fused views err in the same places.
_GUIDED = Coefficients(-0.239, 0.0, -0.245, 0.909, 0.0)


def confidence(
    left: Tensor,
    right: Tensor,
    disparity: Tensor,
    peak: Tensor | None = None,
    difference: Tensor | None = None,
    scale: float = 1.0,
    guided: bool = False,
) -> Tensor:
    """The chance (H, W) that a disparity is within a matched pixel of the truth, 0 to 1.

    Args:
        left: (3, H, W), RGB in [0, 1].
        right: the same shape.
        disparity: (H, W), of the left image, pixels.
        peak: (H, W), share of the chances that lies in the network's peak, 0 to 1, if it says;
            guided the chance that the disparity is right.
        difference: (H, W), of `left_right_difference`, if the right image was matched too.
        scale: of the images that were matched, against these: a matched pixel is 1 / scale of
            theirs.
        guided: whether disparity and peak are those of `Guided`.

    Raises:
        ValueError: a guided disparity comes without its peak.
    """
    if guided and peak is None:
        raise ValueError("a guided disparity comes with the chance that it is right: give peak")
    factors = _GUIDED if guided else _FITTED[peak is not None, difference is not None]
    height, width = disparity.shape
    total = torch.full_like(disparity, factors.constant)
    halo, rows = _WINDOW // 2, max(_WINDOW, _STRIP // width)
    for start in range(0, height, rows):
        top, bottom = max(0, start - halo), min(height, start + rows + halo)
        peaks, differences = (
            None if part is None else part[top:bottom] for part in (peak, difference)
        )
        images = left[:, top:bottom], right[:, top:bottom]
        strip = total[start : start + rows]
        inner = slice(start - top, start - top + len(strip))
        features = evidence(
            *images,
            disparity[top:bottom],
            peaks,
            differences,
            scale,
            guided,
            compared=factors.alike != 0,
        )
        for factor, feature in zip(factors[1:], features, strict=True):
            if feature is not None:
                strip += factor * feature[inner]
    return total.sigmoid_()


def evidence(
    left: Tensor,
    right: Tensor,
    disparity: Tensor,
    peak: Tensor | None = None,
    difference: Tensor | None = None,
    scale: float = 1.0,
    guided: bool = False,
    compared: bool = True,
) -> tuple[Tensor | None, ...]:
    """What `confidence` weighs, each (H, W), in the order of `Coefficients`; None where missing.

    The images are compared only if `compared`.
    """
    rough = (scale * _roughness(disparity) + _LEAST).log()
    alike = None
    if compared:
        alike = ((1 + _alikeness(left, right, disparity)) / 2).clamp(min=_LEAST).log()
    if difference is not None:
        difference = ((scale * difference).clamp(max=_FARTHEST) + _LEAST).log()
    if peak is not None:
        peak = peak.clamp(_LEAST, 1 - _LEAST).logit() if guided else peak.clamp(min=_LEAST).log()
    return alike, rough, peak, difference


def left_right_difference(left: Tensor, right: Tensor) -> Tensor:
    """By how much a disparity differs from the right image's where it points to.

    Args:
        left: (H, W), of the left image, pixels.
        right: (H, W), of the right image, pixels.

    Returns:
        (H, W), pixels, not negative; infinite where the match lies outside the right image.
    """
    rows = max(1, _STRIP // left.shape[1])
    strips = zip(left.split(rows), right.split(rows), strict=True)
    return torch.cat([_difference(*strip) for strip in strips])


def _difference(left: Tensor, right: Tensor) -> Tensor:
    place = torch.arange(left.shape[1], device=left.device) - left
    before = place.floor().clamp(0, left.shape[1] - 1)
    after = (before + 1).clamp(max=left.shape[1] - 1)
    share = (place - before).clamp(0, 1)
    there = torch.lerp(right.gather(1, before.long()), right.gather(1, after.long()), share)
    return (left - there).abs().masked_fill(place < 0, torch.inf)


def _alikeness(left: Tensor, right: Tensor, disparity: Tensor) -> Tensor:
    """Correlation of windows in [-1, 1], -1 outside the right image."""
    height, width = disparity.shape
    x = torch.arange(width, device=disparity.device)
    y = torch.linspace(-1, 1, height, device=disparity.device)[:, None].expand_as(disparity)
    grid = torch.stack((2 * (x - disparity) / max(width - 1, 1) - 1, y), -1)[None]
    first, second = (brightness(view[None]) for view in (left, right))
    second = grid_sample(second, grid, padding_mode="border", align_corners=True)
    # Means taken off first: the difference of two large squares would lose the small.
    first, second = (view - view.mean() for view in (first, second))
    return correlation(first, second, _WINDOW)[0, 0].masked_fill(x - disparity < 0, -1)


def _roughness(disparity: Tensor) -> Tensor:
    """Standard deviation in windows, pixels."""
    smooth = disparity[None, None].double()
    return moments(smooth - smooth.mean(), _WINDOW)[1].sqrt()[0, 0].to(disparity.dtype)
