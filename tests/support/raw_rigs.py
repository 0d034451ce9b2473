"""Rigs of every lens model, and what they see of a plane, rendered by the lenses' own formulas."""

from __future__ import annotations

from functools import lru_cache

import cv2
import numpy as np

from vizoo.datasets.stereo.rigs import StereoRig
from vizoo.vision.lenses import Lens

HEIGHT, WIDTH = 240, 320
LENSES = {
    "plain": ("pinhole", 260.0, ()),
    "radtan": ("pinhole", 230.0, (-0.28, 0.07, 8e-4, -5e-4, 0.0)),
    "rational": ("pinhole", 230.0, (1.1, 0.3, 1e-4, -2e-4, 0.02, 1.4, 0.55, 0.06)),
    "fisheye": ("fisheye", 130.0, (-0.013, 0.021, -0.012, 0.003)),
    "mei": ("mei", 300.0, (1.2, -0.12, 0.03, 5e-4, -4e-4)),
    "ds": ("ds", 110.0, (-0.18, 0.59)),
    "eucm": ("eucm", 140.0, (0.6, 1.1)),
    "fov": ("fov", 170.0, (0.93,)),
}


def make_rig(name: str = "radtan", baseline: float = 0.1) -> StereoRig:
    """Two cameras of slightly different lenses, turned by some degrees."""
    model, focal, numbers = LENSES[name]
    size = {"width": WIDTH, "height": HEIGHT}
    left = Lens(model, (focal, focal * 0.995), (161.3, 118.2), numbers, **size)
    right = Lens(model, (focal * 1.01, focal), (157.6, 121.9), numbers, **size)
    rotation = cv2.Rodrigues(np.array([0.02, -0.035, 0.025]))[0]
    position = baseline * np.array([0.998, 0.03, -0.05])
    return StereoRig(
        left, right, rotation, -rotation @ position / np.linalg.norm(position) * baseline
    )


def rolled(rig: StereoRig, left: float, right: float) -> StereoRig:
    """The rig with cameras rolled about their axes by degrees, clockwise as they see it."""
    one, two = (cv2.Rodrigues(np.array([0, 0, -np.radians(roll)]))[0] for roll in (left, right))
    return StereoRig(rig.left, rig.right, two @ rig.rotation @ one.T, two @ rig.translation)


@lru_cache(maxsize=20)  # both lenses of each rig above, and some
def _rays(lens, height, width, fine):
    """Which way the pixels look, each in fine x fine places."""
    step = (np.arange(fine) + 0.5) / fine - 0.5
    rows, columns = (np.arange(n)[:, None] + step for n in (height, width))
    return lens.unproject(np.stack(np.meshgrid(columns.ravel(), rows.ravel()), -1))


class Board:
    """A plane before the left camera: origin, and the directions of its own x and y."""

    def __init__(self, origin=(-0.45, -0.33, 0.7), turn=(0.15, -0.2, 0.05)):
        self.origin, self.turn = np.array(origin), cv2.Rodrigues(np.array(turn))[0]

    def points(self, places):
        """Points (..., 3) before the left camera of places (..., 2) on the plane, metres."""
        return self.origin + np.asarray(places) @ self.turn[:, :2].T

    def seen(self, lens, pose=None, height=HEIGHT, width=WIDTH, fine=2):
        """Place on the plane (..., 2) and depth along the axis of each pixel, NaN beside it."""
        pose = np.eye(4) if pose is None else pose
        rays = _rays(lens, height, width, fine) @ pose[:3, :3]  # in the left camera's frame
        start = -pose[:3, :3].T @ pose[:3, 3]
        normal = self.turn[:, 2]
        along = ((self.origin - start) @ normal) / (rays @ normal)
        along = np.where(along > 0, along, np.nan)
        points = start + along[..., None] * rays
        depth = (points @ pose[:3, :3].T + pose[:3, 3])[..., 2]
        return (points - self.origin) @ self.turn[:, :2], depth

    def picture(self, lens, texture, pose=None, height=HEIGHT, width=WIDTH, fine=2):
        """What a lens sees, (H, W, 3) uint8; `texture` makes grey in [0, 1] of places."""
        with np.errstate(invalid="ignore"):
            places, _ = self.seen(lens, pose, height, width, fine)
            grey = np.nan_to_num(texture(places), nan=0.5)
        grey = grey.reshape(height, fine, width, fine).mean((1, 3))
        return np.repeat((grey * 255).round().astype(np.uint8)[..., None], 3, 2)

    def pair(self, rig, texture, **options):
        """The raw pair of a rig."""
        pose = np.eye(4)
        pose[:3, :3], pose[:3, 3] = rig.rotation, rig.translation
        size = {"height": rig.left.height, "width": rig.left.width, **options}
        left = self.picture(rig.left, texture, **size)
        return left, self.picture(rig.right, texture, pose, **size)


def chessboard(columns=9, rows=6, square=0.1):
    """Squares of a board that has a square's width of white around it."""

    def texture(places):
        x, y = places[..., 0] / square, places[..., 1] / square
        on = (x >= 0) & (x < columns) & (y >= 0) & (y < rows)
        dark = (np.floor(x) + np.floor(y)) % 2 == 0
        around = (x >= -1) & (x < columns + 1) & (y >= -1) & (y < rows + 1)
        return np.where(on & dark, 0.05, np.where(around, 0.95, 0.5))

    return texture


def lines(along=0, step=0.25, width=0.03):
    """Dark lines along the plane's own x (0) or y (1)."""

    def texture(places):
        across = places[..., 1 - along]
        off = (across / step - np.round(across / step)) * step
        return 1 - 0.9 * np.exp(-0.5 * (off / width) ** 2)

    return texture


def noise(seed=0, cell=0.02):
    """A picture of soft blobs, which keypoints are found in."""
    values = np.random.default_rng(seed).random((256, 256)).astype(np.float32)
    values = cv2.normalize(cv2.GaussianBlur(values, (0, 0), 1.0), None, 0, 1, cv2.NORM_MINMAX)

    def texture(places):
        at = np.nan_to_num(places / cell + 128).astype(np.float32)
        return cv2.remap(values, at, None, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT)

    return texture


def two_planes(rig, seed=0):
    """A raw pair with things at two depths."""
    far, near = (
        Board((0, 0, 1.0 + 0.2 * seed), (0.3, -0.4, 0)),
        Board((0.1, 0, 0.7), (-0.2, 0.5, 0.1)),
    )
    sides = zip(far.pair(rig, noise(seed)), near.pair(rig, noise(seed + 9, 0.015)), strict=True)
    nearer = (np.arange(WIDTH) >= 150)[:, None]
    left, right = (np.where(nearer, close, away) for away, close in sides)
    return left, right
