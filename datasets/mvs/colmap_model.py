"""Reading and writing COLMAP's sparse models, text and binary.

A model is three files, ``cameras``, ``images`` and ``points3D``, all ``.txt`` or all ``.bin``. They
are done here rather than by pycolmap, whose wheel weighs 38 MB for three small formats.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
from torch import Tensor

from ...common.files import write_bytes, write_text
from .cameras import project
from .scene import Scene

__all__ = ["Camera", "Model", "Photograph", "find_model", "read_model", "write_model"]

#: Names and numbers of parameters, in the order of the binary format's numbers.
_CAMERA_MODELS = (
    ("SIMPLE_PINHOLE", 3),
    ("PINHOLE", 4),
    ("SIMPLE_RADIAL", 4),
    ("RADIAL", 5),
    ("OPENCV", 8),
    ("OPENCV_FISHEYE", 8),
    ("FULL_OPENCV", 12),
    ("FOV", 5),
    ("SIMPLE_RADIAL_FISHEYE", 4),
    ("RADIAL_FISHEYE", 5),
    ("THIN_PRISM_FISHEYE", 12),
    ("RAD_TAN_THIN_PRISM_FISHEYE", 16),
    ("SIMPLE_DIVISION", 4),
    ("DIVISION", 5),
    ("SIMPLE_FISHEYE", 3),
    ("FISHEYE", 4),
    ("EUCM", 6),
    ("EQUIRECTANGULAR", 2),
)
_COUNTS = dict(_CAMERA_MODELS)
_KINDS = ("cameras", "images", "points3D")


class Camera(NamedTuple):
    """A calibration: model name, size in pixels, parameters; the first pixel is centred at .5."""

    model: str
    width: int
    height: int
    parameters: tuple[float, ...]


class Photograph(NamedTuple):
    """A registered image: quaternion (w, x, y, z) and shift from world to camera.

    ``points`` are the identifiers of the 3D points that it sees.
    """

    name: str
    camera: int
    quaternion: tuple[float, ...]
    shift: tuple[float, ...]
    points: np.ndarray


class Model(NamedTuple):
    """A sparse model. ``points`` (N, 3) float64 go by ``point_ids`` (N,) int64, sorted."""

    folder: Path
    suffix: str
    cameras: dict[int, Camera]
    photographs: list[Photograph]
    point_ids: np.ndarray
    points: np.ndarray

    def file(self, kind: str) -> str:
        """The path of ``cameras``, ``images`` or ``points3D``."""
        return str(self.folder / f"{kind}{self.suffix}")


def find_model(*folders: str | os.PathLike) -> Path | None:
    """Return the first of the folders that holds a model's cameras, None if none does."""
    for folder in folders:
        for suffix in (".bin", ".txt"):
            if (Path(folder) / f"cameras{suffix}").is_file():
                return Path(folder)
    return None


def read_model(folder: str | os.PathLike, points: bool = True) -> Model:
    """Read a folder's model, of two forms the binary one.

    Args:
        folder: holds ``cameras``, ``images`` and perhaps ``points3D``.
        points: whether ``points3D`` is read; else the model has no points.

    Raises:
        FileNotFoundError: ``cameras`` or ``images`` is missing.
        ValueError: a file is damaged; the message names it and the line or the byte.
    """
    folder = Path(folder)
    suffix = ".bin" if (folder / "cameras.bin").is_file() else ".txt"
    paths = {kind: folder / f"{kind}{suffix}" for kind in _KINDS}
    for kind in ("cameras", "images"):
        if not paths[kind].is_file():
            raise FileNotFoundError(f"{paths[kind]}: no such file of a COLMAP model")
    readers: tuple[Callable, ...] = (_text_cameras, _text_images, _text_points)
    if suffix == ".bin":
        readers = (_binary_cameras, _binary_images, _binary_points)
    cameras, photographs = readers[0](paths["cameras"]), readers[1](paths["images"])
    known = readers[2](paths["points3D"]) if points and paths["points3D"].is_file() else {}
    if not photographs:
        raise ValueError(f"{paths['images']}: the model has no image")
    for photograph in photographs:
        if photograph.camera not in cameras:
            raise ValueError(
                f"{paths['images']}: {photograph.name} is of camera {photograph.camera}, which "
                f"{paths['cameras'].name} lacks"
            )
    identifiers = np.array(sorted(known), dtype=np.int64)
    places = np.array([known[i] for i in identifiers.tolist()], dtype=np.float64).reshape(-1, 3)
    if not np.isfinite(places).all():
        raise ValueError(f"{paths['points3D']}: a point is not finite")
    photographs = sorted(photographs, key=lambda photograph: photograph.name)
    return Model(folder, suffix, cameras, photographs, identifiers, places)


def _rows(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of a text file that are no comments, blank ones too."""
    empty = True
    try:
        # Line by line: of a large reconstruction such a file has gigabytes.
        with path.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, 1):
                empty = empty and not line.strip()
                if not line.startswith("#"):
                    yield number, line.rstrip("\n")
    except UnicodeDecodeError:
        raise ValueError(f"{path}: not a COLMAP file: not text") from None
    if empty:
        raise ValueError(f"{path}: the COLMAP file is empty")


def _parse(path: Path, number: int, words: list[str], kinds: str) -> list:
    """Convert words to whole (``i``) or real (``f``) numbers."""
    values = []
    for kind, word in zip(kinds, words, strict=False):
        try:
            values.append(int(word) if kind == "i" else float(word))
        except ValueError:
            raise ValueError(f"{path}, line {number}: {word[:24]!r} is not a number") from None
    if len(values) < len(kinds):
        raise ValueError(f"{path}, line {number}: {len(words)} words, want {len(kinds)}")
    if not all(abs(value) < 1 << 63 for value in values):
        raise ValueError(f"{path}, line {number}: a number is not finite, or too large")
    return values


def _text_cameras(path: Path) -> dict[int, Camera]:
    cameras = {}
    for number, line in _rows(path):
        words = line.split()
        if not words:
            continue
        model = words[1] if len(words) > 1 else ""
        if model not in _COUNTS:
            raise ValueError(f"{path}, line {number}: no camera model is called {model[:32]!r}")
        count = _COUNTS[model]
        kinds = "iii" + "f" * count
        identifier, width, height, *rest = _parse(path, number, [words[0], *words[2:]], kinds)
        cameras[identifier] = Camera(model, width, height, tuple(rest))
    return cameras


def _text_images(path: Path) -> list[Photograph]:
    rows = _rows(path)
    photographs = []
    for number, line in rows:
        words = line.split(maxsplit=9)
        if not words:
            continue
        _, *pose, camera = _parse(path, number, words, "i" + "f" * 7 + "i")
        if len(words) < 10:
            raise ValueError(f"{path}, line {number}: the image has no name")
        number, line = next(rows, (number, ""))
        seen = line.split()
        if len(seen) % 3:
            raise ValueError(f"{path}, line {number}: want 'x y point' for every keypoint")
        listed = _parse(path, number, seen[2::3], "i" * (len(seen) // 3))
        points = np.array([point for point in listed if point >= 0], dtype=np.int64)
        photographs.append(
            Photograph(words[9].strip(), camera, tuple(pose[:4]), tuple(pose[4:]), points)
        )
    return photographs


def _text_points(path: Path) -> dict[int, tuple[float, ...]]:
    if not path.stat().st_size:
        return {}
    points = {}
    for number, line in _rows(path):
        words = line.split(maxsplit=4)
        if words:
            identifier, *place = _parse(path, number, words, "ifff")
            points[identifier] = tuple(place)
    return points


class _Bytes:
    """A binary file, taken piece by piece."""

    def __init__(self, path: Path) -> None:
        self.path, self.data, self.at = path, path.read_bytes(), 0

    def read(self, size: int) -> bytes:
        part = self.data[self.at : self.at + size]
        if len(part) < size:
            self.fail("cut short")
        self.at += size
        return part

    def take(self, form: str) -> tuple:
        return struct.unpack(f"<{form}", self.read(struct.calcsize(f"<{form}")))

    def count(self, least: int) -> int:
        """Take the number of records of ``least`` bytes each, so that a wrong one fails at once."""
        (count,) = self.take("Q")
        if count * least > len(self.data) - self.at:
            self.fail(f"cut short ({count} records stated)")
        return count

    def word(self) -> str:
        end = self.data.find(b"\0", self.at)
        if end < 0:
            self.fail("cut short within a name")
        text, self.at = self.data[self.at : end], end + 1
        try:
            return text.decode()
        except UnicodeDecodeError:
            self.fail("not a COLMAP file: a name is no text")

    def fail(self, reason: str) -> NoReturn:
        raise ValueError(f"{self.path}: {reason} at byte {self.at}")

    def end(self) -> None:
        if self.at != len(self.data):
            self.fail(f"{len(self.data) - self.at} bytes too many")


def _binary_cameras(path: Path) -> dict[int, Camera]:
    data, cameras = _Bytes(path), {}
    for _ in range(data.count(24)):
        identifier, model, width, height = data.take("iiQQ")
        if not 0 <= model < len(_CAMERA_MODELS):
            data.fail(f"no camera model has the number {model}")
        name, count = _CAMERA_MODELS[model]
        cameras[identifier] = Camera(name, width, height, data.take("d" * count))
    data.end()
    return cameras


def _binary_images(path: Path) -> list[Photograph]:
    data, photographs = _Bytes(path), []
    for _ in range(data.count(72)):
        _, *pose, camera = data.take("i7di")
        name = data.word()
        seen = np.frombuffer(data.read(24 * data.count(24)), "<f8,<f8,<i8")["f2"]
        points = seen[seen >= 0].astype(np.int64)
        photographs.append(Photograph(name, camera, tuple(pose[:4]), tuple(pose[4:]), points))
    data.end()
    return photographs


def _binary_points(path: Path) -> dict[int, tuple[float, ...]]:
    data, points = _Bytes(path), {}
    for _ in range(data.count(51)):
        identifier, *place = data.take("q3d3Bd")[:4]
        data.read(8 * data.count(8))
        points[identifier] = tuple(place)
    data.end()
    return points


def write_model(
    scene: Scene,
    folder: Path,
    names: list[str],
    points: Tensor,
    colours: Tensor,
    tracks: Sequence[Tensor],
    binary: bool = False,
) -> None:
    """Write ``cameras``, PINHOLE, ``images`` and ``points3D``, each atomically.

    A model of the other form in that folder goes, as readers would take one of the two.

    Names of photographs are relative to the images' folder; points and their colours (N, 3), uint8,
    go with tracks, which are for each view the indices of the points that it sees.

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
        pose = (*_quaternion_of(extrinsics[:3, :3]), *extrinsics[:3, 3].tolist())
        images.append((index + 1, pose, index + 1, names[index], keypoints))
    places, numbers = points.double().tolist(), range(1, len(points) + 1)
    rows = list(zip(numbers, places, colours.tolist(), members, strict=True))
    write = _write_binary if binary else _write_text
    write(folder, cameras, images, rows)
    for kind in _KINDS:
        (folder / f"{kind}{'.txt' if binary else '.bin'}").unlink(missing_ok=True)


def _quaternion_of(rotation: Tensor) -> tuple[float, ...]:
    """Return the quaternion (w, x, y, z), w not negative, of a rotation (3, 3)."""
    r = rotation.double().tolist()
    # The eigenvector of the largest eigenvalue is right for every rotation, however large.
    matrix = np.array(
        [
            [r[0][0] + r[1][1] + r[2][2], 0, 0, 0],
            [r[2][1] - r[1][2], r[0][0] - r[1][1] - r[2][2], 0, 0],
            [r[0][2] - r[2][0], r[0][1] + r[1][0], r[1][1] - r[0][0] - r[2][2], 0],
            [r[1][0] - r[0][1], r[0][2] + r[2][0], r[1][2] + r[2][1], r[2][2] - r[0][0] - r[1][1]],
        ]
    )
    vector = np.linalg.eigh(matrix, UPLO="L")[1][:, -1]
    return tuple((vector if vector[0] >= 0 else -vector).tolist())


def _write_text(folder: Path, cameras: list, images: list, points: list) -> None:
    lines = ["# CAMERA_ID MODEL WIDTH HEIGHT fx fy cx cy"]
    for identifier, width, height, focal in cameras:
        lines.append(f"{identifier} PINHOLE {width} {height} {_words(focal)}")
    write_text(folder / "cameras.txt", "\n".join(lines) + "\n")
    lines = ["# IMAGE_ID QW QX QY QZ TX TY TZ CAMERA_ID NAME", "# X Y POINT3D_ID ..."]
    for identifier, pose, camera, name, keypoints in images:
        lines.append(f"{identifier} {_words(pose)} {camera} {name}")
        lines.append(" ".join(f"{x:.3f} {y:.3f} {point}" for x, y, point in keypoints))
    write_text(folder / "images.txt", "\n".join(lines) + "\n")
    lines = ["# POINT3D_ID X Y Z R G B ERROR IMAGE_ID POINT2D_IDX ..."]
    for identifier, place, colour, members in points:
        track = " ".join(f"{image} {keypoint}" for image, keypoint in members)
        lines.append(f"{identifier} {_words(place)} {' '.join(map(str, colour))} 0 {track}")
    write_text(folder / "points3D.txt", "\n".join(lines) + "\n")


def _write_binary(folder: Path, cameras: list, images: list, points: list) -> None:
    parts = [struct.pack("<Q", len(cameras))]
    for identifier, width, height, focal in cameras:
        parts.append(struct.pack("<iiQQ4d", identifier, 1, width, height, *focal))
    write_bytes(folder / "cameras.bin", b"".join(parts))
    parts = [struct.pack("<Q", len(images))]
    for identifier, pose, camera, name, keypoints in images:
        parts.append(struct.pack("<i7di", identifier, *pose, camera) + name.encode() + b"\0")
        parts.append(struct.pack("<Q", len(keypoints)))
        parts += [struct.pack("<ddq", *keypoint) for keypoint in keypoints]
    write_bytes(folder / "images.bin", b"".join(parts))
    parts = [struct.pack("<Q", len(points))]
    for identifier, place, colour, members in points:
        parts.append(struct.pack("<Q3d3BdQ", identifier, *place, *colour, 0.0, len(members)))
        parts += [struct.pack("<ii", *member) for member in members]
    write_bytes(folder / "points3D.bin", b"".join(parts))


def _words(values: tuple[float, ...] | list[float]) -> str:
    return " ".join(repr(float(value)) for value in values)
