"""Which slices of a scan a network sees: even, published, random.

Each function chooses a wanted number of the slices available, (wanted,) int64 in ascending order,
and raises a ``ValueError`` where one of the two is below 1.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor

__all__ = ["SAMPLERS", "published_slices", "random_slices", "uniform_slices"]


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
