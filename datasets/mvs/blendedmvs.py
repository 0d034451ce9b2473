"""BlendedMVS, in its low-resolution layout (576x768).

::

    SCENE/blended_images/00000000.jpg               and 00000000_masked.jpg, which is not used
    SCENE/cams/00000000_cam.txt                     the last line: min interval planes max
    SCENE/cams/pair.txt
    SCENE/rendered_depth_maps/00000000.pfm

Some views cannot be used: their depth range is none, their files are empty or their depth map knows
no pixel. They are left out, with a warning.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from torch import Tensor

from ..files import check_choice, check_files, data_folder, expand_path
from .camera_files import read_pair_file
from .dataset import MVSDataset
from .dtu import listed_pairs, listed_view, number_image
from .scene import Scene, known_depth, near_origin, read_depth

__all__ = ["BlendedMVS", "open_blendedmvs"]

#: The published validation scenes; the other 106 are for training.
_VALIDATION = (
    "5b7a3890fc8fcf6781e2593a",
    "5c189f2326173c3a09ed7ef3",
    "5b950c71608de421b1e7318f",
    "5a6400933d809f1d8200af15",
    "59d2657f82ca7774b1ec081d",
    "5ba19a8a360c7c30c1c169df",
    "59817e4a1bd4b175e7038d19",
)
_LISTS = {"train": "training_list.txt", "val": "validation_list.txt"}
_PUBLISHED = {"train": 106, "val": 7}


class BlendedMVS(MVSDataset):
    """BlendedMVS with true depth; views with fewer than ``views - 1`` sources are left out.

    Args:
        root: folder of the scenes.
        split: ``train``, ``val`` or ``all``: what ``training_list.txt`` and ``validation_list.txt``
            in ``root`` say if they are there, else the seven published validation scenes and
            the rest.
        views: photographs in a sample, the reference included.
        scenes: names of the scenes; by default those of the split.
        range_form: how the cameras' last lines are to be read.
        random_sources: whether training draws sources at random from the pair list.
        transform: called with each sample, returns the sample to use.

    Raises:
        FileNotFoundError: files are missing; the message counts and names them.
        ValueError: a camera or pair list is wrong; the message names the file.
    """

    def __init__(
        self,
        root: str | os.PathLike,
        split: str = "train",
        views: int = 5,
        scenes: Sequence[str] | None = None,
        range_form: str = "auto",
        random_sources: bool = True,
        transform: Callable[[dict], dict] | None = None,
    ) -> None:
        check_choice("BlendedMVS split", split, ("train", "val", "all"))
        base = data_folder("BlendedMVS", root)
        names = _names(base, split) if scenes is None else list(scenes)
        opened = [open_blendedmvs(base / name, range_form) for name in names]
        super().__init__(
            opened, views, skip=True, random_sources=random_sources, transform=transform
        )


def open_blendedmvs(path: str | os.PathLike, range_form: str = "auto") -> Scene:
    """Open a scene by its folder; what is raised, and ``range_form``: see `BlendedMVS`."""
    root = expand_path(path)
    pair_file = root / "cams" / "pair.txt"
    listed = read_pair_file(pair_file)
    parts = {
        "photographs": [number_image(root / "blended_images", view) for view in listed],
        "cameras": [str(root / "cams" / f"{view:08d}_cam.txt") for view in listed],
        "depth maps": [str(root / "rendered_depth_maps" / f"{view:08d}.pfm") for view in listed],
    }
    expected = f"{root}/blended_images/00000000.jpg"
    check_files(f"BlendedMVS scene {root.name}", root, parts, expected, what="views")
    sizes = _sizes(root / "blended_images") | _sizes(root / "rendered_depth_maps")
    views, left_out = [], []
    for number, image, file, depth in zip(listed, *parts.values(), strict=True):
        view = listed_view(number, image, file, range_form)
        least, greatest = view.depth_range or (0.0, 0.0)
        if 0 < least < greatest and sizes.get(image) and sizes.get(depth):
            views.append(replace(view, truth=partial(_truth, depth, least, greatest)))
        else:
            left_out.append(number)
    if left_out and len(views) < 2:
        raise ValueError(
            f"{root}: {len(left_out)} of {len(listed)} views have no depth range (0 < least < "
            "greatest) or empty files; is range_form right?"
        )
    if left_out:
        warnings.warn(
            f"{root}: {len(left_out)} of {len(listed)} views left out (no depth range, or empty "
            f"files), first {left_out[0]:08d}",
            stacklevel=2,
        )
    pairs = listed_pairs(listed, pair_file, left_out)
    return near_origin(Scene(root.name, views, pairs, "blendedmvs", str(pair_file)))


def _names(root: Path, split: str) -> list[str]:
    there = sorted(p.name for p in root.iterdir() if (p / "blended_images").is_dir())
    if split == "all":
        names = there
    elif (root / _LISTS[split]).is_file():
        names = (root / _LISTS[split]).read_text().split()
    else:
        names = [name for name in there if (name in _VALIDATION) == (split == "val")]
    if not names:
        raise FileNotFoundError(
            f"BlendedMVS at {root}: no {split} scene; expected {root}/SCENE/blended_images"
        )
    if split != "all" and len(names) < _PUBLISHED[split]:
        warnings.warn(
            f"BlendedMVS at {root}: {len(names)} of the published {_PUBLISHED[split]} {split} "
            "scenes are here",
            stacklevel=3,
        )
    return names


def _sizes(folder: Path) -> dict[str, int]:
    with os.scandir(folder) as entries:
        return {entry.path: entry.stat().st_size for entry in entries}


def _truth(depth_file: str, least: float, greatest: float) -> tuple[Tensor, Tensor]:
    depth = read_depth(depth_file)
    return known_depth(depth, (depth >= least) & (depth <= greatest))
