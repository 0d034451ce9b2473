"""The plane sweep: near the truth on a textured scene, whatever the exposure; what it refuses."""

import pytest
import torch

from vizoo.datasets.mvs.generator import generate_scene
from vizoo.mvs.classical import plane_sweep


@pytest.fixture(scope="module")
def sample():
    return generate_scene(4, 96, 128, seed=4, supersample=1).sample(0, [1, 2, 3])


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
