"""Writing a scene to disk in the layouts that ``open_scene`` reads."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...common.files import atomic_write, write_json
from ...vision.io.images import write_image
from ...vision.io.pfm import write_pfm
from ..files import check_choice, expand_path
from .camera_files import write_camera_file, write_pair_file
from .cameras import scale_intrinsics
from .colmap_model import write_model
from .folder import CAMERAS_FILE
from .layouts import LAYOUTS
from .scene import Scene, sparse_points

__all__ = ["WRITERS", "write_scene"]

_LIGHTS = (  # gain and offset of each of DTU's; the fourth (number 3) changes nothing
    (0.55, 0.02),
    (0.70, 0.00),
    (0.85, 0.03),
    (1.00, 0.00),
    (1.10, -0.04),
    (1.20, -0.02),
    (1.30, -0.08),
)


def write_scene(
    scene: Scene, folder: str | os.PathLike, layout: str, *, lossless: bool = False
) -> Path:
    """Write a scene, with its true depth where it and the layout have some.

    Args:
        scene: what to write, in the world that its cameras are in: its ``offset`` is left out.
        folder: where to; made if need be. In ``dtu_training`` the folder of the data set, to which
            one more scan is added, with a list of pairs beside its cameras; the one for all scans,
            which other software reads, is that of the first.
        layout: a key of ``WRITERS``.
        lossless: PNG photographs where the layout has JPEG; its readers take both.

    Returns:
        The path that ``open_scene`` reads.

    Raises:
        ValueError: the layout is not known, or cannot hold the scene, or the folder holds one that
            ``open_scene`` would read instead.
    """
    check_choice("layout", layout, tuple(WRITERS))
    root = expand_path(folder)
    read_as = {"tanks": "dtu", "colmap_binary": "colmap"}.get(layout, layout)
    for name in takewhile(lambda name: name != read_as, LAYOUTS):
        if LAYOUTS[name].tells(root):
            raise ValueError(
                f"{root}: holds a scene of the layout {name}, which readers would take for this "
                "one; name another folder"
            )
    return WRITERS[layout](scene, root, "png" if lossless else "jpg")


def _write_dtu(scene: Scene, folder: Path, suffix: str) -> Path:
    """DTU's evaluation layout, and Tanks and Temples'."""
    _write_numbered(scene, folder / "images", suffix, folder / "cams_1", "max")
    write_pair_file(folder / "pair.txt", dict(enumerate(scene.pairs)))
    return folder


def _write_blendedmvs(scene: Scene, folder: Path, suffix: str) -> Path:
    for index in range(len(scene)):
        write_pfm(folder / "rendered_depth_maps" / f"{index:08d}.pfm", _depth(scene, index))
    _write_numbered(scene, folder / "blended_images", suffix, folder / "cams", "interval")
    write_pair_file(folder / "cams" / "pair.txt", dict(enumerate(scene.pairs)))
    return folder


def _write_numbered(scene: Scene, images: Path, suffix: str, cameras: Path, form: str) -> None:
    for index, view in enumerate(scene.views):
        write_image(images / f"{index:08d}.{suffix}", scene.image(index))
        limits = scene.depth_range(index)[0]
        camera = cameras / f"{index:08d}_cam.txt"
        write_camera_file(camera, view.intrinsics, view.extrinsics, limits, form)
        if suffix == "png":  # readers would take the other first
            (images / f"{index:08d}.jpg").unlink(missing_ok=True)


def _write_dtu_training(scene: Scene, folder: Path, suffix: str) -> Path:
    number = re.search(r"(\d+)$", scene.name)
    scan = f"scan{int(number[1]) if number else 1}"
    images = folder / "Rectified" / f"{scan}_train"
    cameras = folder / "Cameras_1" / f"{scan}_train"
    for index, view in enumerate(scene.views):
        image = scene.image(index)
        if tuple(image.shape[1:]) != (512, 640):
            raise ValueError(
                f"{view.describe()}: {image.shape[1]}x{image.shape[2]} pixels, but DTU's training "
                "layout holds photographs of 512x640"
            )
        for light, (gain, offset) in enumerate(_LIGHTS):
            path = images / f"rect_{index + 1:03d}_{light}_r5000.png"
            write_image(path, gain * image + offset)
        quarter = scale_intrinsics(view.intrinsics, 0.25, 0.25)
        camera = cameras / f"{index:08d}_cam.txt"
        write_camera_file(camera, quarter, view.extrinsics, scene.depth_range(index)[0])
        depth = np.zeros((1200, 1600), np.float32)
        depth[88:1112, 160:1440] = _depth(scene, index).repeat(2, axis=0).repeat(2, axis=1)
        maps = folder / "Depths" / scan
        write_pfm(maps / f"depth_map_{index:04d}.pfm", depth)
        mask = np.where(depth > 0, 255, 0).astype(np.uint8)
        write_image(maps / f"depth_visual_{index:04d}.png", mask)
    lists = [cameras / "pair.txt"]
    if not any(path != images for path in images.parent.glob("scan*_train")):
        lists.append(folder / "Cameras" / "pair.txt")
    for file in lists:
        write_pair_file(file, dict(enumerate(scene.pairs)))
    return images


def _write_colmap(scene: Scene, folder: Path, suffix: str, binary: bool = False) -> Path:
    names = [f"{view.name}.{suffix}" for view in scene.views]
    for index, name in enumerate(names):
        write_image(folder / "images" / name, scene.image(index))
    write_model(scene, folder / "sparse", names, *_points(scene), binary=binary)
    return folder


def _write_eth3d(scene: Scene, folder: Path, suffix: str) -> Path:
    suffix = suffix.upper()
    names = [f"dslr_images_undistorted/{view.name}.{suffix}" for view in scene.views]
    for index, name in enumerate(names):
        write_image(folder / "images" / name, scene.image(index))
    points = _points(scene)
    write_model(scene, folder / "dslr_calibration_undistorted", names, *points)
    if scene.has_truth:
        # Nothing is distorted here, so the other calibration is the same.
        originals = [f"dslr_images/{view.name}.{suffix}" for view in scene.views]
        write_model(scene, folder / "dslr_calibration_jpg", originals, *points)
        for index, name in enumerate(originals):
            depth = _depth(scene, index)
            with atomic_write(folder / "ground_truth_depth" / name) as temporary:
                np.where(depth > 0, depth, np.inf).astype("<f4").tofile(temporary)
    return folder


def _write_folder(scene: Scene, folder: Path, suffix: str) -> Path:
    entries = []
    for index, view in enumerate(scene.views):
        name = view.name.replace("/", "_")
        image = f"images/{name}.{suffix}"
        write_image(folder / image, scene.image(index))
        entry: dict[str, Any] = {
            "image": image,
            "intrinsics": view.intrinsics.tolist(),
            "extrinsics": view.extrinsics.tolist(),
            "sources": [
                [scene.views[source].name.replace("/", "_"), score]
                for source, score in scene.pairs[index]
            ],
        }
        if view.depth_range is not None:
            entry["depth_range"] = list(view.depth_range)
        if view.truth is not None:
            entry["depth"] = f"depth/{name}.pfm"
            write_pfm(folder / entry["depth"], _depth(scene, index))
        entries.append(entry)
    write_json(folder / CAMERAS_FILE, {"views": entries})
    return folder


#: What writes a layout: called with the scene, the folder and the photographs' suffix.
WRITERS: dict[str, Callable[[Scene, Path, str], Path]] = {
    "dtu_training": _write_dtu_training,
    "dtu": _write_dtu,
    "tanks": _write_dtu,
    "blendedmvs": _write_blendedmvs,
    "eth3d": _write_eth3d,
    "colmap": _write_colmap,
    "colmap_binary": lambda scene, folder, suffix: _write_colmap(scene, folder, suffix, True),
    "folder": _write_folder,
}


def _depth(scene: Scene, index: int) -> np.ndarray:
    known = scene.depth(index)
    if known is None:
        raise ValueError(
            f"{scene.views[index].describe()}: no true depth, which this layout holds; write "
            "another (dtu, colmap, folder)"
        )
    depth, valid = known
    return torch.where(valid, depth, torch.zeros_like(depth))[0].numpy()


def _points(scene: Scene) -> tuple[Tensor, Tensor, Sequence[Tensor]]:
    if scene.points is not None and scene.tracks is not None:
        grey = torch.full((len(scene.points), 3), 128, dtype=torch.uint8)
        return scene.points, grey, scene.tracks
    if scene.has_truth:
        return sparse_points(scene)
    none = torch.zeros(0, 3)
    return none, none.byte(), [torch.zeros(0, dtype=torch.long)] * len(scene)
