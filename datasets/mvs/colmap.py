"""Scenes out of COLMAP workspaces.

::

    WORKSPACE/images/...                     undistorted photographs
    WORKSPACE/sparse/{cameras,images,points3D}.{bin,txt}    or sparse/0, or beside the images

A COLMAP pixel centre is at one half, ours at a whole number: half a pixel is taken off the
principal point. Pairs are scored by the sparse points that two views share, and the depth range is
that of the points that a view sees.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..draws import rotation_matrix
from ..files import check_files, expand_path
from .cameras import camera_centre, check_camera
from .colmap_model import Camera, Model, find_model, read_model
from .pairs import pair_by_poses, pairs_from_scores, score_by_points
from .scene import Scene, View

__all__ = ["open_colmap", "rotation_of", "scene_of_model"]

_FOCALS = {"SIMPLE_PINHOLE": 1, "PINHOLE": 2, "SIMPLE_RADIAL": 1, "RADIAL": 1}
_FOCALS |= {"OPENCV": 2, "FULL_OPENCV": 2}


def open_colmap(path: str | os.PathLike) -> Scene:
    """Open a COLMAP workspace.

    Raises:
        FileNotFoundError: the model or photographs are missing; the message names them.
        ValueError: the model is damaged, its photographs are distorted, or a camera is wrong.
    """
    root = expand_path(path)
    folder = find_model(root / "sparse", root / "sparse" / "0", root)
    if folder is None:
        raise FileNotFoundError(
            f"COLMAP workspace at {root}: no model; expected {root / 'sparse' / 'cameras.bin'} or "
            ".txt, or the same in sparse/0"
        )
    return scene_of_model(read_model(folder), root, root / "images", "colmap")


def scene_of_model(
    model: Model,
    root: Path,
    images: Path,
    layout: str,
    truth: Callable[[str], Callable | None] = lambda name: None,
) -> Scene:
    """Make a scene of a model, named by its folder ``root``.

    The photographs' names are relative to ``images``; ``truth``, called with such a name, returns
    what reads the true depth.
    """
    paths = [str(images / photograph.name) for photograph in model.photographs]
    check_files(
        f"{layout} scene", root, {"photographs": paths}, f"{images}/...", what="photographs"
    )
    views = []
    for photograph, path in zip(model.photographs, paths, strict=True):
        camera = model.cameras[photograph.camera]
        where = f"{model.file('cameras')}: camera {photograph.camera}"
        file = f"{model.file('images')}: {photograph.name}"
        extrinsics = torch.eye(4, dtype=torch.float64)
        extrinsics[:3, :3] = rotation_of(photograph.quaternion, file)
        extrinsics[:3, 3] = torch.tensor(photograph.shift, dtype=torch.float64)
        views.append(
            View(
                name=photograph.name.rsplit(".", 1)[0],
                image=path,
                intrinsics=_intrinsics(camera, where).float(),
                extrinsics=extrinsics.float(),
                truth=truth(photograph.name),
                camera_file=file,
                size=(camera.height, camera.width),
            )
        )
    points, tracks = _points(model)
    empty: list[list] = [[] for _ in views]
    scene = Scene(root.name, views, empty, layout, model.file("images"), points, tracks)
    if points is None or tracks is None or not any(len(track) for track in tracks):
        return pair_by_poses(scene)
    centres = camera_centre(torch.stack([view.extrinsics for view in views]))
    scene.pairs = pairs_from_scores(score_by_points(points, tracks, centres))
    return scene


def rotation_of(quaternion: tuple[float, ...], where: str) -> Tensor:
    """Return the rotation (3, 3) float64 of a quaternion (w, x, y, z).

    Raises:
        ValueError: its length is not one, so that it is no rotation.
    """
    q = np.array(quaternion, dtype=np.float64)
    length = float(np.sqrt((q * q).sum()))
    if not 0.99 < length < 1.01:
        raise ValueError(f"{where}: the quaternion is not a rotation (its length is {length:g})")
    return torch.from_numpy(rotation_matrix(*(q / length)))


def _intrinsics(camera: Camera, where: str) -> Tensor:
    focals = _FOCALS.get(camera.model)
    if focals is None or any(camera.parameters[focals + 2 :]):
        raise ValueError(
            f"{where} is distorted ({camera.model}); undistort first: colmap image_undistorter "
            "--image_path IMAGES --input_path SPARSE --output_path WORKSPACE"
        )
    fx, fy = camera.parameters[0], camera.parameters[focals - 1]
    cx, cy = camera.parameters[focals : focals + 2]
    matrix = torch.tensor([[fx, 0, cx - 0.5], [0, fy, cy - 0.5], [0, 0, 1]], dtype=torch.float64)
    check_camera(matrix, torch.eye(4), where)
    return matrix


def _points(model: Model) -> tuple[Tensor | None, list[Tensor] | None]:
    """Return the sparse points and for each photograph the indices of those that it sees."""
    if not len(model.point_ids):
        return None, None
    tracks = []
    for photograph in model.photographs:
        place = np.searchsorted(model.point_ids, photograph.points)
        place = np.minimum(place, len(model.point_ids) - 1)
        place = place[model.point_ids[place] == photograph.points]
        tracks.append(torch.from_numpy(np.unique(place)))
    return torch.from_numpy(model.points).float(), tracks
