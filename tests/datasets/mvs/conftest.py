"""Scenes of the tests, made once."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path

import pytest

from vizoo.datasets.mvs import Scene, generate_scene, write_scene


@functools.cache
def make(seed: int = 1, views: int = 4, height: int = 48, width: int = 64, **options) -> Scene:
    return generate_scene(views, height, width, seed=seed, supersample=1, **options)


@pytest.fixture
def scene() -> Scene:
    """Four views of 64x48."""
    return make()


@pytest.fixture(scope="session")
def scene_of_dtu_size() -> Scene:
    """Three views of 640x512, the only size of DTU's training layout."""
    return make(seed=7, views=3, height=512, width=640)


@pytest.fixture(scope="session")
def _written(scene_of_dtu_size, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("dtu")
    path = write_scene(scene_of_dtu_size, root, "dtu_training")
    assert path == root / "Rectified" / "scan7_train"
    return root


@pytest.fixture
def dtu(_written, tmp_path) -> Path:
    """That scene in DTU's training layout, as scan 7; a copy to do with as one likes."""
    return shutil.copytree(_written, tmp_path / "dtu")
