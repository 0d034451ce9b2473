"""A small scene and a network that knows its depth."""

import functools

import pytest
import torch
from torch import nn

from vizoo.datasets.worlds.views import WorldViews
from vizoo.vision.viz.cloud import cloud_picture


@functools.cache
def small_scene(seed=17, views=4, height=48, width=64):
    """A room, so that all depth is known, by a ring of cameras."""
    worlds = WorldViews(1, height, width, views, seed=seed, layouts=["room"], floating=0)
    return worlds.scene(0)


class Oracle(nn.Module):
    """Stands in for a network: finds the reference by its pose and answers its true depth.

    Attributes:
        calls: the names of the views asked for.
        error: the true depth is multiplied by one plus this.
    """

    def __init__(self, scene, error=0.0):
        super().__init__()
        self.scene, self.calls = scene, []
        self.register_buffer("error", torch.tensor(error))

    def __deepcopy__(self, memo):
        return self

    def predict(self, images, intrinsics, extrinsics, depth_range, start=None, *, generator=None):
        poses = torch.stack([view.extrinsics for view in self.scene.views]).to(extrinsics.device)
        index = int((poses - extrinsics[0, 0]).abs().amax(dim=(1, 2)).argmin())
        self.calls.append(self.scene.views[index].name)
        depth = self.scene.views[index].truth()[0][None].to(images.device)
        depth = nn.functional.interpolate(depth, images.shape[-2:], mode="nearest-exact")
        torch.rand(1, generator=generator)
        return depth * (1 + self.error), torch.ones_like(depth)


@pytest.fixture
def small_pictures(monkeypatch):
    """Large pictures of small clouds would take most of the tests' time."""
    small = functools.partial(cloud_picture, width=160)
    monkeypatch.setattr("vizoo.mvs.reconstruction.cloud_picture", small)


@pytest.fixture
def scene():
    return small_scene()


@pytest.fixture
def oracle(scene, small_pictures):
    return Oracle(scene)
