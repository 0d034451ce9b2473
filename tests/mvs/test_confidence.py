"""Confidence in depth maps: it ranks errors, of one source or several, whatever the exposure."""

import pytest
import torch

from vizoo.datasets.worlds.views import WorldViews
from vizoo.mvs.classical import plane_sweep
from vizoo.mvs.confidence import depth_confidence
from vizoo.vision.sparsification import ause


@pytest.fixture(scope="module", params=[1, 2])
def sample(request):
    return WorldViews(3, 96, 128, 4, seed=5)[request.param]


def ranking(sample, depth, views=4, images=None):
    images = sample["images"] if images is None else images
    cameras = sample["intrinsics"][:views], sample["extrinsics"][:views]
    confidence = depth_confidence(images[:views], *cameras, depth)
    assert confidence.shape == depth.shape and 0 <= confidence.min() <= confidence.max() <= 1
    known, truth = sample["valid"][0], sample["depth"][0]
    error = ((depth - truth).abs() / truth.clamp(min=1e-6)).clamp(max=1)
    return ause(error[known], confidence[known])


@pytest.mark.parametrize("views", [2, 4])
def test_a_plane_sweep_is_ranked(sample, views):
    cameras = sample["intrinsics"][:views], sample["extrinsics"][:views]
    depth, _ = plane_sweep(
        sample["images"][:views], *cameras, tuple(sample["depth_range"].tolist())
    )
    assert ranking(sample, depth, views) < 0.45


def test_smooth_errors_are_ranked(textured_views):
    """A map that is right on the left and ever further off to the right, without a step."""
    slope = torch.linspace(0, 0.3, 128)
    depth = textured_views["depth"][0] * (1 + slope)
    right = ranking(textured_views, depth)
    assert right < 0.6
    darker = textured_views["images"].clone()
    darker[1:] = 0.5 * darker[1:]
    assert ranking(textured_views, depth, images=darker) == pytest.approx(right, abs=0.05)


def test_depth_behind_the_sources_is_not_trusted(sample):
    depth = torch.full((96, 128), 1e-4)
    cameras = sample["intrinsics"], sample["extrinsics"]
    assert depth_confidence(sample["images"], *cameras, depth).mean() < 0.3
