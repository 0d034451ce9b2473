"""A folder of photographs with one cameras file, ``cameras.json``; and Middlebury's ``*_par.txt``.

The cameras file::

    {
      "depth_range": [0.5, 8.0],
      "views": [
        {
          "image": "images/a.jpg",
          "intrinsics": [[700, 0, 319.5], [0, 700, 239.5], [0, 0, 1]],
          "extrinsics": [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 2.5], [0, 0, 0, 1]],
          "depth_range": [0.6, 7.5],
          "depth": "depth/a.pfm",
          "mask": "masks/a.png",
          "sources": ["b", ["c", 0.7]]
        }
      ]
    }

Paths are relative to the file. A view is called as its image without folder and suffix, or with its
folder where two would be called alike, as of a rig's cameras: ``cam0/a``, ``cam1/a``. Needed are
``image``, ``intrinsics`` (or ``[fx, fy, cx, cy]``; pixel centres at whole numbers) and
``extrinsics`` (world to camera, four rows or three; or ``camera_to_world`` instead). Where all
views have one calibration or one range, it may stand beside ``views`` instead. Without ``sources``
in any view, pairs are scored by the poses; with them, the best come first.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...common.files import read_json
from ..files import check_files, expand_path, read_text
from .cameras import check_camera, invert_pose
from .pairs import pair_by_poses
from .scene import Scene, View, check_range, known_depth, near_origin, read_depth, read_mask

__all__ = ["CAMERAS_FILE", "open_folder", "open_middlebury"]

CAMERAS_FILE = "cameras.json"
_SHARED = ("intrinsics", "depth_range")
_KEYS = {"image", "extrinsics", "camera_to_world", "depth", "mask", "sources", *_SHARED}


def open_folder(path: str | os.PathLike) -> Scene:
    """Open a folder with ``cameras.json``, or the file itself.

    Raises:
        FileNotFoundError: files are missing; the message counts and names them.
        ValueError: the cameras file is wrong; the message names it and the view.
    """
    path = expand_path(path)
    file = path if path.suffix == ".json" else path / CAMERAS_FILE
    root = file.parent
    content = read_json(file, "cameras")
    entries = content.get("views") if isinstance(content, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"{file}: want an object with a list 'views' of objects")
    _check_keys(str(file), content, {"views", *_SHARED})
    shared = {key: content[key] for key in _SHARED if key in content}
    views, listed = [], []
    parts: dict[str, list[str]] = {"photographs": [], "depth maps": [], "masks": []}
    for number, entry in enumerate(entries):
        where = f"{file}: view {number}"
        _check_keys(f"{where} ({entry.get('image', 'without image')})", entry, _KEYS)
        views.append(_view({**shared, **entry}, root, where, parts))
        listed.append(entry.get("sources"))
    parts = {kind: paths for kind, paths in parts.items() if paths}
    check_files("scene", root, parts, f"images as {file} names them", what="photographs")
    if len({view.name for view in views}) < len(views):
        paths = [Path(entry["image"]).with_suffix("").as_posix() for entry in entries]
        views = [replace(view, name=path) for view, path in zip(views, paths, strict=True)]
    scene = near_origin(Scene(root.name, views, [[] for _ in views], "folder", str(file)))
    if all(sources is None for sources in listed):
        return pair_by_poses(scene)
    names = {view.name: place for place, view in enumerate(views)}
    pairs = [
        _sources(sources or [], names, view.camera_file)
        for sources, view in zip(listed, views, strict=True)
    ]
    return replace(scene, pairs=pairs)


def open_middlebury(path: str | os.PathLike) -> Scene:
    """Open a scene of Middlebury's multi-view set: images and ``SCENE_par.txt``.

    After the number of images, each line of that file has a name, the nine numbers of K, the nine
    of R and the three of t.

    Raises:
        FileNotFoundError: the file or images are missing; the message names them.
        ValueError: the file is damaged; the message names it and the line.
    """
    root = expand_path(path)
    files = sorted(root.glob("*_par.txt"))
    if not files:
        raise FileNotFoundError(f"{root}/*_par.txt: no such file")
    lines = [line.split() for line in read_text(files[0], "cameras").splitlines()]
    views = []
    for number, words in enumerate(lines[1:], start=2):
        if not words:
            continue
        try:
            values = torch.tensor([float(word) for word in words[1:]], dtype=torch.float64)
            k, rotation, shift = values.split([9, 9, 3])
        except (ValueError, RuntimeError):
            raise ValueError(
                f"{files[0]}, line {number}: want a name and the 21 numbers of K, R and t"
            ) from None
        extrinsics = torch.eye(4, dtype=torch.float64)
        extrinsics[:3, :3], extrinsics[:3, 3] = rotation.view(3, 3), shift
        name, image = words[0].rsplit(".", 1)[0], str(root / words[0])
        file = f"{files[0]}, line {number}"
        views.append(View(name, image, k.view(3, 3).float(), extrinsics, camera_file=file))
    parts = {"photographs": [str(view.image) for view in views]}
    check_files(f"scene {root.name}", root, parts, f"images as in {files[0]}", what="photographs")
    scene = Scene(root.name, views, [[] for _ in views], "middlebury", str(files[0]))
    return pair_by_poses(near_origin(scene))


def _view(entry: dict, root: Path, where: str, parts: dict[str, list[str]]) -> View:
    files = {}
    for key, kind in (("image", "photographs"), ("depth", "depth maps"), ("mask", "masks")):
        if entry.get(key) is None:
            continue
        if not isinstance(entry[key], str) or not entry[key]:
            raise ValueError(f"{where}: {key!r} must be a path")
        files[key] = str(root / entry[key])
        parts[kind].append(files[key])
    if "image" not in files:
        raise ValueError(f"{where}: 'image' is missing")
    if ("extrinsics" in entry) == ("camera_to_world" in entry):
        raise ValueError(f"{where}: want either 'extrinsics' or 'camera_to_world'")
    if "intrinsics" not in entry:
        raise ValueError(f"{where}: 'intrinsics' is missing")
    k = _matrix(entry["intrinsics"], where, "intrinsics", ((3, 3), (4,)))
    if k.ndim == 1:
        fx, fy, cx, cy = k.tolist()
        k = torch.tensor([[fx, 0, cx], [0, fy, cy], [0, 0, 1]], dtype=torch.float64)
    key = "extrinsics" if "extrinsics" in entry else "camera_to_world"
    pose = _matrix(entry[key], where, key, ((4, 4), (3, 4)))
    if len(pose) == 3:
        pose = torch.cat([pose, pose.new_tensor([[0.0, 0.0, 0.0, 1.0]])])
    if key == "camera_to_world":
        check_camera(k, pose, where)
        pose = invert_pose(pose)
    limits = entry.get("depth_range")
    if limits is not None:
        least, greatest = _matrix(limits, where, "depth_range", ((2,),)).tolist()
        check_range((least, greatest), where)
        limits = (least, greatest)
    truth = partial(_truth, files["depth"], files.get("mask")) if "depth" in files else None
    name = Path(files["image"]).stem
    return View(name, files["image"], k.float(), pose, limits, truth, where)


def _matrix(value: object, where: str, what: str, shapes: tuple[tuple[int, ...], ...]) -> Tensor:
    try:
        array = np.array(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        array = np.zeros(())
    if array.shape not in shapes:
        wanted = " or ".join("x".join(map(str, shape)) for shape in shapes)
        raise ValueError(f"{where}: {what!r} must be {wanted} numbers")
    return torch.from_numpy(array)


def _sources(sources: object, names: dict[str, int], where: str) -> list[tuple[int, float]]:
    pairs = []
    for number, source in enumerate(sources if isinstance(sources, list) else [None]):
        name, score = source if isinstance(source, list) and len(source) == 2 else (source, None)
        if not isinstance(name, str) or not (score is None or isinstance(score, (int, float))):
            raise ValueError(f"{where}: 'sources' must be a list of names, or of [name, score]")
        if name not in names:
            raise ValueError(f"{where} lists source {name!r}, which is none of the views")
        # Without scores the order alone counts; a score too large for a float is the largest.
        score = 1.0 / (1 + number) if score is None else min(score, 1e300)
        pairs.append((names[name], float(score)))
    return pairs


def _check_keys(where: str, entry: dict, known: set[str]) -> None:
    if unknown := sorted(set(entry) - known):
        raise ValueError(
            f"{where}: unknown {', '.join(map(repr, unknown))}; known are "
            f"{', '.join(sorted(known))}"
        )


def _truth(depth_file: str, mask_file: str | None) -> tuple[Tensor, Tensor]:
    depth = read_depth(depth_file)
    mask = None if mask_file is None else read_mask(mask_file)
    if mask is not None and mask.shape != depth.shape:
        raise ValueError(f"{mask_file}: not of the size of its depth map {depth_file}")
    return known_depth(depth, True if mask is None else mask)
