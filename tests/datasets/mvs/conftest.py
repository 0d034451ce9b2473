"""Scenes of the tests, made once."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from mvs_fixtures import small_scene
from torch import Tensor

from vizoo.datasets.mvs import Scene, write_scene
from vizoo.datasets.mvs.cameras import resize_intrinsics


@pytest.fixture
def scene() -> Scene:
    """Four views of 48x64."""
    return small_scene()


@pytest.fixture(scope="session")
def scene_of_dtu_size() -> Scene:
    """Three views of 512x640, the only size of DTU's training layout: blocks of 8x8 pixels."""
    scene = small_scene(seed=7, views=3, height=64, width=80)
    views = [
        replace(
            view,
            image=_enlarged(view.image),
            intrinsics=resize_intrinsics(view.intrinsics, 8, 8),
            truth=lambda view=view: tuple(map(_enlarged, view.truth())),
        )
        for view in scene.views
    ]
    return replace(scene, name="scan7", views=views)


def _enlarged(planes: Tensor) -> Tensor:
    return planes.repeat_interleave(8, 1).repeat_interleave(8, 2)


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
