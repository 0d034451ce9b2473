"""Scans as folders of pictures: PNG slices, and TIFF or PNG of 16 bits."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from ...vision.io.images import read_pixels
from .volume import CTVolume

__all__ = ["in_order", "read_slices"]

# Columns to the left, rows to the back, as a scan is shown; slices from the feet to the head.
_AFFINE = np.diag([-1.0, -1.0, 1.0, 1.0])


def read_slices(
    files: Sequence[str | os.PathLike],
    value_range: tuple[float, float] | None = None,
    threads: int = 1,
) -> CTVolume:
    """Read pictures as the slices of one scan, in the order given.

    Of a colour picture the first channel counts. A picture says no size of a voxel.

    Args:
        files: the pictures.
        value_range: the stored values that become 0 and 1; None: 0 and 255, for 8 bits only.
        threads: files decoded at a time.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: fewer than two, a damaged one, different sizes or depths, or 16 bits without a
            range.
    """
    if len(files) < 2:
        where = files[0] if files else "no picture"
        raise ValueError(f"{where}: {len(files)} slices; a scan has several")
    first = _plane(files[0])
    if first.dtype != np.uint8 and value_range is None:
        raise ValueError(
            f"{files[0]}: 16 bits; say which values become 0 and 1 (value_range, --value-range): "
            "the file does not"
        )
    values = np.empty((len(files), *first.shape), first.dtype)

    def load(place: int) -> None:
        plane = first if place == 0 else _plane(files[place])
        if plane.shape != first.shape or plane.dtype != first.dtype:
            here, there = (
                f"{pixels.shape[1]}x{pixels.shape[0]} pixels of {8 * pixels.itemsize} bits"
                for pixels in (plane, first)
            )
            raise ValueError(
                f"{files[place]}: {here}, but {Path(files[0]).name} has {there}: the slices of one "
                "scan are alike"
            )
        values[place] = plane

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(load, range(len(files))))
    low, high = map(float, (0, 255) if value_range is None else value_range)
    if not low < high:
        raise ValueError(f"value_range {low, high}: the first must be the smaller")
    return CTVolume(values, _AFFINE, (low, high), spaced=False, source=str(Path(files[0]).parent))


def in_order(names: Sequence[Path]) -> list[Path]:
    """Sort files by the numbers in their names: ``2.png`` before ``10.png``."""

    def key(path: Path) -> list[tuple[int, str]]:
        parts = re.split(r"(\d+)", path.name)
        return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]

    return sorted(names, key=key)


def _plane(path: str | os.PathLike) -> np.ndarray:
    pixels = read_pixels(path)
    return pixels if pixels.ndim == 2 else pixels[:, :, 0]
