"""The plane sweep: near the truth on a textured scene, whatever the exposure; what it refuses."""

import math

import pytest
import torch

from vizoo.mvs.classical import plane_sweep


def textured(points):
    """Colours (3, H, W) of points (H, W, 3): waves of a quarter to half a metre, all directions."""
    ways = torch.randn(3, 12, 3, generator=torch.Generator().manual_seed(0))
    lengths = torch.linspace(0.25, 0.5, 12)[:, None]
    waves = 2 * math.pi / lengths * torch.nn.functional.normalize(ways, dim=-1)
    return 0.5 + 0.15 * torch.einsum("hwx,cnx->cnhw", points, waves).sin().sum(1)


@pytest.fixture(scope="module")
def sample():
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


def share_within(depth, sample, tolerance):
    """Share of the known pixels whose depth is right, away from the borders."""
    truth, inner = sample["depth"][0], torch.zeros_like(sample["valid"][0])
    inner[12:-12, 12:-12] = True
    known = sample["valid"][0] & inner
    return ((depth - truth).abs() / truth < tolerance)[known].float().mean()


def sweep(sample, images=None, **settings):
    return plane_sweep(
        sample["images"] if images is None else images,
        sample["intrinsics"],
        sample["extrinsics"],
        tuple(sample["depth_range"].tolist()),
        **settings,
    )


def test_near_the_truth(sample):
    depth, score = sweep(sample)
    assert depth.shape == score.shape == (96, 128)
    least, greatest = sample["depth_range"]
    assert (depth >= least - 1e-3).all() and (depth <= greatest + 1e-3).all()
    assert share_within(depth, sample, 0.02) > 0.75
    # The parabola finds what lies between few planes.
    coarse, _ = sweep(sample, planes=24)
    assert share_within(coarse, sample, 0.02) > 0.5


def test_exposure_changes_nothing(sample):
    darker = sample["images"].clone()
    darker[1:] = 0.6 * darker[1:] + 0.1
    (plain, _), (dark, _) = sweep(sample), sweep(sample, darker)
    inner = (slice(12, -12), slice(12, -12))  # windows beyond a source's border hold black
    assert torch.isclose(plain[inner], dark[inner], rtol=1e-2).float().mean() > 0.95


def test_right_scores_are_higher(sample):
    depth, score = sweep(sample)
    truth = sample["depth"][0]
    right = (depth - truth).abs() / truth < 0.02
    assert score[right].mean() > score[~right].mean() + 0.1 and (score <= 1.001).all()


@pytest.mark.parametrize("settings", [{"planes": 1}, {"window": 4}, {"window": 0}])
def test_refused(sample, settings):
    with pytest.raises(ValueError, match="want two views, two planes and an odd window"):
        sweep(sample, **settings)
    with pytest.raises(ValueError, match="plane sweep over 1 views"):
        plane_sweep(
            sample["images"][:1], sample["intrinsics"][:1], sample["extrinsics"][:1], (1.0, 2.0)
        )
    with pytest.raises(ValueError, match="depth range 2 to 1 is none"):
        plane_sweep(sample["images"], sample["intrinsics"], sample["extrinsics"], (2.0, 1.0))
