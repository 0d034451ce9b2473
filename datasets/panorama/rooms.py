"""Furnished rooms with exact depth around a camera: a box, boxes on its floor, a sphere.

Made to be learnt from: the camera always stands 1.5 m above the floor, and floor, walls and things
have tiles of half a metre, so that one picture tells distances. Light comes from one direction; a
light at the camera would tell depth by brightness, as renders of 3D60 do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from ..draws import Draws

__all__ = ["CAMERA_HEIGHT", "ROOMS_VERSION", "Room", "furnished_room", "pixel_rays"]

#: Changes with every change of what a seed gives, so that caches know.
ROOMS_VERSION = 1

CAMERA_HEIGHT = 1.5
_CLEAR = 0.35  # nothing stands nearer to the camera's axis
_TILE, _GRAIN = 0.5, 0.125
_STRIDES = np.array([0x8DA6B343, 0xD8163841, 0xCB1AB31F], np.uint32)


@dataclass(frozen=True)
class Room:
    """A room in metres, x right, y up, z forward, the camera in the origin.

    Attributes:
        walls: (2, 3), the room's lowest and highest corner.
        boxes: (B, 2, 3), those of the boxes in it.
        centre: of the sphere, (3,).
        radius: of the sphere; 0 for none.
        palette: (8 + 6 B, 3) in [0, 1], the colour of each surface: six sides of the room, six of
            each box, the sphere; only `colours` and `panorama` need it.
        light: (3,), unit vector towards the light.
        seed: of the surfaces' grain.
    """

    walls: np.ndarray
    boxes: np.ndarray = field(default_factory=lambda: np.zeros((0, 2, 3)))
    centre: np.ndarray = field(default_factory=lambda: np.zeros(3))
    radius: float = 0.0
    palette: np.ndarray | None = None
    light: np.ndarray = field(default_factory=lambda: np.array([0.0, 1.0, 0.0]))
    seed: int = 0

    def cast(self, rays: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where rays from the camera end.

        Args:
            rays: (M, 3) unit vectors, float64.

        Returns:
            Depth along each ray, (M,) float64, and the number of the surface, (M,) int64, in the
            palette's order.
        """
        rays = np.where(rays == 0, 1e-300, rays)
        inverse = 1 / rays
        leave = np.where(rays > 0, self.walls[1], self.walls[0]) * inverse
        depth, surface = _side(leave, np.argmin(leave, axis=1), rays > 0)
        for number, (low, high) in enumerate(self.boxes, start=1):
            one, other = low * inverse, high * inverse
            first, last = np.minimum(one, other), np.maximum(one, other).min(axis=1)
            enter, side = _side(first, np.argmax(first, axis=1), rays < 0)
            hit = (enter <= last) & (enter > 0) & (enter < depth)
            depth, surface = np.where(hit, enter, depth), np.where(hit, 6 * number + side, surface)
        if self.radius > 0:
            along = rays @ self.centre
            inside = along**2 - (self.centre @ self.centre - self.radius**2)
            enter = along - np.sqrt(np.maximum(inside, 0))
            hit = (inside > 0) & (enter > 0) & (enter < depth)
            depth = np.where(hit, enter, depth)
            surface = np.where(hit, 6 * len(self.boxes) + 6, surface)
        return depth, surface

    def colours(self, rays: np.ndarray) -> np.ndarray:
        """Colours that rays (M, 3) see: (M, 3) float32 in [0, 1]."""
        depth, surface = self.cast(rays)
        points = rays * depth[:, None]
        ball = surface == 6 * len(self.boxes) + 6
        sides = np.arange(3) == (surface % 6 // 2)[:, None]
        # From a room's own side one looks along its outward normal, at a thing's against it.
        outward = np.where(surface < 6, -1.0, 1.0) * np.where(surface % 2, 1.0, -1.0)
        normals = np.where(sides, outward[:, None], 0.0)
        if self.radius > 0:
            normals[ball] = (points[ball] - self.centre) / self.radius
        shade = 0.6 + 0.4 * np.maximum(normals @ self.light, 0)
        # On a flat side the coordinate across it is constant but for rounding: leave it out.
        places = np.where(sides & ~ball[:, None], 0.0, points - self.walls[0])
        tiles = np.floor(places / _TILE).astype(np.int64).sum(axis=1) % 2
        grain = _noise(np.floor(places / _GRAIN).astype(np.int64), surface + 64 * self.seed)
        tone = shade * (0.75 + 0.25 * tiles) * (0.75 + 0.25 * grain)
        return (self.palette[surface] * tone[:, None]).astype(np.float32)

    def panorama(self, height: int, width: int, supersample: int = 2) -> tuple:
        """Render.

        Args:
            height: of the picture.
            width: of the picture.
            supersample: rays along each side of a pixel whose colours are averaged. Depth is
                always that of the ray through the pixel's centre.

        Returns:
            Picture (H, W, 3) uint8 and depth (H, W) float32.
        """
        depth = self.cast(pixel_rays(height, width).reshape(-1, 3))[0]
        fine = pixel_rays(height * supersample, width * supersample).reshape(-1, 3)
        colours = self.colours(fine).reshape(height, supersample, width, supersample, 3)
        picture = np.rint(colours.mean(axis=(1, 3)) * 255).astype(np.uint8)
        return picture, depth.reshape(height, width).astype(np.float32)


def pixel_rays(height: int, width: int) -> np.ndarray:
    """Where the pixels of an equirectangular picture look: (H, W, 3) float64 unit vectors.

    The middle looks along z, columns go to the right, and the top row looks up.
    """
    longitude = ((np.arange(width) + 0.5) / width - 0.5) * 2 * math.pi
    latitude = (0.5 - (np.arange(height) + 0.5) / height) * math.pi
    level = np.cos(latitude)[:, None]
    up = np.broadcast_to(np.sin(latitude)[:, None], (height, width))
    return np.stack([level * np.sin(longitude), up, level * np.cos(longitude)], axis=-1)


def furnished_room(seed: int) -> Room:
    """Draw a room: 4 to 8 m by 4 to 9 m, 2.4 to 3.2 m high, three to six boxes and a sphere."""
    draws = Draws("room", seed)
    half = np.array([draws.uniform(2, 4), draws.uniform(1.2, 1.6), draws.uniform(2, 4.5)])
    stand = np.array([draws.uniform(-0.4, 0.4) * half[0], 0, draws.uniform(-0.4, 0.4) * half[2]])
    stand[1] = CAMERA_HEIGHT - half[1]
    walls = np.stack([-half - stand, half - stand])
    boxes = [_box(draws, walls) for _ in range(int(draws.uniform(3, 7)))]
    boxes = np.array([box for box in boxes if box is not None]).reshape(-1, 2, 3)
    radius = draws.uniform(0.15, 0.4)
    centre = _place(draws, walls, np.full(3, radius), radius + _CLEAR)
    sides = 6 * len(boxes) + 7
    turn, rise = draws.uniform(0, 2 * math.pi), draws.uniform(0.7, 1.2)
    light = [math.cos(rise) * math.sin(turn), math.sin(rise), math.cos(rise) * math.cos(turn)]
    return Room(
        walls,
        boxes,
        np.zeros(3) if centre is None else centre,
        0.0 if centre is None else radius,
        np.array([[draws.uniform(0.35, 1.0) for _ in range(3)] for _ in range(sides)]),
        np.array(light),
        draws.bits() & 0xFFFFFF,
    )


def _box(draws: Draws, walls: np.ndarray) -> np.ndarray | None:
    size = np.array([draws.uniform(0.3, 1.2), draws.uniform(0.3, 1.8), draws.uniform(0.3, 1.2)])
    half = size / 2
    centre = _place(draws, walls, half, math.hypot(half[0], half[2]) + _CLEAR)
    if centre is None:
        return None
    centre[1] = walls[0, 1] + half[1]
    return np.stack([centre - half, centre + half])


def _place(draws: Draws, walls: np.ndarray, half: np.ndarray, clear: float) -> np.ndarray | None:
    """Draw a place in the room, so far from the camera's axis; None if some tries find none."""
    for _ in range(20):
        low, high = walls[0] + half, walls[1] - half
        centre = np.array([draws.uniform(a, b) for a, b in zip(low, high, strict=True)])
        if math.hypot(centre[0], centre[2]) >= clear:
            return centre
    return None


def _side(bounds: np.ndarray, axis: np.ndarray, upper: np.ndarray) -> tuple:
    """The bound on each ray's axis, and which side that is: twice the axis, and 1 if upper."""
    rows = np.arange(len(axis))
    return bounds[rows, axis], 2 * axis + upper[rows, axis]


def _noise(cells: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """One number in [0, 1) for each cell (M, 3) and key (M,)."""
    mixed = keys.astype(np.uint32) * np.uint32(0x9E3779B9)
    mixed += (cells.astype(np.uint32) * _STRIDES).sum(axis=1, dtype=np.uint32)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        mixed ^= mixed >> np.uint32(shift)
        mixed *= np.uint32(factor)
    return (mixed >> np.uint32(8)) / 2.0**24
