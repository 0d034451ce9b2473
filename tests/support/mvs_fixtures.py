"""A small scene and a network that knows its depth."""

import functools
import math

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

    def forward(self, images, intrinsics, extrinsics, depth_range, start=None, *, generator=None):
        poses = torch.stack([view.extrinsics for view in self.scene.views]).to(extrinsics.device)
        index = int((poses - extrinsics[0, 0]).abs().amax(dim=(1, 2)).argmin())
        self.calls.append(self.scene.views[index].name)
        depth = self.scene.views[index].truth()[0][None].to(images.device)
        depth = nn.functional.interpolate(depth, images.shape[-2:], mode="nearest-exact")
        torch.rand(1, generator=generator)
        return depth * (1 + self.error)


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


def textured(points):
    """Colours (3, H, W) of points (H, W, 3): waves of a quarter to half a metre, all directions."""
    ways = torch.randn(3, 12, 3, generator=torch.Generator().manual_seed(0))
    lengths = torch.linspace(0.25, 0.5, 12)[:, None]
    waves = 2 * math.pi / lengths * torch.nn.functional.normalize(ways, dim=-1)
    return 0.5 + 0.15 * torch.einsum("hwx,cnx->cnhw", points, waves).sin().sum(1)


@pytest.fixture(scope="session")
def textured_views():
    """Four cameras side by side see a wall that recedes to the right, and a board before it."""
    k = torch.tensor([[130.0, 0, 63.5], [0, 130, 47.5], [0, 0, 1]])
    centres = torch.tensor([[0.0, 0, 0], [0.3, 0.05, 0], [-0.1, 0.3, 0], [-0.25, -0.1, 0]])
    y, x = torch.meshgrid(torch.arange(96.0), torch.arange(128.0), indexing="ij")
    rays = torch.stack([(x - 63.5) / 130, (y - 47.5) / 130, torch.ones_like(x)], -1)
    images, depths = [], []
    for centre in centres:
        wall = (5 + 0.2 * centre[0]) / (1 - 0.2 * rays[..., 0])
        board = (centre + 3 * rays)[..., :2].abs()
        depth = torch.where((board < torch.tensor([0.6, 0.5])).all(-1), 3.0, wall)
        images.append(textured(centre + depth[..., None] * rays).clamp(0, 1))
        depths.append(depth)
    extrinsics = torch.eye(4).repeat(4, 1, 1)
    extrinsics[:, :3, 3] = -centres
    return {
        "images": torch.stack(images),
        "intrinsics": k.expand(4, 3, 3),
        "extrinsics": extrinsics,
        "depth_range": torch.tensor([2.5, 7.0]),
        "depth": depths[0][None],
        "valid": torch.ones(1, 96, 128, dtype=torch.bool),
    }
