"""Pairs of your own with true disparities in one folder, in a layout found by its names.

The layouts are those of ``vizoo infer stereo FOLDER``, with the truth beside the images: folders
that hold one pair each (``*/left.png``, ``*/right.png`` and ``*/truth.png``), or a folder of left
images, one of right images and one of disparity maps.
"""

from __future__ import annotations

import glob
import os
import warnings
from collections.abc import Callable
from pathlib import Path

from ...vision.io.pairing import SIDES, sides_in
from ..files import expand_path
from .base import StereoDataset, StereoRecord
from .pairs import find_pairs

__all__ = ["PairFolders"]

_TRUTHS = ("truth", "disparity", "disp0GT", "disp0", "disp_occ_0", "disp_occ")
_SUFFIXES = (".pfm", ".npy", ".png", ".exr")


class PairFolders(StereoDataset):
    """The pairs with true disparities in a folder.

    Images are named ``im0 im1``, ``left right``, ``view1 view5``, ``image_2 image_3`` or ``image_0
    image_1``, maps ``truth``, ``disparity``, ``disp0GT``, ``disp0``, ``disp_occ_0`` or
    ``disp_occ``; these are names of files in a folder for each pair, or of folders of files that
    are matched in sorted order.

    Args:
        root: the folder.
        encoding: how the maps are stored (see ``vizoo.vision.io.disparity``); None: by suffix,
            PFM, NPY, EXR or KITTI's 16-bit PNG.
        transform: called with each sample, returns the sample to use.

    Raises:
        FileNotFoundError: there is no such folder, no pair, or no true disparity in it.
    """

    def __init__(
        self,
        root: str | os.PathLike,
        encoding: str | None = None,
        transform: Callable[[dict], dict] | None = None,
    ) -> None:
        folder = expand_path(root)
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder}: no such folder of pairs")
        super().__init__(
            _side_by_side(folder, encoding) or _each_its_own(folder, encoding), transform
        )


def _side_by_side(root: Path, encoding: str | None) -> list[StereoRecord]:
    for left, right in SIDES:
        if (root / left).is_dir() and (root / right).is_dir():
            truth = next((name for name in _TRUTHS if (root / name).is_dir()), None)
            if truth is None:
                raise FileNotFoundError(_no_truth(root, f"beside {left}/ and {right}/"))
            base = glob.escape(str(root))
            return find_pairs(
                f"{base}/{left}/*", f"{base}/{right}/*", f"{base}/{truth}/*", encoding
            )
    return []


def _each_its_own(root: Path, encoding: str | None) -> list[StereoRecord]:
    records = []
    for folder in (root, *sorted(filter(Path.is_dir, root.iterdir()))):
        if (sides := sides_in(folder)) is not None:
            files = [folder / f"{name}{suffix}" for name in _TRUTHS for suffix in _SUFFIXES]
            truth = next((str(file) for file in files if file.is_file()), None)
            left, right = map(str, sides)
            records.append(StereoRecord(folder.resolve().name, left, right, truth, encoding))
    if not records:
        layouts = ", ".join(f"{left} and {right}" for left, right in SIDES)
        raise FileNotFoundError(
            f"{root}: no pairs in it: neither images nor folders of the names {layouts}"
        )
    known = [record for record in records if record.disparity is not None]
    if not known:
        raise FileNotFoundError(_no_truth(root, f"beside any of its {len(records)} pairs"))
    if len(known) < len(records):
        lacking = next(record.name for record in records if record.disparity is None)
        warnings.warn(
            f"{root}: {len(records) - len(known)} of {len(records)} pairs have no true disparities "
            f"and are left out, {lacking} first",
            stacklevel=4,
        )
    return known


def _no_truth(root: Path, where: str) -> str:
    return (
        f"{root}: no true disparities {where}: they are looked for as {', '.join(_TRUTHS)} "
        f"({' '.join(_SUFFIXES)})"
    )
