"""The sentence where Open3D cannot be had."""

import builtins

import pytest

from vizoo.vision.io.ply import open3d


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
