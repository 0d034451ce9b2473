"""CT scans with labels.

A sample is a prepared scan (see ``vizoo.datasets.ct.preparation``) and

===========  =========================================================
``label``    () int64: the class
``name``     what the scan is called within its data set
``patient``  whose it is; never in two of training, validation and test
===========  =========================================================
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.utils.data import Dataset

from ...vision.io.images import SUFFIXES
from ..cache import Kept, SampleCache
from ..shelf import Shelf
from .dicom import read_dicom
from .preparation import CTPreset, frames_of, prepare, take
from .reading import read_scan, read_slices
from .volume import CTVolume, check_units

__all__ = ["CTDataset", "ScanRecord"]

_VERSION = 3  # of what the cache holds


class ScanRecord(NamedTuple):
    """The files of one scan."""

    name: str  #: what it is called within its data set
    patient: str  #: whose it is
    label: int  #: number of its class
    path: str  #: a NIfTI file or a folder
    files: tuple[str, ...] = ()  #: names of the slices in the folder, in order; empty: all of it


class CTDataset(Kept, Dataset):
    """CT scans from files.

    In training, slices are random (`draw`); elsewhere those of the preset's sampler.

    Args:
        records: the scans, in order.
        classes: names of the classes.
        preset: how scans are prepared.
        title: of the data set; patients of two data sets with one title are the same persons.
        value_range: stored values that become 0 and 1, of slices as pictures; None: 0 and 255.
        cache: folder that keeps the prepared scans (2 bytes a pixel), so that later epochs read
            what the first one made. None: every scan is read anew.

    Raises:
        ValueError: a label beyond the classes; or of the first scan, see ``__getitem__``.
    """

    has_truth = True

    def __init__(
        self,
        records: Sequence[ScanRecord],
        classes: Sequence[str],
        preset: CTPreset,
        title: str = "scans",
        value_range: tuple[float, float] | None = None,
        cache: str | None = None,
    ) -> None:
        self.records, self.classes, self.preset = list(records), tuple(classes), preset
        self.title, self.value_range = title, value_range
        for record in self.records:
            if not 0 <= record.label < len(self.classes):
                raise ValueError(f"{record.path}: label {record.label} of {len(self.classes)}")
        self.cache = SampleCache(cache, self._entry, [])
        if self.records:
            self[0]

    @property
    def labels(self) -> list[int]:
        """The class of every scan."""
        return [record.label for record in self.records]

    @property
    def groups(self) -> list[str]:
        """Whose every scan is: what a split keeps together, and lists may not share."""
        return [f"{self.title}, patient {record.patient}" for record in self.records]

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> dict[str, Tensor | str]:
        """Read one scan, or recall it.

        Raises:
            FileNotFoundError: a file has gone since the data set was made.
            ValueError: the scan cannot be used; the message names it.
        """
        return self.draw(index, None)

    def draw(self, index: int, generator: Generator | None) -> dict[str, Tensor | str]:
        """The same with random slices; without a generator those of the preset's sampler."""
        record = self.records[index]
        if self.cache.shelf is None:
            scan = prepare(self._read(index), self.preset, generator)
        else:
            frames = self.cache.recall(index % len(self), self._frames)
            scan = take(frames, self.preset, generator)
        whose = {"name": record.name, "patient": record.patient}
        return {**scan, "label": torch.tensor(record.label), **whose}

    def _frames(self, index: int) -> dict[str, Tensor]:
        return frames_of(self._read(index), self.preset)

    def _read(self, index: int) -> CTVolume:
        record = self.records[index]
        if not record.files:
            return read_scan(record.path, value_range=self.value_range, threads=1)
        files = _files(record)
        if files[0].suffix.lower() in SUFFIXES:
            return read_slices(files, self.value_range)
        volume = read_dicom(files, threads=1)
        check_units(volume)
        return volume

    def keep_on(self, shelf: Shelf) -> None:
        """See `Kept.keep_on`; the files are looked at now, not by every worker."""
        super().keep_on(shelf)
        _ = self._key

    def _entry(self, index: int) -> str:
        return f"{self._key}/{index:06d}"

    @cached_property
    def _key(self) -> str:
        """Names the cache by all that changes what is in it, the files' times among it."""
        files = [file for record in self.records for file in _files(record)]
        states = [(file.name, (state := file.stat()).st_mtime_ns, state.st_size) for file in files]
        parts = (_VERSION, self.preset, self.value_range, self.records, states)
        digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()
        return f"ct-{digest}"


def _files(record: ScanRecord) -> list[Path]:
    """The files that a scan is read from."""
    path = Path(record.path)
    if record.files:
        return [path / name for name in record.files]
    return sorted(path.rglob("*")) if path.is_dir() else [path]
