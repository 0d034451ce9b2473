"""What the readers of stereo data sets share: records, the check for missing files, samples.

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

import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from ...vision.io.disparity import read_disparity
from ...vision.io.images import read_image, read_pixels

__all__ = [
    "StereoDataset",
    "StereoRecord",
    "check_choice",
    "check_files",
    "expand_path",
    "names_in",
]


class StereoRecord(NamedTuple):
    """The files of one pair.

    Attributes:
        name: what the pair is called within its data set, such as ``training/000004_10``.
        left: path of the left image.
        right: path of the right image.
        disparity: path of the left disparity map, None without ground truth.
        encoding: how the map is stored (see ``vizoo.vision.io.disparity``), None: by its suffix.
        masks: paths of 8-bit masks that restrict the valid pixels, each with the only value kept.
    """

    name: str
    left: str
    right: str
    disparity: str | None = None
    encoding: str | None = None
    masks: tuple[tuple[str, int], ...] = ()


class StereoDataset(Dataset):
    """Stereo pairs from files.

    The readers of the published data sets find and check their files when they are made and hand
    the records to this class. Files are opened when a sample is asked for.

    Args:
        records: the pairs, in order.
        transform: called with each sample, returns the sample to use.
    """

    def __init__(
        self,
        records: Sequence[StereoRecord],
        transform: Callable[[dict], dict] | None = None,
    ) -> None:
        self.records = list(records)
        self.transform = transform

    @property
    def has_disparity(self) -> bool:
        """Whether any pair has ground truth."""
        return any(record.disparity is not None for record in self.records)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> dict[str, Tensor | str]:
        """Read one pair.

        Raises:
            FileNotFoundError: a file has gone since the data set was made.
            ValueError: a file is damaged, or the sizes differ; the message names the file.
        """
        record = self.records[index]
        left, right = read_image(record.left), read_image(record.right)
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
        sample = {
            "left": left,
            "right": right,
            "disparity": disparity,
            "valid": valid,
            "name": record.name,
        }
        return sample if self.transform is None else self.transform(sample)


def expand_path(path: str | os.PathLike) -> Path:
    """Expand ``~`` and environment variables: ``$VIZOO_DATA/kitti2015``.

    Raises:
        ValueError: the path names a variable that is not set.
    """
    expanded = os.path.expandvars(os.path.expanduser(os.fspath(path)))
    unset = re.search(r"\$(\w+|\{\w+\})", expanded)
    if unset:
        raise ValueError(f"{path}: the environment variable {unset[1].strip('{}')} is not set")
    return Path(expanded)


def names_in(folders: Iterable[Path], pattern: str) -> list[str]:
    """Return the sorted names of files that match a pattern in any of the folders."""
    return sorted({path.name for folder in folders for path in Path(folder).glob(pattern)})


def check_choice(what: str, value: str, choices: Sequence[str]) -> None:
    """Raise ``ValueError`` unless the value is one of the choices."""
    if value not in choices:
        raise ValueError(f"{what} {value!r} is none of {', '.join(choices)}")


def check_files(
    title: str,
    root: Path,
    parts: Mapping[str, Sequence[str | Path]],
    expected: str,
    published: int | None = None,
) -> None:
    """Say what is missing of a data set, before anything is read.

    Args:
        title: the data set's name.
        root: its folder.
        parts: for each kind of file ("right images") the paths it ought to have.
        expected: where the files should be, for a data set of which nothing is found.
        published: the number of pairs that the published set has; fewer give a warning.

    Raises:
        FileNotFoundError: files are missing; the message counts them and names the first of each.
    """
    where = f"{title} at {root}"
    if not root.is_dir():
        raise FileNotFoundError(f"{where}: no such folder")
    most = max((len(paths) for paths in parts.values()), default=0)
    if most == 0:
        raise FileNotFoundError(f"{where}: no pairs found; expected {expected}")
    listings: dict[str, frozenset[str]] = {}
    complaints = []
    for kind, paths in parts.items():
        missing = [str(path) for path in paths if not _exists(str(path), listings)]
        if missing:
            complaints.append(f"{len(missing)} of {len(paths)} {kind} missing, first {missing[0]}")
    if complaints:
        raise FileNotFoundError(f"{where}: {'; '.join(complaints)}")
    if published is not None and most < published:
        warnings.warn(f"{where}: {most} of the published {published} pairs are here", stacklevel=3)


def _exists(path: str, listings: dict[str, frozenset[str]]) -> bool:
    # One listing a folder: tens of thousands of single look-ups take minutes on a network disk.
    folder, name = os.path.split(path)
    if folder not in listings:
        try:
            listings[folder] = frozenset(os.listdir(folder or "."))
        except (FileNotFoundError, NotADirectoryError):
            listings[folder] = frozenset()
    return name in listings[folder]


def _check_size(path: str, image: Tensor, left_path: str, left: Tensor) -> None:
    if image.shape[1:] != left.shape[1:]:
        height, width = image.shape[1:]
        raise ValueError(
            f"{path}: {width}x{height} pixels, but its left image {left_path} has "
            f"{left.shape[2]}x{left.shape[1]}"
        )
