"""Scenes of the tests, made once."""

from __future__ import annotations

import functools

import pytest

from vizoo.datasets.mvs import Scene, generate_scene


@functools.cache
def make(seed: int = 1, views: int = 4, height: int = 48, width: int = 64, **options) -> Scene:
    return generate_scene(views, height, width, seed=seed, supersample=1, **options)


@pytest.fixture
def scene() -> Scene:
    """Four views of 64x48."""
    return make()


@pytest.fixture
def scene_of_dtu_size() -> Scene:
    """Three views of 640x512, the only size of DTU's training layout."""
    return make(seed=7, views=3, height=512, width=640)
