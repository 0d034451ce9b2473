"""Scenes of the tests, made once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from mvs_fixtures import small_scene

from vizoo.datasets.mvs import Scene, write_scene


@pytest.fixture
def scene() -> Scene:
    """Four views of 48x64."""
    return small_scene()


@pytest.fixture(scope="session")
def scene_of_dtu_size() -> Scene:
    """Three views of 512x640, the only size of DTU's training layout."""
    scene = small_scene(seed=7, views=3, height=512, width=640)
    scene.name = "scan7"
    return scene


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
