"""Fixtures of the tests of panoramas."""

from __future__ import annotations

import pytest

from vizoo.vision.viz.cloud import inside_picture


@pytest.fixture
def small_views(monkeypatch):
    """Large pictures from within small meshes would take most of the tests' time."""

    def small(*cloud, size, **settings):
        return inside_picture(*cloud, size=(90, 160), **settings)

    monkeypatch.setattr("vizoo.panorama.infer.inside_picture", small)
