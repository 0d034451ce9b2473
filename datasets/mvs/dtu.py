"""DTU: the training layout of MVSNet, and the evaluation layout, which Tanks and Temples share.

Training, below ``root``::

    Rectified/scan1_train/rect_001_3_r5000.png      view 0 under light 3, 512x640
    Cameras_1/scan1_train/00000000_cam.txt          intrinsics of a quarter of that size
    Cameras/pair.txt                                for all scans without one beside their cameras
    Depths/scan1/depth_map_0000.pfm                 1200x1600
    Depths/scan1/depth_visual_0000.png              its mask

(``Cameras/train/00000000_cam.txt``, one set for all scans, and ``Depths/scan1_train`` serve too.)
Evaluation::

    SCENE/images/00000000.jpg
    SCENE/cams_1/00000000_cam.txt                   or cams/
    SCENE/pair.txt
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from torch import Tensor

from ...vision.io.images import SUFFIXES
from ...vision.io.pfm import read_pfm
from ..files import check_choice, check_files, data_folder, expand_path
from .camera_files import read_camera_file, read_pair_file
from .cameras import scale_intrinsics
from .dataset import MVSDataset
from .scene import Scene, View, known_depth, near_origin, read_mask

__all__ = [
    "DTU",
    "SPLITS",
    "listed_pairs",
    "listed_view",
    "number_image",
    "open_dtu",
    "open_dtu_training",
]

_TEST = (1, 4, 9, 10, 11, 12, 13, 15, 23, 24, 29, 32, 33, 34, 48, 49, 62, 75, 77, 110, 114, 118)
_VAL = (3, 5, 17, 21, 28, 35, 37, 38, 40, 43, 56, 59, 66, 67, 82, 86, 106, 117)
_UNUSED = (25, 26, 27, 54, 73, 78, 79, 80, 81)
#: MVSNet's division of the scans.
SPLITS = {
    "train": tuple(s for s in range(1, 129) if s not in (*_TEST, *_VAL, *_UNUSED)),
    "val": _VAL,
    "test": _TEST,
}
_LIGHTS = 7
_ROWS, _COLUMNS = slice(44, 556), slice(80, 720)  # of the map at half size
_MAP = (1200, 1600)


class DTU(MVSDataset):
    """DTU's training layout: 49 views under 7 lights of each scan, with true depth.

    Args:
        root: folder with ``Rectified``, ``Cameras_1`` or ``Cameras`` and ``Depths``.
        split: ``train`` (79 scans), ``val`` (18) or ``test`` (22).
        views: photographs in a sample, the reference included.
        lights: which of the lights 0 to 6.
        scans: numbers of the scans; by default those of the split.
        range_form: how the cameras' last lines are to be read: ``auto``, ``max`` or ``interval``.
        random_sources: whether training draws sources at random from the pair list.
        transform: called with each sample, returns the sample to use.

    Raises:
        FileNotFoundError: files are missing; the message counts and names them.
        ValueError: a light is none of 0 to 6, or a camera, range or pair list is wrong; the message
            names the file.
    """

    def __init__(
        self,
        root: str | os.PathLike,
        split: str = "train",
        views: int = 5,
        lights: Sequence[int] = (0, 1, 2, 3, 4, 5, 6),
        scans: Sequence[int] | None = None,
        range_form: str = "auto",
        random_sources: bool = True,
        transform: Callable[[dict], dict] | None = None,
    ) -> None:
        check_choice("DTU split", split, tuple(SPLITS))
        base = data_folder("DTU", root)
        self.scans, self.lights = SPLITS[split] if scans is None else scans, lights
        scenes = []
        for scan in self.scans:
            first = open_dtu_training(base, f"scan{scan}", lights, range_form)
            scenes += [first, *(_relit(first, lights[0], light) for light in lights[1:])]
        super().__init__(scenes, views, random_sources=random_sources, transform=transform)

    @property
    def _things(self) -> Sequence[int]:
        return [scan for scan in self.scans for _ in self.lights]


def open_dtu_training(
    root: str | os.PathLike, scan: str, lights: Sequence[int] = (3,), range_form: str = "auto"
) -> Scene:
    """Open a scan of the training layout by its name, ``scan1``.

    It is photographed under the first light; files of all lights are checked. What is raised, and
    the other arguments: see `DTU`.
    """
    if not lights or not all(0 <= light < _LIGHTS for light in lights):
        raise ValueError(f"DTU lights {list(lights)}: want some of 0 to {_LIGHTS - 1}")
    root = expand_path(root)
    cameras = _first(root / "Cameras_1" / f"{scan}_train", root / "Cameras" / "train")
    pair_file = cameras / "pair.txt"
    if not pair_file.exists():
        pair_file = _first(root / "Cameras" / "pair.txt", root / "Cameras_1" / "pair.txt")
    depths = _first(root / "Depths" / scan, root / "Depths" / f"{scan}_train")
    listed = read_pair_file(pair_file)
    images = root / "Rectified" / f"{scan}_train"
    parts = {
        "photographs": [_rectified(images, view, light) for view in listed for light in lights],
        "cameras": [str(cameras / f"{view:08d}_cam.txt") for view in listed],
        "depth maps": [str(depths / f"depth_map_{view:04d}.pfm") for view in listed],
        "masks": [str(depths / f"depth_visual_{view:04d}.png") for view in listed],
    }
    check_files(f"DTU {scan}", root, parts, f"{images}/rect_001_3_r5000.png", what="photographs")
    views = []
    files = zip(listed, parts["cameras"], parts["depth maps"], parts["masks"], strict=True)
    for number, file, depth, mask in files:
        view = listed_view(number, _rectified(images, number, lights[0]), file, range_form)
        intrinsics = scale_intrinsics(view.intrinsics, 4, 4)
        views.append(replace(view, intrinsics=intrinsics, truth=partial(_truth, depth, mask)))
    pairs = listed_pairs(listed, pair_file)
    return near_origin(Scene(scan, views, pairs, "dtu_training", str(pair_file)))


def open_dtu(path: str | os.PathLike, range_form: str = "auto", layout: str = "dtu") -> Scene:
    """Open a scene of the evaluation layout, which says of itself ``dtu`` or ``tanks``.

    What is raised, and ``range_form``: see `DTU`.
    """
    root = expand_path(path)
    pair_file = root / "pair.txt"
    listed = read_pair_file(pair_file)
    cameras = _first(root / "cams_1", root / "cams")
    parts = {
        "photographs": [number_image(root / "images", view) for view in listed],
        "cameras": [str(cameras / f"{view:08d}_cam.txt") for view in listed],
    }
    check_files(f"scene {root.name}", root, parts, f"{root}/images/00000000.jpg", what="views")
    views = [
        listed_view(number, image, file, range_form)
        for number, image, file in zip(listed, *parts.values(), strict=True)
    ]
    pairs = listed_pairs(listed, pair_file)
    return near_origin(Scene(root.name, views, pairs, layout, str(pair_file)))


def number_image(folder: Path, view: int) -> str:
    """Return the path of a view's photograph: ``.jpg`` as published, or another kind if there."""
    for suffix in (".jpg", *SUFFIXES):
        for written in (suffix, suffix.upper()):
            path = folder / f"{view:08d}{written}"
            if path.is_file():
                return str(path)
    return str(folder / f"{view:08d}.jpg")


def listed_view(number: int, image: str, file: str, range_form: str) -> View:
    """Return a view by its photograph's path and its camera's file, without true depth."""
    camera = read_camera_file(file, range_form)
    return View(f"{number:08d}", image, *camera, camera_file=file)


def listed_pairs(
    listed: dict[int, list[tuple[int, float]]],
    pair_file: str | os.PathLike,
    left_out: Iterable[int] = (),
) -> list[list[tuple[int, float]]]:
    """Return the pairs by place in the list of views, without the views left out.

    Raises:
        ValueError: a source is not among the views; the message names it and the file.
    """
    gone = set(left_out)
    places = {view: place for place, view in enumerate(v for v in listed if v not in gone)}
    pairs = []
    for view in places:
        for source, _ in listed[view]:
            if source not in places and source not in gone:
                raise ValueError(
                    f"{pair_file}: view {view} lists source {source}, which is none of the "
                    f"{len(listed)} views"
                )
        pairs.append([(places[s], score) for s, score in listed[view] if s not in gone])
    return pairs


def _relit(scene: Scene, old: int, light: int) -> Scene:
    views = [
        replace(view, image=str(view.image).replace(f"_{old}_r5000.png", f"_{light}_r5000.png"))
        for view in scene.views
    ]
    return replace(scene, name=f"{scene.name}, light {light}", views=views)


def _rectified(folder: Path, view: int, light: int) -> str:
    return str(folder / f"rect_{view + 1:03d}_{light}_r5000.png")


def _truth(depth_file: str, mask_file: str) -> tuple[Tensor, Tensor]:
    """Read depth and mask at 1200x1600, halve them and cut out the photograph's part."""
    maps = {depth_file: read_pfm(depth_file), mask_file: read_mask(mask_file)}
    for file, pixels in maps.items():
        if pixels.shape != _MAP:
            size = "x".join(map(str, pixels.shape))
            raise ValueError(f"{file}: {size} pixels, want {_MAP[0]}x{_MAP[1]}")
    return known_depth(*(pixels[::2, ::2][_ROWS, _COLUMNS] for pixels in maps.values()))


def _first(*paths: Path) -> Path:
    """Return the first path that is there, or the first of all for a complaint to name."""
    return next((path for path in paths if path.exists()), paths[0])
