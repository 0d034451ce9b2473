"""Point clouds and triangle meshes as binary PLY files; Open3D, where it is needed.

Clouds are written piece by piece and read whole.

A cloud of hundreds of millions of points never has to be in memory to be written. Vertices are
``x y z`` as float32, normals ``nx ny nz`` where there are any, and ``red green blue`` as bytes,
which is what every viewer of this field reads.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import BinaryIO

import numpy as np

from ...common.files import atomic_write, existing
from ...common.system import missing_library

__all__ = ["PlyWriter", "open3d", "read_ply", "write_mesh", "write_ply"]

_HEADER_LIMIT = 1 << 16  # bytes; scanners write comments, but not this many
_TYPES = dict(
    zip(
        "char uchar short ushort int uint float double "
        "int8 uint8 int16 uint16 int32 uint32 float32 float64".split(),
        2 * "i1 u1 i2 u2 i4 u4 f4 f8".split(),
        strict=True,
    )
)
_ORDERS = {"ascii": "=", "binary_little_endian": "<", "binary_big_endian": ">"}


class PlyWriter:
    """Takes points for a file that `write_ply` opened."""

    def __init__(self, file: BinaryIO, path: Path, *, triangles: int | None = None) -> None:
        self.count = 0  #: points written so far
        self._file, self._path, self._triangles = file, path, triangles
        self._normals: bool | None = None

    def write(
        self, points: np.ndarray, colours: np.ndarray, normals: np.ndarray | None = None
    ) -> None:
        """Append points.

        Args:
            points: (N, 3) finite; N may be 0.
            colours: (N, 3) uint8 RGB.
            normals: (N, 3); in all calls or in none.

        Raises:
            ValueError: other shapes or types, or a coordinate that is not finite.
        """
        points = np.asarray(points, np.float32)
        colours = np.asarray(colours)
        shapes = {points.shape, colours.shape} | ({normals.shape} if normals is not None else set())
        if len(shapes) != 1 or points.ndim != 2 or points.shape[1] != 3:
            raise ValueError(
                f"{self._path}: points and colours are both (N, 3), got {points.shape} and "
                f"{colours.shape}"
            )
        if colours.dtype != np.uint8:
            raise ValueError(f"{self._path}: colours are uint8, got {colours.dtype}")
        if not np.isfinite(points).all():
            raise ValueError(f"{self._path}: a coordinate is not finite")
        whole = normals is not None
        if self._normals is None:
            self._normals = whole
            self._file.write(self._header())
        elif self._normals != whole:
            raise ValueError(f"{self._path}: normals go with all points of a file or with none")
        middle = [("normals", "<f4", 3)] if whole else []
        rows = np.empty(len(points), [("points", "<f4", 3), *middle, ("colours", "u1", 3)])
        rows["points"], rows["colours"] = points, colours
        if normals is not None:
            rows["normals"] = normals
        self._file.write(rows.tobytes())
        self.count += len(points)

    def _header(self) -> bytes:
        """Return the header, as long for any count: a comment takes up what the digits leave."""
        count = str(self.count)
        names = ["float x", "float y", "float z"]
        names += ["float nx", "float ny", "float nz"] if self._normals else []
        names += ["uchar red", "uchar green", "uchar blue"]
        lines = ["ply", "format binary_little_endian 1.0"]
        lines += [f"comment points{'.' * (20 - len(count))}", f"element vertex {count}"]
        lines += [f"property {name}" for name in names]
        if self._triangles is not None:
            lines += [f"element face {self._triangles}", "property list uchar int vertex_indices"]
        lines += ["end_header", ""]
        return "\n".join(lines).encode("ascii")

    def _finish(self) -> None:
        self._file.seek(0)
        self._file.write(self._header())


@contextmanager
def write_ply(path: str | os.PathLike) -> Iterator[PlyWriter]:
    """Open a binary PLY file for coloured points; it appears, whole, when the block ends well.

    Example:
        >>> with write_ply("cloud.ply") as ply:
        ...     for points, colours in pieces:
        ...         ply.write(points, colours)
    """
    path = Path(path)
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        writer = PlyWriter(file, path)
        yield writer
        writer._finish()


def write_mesh(
    path: str | os.PathLike, vertices: np.ndarray, triangles: np.ndarray, colours: np.ndarray
) -> None:
    """Write a coloured triangle mesh as a binary PLY file, atomically.

    Args:
        path: the file to write.
        vertices: (V, 3) finite.
        triangles: (T, 3) integers from 0 to V - 1, counter-clockwise seen from the front.
        colours: of the vertices, (V, 3) uint8 RGB.

    Raises:
        ValueError: other shapes or types, a coordinate that is not finite, or a triangle of
            vertices that are not there.
    """
    path, triangles = Path(path), np.asarray(triangles)
    if triangles.ndim != 2 or triangles.shape[1] != 3 or triangles.dtype.kind not in "iu":
        raise ValueError(
            f"{path}: triangles are (T, 3) integers, got {triangles.dtype} of {triangles.shape}"
        )
    if triangles.size and not 0 <= triangles.min() <= triangles.max() < len(vertices):
        raise ValueError(f"{path}: a triangle has a vertex that is none of the {len(vertices)}")
    rows = np.empty(len(triangles), [("corners", "u1"), ("indices", "<i4", 3)])
    rows["corners"], rows["indices"] = 3, triangles
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        writer = PlyWriter(file, path, triangles=len(rows))
        writer.write(vertices, colours)
        file.write(rows.tobytes())
        writer._finish()


def read_ply(path: str | os.PathLike) -> tuple[np.ndarray, np.ndarray | None]:
    """Read the points of a PLY file of any kind: text, little or big endian; meshes' vertices too.

    Returns:
        Points (N, 3) float32, or float64 where the file has doubles, and their colours (N, 3) uint8
        RGB, or None where it has none.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not a PLY file, is cut short, has no point or a coordinate that is not
            finite.
    """
    path = existing(path)
    with path.open("rb") as file:
        order, count, fields = _read_header(file, path)
        start = file.tell()
        kind = np.dtype([(name, f"{order}{code}") for name, code in fields])
        if order == "=":
            try:
                rows = np.loadtxt(file, kind, max_rows=count, ndmin=1, comments=None)[:count]
            except ValueError as error:
                raise ValueError(f"{path}: {str(error).splitlines()[0]}") from error
            if len(rows) < count:
                raise ValueError(f"{path}: cut short: {len(rows)} of {count} points are there")
        else:
            left = os.fstat(file.fileno()).st_size - start
            if left < count * kind.itemsize:
                raise ValueError(
                    f"{path}: cut short: {count} points need {count * kind.itemsize} bytes, "
                    f"{left} are there"
                )
            rows = np.memmap(path, kind, "r", start, (count,))
    wide = any(code == "f8" for name, code in fields if name in "xyz")
    points = np.empty((count, 3), np.float64 if wide else np.float32)
    for index, name in enumerate("xyz"):
        points[:, index] = rows[name]
    if not np.isfinite(points).all():
        raise ValueError(f"{path}: a coordinate is not finite")
    names = [name for name in ("red", "green", "blue") if dict(fields).get(name) == "u1"]
    if len(names) < 3:
        return points, None
    return points, np.stack([rows[name] for name in names], axis=1)


def _read_header(file: BinaryIO, path: Path) -> tuple[str, int, list[tuple[str, str]]]:
    """Return byte order, number of points and the points' fields; leave the file behind it."""
    order, count, fields, element = None, None, [], None
    if file.readline(8).strip() != b"ply":
        raise ValueError(f"{path}: not a PLY file")
    while (line := file.readline(1024)) and file.tell() < _HEADER_LIMIT:
        words = line.decode("ascii", "replace").split()
        if words == ["end_header"]:
            break
        if words[:1] == ["format"] and len(words) == 3:
            order = _ORDERS.get(words[1])
        elif words[:1] == ["element"] and len(words) == 3:
            if element is None and words[1] != "vertex":
                raise ValueError(f"{path}: the first element is {words[1]}, not vertex")
            element = words[1]
            if element == "vertex":
                count = int(words[2]) if words[2].isdecimal() else None
        elif words[:1] == ["property"] and element == "vertex":
            if len(words) != 3 or words[1] not in _TYPES:
                raise ValueError(f"{path}: cannot read the property {' '.join(words[1:])!r}")
            fields.append((words[2], _TYPES[words[1]]))
    else:
        raise ValueError(f"{path}: the PLY header does not end")
    names = [name for name, _ in fields]
    if order is None or count is None or not {"x", "y", "z"} <= set(names):
        raise ValueError(f"{path}: the PLY header names no format or no vertices with x, y and z")
    if len(set(names)) < len(names):
        raise ValueError(f"{path}: the PLY header names a property twice")
    if count == 0:
        raise ValueError(f"{path}: holds no point")
    return order, count, fields


def open3d() -> ModuleType:
    """Import Open3D.

    Raises:
        ImportError: it is not installed, or a system library that it needs is missing; the message
            says what to install.
    """
    try:
        import open3d
    except ModuleNotFoundError as error:
        raise ImportError(
            f"point clouds and meshes need Open3D ({error}): pip install open3d-cpu, or open3d"
        ) from error
    except (ImportError, OSError) as error:
        remedy = missing_library(error)
        raise ImportError(
            f"Open3D cannot be loaded ({error})" + (f"; {remedy}" if remedy else "")
        ) from error
    return open3d
