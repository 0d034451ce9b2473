"""ETH3D's multi-view scenes (high-resolution photographs, and the rig's).

::

    SCENE/images/dslr_images_undistorted/DSC_0286.JPG
    SCENE/dslr_calibration_undistorted/{cameras,images,points3D}.txt    a COLMAP model
    SCENE/ground_truth_depth/dslr_images/DSC_0286.JPG     float32 rows, of the original photographs
    SCENE/dslr_calibration_jpg/{cameras,images}.txt       of which this is the calibration

The true depth belongs to the distorted photographs. Camera centre and axes are the undistorted
photographs' own, so the depth of an undistorted pixel is the one at the distorted pixel of its ray;
the nearest is taken.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import numpy as np
from torch import Tensor

from ..files import expand_path
from .colmap import scene_of_model
from .colmap_model import Camera, Model, find_model, read_model
from .scene import Scene, known_depth

__all__ = ["FOLDERS", "open_eth3d"]

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
    return scene_of_model(model, root, root / "images", "eth3d", truths.get)


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
    distorted = read_model(jpg)
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
            f"{path}: {stored.size} values, but the photograph has {distorted.width}x"
            f"{distorted.height} pixels"
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
