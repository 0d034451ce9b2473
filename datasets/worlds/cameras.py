"""What cameras see of a world: colour, depth and normals by pixel, smooth at edges."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .world import Hits, World, column

__all__ = ["Panorama", "Pinhole", "View", "coarse_hits", "frame", "grid", "render"]

_JUMP = 0.03  # relative step of depth that counts as an edge
_FOLD = 0.7  # cosine between normals below which an edge is seen
_FINE = 0.33  # pixels from the centre of one on an edge to its two further rays
_REACH = 0.6  # metres within which things take ambient light
_COARSE = 6  # pixels between those at which what covers a surface is looked for


@dataclass(frozen=True)
class Pinhole:
    """A camera without distortion."""

    eye: np.ndarray  #: (3,), where it stands
    axes: np.ndarray  #: (3, 3), of `frame`: right, down and ahead
    height: int  #: pixels
    width: int  #: pixels
    intrinsics: np.ndarray  #: (3, 3), pixels, without skew; whole numbers are centres of pixels

    @classmethod
    def centred(
        cls, eye: np.ndarray, axes: np.ndarray, height: int, width: int, focal: float
    ) -> Pinhole:
        """A camera with square pixels, the principal point in the middle."""
        middle = (width - 1) / 2, (height - 1) / 2
        matrix = np.array([[focal, 0, middle[0]], [0, focal, middle[1]], [0, 0, 1.0]])
        return cls(eye, axes, height, width, matrix)

    @property
    def pixel(self) -> float:
        """Angle between neighbouring rays, radians."""
        return 1 / float(self.intrinsics[0, 0])

    @property
    def extrinsics(self) -> np.ndarray:
        """(4, 4), world to camera."""
        matrix = np.eye(4)
        matrix[:3, :3], matrix[:3, 3] = self.axes, -self.axes @ self.eye
        return matrix

    def rays(self, x: Tensor, y: Tensor) -> Tensor:
        """Unit directions (3, N) of pixel coordinates (N,)."""
        k = self.intrinsics
        right, down, ahead = torch.from_numpy(np.float32(self.axes))[..., None]
        across, below = (x - k[0, 2]) / k[0, 0], (y - k[1, 2]) / k[1, 1]
        return (across * right + below * down + ahead) * self._shrunk(across, below)

    def ahead(self) -> Tensor:
        """Depth over distance along the ray of each pixel, (H, W)."""
        k = self.intrinsics
        x = (torch.arange(self.width) - k[0, 2]) / k[0, 0]
        y = (torch.arange(self.height) - k[1, 2]) / k[1, 1]
        return self._shrunk(x, y[:, None]).float()

    def _shrunk(self, across: Tensor, below: Tensor) -> Tensor:
        return (1 + across**2 + below**2).rsqrt()


@dataclass(frozen=True)
class Panorama:
    """A camera that sees all round, equirectangular."""

    eye: np.ndarray  #: (3,), where it stands
    turn: float  #: about the vertical, radians, of the middle of the picture from the world's z
    height: int  #: pixels; it is twice as wide

    @property
    def width(self) -> int:
        """Pixels."""
        return 2 * self.height

    @property
    def axes(self) -> np.ndarray:
        """(3, 3): right, down and ahead of the middle of the picture."""
        cos, sin = math.cos(self.turn), math.sin(self.turn)
        return np.array([[-cos, 0, -sin], [0, -1, 0], [-sin, 0, cos]])

    @property
    def pixel(self) -> float:
        """Angle between neighbouring rays, radians."""
        return math.pi / self.height

    def rays(self, x: Tensor, y: Tensor) -> Tensor:
        """Unit directions (3, N) of pixel coordinates (N,)."""
        across = (x + 0.5 - self.height) * self.pixel + self.turn
        down = (y + 0.5) * self.pixel
        level = down.sin()
        return torch.stack([-level * across.sin(), down.cos(), level * across.cos()])


_Camera = Pinhole | Panorama


@dataclass(frozen=True)
class View:
    """A picture of a world with what is known of each pixel's centre."""

    colour: Tensor  #: (3, H, W) float32, linear radiance
    distance: Tensor  #: (H, W) float32, along the ray, infinite for the sky
    normal: Tensor  #: (3, H, W) float32, in the world's frame, towards the camera
    instance: Tensor  #: (H, W) int64, 0 for the sky


def frame(gaze: np.ndarray, roll: float = 0.0) -> np.ndarray:
    """Axes of a camera, (3, 3): right, down and ahead in the world's frame, whose y points up.

    Args:
        gaze: (3,), where it looks, not straight up or down.
        roll: about the gaze, radians.
    """
    ahead = gaze / np.linalg.norm(gaze)
    right = np.cross(ahead, (0.0, 1.0, 0.0))
    right = right / np.linalg.norm(right)
    down = np.cross(ahead, right)
    cos, sin = np.cos(roll), np.sin(roll)
    return np.stack([cos * right + sin * down, cos * down - sin * right, ahead])


def grid(height: int, width: int) -> tuple[Tensor, Tensor]:
    """Coordinates x and y, (H * W,) each, of all pixels."""
    y, x = torch.meshgrid(torch.arange(float(height)), torch.arange(float(width)), indexing="ij")
    return x.flatten(), y.flatten()


def coarse_hits(world: World, camera: _Camera) -> Hits:
    """What a coarse grid of a camera's rays hits."""
    steps = (torch.arange(24) + 0.5) / 24
    y, x = torch.meshgrid(steps * camera.height, steps * camera.width, indexing="ij")
    return world.cast(column(camera.eye), camera.rays(x.flatten(), y.flatten()))


def render(world: World, camera: _Camera) -> View:
    """Take a picture."""
    shape = (camera.height, camera.width)
    x, y = grid(*shape)
    origin, rays = column(camera.eye), camera.rays(x, y)
    hits = world.cast(origin, rays)
    openness = _openness(world, origin, rays, hits, shape)
    colours = world.colours(origin, rays, camera.pixel, hits, openness)
    distance, instance = hits.distance.view(shape), hits.instance.view(shape)
    normal = hits.normal.view(3, *shape)
    edges = _edges(distance, normal, instance).flatten().nonzero()[:, 0]
    if len(edges):
        # The two diagonals take turns, so that no direction of edges is worse than others.
        lean = 1 - 2 * ((x[edges] + y[edges]) % 2)
        side = torch.tensor([-_FINE, _FINE])[:, None]
        fine_x, fine_y = (x[edges] + side).flatten(), (y[edges] + side * lean).flatten()
        fine_rays, opened = camera.rays(fine_x, fine_y), openness[edges].repeat(2)
        fine = world.colours(origin, fine_rays, camera.pixel, openness=opened)
        # A highlight would outshine all else in the mean.
        samples = torch.cat([colours[:, None, edges], fine.view(3, 2, -1)], dim=1)
        colours[:, edges] = samples.clamp_max(1.5).mean(dim=1)
    return View(colours.view(3, *shape), distance, normal, instance)


def _openness(
    world: World, origin: Tensor, rays: Tensor, hits: Hits, shape: tuple[int, int]
) -> Tensor:
    """`World.openness` of all pixels, (N,), from those on a coarse grid that are like each."""
    height, width = shape
    middle = _COARSE // 2
    at = torch.arange(height * width).view(shape)[middle::_COARSE, middle::_COARSE]
    rows, columns = at.shape
    at = at.flatten()
    normal, distance = hits.normal[:, at], hits.distance[at]
    seen = distance.isfinite()
    openness = torch.ones(len(at))
    points = origin + rays[:, at[seen]] * distance[seen]
    openness[seen] = world.openness(points, normal[:, seen], _REACH)
    # Inverse distance, openness and normal side by side.
    table = torch.cat([1 / distance[None], openness[None], normal])
    near = 1 / hits.distance
    lows, shares = [], []
    for size, count in zip(shape, (rows, columns), strict=True):
        place = ((torch.arange(size) - middle) / _COARSE).clamp(0, count - 1)
        lows.append(place.long())
        shares.append(place - place.floor())
    total, weights = torch.zeros(len(near)), torch.zeros(len(near))
    for down in (0, 1):
        row = (lows[0] + down).clamp_max(rows - 1) * columns
        share_down = shares[0] if down else 1 - shares[0]
        for right in (0, 1):
            column = (lows[1] + right).clamp_max(columns - 1)
            share = shares[1] if right else 1 - shares[1]
            other = table.index_select(1, (row[:, None] + column).flatten())
            step = (near - other[0]) / (0.05 * near).clamp_min(1e-6)
            like = (other[2:] * hits.normal).sum(dim=0).clamp_min(0) ** 4 / (1 + step * step)
            weight = (share_down[:, None] * share).flatten() * (like + 1e-4)
            total += weight * other[1]
            weights += weight
    return total / weights.clamp_min(1e-12)


def _edges(distance: Tensor, normal: Tensor, instance: Tensor) -> Tensor:
    """Pixels that differ from a neighbour, (H, W) bool."""
    near = 1 / distance  # 0 for the sky
    marked = torch.zeros_like(distance, dtype=torch.bool)
    for axis in (0, 1):
        size = distance.shape[axis] - 1
        one, other = near.narrow(axis, 0, size), near.narrow(axis, 1, size)
        step = (one - other).abs() > _JUMP * torch.maximum(one, other)
        step |= instance.narrow(axis, 0, size) != instance.narrow(axis, 1, size)
        beside = normal.narrow(axis + 1, 0, size) * normal.narrow(axis + 1, 1, size)
        step |= beside.sum(dim=0) < _FOLD
        marked.narrow(axis, 0, size).logical_or_(step)
        marked.narrow(axis, 1, size).logical_or_(step)
    return marked
