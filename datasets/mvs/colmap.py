"""Scenes out of COLMAP's models: COLMAP workspaces, and ETH3D's multi-view scenes.

::

    WORKSPACE/images/...                     undistorted photographs
    WORKSPACE/sparse/{cameras,images,points3D}.{bin,txt}    or sparse/0, or beside the images

    SCENE/images/dslr_images_undistorted/DSC_0286.JPG       of the photographs, or of the rig
    SCENE/dslr_calibration_undistorted/{cameras,images,points3D}.txt
    SCENE/ground_truth_depth/dslr_images/DSC_0286.JPG       float32 rows, of distorted photographs
    SCENE/dslr_calibration_jpg/{cameras,images}.txt         of which this is the calibration

A COLMAP pixel centre is at one half, ours at a whole number: half a pixel is taken off the
principal point. Pairs are scored by the sparse points that two views share, and the depth range is
that of the points that a view sees.

ETH3D's true depth belongs to the distorted photographs. Camera centre and axes are the undistorted
photographs' own, so the depth of an undistorted pixel is the one at the distorted pixel of its ray;
the nearest is taken.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..draws import rotation_matrix
from ..files import check_files, expand_path
from .cameras import camera_centre, check_camera
from .colmap_model import Camera, Model, find_model, read_model
from .pairs import pair_by_poses, pairs_from_scores, score_by_points
from .scene import Scene, View, known_depth, near_origin

__all__ = ["FOLDERS", "open_colmap", "open_eth3d"]

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
    return _scene_of_model(read_model(folder), root, "colmap")


def _scene_of_model(
    model: Model,
    root: Path,
    layout: str,
    truth: Callable[[str], Callable | None] = lambda name: None,
) -> Scene:
    """Make a scene of a model, named by its folder ``root``, and of the photographs in ``images``.

    ``truth``, called with the name of a photograph, returns what reads the true depth.
    """
    images = root / "images"
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
        extrinsics[:3, :3] = _rotation_of(photograph.quaternion, file)
        extrinsics[:3, 3] = torch.tensor(photograph.shift, dtype=torch.float64)
        views.append(
            View(
                name=photograph.name.rsplit(".", 1)[0],
                image=path,
                intrinsics=_intrinsics(camera, where).float(),
                extrinsics=extrinsics,
                truth=truth(photograph.name),
                camera_file=file,
                size=(camera.height, camera.width),
            )
        )
    points, tracks = _points(model)
    empty: list[list] = [[] for _ in views]
    file = model.file("images")
    scene = near_origin(Scene(root.name, views, empty, layout, file, points, tracks))
    if scene.points is None or tracks is None or not any(len(track) for track in tracks):
        return pair_by_poses(scene)
    centres = camera_centre(torch.stack([view.extrinsics for view in scene.views]))
    scene.pairs = pairs_from_scores(score_by_points(scene.points, tracks, centres))
    return scene


def _rotation_of(quaternion: tuple[float, ...], where: str) -> Tensor:
    """Return the rotation (3, 3) float64 of a quaternion (w, x, y, z)."""
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
    return torch.from_numpy(model.points), tracks


#: Folders of the calibration, for the photographs and for the rig.
FOLDERS = ("dslr_calibration_undistorted", "rig_calibration_undistorted")


def open_eth3d(path: str | os.PathLike) -> Scene:
    """Open an ETH3D scene of undistorted photographs; true depth is found where it was unpacked.

    Raises:
        FileNotFoundError: the model or photographs are missing; the message names them.
        ValueError: the model is damaged or a camera is wrong.
    """
    root = expand_path(path)
    folder = find_model(*(root / name for name in FOLDERS))
    if folder is None:
        raise FileNotFoundError(
            f"ETH3D scene at {root}: no calibration; expected {root / FOLDERS[0] / 'cameras.txt'}"
        )
    model = read_model(folder)
    truths = _truths(root, model)
    return _scene_of_model(model, root, "eth3d", truths.get)


def _truths(root: Path, model: Model) -> dict[str, partial]:
    """Return what reads the true depth of each photograph that has one."""
    maps, jpg = root / "ground_truth_depth" / "dslr_images", root / "dslr_calibration_jpg"
    if not maps.is_dir():
        return {}
    if find_model(jpg) is None:
        raise FileNotFoundError(
            f"{jpg / 'cameras.txt'}: no such file; the true depth in {maps} is of the distorted "
            "photographs, whose calibration this is"
        )
    distorted = read_model(jpg, points=False)
    cameras = {Path(p.name).name: distorted.cameras[p.camera] for p in distorted.photographs}
    readers = {}
    for photograph in model.photographs:
        name = Path(photograph.name).name
        if name in cameras and (maps / name).is_file():
            own = model.cameras[photograph.camera]
            readers[photograph.name] = partial(_read, str(maps / name), cameras[name], own)
    return readers


def _read(path: str, distorted: Camera, own: Camera) -> tuple[Tensor, Tensor]:
    """Read a map of the distorted photograph and look it up for the undistorted one's pixels."""
    stored = np.fromfile(path, dtype="<f4")
    if stored.size != distorted.width * distorted.height:
        raise ValueError(
            f"{path}: {stored.size} values, but the photograph has {distorted.height}x"
            f"{distorted.width} pixels"
        )
    stored = stored.reshape(distorted.height, distorted.width)
    fx, fy, cx, cy = _pinhole(own)
    x, y = np.broadcast_arrays(
        (np.arange(own.width)[None] + 0.5 - cx) / fx,
        (np.arange(own.height)[:, None] + 0.5 - cy) / fy,
    )
    u, v = _distort(distorted, x, y, path)
    column, row = np.floor(u).astype(np.int64), np.floor(v).astype(np.int64)
    inside = (column >= 0) & (column < distorted.width) & (row >= 0) & (row < distorted.height)
    depth = stored[np.where(inside, row, 0), np.where(inside, column, 0)]
    return known_depth(depth, inside)


def _pinhole(camera: Camera) -> tuple[float, ...]:
    """Focal lengths and principal point; of one focal length that one twice."""
    return camera.parameters[0], *camera.parameters[-3:]


def _distort(
    camera: Camera, x: np.ndarray, y: np.ndarray, path: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the pixels (corner at 0) of rays (x, y, 1) in a distorted photograph."""
    if camera.model in ("PINHOLE", "SIMPLE_PINHOLE"):
        fx, fy, cx, cy = _pinhole(camera)
        return fx * x + cx, fy * y + cy
    if camera.model != "THIN_PRISM_FISHEYE":
        raise ValueError(f"{path}: the photograph's camera model {camera.model} is not ETH3D's")
    fx, fy, cx, cy, k1, k2, p1, p2, k3, k4, sx, sy = camera.parameters
    radius = np.hypot(x, y)
    bend = np.where(radius > 1e-8, np.arctan(radius) / np.maximum(radius, 1e-8), 1.0)
    a, b = x * bend, y * bend
    r = a * a + b * b
    radial = r * (k1 + r * (k2 + r * (k3 + r * k4)))
    u = a + a * radial + 2 * p1 * a * b + p2 * (r + 2 * a * a) + sx * r
    v = b + b * radial + 2 * p2 * a * b + p1 * (r + 2 * b * b) + sy * r
    return fx * u + cx, fy * v + cy
