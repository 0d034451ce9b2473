"""Generated CT of a chest: body, lungs, vessels, bones and, if wanted, lesions, of known place.

A data set of such scans is made on the fly: nothing to download.

Shapes are ellipsoids and tubes in millimetres about the middle of the chest, x to the patient's
left, y to the back, z to the head, so that one chest can be scanned at any resolution. A lesion
changes nothing but the voxels in its mask.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor

from ..cache import MadeDataset, SampleCache
from ..draws import Draws
from ..files import check_choice
from .preparation import CTPreset, frames_of, take
from .volume import CTVolume

__all__ = ["Chest", "GeneratedCT"]

#: Counted up when the same seed gives another chest.
_VERSION = 1

#: What a chest can have: ``covid`` ground-glass opacities, small, near the pleura, in both lungs;
#: ``pneumonia`` a dense consolidation in one lung.
_FINDINGS = ("normal", "covid", "pneumonia")

_EXTENT = (300.0, 360.0, 360.0)  # of a scan, mm: slices, rows, columns
_SLAB = 16  # slices at a time, which bounds the memory
_AIR, _LUNG, _FAT, _TISSUE, _BONE = -1000.0, -860.0, -90.0, 40.0, 350.0
_NOISE = 20.0  # standard deviation, Hounsfield units


_Grid = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Coordinates z (D, 1, 1), y (H, 1) and x (W,)."""


class _Ellipsoid(NamedTuple):
    centre: tuple[float, float, float]  # x, y, z
    radii: tuple[float, float, float]


class _Vessel(NamedTuple):
    start: tuple[float, float, float]
    end: tuple[float, float, float]
    radius: float  # at the start; half of it at the end


class _Lesion(NamedTuple):
    shape: _Ellipsoid
    opacity: float  # share of tissue that replaces air
    waves: tuple[float, ...]  # phases of the uneven edge


class Chest:
    """A chest that depends on its seed alone.

    Args:
        seed: number of the chest.
        finding: one of ``_FINDINGS``. The same seed gives the same chest around the lesions.

    Raises:
        ValueError: an unknown finding.
    """

    def __init__(self, seed: int, finding: str = "normal") -> None:
        check_choice("finding", finding, _FINDINGS)
        self.seed, self.finding = seed, finding
        body = Draws("chest", seed)
        size = body.uniform(0.9, 1.08)
        self.body = (165 * size, 118 * size)
        self.lungs = [
            _Ellipsoid(
                (side * 74 * size, body.uniform(-12, 0), body.uniform(-18, -2)),
                (50 * size * body.uniform(0.92, 1.05), 78 * size, 122 * body.uniform(0.92, 1.05)),
            )
            for side in (-1, 1)
        ]
        self.heart = _Ellipsoid(
            (18 * size, -28 * size, body.uniform(-60, -40)), (52 * size, 42 * size, 55 * size)
        )
        self.ribs = body.uniform(0, 2 * math.pi)
        self.vessels = []
        for number in range(24):
            hilum = (-24.0 if number < 12 else 24.0, 0.0, body.uniform(-20, 20))
            end = _place_in(self.lungs[number // 12], body, 0.5, 0.95)
            self.vessels.append(_Vessel(hilum, end, body.uniform(3, 6)))
        self.lesions = self._lesions(Draws("lesions", seed, finding))

    def scan(self, shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Scan the chest.

        Args:
            shape: slices, rows and columns of the scan, which always covers 300 x 360 x 360 mm.

        Returns:
            (D, H, W) int16 Hounsfield units, slices from the feet to the head, rows to the back,
            columns to the left; (D, H, W) bool, the lesions; (4, 4) affine, RAS+.

        Raises:
            ValueError: a side below 1.
        """
        if len(shape) != 3 or min(shape) < 1:
            raise ValueError(f"a scan of shape {tuple(shape)}: wants slices, rows, columns")
        steps = [extent / side for extent, side in zip(_EXTENT, shape, strict=True)]
        axes = [
            (np.arange(side) + 0.5) * step - extent / 2
            for side, step, extent in zip(shape, steps, _EXTENT, strict=True)
        ]
        values, mask = np.empty(shape, np.int16), np.empty(shape, bool)
        for start in range(0, shape[0], _SLAB):
            part = slice(start, min(start + _SLAB, shape[0]))
            z = axes[0][part, None, None]
            slab, mask[part] = self._slab((z, axes[1][:, None], axes[2]))
            for place in range(part.start, part.stop):
                seed = Draws("noise", self.seed, place).bits() >> 32
                noise = np.random.RandomState(seed).standard_normal(shape[1:])
                slab[place - start] += _NOISE * noise
            values[part] = np.rint(slab).clip(-1024, 3071)
        affine = np.diag([-steps[2], -steps[1], steps[0], 1.0])
        affine[:3, 3] = -axes[2][0], -axes[1][0], axes[0][0]
        return values, mask, affine

    def _slab(self, grid: _Grid) -> tuple[np.ndarray, np.ndarray]:
        """Units and lesions at places of a grid, (D, H, W)."""
        (z, y, x), (a, b) = grid, self.body
        flat = np.ones_like(z, np.float32)
        trunk = (x / a) ** 2 + (y / b) ** 2 < 1
        muscle = (x / (a - 14)) ** 2 + (y / (b - 14)) ** 2 < 1
        values = flat * np.where(muscle, _TISSUE, np.where(trunk, _FAT, _AIR)).astype(np.float32)
        cage = (x / (a - 18)) ** 2 + (y / (b - 18)) ** 2
        stripes = np.sin(2 * math.pi * (z + 0.5 * np.abs(x)) / 32 + self.ribs) > 0.35
        values[stripes & ((cage < 1) & (cage > 0.86))] = _BONE
        values[(flat > 0) & (x**2 + (y - 0.62 * b) ** 2 < 17**2)] = _BONE
        lung = (_inside(self.lungs[0], grid) < 1) | (_inside(self.lungs[1], grid) < 1)
        lung &= (_inside(self.heart, grid) >= 1) & (np.abs(x) > 16)
        values[lung] = (_LUNG + 0.4 * y + 0 * z + 0 * x)[lung]  # denser where the patient lies
        values[(z > 5) & (x**2 + (y + 5) ** 2 < 8**2)] = _AIR
        for vessel in self.vessels:
            _draw_vessel(values, lung, vessel, grid)
        mask = np.zeros(values.shape, bool)
        for lesion in self.lesions:
            _draw_lesion(values, mask, lung, lesion, grid)
        return values, mask

    def _lesions(self, draws: Draws) -> list[_Lesion]:
        if self.finding == "normal":
            return []
        if self.finding == "covid":
            lungs = [self.lungs[number % 2] for number in range(4 + int(draws.uniform(0, 5)))]
            return [_lesion(lung, draws, (0.7, 0.9), (12, 26), (0.35, 0.55)) for lung in lungs]
        lung = self.lungs[int(draws.uniform(0, 2))]
        count = 1 + int(draws.uniform(0, 2))
        return [_lesion(lung, draws, (0.3, 0.6), (26, 40), (0.9, 1)) for _ in range(count)]


def _place_in(lung: _Ellipsoid, draws: Draws, near: float, far: float) -> tuple:
    """A place between two shares of an ellipsoid's radii, away from the heart's side."""
    turn = math.copysign(draws.uniform(-1.2, 1.2), draws.uniform(-1, 1))
    rise = draws.uniform(-0.7, 0.7)
    share = draws.uniform(near, far)
    outwards = math.copysign(1.0, lung.centre[0])
    level = math.sqrt(1 - rise * rise)
    direction = (outwards * math.cos(turn) * level, math.sin(turn) * level, rise)
    return tuple(
        c + share * r * d for c, r, d in zip(lung.centre, lung.radii, direction, strict=True)
    )


def _lesion(
    lung: _Ellipsoid,
    draws: Draws,
    place: tuple[float, float],
    radii: tuple[float, float],
    opacities: tuple[float, float],
) -> _Lesion:
    """A lesion between limits of its place (see `_place_in`), of its radius and its opacity."""
    centre = _place_in(lung, draws, *place)
    radius, opacity = draws.uniform(*radii), draws.uniform(*opacities)
    x, y, z = (radius * draws.uniform(0.75, 1.25) for _ in range(3))
    waves = tuple(draws.uniform(0, 2 * math.pi) for _ in range(3))
    return _Lesion(_Ellipsoid(centre, (x, y, z)), opacity, waves)


def _inside(shape: _Ellipsoid, grid: _Grid) -> np.ndarray:
    """Below 1 inside of an ellipsoid."""
    (z, y, x), (cx, cy, cz), (rx, ry, rz) = grid, *shape
    return ((x - cx) / rx) ** 2 + ((y - cy) / ry) ** 2 + ((z - cz) / rz) ** 2


def _box(low: np.ndarray, high: np.ndarray, grid: _Grid) -> tuple[tuple[slice, ...], _Grid]:
    """The part of the grid between two corners, which may be empty, and its coordinates."""
    z, y, x = (
        slice(*np.searchsorted(axis.ravel(), ends))
        for axis, *ends in zip(grid, low[::-1], high[::-1], strict=True)
    )
    return (z, y, x), (grid[0][z], grid[1][y], grid[2][x])


def _draw_vessel(values: np.ndarray, lung: np.ndarray, vessel: _Vessel, grid: _Grid) -> None:
    start, end = np.array(vessel.start), np.array(vessel.end)
    low, high = np.minimum(start, end) - vessel.radius, np.maximum(start, end) + vessel.radius
    part, (pz, py, px) = _box(low, high, grid)
    along = end - start
    length = float(along @ along)
    dx, dy, dz = px - start[0], py - start[1], pz - start[2]
    share = ((dx * along[0] + dy * along[1] + dz * along[2]) / length).clip(0, 1)
    distance = sum((d - share * a) ** 2 for d, a in zip((dx, dy, dz), along, strict=True))
    inside = distance < (vessel.radius * (1 - 0.5 * share)) ** 2
    values[part][inside & lung[part]] = _TISSUE


def _draw_lesion(
    values: np.ndarray, mask: np.ndarray, lung: np.ndarray, lesion: _Lesion, grid: _Grid
) -> None:
    centre, reach = np.array(lesion.shape.centre), 1.2 * np.array(lesion.shape.radii)
    part, places = _box(centre - reach, centre + reach, grid)
    phases = zip(places[::-1], lesion.waves, strict=True)
    waves = sum(np.sin(axis / 7 + phase) for axis, phase in phases)
    uneven = _inside(lesion.shape, places) + 0.12 * waves
    inside = (uneven < 1) & lung[part] & (values[part] < _TISSUE - 1)
    share = lesion.opacity * (1.15 - 0.3 * uneven.clip(0, 1)).clip(0, 1)
    old = values[part]
    values[part] = np.where(inside, old + share * (_TISSUE - old), old)
    mask[part] |= inside


#: Names of the classes, by their number, as in the published sets.
_CLASSES = {2: ("Normal", "NCP"), 3: ("CP", "NCP", "Normal")}

#: What the chest of a class has.
_FINDING_OF = {"Normal": "normal", "NCP": "covid", "CP": "pneumonia"}


class GeneratedCT(MadeDataset):
    """Map-style data set; scan i depends on ``seed`` and i alone, in any order and any worker.

    The classes take turns. A different seed gives different patients, so training, validation and
    test sets of one seed each never meet. Samples are those of ``vizoo.datasets.ct.dataset`` and
    ``lesion``, (1, D, H, W) bool: where the lesions are.

    Args:
        length: number of scans, of one patient each.
        classes: 2: ``Normal`` and ``NCP`` (ground-glass opacities); 3: ``CP`` (a consolidation),
            ``NCP`` and ``Normal``.
        preset: how the scans are prepared.
        depth: slices of a scan, from which the preset's are taken.
        seed: names the series of scans.
        paired: each patient is scanned once with every class, so that nothing but lesions tells the
            classes apart; else each scan has a patient of its own.
        cache: folder that keeps the prepared scans, so that later epochs read what the first one
            made. None: every scan is made anew.

    Raises:
        ValueError: a number is out of its range.
    """

    has_truth = True

    def __init__(
        self,
        length: int,
        classes: int = 2,
        preset: CTPreset = CTPreset((64, 64), 16),  # noqa: B008 (it is frozen)
        depth: int = 24,
        seed: int = 0,
        paired: bool = False,
        cache: str | None = None,
    ) -> None:
        if classes not in _CLASSES:
            raise ValueError(f"generated scans of {classes} classes: choose 2 or 3")
        if length < 1 or depth < 2:
            raise ValueError(
                f"generated scans: length {length} and depth {depth} must be at least 1 and 2"
            )
        self.length, self.depth, self.seed, self.preset = length, depth, seed, preset
        self.classes, self.paired = _CLASSES[classes], paired
        self.what = ", ".join(self.classes)
        kind = f"{seed}-{classes}-{depth}" + ("-paired" if paired else "")
        name = f"chests{_VERSION}-{kind}-{preset}".replace(" ", "")
        self.cache = SampleCache(cache, name, [])

    @property
    def labels(self) -> list[int]:
        """The class of every scan."""
        return [index % len(self.classes) for index in range(self.length)]

    @property
    def groups(self) -> list[str]:
        """The patient of every scan."""
        return [self._patient(index) for index in range(self.length)]

    def __getitem__(self, index: int) -> dict[str, Tensor | str]:
        """Scan ``index``, with the slices of the preset's sampler.

        Raises:
            IndexError: beyond the ends, so that the data set can be iterated.
        """
        return self.draw(index, None)

    def chest(self, index: int) -> Chest:
        """The chest of a scan, to scan it at another resolution."""
        kind = self.classes[index % len(self.classes)]
        number = index // len(self.classes) if self.paired else index
        return Chest(Draws("item", self.seed, number).bits(), _FINDING_OF[kind])

    def draw(self, index: int, generator: Generator | None) -> dict[str, Tensor | str]:
        """The same with random slices; without a generator those of the preset's sampler."""
        index = self._number(index)
        made = self.cache.recall(index, self._make)
        scan = take(made, self.preset, generator)
        lesion = made["lesion"][scan["slices"]][None]
        whose = {"name": self.name(index), "patient": self._patient(index)}
        return {**scan, "label": torch.tensor(index % len(self.classes)), "lesion": lesion, **whose}

    def _make(self, index: int) -> dict[str, Tensor]:
        height, width = (max(1, round(self.preset.margin * side)) for side in self.preset.size)
        values, mask, affine = self.chest(index).scan((self.depth, height, width))
        source = self.name(index)
        frames = frames_of(CTVolume(values, affine, source=source), self.preset)
        lesion = frames_of(CTVolume(mask, affine, source=source), self.preset, window=False)
        return {**frames, "lesion": lesion["frames"].int() > 32767}

    def _patient(self, index: int) -> str:
        return self.name(index // len(self.classes) * len(self.classes) if self.paired else index)
