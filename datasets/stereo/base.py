"""What the readers of stereo data sets share: records and samples.

A sample is a dictionary:

===========  ===============================================================================
``left``     (3, H, W) float32 in [0, 1], RGB
``right``    (3, H, W) float32 in [0, 1], RGB, rectified with the left one
``disparity``  (1, H, W) float32, pixels of the left image, positive; 0 where unknown
``valid``    (1, H, W) bool: where the disparity is known (nowhere, without ground truth)
``name``     what the pair is called within its data set
===========  ===============================================================================

A left pixel x matches the right pixel x - disparity.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...vision.io.disparity import read_disparity
from ...vision.io.images import as_pair, read_pixels
from ..cache import FileDataset, SampleCache, source_name
from ..files import check_files

__all__ = ["StereoDataset", "StereoRecord", "published_records"]


class StereoRecord(NamedTuple):
    """The files of one pair."""

    name: str  #: what the pair is called within its data set, such as ``training/000004_10``
    left: str  #: path of the left image
    right: str  #: path of the right image
    disparity: str | None = None  #: path of the left disparity map, None without ground truth
    #: how the map is stored (see ``vizoo.vision.io.disparity``), None: by its suffix
    encoding: str | None = None
    #: paths of 8-bit masks that restrict the valid pixels, each with the only value kept
    masks: tuple[tuple[str, int], ...] = ()


def published_records(
    title: str,
    root: Path,
    names: Sequence[str],
    parts: Mapping[str, Sequence[str | Path]],
    encoding: str,
    kept: int = 0,
    **checks: Any,
) -> list[StereoRecord]:
    """Check the files of a published set, see `check_files`, and list its pairs.

    ``parts`` are the paths of left images, of right images, of disparity maps if there are any and
    of masks that apply, of which pixels of the value ``kept`` stay valid.
    """
    check_files(title, root, parts, **checks)
    records = []
    for name, *row in zip(names, *parts.values(), strict=True):
        left, right, *truth = map(str, row)
        masks = tuple((mask, kept) for mask in truth[1:])
        records.append(StereoRecord(name, left, right, next(iter(truth), None), encoding, masks))
    return records


class StereoDataset(FileDataset):
    """Stereo pairs from files.

    The readers of the published data sets find and check their files when they are made and hand
    the records to this class. Files are opened when a sample is asked for.

    Args:
        records: the pairs, in order.
        transform: called with each sample, returns the sample to use.
    """

    def __init__(
        self, records: Sequence[StereoRecord], transform: Callable[[dict], dict] | None = None
    ) -> None:
        self.records = list(records)
        self.transform = transform
        self.cache = SampleCache(None, self._source, ["left", "right"])

    @property
    def has_truth(self) -> bool:
        """Whether any pair has ground truth."""
        return any(record.disparity is not None for record in self.records)

    @property
    def groups(self) -> list[tuple[str, str]]:
        """What every pair shows, such as a sequence, and its map: what a split keeps together."""
        return [
            (self._group(record.name), record.disparity or record.left) for record in self.records
        ]

    @staticmethod
    def _group(name: str) -> str:
        """What a pair of that name shows; unless a set knows better, it is the only one."""
        return name

    def _source(self, index: int) -> str:
        record = self.records[index]
        files = [record.left, record.right, *filter(None, [record.disparity])]
        kept = [value for _, value in record.masks]
        files += [path for path, _ in record.masks]
        return source_name(files, "stereo", record.disparity is None, record.encoding, kept)

    def _read(self, index: int) -> dict[str, Tensor]:
        record = self.records[index]
        left, right = as_pair(record.left, record.right)
        _check_size(record.right, right, record.left, left)
        if record.disparity is None:
            disparity = torch.zeros(1, *left.shape[1:])
            valid = torch.zeros(1, *left.shape[1:], dtype=torch.bool)
        else:
            disparity, valid = read_disparity(record.disparity, record.encoding)
            _check_size(record.disparity, disparity, record.left, left)
            for path, kept in record.masks:
                mask = torch.from_numpy(read_pixels(path) == kept)
                mask = mask[None] if mask.ndim == 2 else mask.all(dim=2)[None]
                _check_size(path, mask, record.left, left)
                valid = valid & mask
            disparity = disparity * valid
            if not valid.any():
                warnings.warn(f"{record.disparity}: no pixel has a known disparity", stacklevel=2)
        return {"left": left, "right": right, "disparity": disparity, "valid": valid}


def _check_size(path: str, image: Tensor, left_path: str, left: Tensor) -> None:
    if image.shape[1:] != left.shape[1:]:
        height, width = image.shape[1:]
        raise ValueError(
            f"{path}: {height}x{width} pixels, but its left image {left_path} has "
            f"{left.shape[1]}x{left.shape[2]}"
        )
