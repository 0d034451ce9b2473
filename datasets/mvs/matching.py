"""Depths of features that views have in common: what a depth range is guessed from.

Features are SIFT's (Lowe, IJCV 2004; OpenCV finds them). The cameras are known, so a match counts
only where it lies on its epipolar line, and its depth is triangulated.
"""

from __future__ import annotations

from typing import NamedTuple

import cv2
import numpy as np
import torch
from torch import Tensor

from ...vision.io.images import to_bytes

__all__ = ["Features", "depths_in_common", "find_features", "range_from_features"]

_LONGEST, _MOST = 800, 2000  # pixels of the longer side, and features
_RATIO = 0.8  # of the distances to the nearest and the next descriptor
_OFF, _PARALLAX = 2.0, 8.0  # pixels from the epipolar line at most, along it from infinity at least
_LEAST = 20  # matches that say something
_SHARES, _PADDING = (0.02, 0.98), 1.3


class Features(NamedTuple):
    """Features of one view."""

    rays: Tensor  #: (N, 3) float64 in the camera's frame, z = 1
    descriptors: Tensor  #: (N, 128) uint8
    focal: float  #: of the picture they were found in, pixels


def find_features(image: Tensor, intrinsics: Tensor) -> Features:
    """Features of a picture (3, H, W) in [0, 1] with intrinsics (3, 3)."""
    grey = cv2.cvtColor(to_bytes(image), cv2.COLOR_RGB2GRAY)
    scale = min(1.0, _LONGEST / max(grey.shape))
    if scale < 1:
        grey = cv2.resize(grey, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    finder = cv2.SIFT.create(_MOST, enable_precise_upscale=True)
    points, descriptors = finder.detectAndCompute(grey, None)
    if descriptors is None:
        points, descriptors = (), np.zeros((0, 128))
    places = torch.tensor([point.pt for point in points], dtype=torch.float64).reshape(-1, 2)
    # Centres of pixels are whole numbers, before and after resizing.
    places = (places + 0.5) / scale - 0.5
    rays = torch.cat([places, torch.ones(len(places), 1, dtype=torch.float64)], dim=1)
    rays = rays @ torch.linalg.inv(intrinsics.double()).T
    focal = scale * float(intrinsics[0, 0])
    return Features(rays, torch.from_numpy(descriptors.astype(np.uint8)), focal)


def depths_in_common(
    one: Features, other: Features, pose: Tensor, other_pose: Tensor
) -> tuple[Tensor, Tensor]:
    """Depths in the first view of features that both see; poses (4, 4), world to camera.

    Returns:
        Depths (N,), and bounds (M,) beyond which features lie that show too little parallax.
    """
    first, second = _matches(one.descriptors, other.descriptors)
    relative = other_pose.double() @ torch.linalg.inv(pose.double())
    seen, ray = one.rays[first], other.rays[second]
    turned, shift = seen @ relative[:3, :3].T, relative[:3, 3].expand_as(seen)
    # ray x (depth * turned + shift) = 0, solved in the least squares sense.
    across, along = torch.linalg.cross(ray, turned), torch.linalg.cross(ray, shift)
    depth = -(across * along).sum(1) / (across * across).sum(1).clamp_min(1e-18)
    point = depth[:, None] * turned + shift
    place, far = (vector[:, :2] / vector[:, 2:] for vector in (point, turned))
    off = other.focal * (place - ray[:, :2]).norm(dim=1)
    parallax = other.focal * (place - far).norm(dim=1)
    met = (depth > 0) & (point[:, 2] > 0) & (off < _OFF)
    measured = met & (parallax > _PARALLAX)
    beyond = other.focal * (far - ray[:, :2]).norm(dim=1) < _OFF
    distant = (turned[:, 2] > 0) & ~measured & (met | beyond)
    moved = shift[:, :2] - far * shift[:, 2:]
    bound = other.focal * moved.norm(dim=1) / turned[:, 2] / _PARALLAX
    return depth[measured], bound[distant]


def range_from_features(depths: Tensor, bounds: Tensor) -> tuple[float, float] | None:
    """A range from depths (N,) and bounds (M,) of what lies farther; None if depths are few.

    From the 2nd to the 98th percentile, padded.
    """
    if len(depths) < _LEAST:
        return None
    low, high = torch.tensor(_SHARES, dtype=depths.dtype)
    # A bound that is near says nothing: the camera moved towards that feature.
    farther = torch.cat([depths, bounds[bounds > depths.median()]])
    least, greatest = torch.quantile(depths, low), torch.quantile(farther, high)
    return least.item() / _PADDING, greatest.item() * _PADDING


def _matches(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Indices of descriptors that are each other's nearest, and clearly so."""
    if len(one) < 2 or len(other) < 2:
        nothing = torch.zeros(0, dtype=torch.long)
        return nothing, nothing
    a, b = (torch.nn.functional.normalize(part.float()) for part in (one, other))
    alike = a @ b.T
    best = alike.topk(2, dim=1)
    near, next_ = (2 - 2 * best.values).clamp_min(0).sqrt().T
    second = best.indices[:, 0]
    mutual = alike.argmax(dim=0)[second] == torch.arange(len(one))
    first = (mutual & (near < _RATIO * next_)).nonzero()[:, 0]
    return first, second[first]
