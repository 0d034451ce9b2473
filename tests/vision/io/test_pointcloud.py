"""Point clouds through Open3D, and the sentence where it cannot be had."""

import builtins

import numpy as np
import pytest

from vizoo.vision.io.pointcloud import open3d, write_point_cloud

POINTS = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
COLOURS = np.random.default_rng(0).integers(0, 256, (20, 3), dtype=np.uint8)


def test_binary_ply(tmp_path):
    try:
        library = open3d()
    except ImportError as error:
        pytest.skip(str(error))
    path = tmp_path / "new" / "a.ply"
    write_point_cloud(path, POINTS, COLOURS)
    assert path.read_bytes().startswith(b"ply\nformat binary_little_endian")
    assert [file.name for file in path.parent.iterdir()] == ["a.ply"]
    cloud = library.io.read_point_cloud(str(path))
    np.testing.assert_allclose(np.asarray(cloud.points), POINTS, atol=1e-6)
    np.testing.assert_array_equal(np.rint(np.asarray(cloud.colors) * 255), COLOURS)


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
def test_missing_library_is_named(tmp_path, monkeypatch, error, message):
    original = builtins.__import__

    def failing(name, *rest, **options):
        if name == "open3d":
            raise error
        return original(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", failing)
    with pytest.raises(ImportError, match=message) as caught:
        write_point_cloud(tmp_path / "a.ply", POINTS, COLOURS)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_refused(tmp_path):
    with pytest.raises(ValueError, match=r"both \(N, 3\)"):
        write_point_cloud(tmp_path / "a.ply", POINTS, COLOURS[1:])
    for points, colours in (
        (POINTS[:0], COLOURS[:0]),
        (POINTS * np.inf, COLOURS),
        (POINTS, COLOURS / 255),
    ):
        with pytest.raises(ValueError, match="at least one point"):
            write_point_cloud(tmp_path / "a.ply", points, colours)
