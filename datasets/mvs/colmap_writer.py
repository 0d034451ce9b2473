"""Writing COLMAP's sparse models, text and binary, and workspaces of them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from ...common.files import atomic_write
from .camera_files import write_lines
from .cameras import project
from .scene import Scene

__all__ = ["quaternion_of", "write_model"]


def write_model(
    scene: Scene,
    folder: Path,
    names: list[str],
    points: Tensor,
    colours: Tensor,
    tracks: Sequence[Tensor],
    binary: bool = False,
) -> None:
    """Write ``cameras``, ``images`` and ``points3D``, each atomically.

    Args:
        scene: whose cameras to write, as PINHOLE.
        folder: where to.
        names: of the photographs, relative to the images' folder.
        points: (N, 3).
        colours: (N, 3) uint8.
        tracks: for each view the indices of the points that it sees.
        binary: ``.bin`` rather than ``.txt``.

    Raises:
        ValueError: a view's intrinsics have skew, which PINHOLE lacks.
    """
    cameras, images = [], []
    members: list[list[tuple[int, int]]] = [[] for _ in range(len(points))]
    for index, view in enumerate(scene.views):
        k = view.intrinsics.double()
        if k[0, 1] != 0:
            raise ValueError(f"{view.describe()}: COLMAP's PINHOLE camera has no skew")
        height, width = scene.size(index)
        focal = (k[0, 0].item(), k[1, 1].item(), k[0, 2].item() + 0.5, k[1, 2].item() + 0.5)
        cameras.append((index + 1, width, height, focal))
        seen = tracks[index].tolist()
        pixels, _ = project(points[tracks[index]], view.intrinsics, view.extrinsics)
        for place, point in enumerate(seen):
            members[point].append((index + 1, place))
        keypoints = [(x, y, p + 1) for (x, y), p in zip((pixels + 0.5).tolist(), seen, strict=True)]
        extrinsics = view.extrinsics.double()
        pose = (*quaternion_of(extrinsics[:3, :3]), *extrinsics[:3, 3].tolist())
        images.append((index + 1, pose, index + 1, names[index], keypoints))
    places, numbers = points.double().tolist(), range(1, len(points) + 1)
    rows = list(zip(numbers, places, colours.tolist(), members, strict=True))
    write = _write_binary if binary else _write_text
    write(folder, cameras, images, rows)


def quaternion_of(rotation: Tensor) -> tuple[float, ...]:
    """Return the quaternion (w, x, y, z), w not negative, of a rotation (3, 3)."""
    r = rotation.double().tolist()
    # The eigenvector of the largest eigenvalue is right for every rotation, however large.
    matrix = np.array(
        [
            [r[0][0] + r[1][1] + r[2][2], 0, 0, 0],
            [r[2][1] - r[1][2], r[0][0] - r[1][1] - r[2][2], 0, 0],
            [r[0][2] - r[2][0], r[0][1] + r[1][0], r[1][1] - r[0][0] - r[2][2], 0],
            [
                r[1][0] - r[0][1],
                r[0][2] + r[2][0],
                r[1][2] + r[2][1],
                r[2][2] - r[0][0] - r[1][1],
            ],
        ]
    )
    vector = np.linalg.eigh(matrix, UPLO="L")[1][:, -1]
    return tuple((vector if vector[0] >= 0 else -vector).tolist())


def _write_text(folder: Path, cameras: list, images: list, points: list) -> None:
    lines = ["# CAMERA_ID MODEL WIDTH HEIGHT fx fy cx cy"]
    for identifier, width, height, focal in cameras:
        lines.append(f"{identifier} PINHOLE {width} {height} {_words(focal)}")
    write_lines(folder / "cameras.txt", lines)
    lines = ["# IMAGE_ID QW QX QY QZ TX TY TZ CAMERA_ID NAME", "# X Y POINT3D_ID ..."]
    for identifier, pose, camera, name, keypoints in images:
        lines.append(f"{identifier} {_words(pose)} {camera} {name}")
        lines.append(" ".join(f"{x:.3f} {y:.3f} {point}" for x, y, point in keypoints))
    write_lines(folder / "images.txt", lines)
    lines = ["# POINT3D_ID X Y Z R G B ERROR IMAGE_ID POINT2D_IDX ..."]
    for identifier, place, colour, members in points:
        track = " ".join(f"{image} {keypoint}" for image, keypoint in members)
        lines.append(f"{identifier} {_words(place)} {' '.join(map(str, colour))} 0 {track}")
    write_lines(folder / "points3D.txt", lines)


def _write_binary(folder: Path, cameras: list, images: list, points: list) -> None:
    parts = [struct.pack("<Q", len(cameras))]
    for identifier, width, height, focal in cameras:
        parts.append(struct.pack("<iiQQ4d", identifier, 1, width, height, *focal))
    _put_bytes(folder / "cameras.bin", parts)
    parts = [struct.pack("<Q", len(images))]
    for identifier, pose, camera, name, keypoints in images:
        parts.append(struct.pack("<i7di", identifier, *pose, camera) + name.encode() + b"\0")
        parts.append(struct.pack("<Q", len(keypoints)))
        parts += [struct.pack("<ddq", *keypoint) for keypoint in keypoints]
    _put_bytes(folder / "images.bin", parts)
    parts = [struct.pack("<Q", len(points))]
    for identifier, place, colour, members in points:
        parts.append(struct.pack("<Q3d3BdQ", identifier, *place, *colour, 0.0, len(members)))
        parts += [struct.pack("<ii", *member) for member in members]
    _put_bytes(folder / "points3D.bin", parts)


def _words(values: tuple[float, ...] | list[float]) -> str:
    return " ".join(repr(float(value)) for value in values)


def _put_bytes(path: Path, parts: list[bytes]) -> None:
    with atomic_write(path) as temporary:
        temporary.write_bytes(b"".join(parts))
