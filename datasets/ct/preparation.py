"""From a scan to what a network sees, and back to the scan's own space.

A scan is turned to axial slices, columns to the patient's left, rows to the back, slices from the
feet to the head; its values are windowed to [0, 1], its slices resized and cropped, and some of
them taken: a sampler chooses a wanted number of the slices available, (wanted,) int64 in ascending
order, and raises a ``ValueError`` where one of the two is below 1. A prepared scan is a dictionary:

==========  ================================================================================
``volume``  (1, D, H, W) float32 in [0, 1]
``slices``  (D,) int64: which of the prepared slices were taken
``affine``  (4, 4) float64: the scan's own, from (column, row, slice) to mm, RAS+
``shape``   (3,) int64: slices, rows, columns of the scan
``grid``    (3, 2) float64: factor and offset, by axis, from the turned scan to prepared pixels
==========  ================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from ..files import check_choice
from .volume import CTVolume, axis_codes, reorient

__all__ = [
    "SAMPLERS",
    "CTPreset",
    "frames_of",
    "prepare",
    "published_slices",
    "random_slices",
    "take",
    "to_scan",
    "to_slices",
    "uniform_slices",
]

_CHUNK = 16  # slices at a time, which bounds the memory
_STEPS = 65535  # prepared values are kept in 16 bits


@dataclass(frozen=True)
class CTPreset:
    """How scans are prepared; a trained network works with the one it was trained with.

    Attributes:
        size: (height, width) of the slices, pixels.
        slices: how many are taken.
        sampler: which in evaluation, a name of ``SAMPLERS``.
        margin: slices are resized to this many times `size`, and their middle is cut out.
        level: middle of the window, Hounsfield units.
        width: of the window.
        spacing: (slices, rows, columns) in mm to resample to, instead of the resizing; `size` is
            then cut out of the middle, or padded with air.
    """

    size: tuple[int, int] = (128, 128)
    slices: int = 32
    sampler: str = "uniform"
    margin: float = 1.25
    level: float = -600.0
    width: float = 1500.0
    spacing: tuple[float, float, float] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", tuple(self.size))
        if self.spacing is not None:
            object.__setattr__(self, "spacing", tuple(self.spacing))
            if len(self.spacing) != 3 or not all(0 < size < math.inf for size in self.spacing):
                raise ValueError(f"spacing {self.spacing}: wants three positive numbers, mm")
        check_choice("sampler", self.sampler, tuple(SAMPLERS))
        counts = (*self.size, self.slices)
        if len(counts) != 3 or not all(isinstance(n, Integral) and n >= 1 for n in counts):
            raise ValueError(
                f"size {self.size} and slices {self.slices}: want (height, width) and a number, "
                "whole ones of at least 1"
            )
        if not (1 <= self.margin < math.inf and 0 < self.width < math.inf):
            raise ValueError(
                f"margin {self.margin} and width {self.width}: must be at least 1 and positive"
            )
        if not math.isfinite(self.level):
            raise ValueError(f"level {self.level}: wants a number, Hounsfield units")


def prepare(volume: CTVolume, preset: CTPreset, generator: Generator | None = None) -> dict:
    """Prepare a scan for a network, as described above.

    Args:
        volume: the scan.
        preset: how it is prepared.
        generator: of random slices, as in training; None takes those of the preset's sampler.

    Raises:
        ValueError: the scan is empty, or has no known spacing and the preset asks for one.
    """
    if preset.spacing is not None:
        return take(frames_of(volume, preset), preset, generator)
    slices = _choose(len(volume.oriented()[0]), preset, generator)
    return _sample(frames_of(volume, preset, only=slices), slices)


def frames_of(
    volume: CTVolume, preset: CTPreset, window: bool = True, only: Tensor | None = None
) -> dict[str, Tensor]:
    """Prepare the slices of a scan.

    Args:
        volume: the scan.
        preset: how it is prepared.
        window: whether values are windowed; else they are 0 to 1 already.
        only: slices to prepare, where the preset has no spacing; None: all.

    Returns:
        ``frames``, (D, H, W) uint16, steps of 1/65535, and ``affine``, ``shape`` and ``grid``.

    Raises:
        ValueError: see `prepare`.
    """
    if preset.spacing is not None and not volume.spaced:
        raise ValueError(
            f"{volume.source}: unknown spacing: pictures give no size of a voxel; leave spacing out"
        )
    values, affine = volume.oriented()
    low, high = volume.span or (preset.level - preset.width / 2, preset.level + preset.width / 2)
    if not window:
        low, high = 0.0, 1.0
    elif values.min() == values.max():
        raise ValueError(f"{volume.source}: empty: every voxel is {values.flat[0]:g}")
    sizes = np.linalg.norm(affine[:3, :3], axis=0)[::-1]
    wanted = [len(values), *(max(1, round(preset.margin * side)) for side in preset.size)]
    if preset.spacing is not None:
        extents = sizes * values.shape
        wanted = [max(1, round(e / s)) for e, s in zip(extents, preset.spacing, strict=True)]
    factors = np.array(wanted) / values.shape
    if only is not None:
        values = values[only.numpy()]
    frames = np.empty((len(values), *preset.size), np.uint16)
    for start in range(0, len(values), _CHUNK):
        chunk = np.array(values[start : start + _CHUNK], np.float32, order="C")
        seen = torch.from_numpy(chunk).sub_(low).div_(high - low).clamp_(0, 1)
        frames[start : start + _CHUNK] = _kept(_centre(_resize(seen, wanted[1:]), preset.size))
    if preset.spacing is not None:
        frames = _along(frames, wanted[0])
    spare = [0, *((w - side) // 2 for w, side in zip(wanted[1:], preset.size, strict=True))]
    return {
        "frames": torch.from_numpy(frames),
        "affine": torch.from_numpy(np.array(volume.affine, np.float64)),
        "shape": torch.tensor(volume.values.shape),
        "grid": torch.from_numpy(np.stack([factors, 0.5 * factors - 0.5 - spare], 1)),
    }


def take(frames: dict[str, Tensor], preset: CTPreset, generator: Generator | None = None) -> dict:
    """Take slices of what `frames_of` made of all; see `prepare`."""
    slices = _choose(len(frames["frames"]), preset, generator)
    # PyTorch indexes no uint16.
    chosen = torch.from_numpy(frames["frames"].numpy()[slices.numpy()])
    return _sample({**frames, "frames": chosen}, slices)


def to_scan(values: Tensor, sample: dict) -> np.ndarray:
    """Bring a map over a prepared volume, such as a heat map, back to the scan's own voxels.

    Args:
        values: (D, H, W) or (1, D, H, W), of the prepared volume's size.
        sample: the prepared scan, not augmented and not in a batch.

    Returns:
        Float32 of the scan's ``shape``, to be written with the scan's ``affine``; interpolated
        linearly, 0 where the network saw nothing.

    Raises:
        ValueError: the map is of another size.
    """
    shape, affine = _turned(sample)
    whole = np.empty(shape, np.float32)
    for start in range(0, len(whole), _CHUNK):
        part = range(start, min(start + _CHUNK, len(whole)))
        whole[start : part.stop] = to_slices(values, sample, part)
    own = axis_codes(sample["affine"].numpy())
    return np.ascontiguousarray(reorient(whole, affine, own)[0])


def to_slices(values: Tensor, sample: dict, slices: Sequence[int]) -> np.ndarray:
    """The same as `to_scan` for some slices of the turned scan alone, from the feet, 0 first.

    Returns:
        (N, H, W) float32: columns to the left, rows to the back.
    """
    wanted = tuple(sample["volume"].shape[1:])
    if values.ndim == 4 and values.shape[0] == 1:
        values = values[0]
    if tuple(values.shape) != wanted:
        raise ValueError(
            f"a map of {tuple(values.shape)} over a volume of {wanted}: resize it to the volume"
        )
    taken, first = np.unique(sample["slices"].numpy(), return_index=True)
    factors, offsets = sample["grid"].numpy().T
    counts = [np.asarray(slices), *(np.arange(side) for side in _turned(sample)[0][1:])]
    places = [f * n + o for f, n, o in zip(factors, counts, offsets, strict=True)]
    reach = max(1.0, float(np.median(np.diff(taken)))) / 2 if len(taken) > 1 else 0.5
    seen = [(places[0] >= taken[0] - reach) & (places[0] <= taken[-1] + reach)]
    seen += [(p >= -0.5) & (p <= n - 0.5) for p, n in zip(places[1:], wanted[1:], strict=True)]
    places[0] = np.interp(places[0], taken, first)
    whole = values.detach().float().cpu().numpy()
    for axis in range(3):
        whole = _linear(whole, places[axis], seen[axis], axis)
    return whole


def _turned(sample: dict) -> tuple[tuple[int, ...], np.ndarray]:
    """Shape and affine of the scan that was turned to axial slices."""
    nothing = np.broadcast_to(np.float32(0), tuple(sample["shape"].tolist()))
    turned, affine = reorient(nothing, sample["affine"].numpy(), "LPS")
    return turned.shape, affine


def _choose(available: int, preset: CTPreset, generator: Generator | None) -> Tensor:
    if generator is None:
        return SAMPLERS[preset.sampler](available, preset.slices)
    return random_slices(available, preset.slices, generator)


def _sample(frames: dict[str, Tensor], slices: Tensor) -> dict:
    volume = torch.from_numpy(frames["frames"].numpy().astype(np.float32)).div_(_STEPS)
    rest = {name: frames[name] for name in ("affine", "shape", "grid")}
    return {"volume": volume[None], "slices": slices, **rest}


def _resize(values: Tensor, size: tuple[int, int] | list[int]) -> Tensor:
    """Resize (N, H, W), averaging where it shrinks."""
    if tuple(values.shape[1:]) == tuple(size):
        return values
    return F.interpolate(values[:, None], tuple(size), mode="bilinear", antialias=True)[:, 0]


def _along(frames: np.ndarray, depth: int) -> np.ndarray:
    """Resize kept slices (D, H, W) along their normal, some rows at a time."""
    longer = np.empty((depth, *frames.shape[1:]), np.uint16)
    for start in range(0, frames.shape[1], _CHUNK):
        part = slice(start, start + _CHUNK)
        rows = frames[:, part].transpose(1, 0, 2).astype(np.float32) / _STEPS
        resized = _resize(torch.from_numpy(rows), (depth, frames.shape[2]))
        longer[:, part] = _kept(resized).transpose(1, 0, 2)
    return longer


def _kept(values: Tensor) -> np.ndarray:
    """Values of [0, 1] as they are kept, in 16 bits."""
    return values.mul(_STEPS).round_().clamp_(0, _STEPS).numpy().astype(np.uint16)


def _centre(values: Tensor, size: tuple[int, int]) -> Tensor:
    """Cut the middle out of (N, H, W), or pad it with zeros."""
    top, left = ((have - want) // 2 for have, want in zip(values.shape[1:], size, strict=True))
    below = size[0] - (values.shape[1] - top)
    right = size[1] - (values.shape[2] - left)
    return F.pad(values, (-left, right, -top, below))


def _linear(values: np.ndarray, places: np.ndarray, seen: np.ndarray, axis: int) -> np.ndarray:
    """Interpolate along an axis at fractional places; 0 where nothing was seen."""
    places = places.clip(0, values.shape[axis] - 1)
    below = np.floor(places).astype(int)
    above = np.minimum(below + 1, values.shape[axis] - 1)
    form = [-1 if other == axis else 1 for other in range(values.ndim)]
    share = (places - below).astype(np.float32).reshape(form)
    low, high = values.take(below, axis), values.take(above, axis)
    low += share * (high - low)
    low *= seen.reshape(form)
    return low


def uniform_slices(available: int, wanted: int) -> Tensor:
    """Slices at even distances from the first to the last, repeated where there are too few."""
    _check(available, wanted)
    if wanted == 1:
        return torch.tensor([(available - 1) // 2])
    return torch.linspace(0, available - 1, wanted, dtype=torch.float64).round().long()


def published_slices(available: int, wanted: int) -> Tensor:
    """Slices around the middle one, a whole number apart, as CovidNet3D was evaluated.

    With fewer than twice as many as wanted this is a crop of the middle, which can leave out almost
    half of a scan; of a scan with too few, all are repeated, and some around the middle once more.
    """
    _check(available, wanted)
    middle = (available - 1) // 2
    if available >= wanted:
        return _around(middle, available // wanted, wanted)
    repeats, extra = divmod(wanted, available)
    slices = torch.arange(available).repeat(repeats)
    if extra:
        slices = torch.cat([slices, _around(middle, available // extra, extra)])
    return slices.sort().values


def random_slices(available: int, wanted: int, generator: Generator | None = None) -> Tensor:
    """Random slices in their order: some dropped, or some doubled where there are too few."""
    _check(available, wanted)
    repeats, extra = divmod(wanted, available)
    chosen = torch.randperm(available, generator=generator)[:extra]
    return torch.cat([torch.arange(available).repeat(repeats), chosen]).sort().values


#: What evaluation takes, by name.
SAMPLERS: dict[str, Callable[[int, int], Tensor]] = {
    "uniform": uniform_slices,
    "published": published_slices,
}


def _around(middle: int, step: int, count: int) -> Tensor:
    return middle + step * torch.arange(-((count - 1) // 2), count // 2 + 1)


def _check(available: int, wanted: int) -> None:
    if available < 1 or wanted < 1:
        raise ValueError(f"{wanted} slices of {available}: both numbers must be at least 1")
