"""Generated scenes: exact, repeatable, seen alike by all views, the same on every machine."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from vizoo.datasets.draws import Draws
from vizoo.datasets.mvs import GeneratedMVS, Scene, generate_scene, truth_points
from vizoo.datasets.mvs.cameras import check_camera, lift, project
from vizoo.datasets.mvs.sparse import sparse_points
from vizoo.datasets.mvs.textures import relight, solid_texture


def test_a_sample_has_the_contracts_shapes(scene):
    sample = scene.sample(1, [0, 2])
    shapes = {key: tuple(v.shape) for key, v in sample.items() if key != "name"}
    assert shapes == {
        "images": (3, 3, 48, 64),
        "intrinsics": (3, 3, 3),
        "extrinsics": (3, 4, 4),
        "depth_range": (2,),
        "depth": (1, 48, 64),
        "valid": (1, 48, 64),
    }
    assert sample["valid"].dtype == torch.bool and sample["valid"].all()
    assert {sample[key].dtype for key in shapes if key != "valid"} == {torch.float32}
    assert 0 <= sample["images"].min() < 0.2 and 0.8 < sample["images"].max() <= 1
    assert sample["name"] == "generated-1/00000001"
    check_camera(sample["intrinsics"], sample["extrinsics"])


def test_same_on_every_machine():
    """A change of these digests is a change of GENERATOR_VERSION."""
    scene = generate_scene(2, 40, 56, seed=5)
    images = torch.stack([scene.image(i) for i in (0, 1)]).mul(255).round().byte().numpy()
    depth = np.round(scene.depth(0)[0].numpy(), 2)
    assert hashlib.sha256(images.tobytes()).hexdigest()[:16] == "4f11e009154a4f3c"
    assert hashlib.sha256(depth.tobytes()).hexdigest()[:16] == "1566c650a3e2c598"


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_depth_is_exact_and_within_its_range(seed, wide):
    """Lifted to the world and seen from another view, a pixel is where that view has it."""
    scene = generate_scene(3, 40, 56, seed=seed, wide_range=wide, supersample=1)
    for a, b in ((0, 1), (2, 0)):
        depth = scene.depth(a)[0][0].double()
        least, greatest = scene.views[a].depth_range
        assert least < depth.min() and depth.max() < greatest
        va, vb = scene.views[a], scene.views[b]
        points = lift(depth, va.intrinsics.double(), va.extrinsics.double())
        pixels, expected = project(points, vb.intrinsics.double(), vb.extrinsics.double())
        grid = 2 * pixels / torch.tensor([55.0, 39.0]) - 1
        found = F.grid_sample(
            1 / scene.depth(b)[0][None].double(), grid[None], align_corners=True, mode="bilinear"
        )[0, 0]
        inside = (grid.abs() <= 1).all(-1)
        # Inverse depth is linear across a plane, so away from edges the match is close to exact.
        agree = ((found * expected - 1).abs() < 1e-4)[inside]
        assert inside.float().mean() > 0.3 and agree.float().mean() > 0.45


def test_exact_depth_warps_one_view_onto_another():
    scene = generate_scene(2, 96, 128, seed=2)
    v0, v1 = scene.views
    pixels, z = project(
        lift(scene.depth(0)[0][0], v0.intrinsics, v0.extrinsics), v1.intrinsics, v1.extrinsics
    )
    grid = 2 * pixels / torch.tensor([127.0, 95.0]) - 1
    warped = F.grid_sample(scene.image(1)[None], grid[None], align_corners=True)[0]
    there = F.grid_sample(scene.depth(1)[0][None], grid[None], align_corners=True, mode="nearest")
    seen = (grid.abs() <= 1).all(-1) & ((there[0, 0] - z).abs() < 0.01 * z)
    error = (warped - scene.image(0)).abs().mean(0)[seen].mean()
    unwarped = (scene.image(1) - scene.image(0)).abs().mean()
    assert seen.float().mean() > 0.5 and error < 0.2 * unwarped


def test_seeds_and_cameras():
    a, b, c = (generate_scene(3, 24, 32, seed=s, supersample=1) for s in (3, 3, 4))
    assert torch.equal(a.image(1), b.image(1)) and torch.equal(a.depth(1)[0], b.depth(1)[0])
    assert (a.image(1) - c.image(1)).abs().mean() > 0.05
    rotation = a.views[0].extrinsics[:3, :3]
    assert (rotation - torch.eye(3)).abs().max() > 0.1  # a world frame of its own
    assert a.views[0].intrinsics[0, 0] != a.views[1].intrinsics[0, 0]


def test_wide_untextured_and_lit():
    scene = generate_scene(2, 48, 64, seed=1, wide_range=True, untextured=True, supersample=1)
    depth = scene.depth(0)[0]
    assert depth.max() / depth.min() > 4
    colours = (scene.image(0) * 255).round().long()
    codes = colours[0] * 65536 + colours[1] * 256 + colours[2]
    assert codes.flatten().bincount().max() > 100  # the plate of one colour
    plain, same, dark = (
        generate_scene(2, 24, 32, seed=1, light=light).image(0) for light in (None, 3, 0)
    )
    assert torch.equal(plain, same) and dark.mean() < 0.75 * plain.mean()
    assert relight(np.full((1, 1, 3), 100, np.uint8), 0).tolist() == [[[60, 60, 60]]]


def test_the_depth_does_not_depend_on_supersampling():
    rough, fine = (generate_scene(2, 24, 32, seed=1, supersample=n) for n in (1, 2))
    assert torch.equal(rough.depth(0)[0], fine.depth(0)[0])
    assert 0 < (rough.image(0) - fine.image(0)).abs().mean() < 0.1


def test_noise_is_continuous_and_fills_its_range():
    line = np.zeros((3, 4000), np.float32)
    line[0] = np.linspace(-20, 20, 4000, dtype=np.float32)
    noise, checker = solid_texture(line, np.full(4000, 7, np.uint32))
    assert noise.min() >= 0 and noise.max() <= 1 and noise.std() > 0.08
    assert np.abs(np.diff(noise, axis=1)).max() < 0.03
    assert set(checker.tolist()) == {-1.0, 1.0}
    assert abs(np.corrcoef(noise[0], noise[1])[0, 1]) < 0.5


def test_draws_are_even():
    draws = Draws("test", 1)
    values = np.array([draws.uniform() for _ in range(4000)])
    assert np.abs(np.histogram(values, 10, (0, 1))[0] - 400).max() < 90
    rotations = np.stack([draws.rotation() for _ in range(200)])
    assert np.allclose(rotations @ rotations.transpose(0, 2, 1), np.eye(3))
    assert np.allclose(np.linalg.det(rotations), 1)


def test_points_of_the_truth(scene):
    points, colours = truth_points(scene, step=4)
    assert points.shape == colours.shape == (4 * 12 * 16, 3) and colours.dtype == torch.uint8
    sparse, _, tracks = sparse_points(scene, per_view=50)
    assert len(sparse) > 50 and len(tracks) == 4
    counts = torch.zeros(len(sparse)).index_add_(
        0, torch.cat(tracks), torch.ones(sum(map(len, tracks)))
    )
    assert counts.min() >= 2


def test_empty_truth_is_no_truth(scene):
    nothing = torch.zeros(1, 48, 64)
    views = [replace(view, truth=lambda: (nothing, nothing > 0)) for view in scene.views]
    with pytest.raises(ValueError, match="true depth maps are empty"):
        truth_points(Scene("dark", views, scene.pairs, scene.layout))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"views": 1}, "views 1: want at least 2"),
        ({"height": 2}, "height 2"),
        ({"supersample": 0}, "supersample 0"),
        ({"near": -1.0}, "near -1"),
        ({"far": 400.0}, "far 400"),
    ],
)
def test_wrong_arguments(options, said):
    with pytest.raises(ValueError, match=said):
        generate_scene(**{"views": 2, "height": 16, "width": 16, **options})


class TestDataSet:
    def test_items_depend_on_seed_and_index_alone(self):
        first, again, other = (GeneratedMVS(3, 24, 32, 3, seed=s, supersample=1) for s in (1, 1, 2))
        assert torch.equal(first[2]["images"], again[-1]["images"])
        assert not torch.equal(first[0]["images"], first[1]["images"])
        assert not torch.equal(first[0]["images"], other[0]["images"])
        assert len([item["name"] for item in first]) == 3
        assert first[2]["name"] == "generated-1-000002"

    def test_cache_gives_the_same(self, tmp_path):
        cached = GeneratedMVS(2, 24, 32, 3, cache=str(tmp_path))
        made, kept = cached[1], cached[1]
        assert made.keys() == kept.keys()
        for key in made:
            assert made[key] == kept[key] if key == "name" else torch.equal(made[key], kept[key])
        file = next(tmp_path.rglob("*.safetensors"))
        file.write_bytes(b"damaged")
        assert torch.equal(cached[1]["depth"], made["depth"])

    def test_no_length(self):
        with pytest.raises(ValueError, match="length 0"):
            GeneratedMVS(0, 24, 32)
