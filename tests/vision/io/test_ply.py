"""PLY files: what is written piece by piece is read back, here and by Open3D; damage is named."""

import builtins

import numpy as np
import pytest

from vizoo.vision.io.ply import open3d, read_ply, write_mesh, write_ply

POINTS = np.random.default_rng(0).normal(size=(130, 3)).astype(np.float32)
COLOURS = np.random.default_rng(1).integers(0, 256, (130, 3), dtype=np.uint8)


def written(path, normals=None):
    with write_ply(path) as ply:
        ply.write(POINTS[:0], COLOURS[:0], None if normals is None else normals[:0])
        for part in (slice(0, 7), slice(7, 130)):
            ply.write(POINTS[part], COLOURS[part], None if normals is None else normals[part])
    return path


@pytest.mark.parametrize("normals", [None, POINTS])
def test_pieces_come_back_as_one(tmp_path, normals):
    path = written(tmp_path / "cloud.ply", normals)
    points, colours = read_ply(path)
    np.testing.assert_array_equal(points, POINTS)
    np.testing.assert_array_equal(colours, COLOURS)
    library = pytest.importorskip("open3d", exc_type=ImportError)
    cloud = library.io.read_point_cloud(str(path))
    np.testing.assert_array_equal(np.asarray(cloud.points), POINTS)
    np.testing.assert_array_equal(np.rint(np.asarray(cloud.colors) * 255), COLOURS)
    assert cloud.has_normals() == (normals is not None)


def test_an_interrupted_write_leaves_the_old_file(tmp_path):
    path = written(tmp_path / "cloud.ply")
    with pytest.raises(KeyboardInterrupt), write_ply(path) as ply:
        ply.write(POINTS[:3], COLOURS[:3])
        raise KeyboardInterrupt
    assert len(read_ply(path)[0]) == 130 and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("points", "colours", "message"),
    [
        (POINTS[:5], COLOURS[:4], r"both \(N, 3\)"),
        (POINTS[:5], COLOURS[:5] / 255, "uint8"),
        (POINTS[:5] * np.nan, COLOURS[:5], "not finite"),
    ],
)
def test_wrong_points(tmp_path, points, colours, message):
    with pytest.raises(ValueError, match=message), write_ply(tmp_path / "c.ply") as ply:
        ply.write(points, colours)
    assert not (tmp_path / "c.ply").exists()


@pytest.mark.parametrize("form", ["ascii", "binary_big_endian"])
def test_other_forms(tmp_path, form):
    head = f"ply\nformat {form} 1.0\ncomment a mesh\nelement vertex 2\nproperty double x\n"
    head += "property double y\nproperty double z\nproperty float quality\nelement face 1\n"
    head += "property list uchar int vertex_indices\nend_header\n"
    kind = np.dtype([("p", ">f8", 3), ("q", ">f4")])
    rows = np.array([([1, 2, 3], 0), ([4, 5, 6.5], 0)], kind)
    body = (
        b"1 2 3 0\n4 5 6.5 0\n3 0 1 1\n" if form == "ascii" else rows.tobytes() + b"\3" + 12 * b"\0"
    )
    (tmp_path / "mesh.ply").write_bytes(head.encode() + body)
    points, colours = read_ply(tmp_path / "mesh.ply")
    assert colours is None and points.dtype == np.float64
    np.testing.assert_array_equal(points, [[1, 2, 3], [4, 5, 6.5]])
    if form == "ascii":  # one row that is left would else be all points
        (tmp_path / "mesh.ply").write_bytes(head.encode() + b"1 2 3 0\n")
        with pytest.raises(ValueError, match="mesh.ply: cut short: 1 of 2 points are there"):
            read_ply(tmp_path / "mesh.ply")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:-4], "cut short: 130 points need 1950 bytes, 1946 are there"),
        (lambda data: b"PLY" + data, "not a PLY file"),
        (lambda data: data.replace(b"vertex 130", b"vertex 000"), "holds no point"),
        (lambda data: data.replace(b"float y", b"float w"), "x, y and z"),
        (lambda data: data.replace(b"float y", b"float x"), "x, y and z"),
        (lambda data: data.replace(b"float y", b"thing y"), "property 'thing y'"),
        (lambda data: data.replace(b"element vertex", b"element facets"), "facets, not vertex"),
        (lambda data: data[:60], "does not end"),
    ],
)
def test_damage_is_named(tmp_path, change, message):
    path = written(tmp_path / "cloud.ply")
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ValueError, match=message):
        read_ply(path)


def test_nothing_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_ply(tmp_path / "none.ply")


def test_a_mesh(tmp_path):
    """Read back by another program, and by hand."""
    points = np.float32([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
    colours = np.uint8([[255, 0, 0], [0, 255, 0], [0, 0, 255], [9, 8, 7]])
    triangles = np.array([[0, 1, 2], [0, 3, 1]])
    path = tmp_path / "new" / "mesh.ply"
    write_mesh(path, points, triangles, colours)
    found, shades = read_ply(path)
    assert np.array_equal(found, points) and np.array_equal(shades, colours)
    tail = np.frombuffer(path.read_bytes()[-26:], np.dtype([("n", "u1"), ("at", "<i4", 3)]))
    assert tail["n"].tolist() == [3, 3] and np.array_equal(tail["at"], triangles)
    library = pytest.importorskip("open3d", exc_type=ImportError)
    mesh = library.io.read_triangle_mesh(str(path))
    assert np.array_equal(np.asarray(mesh.triangles), triangles)
    assert np.allclose(np.asarray(mesh.vertex_colors) * 255, colours)


@pytest.mark.parametrize(
    ("triangles", "message"),
    [
        (np.array([[0, 1, 3]]), "none of the 3"),
        (np.array([[0, -1, 2]]), "none of the 3"),
        (np.array([[0.0, 1, 2]]), "float64"),
        (np.array([0, 1, 2]), r"of \(3,\)"),
    ],
)
def test_refused_triangles(tmp_path, triangles, message):
    with pytest.raises(ValueError, match=message):
        write_mesh(tmp_path / "m.ply", np.zeros((3, 3)), triangles, np.zeros((3, 3), np.uint8))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            ImportError("libusb-1.0.so.0: cannot open shared object file"),
            "apt-get install libusb-1.0-0",
        ),
        (OSError("libGL.so.1: cannot open"), "apt-get install libgl1"),
        (ModuleNotFoundError("No module named 'open3d'"), "pip install open3d"),
    ],
)
def test_missing_library_is_named(monkeypatch, error, message):
    original = builtins.__import__

    def failing(name, *rest, **options):
        if name == "open3d":
            raise error
        return original(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", failing)
    with pytest.raises(ImportError, match=message) as caught:
        open3d()
    assert "\n" not in str(caught.value)
