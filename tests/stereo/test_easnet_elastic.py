"""EASNet elastic: the checks of every network and supernet, its levels and its refinement."""

from __future__ import annotations

import pytest
import torch
from network_tester import ExportTester, StereoNetworkTester, slow
from stereo_fixtures import one_peak
from supernet_tester import StereoSupernetTester, covering

from vizoo.nas.supernet import activate, extract, search_space
from vizoo.stereo._easnet_layers import peak_argmin
from vizoo.stereo.easnet_elastic import EASNetElastic
from vizoo.vision.hub.create import create_model
from vizoo.vision.ops import soft_argmin

SPACE = search_space(EASNetElastic())
SMALLEST = {"subnet": SPACE.smallest().to_json()}
REFINED = {"subnet": SPACE.restrict({"refinement.blocks": [1]}).smallest().to_json()}


class TestSupernet(StereoSupernetTester):
    name = "easnet_elastic"

    test_compiles = slow(StereoSupernetTester.test_compiles)  # for EASNet is


class TestNetwork(StereoNetworkTester):
    name = "easnet_elastic"
    parameters = 1_615_387
    multiple = 24
    trains_at_any_size = True
    architecture = {"subnet": SPACE.largest().to_json()}
    exported = REFINED

    # For those of EASNet light and EASNet are.
    test_exports = slow(StereoNetworkTester.test_exports)
    test_compiles_to_one_graph = slow(StereoNetworkTester.test_compiles_to_one_graph)

    @classmethod
    def build(cls, arguments):
        return one_peak(super().build(arguments), finest=-1)


class TestExportWithoutRefinement(ExportTester):
    name = "easnet_elastic"
    architecture = SMALLEST
    formats = ("torchscript",)  # what refined ones have and less


@pytest.mark.parametrize("blocks", [0, 1])
@pytest.mark.parametrize(("matching", "levels"), [("twelfth", 2), ("sixth", 3), ("third", 4)])
def test_disparities_come_of_the_scores(matching, levels, blocks):
    torch.manual_seed(0)
    net = EASNetElastic(max_disparity=48).eval()
    chosen = {"matching": [matching], "refinement.blocks": [blocks]}
    activate(net, SPACE.restrict(chosen).smallest())
    views = torch.rand(2, 1, 3, 50, 97).unbind()
    with torch.inference_mode():
        (stage,), volumes = net.forward_volumes(*views)
        full = net(*views)
    shapes = [(16, 18, 34), (8, 9, 17), (4, 5, 9), (2, 3, 5)][4 - levels :]
    assert [tuple(scores.shape[1:]) for scores, _ in volumes] == shapes
    assert [step for _, step in volumes] == [3, 6, 12, 24][4 - levels :]
    assert len(stage) == 1 + blocks + levels
    assert torch.equal(stage[0], full)
    assert all(whole.shape == (1, 1, 50, 97) for whole in stage[: 1 + blocks])
    finest, *coarser = stage[1 + blocks :]
    scores, step = volumes[0]
    torch.testing.assert_close(finest, peak_argmin(scores, step=step)[0])
    for disparity, (scores, step) in zip(coarser, volumes[1:], strict=True):
        torch.testing.assert_close(disparity, soft_argmin(-scores, step=step))


@pytest.mark.parametrize("matching", ["twelfth", "sixth", "third"])
def test_a_refinement_starts_from_what_was_upsampled(matching):
    torch.manual_seed(0)
    net = EASNetElastic(max_disparity=48).eval()
    chosen = {"matching": [matching], "refinement.blocks": [1]}
    activate(net, SPACE.restrict(chosen).smallest())
    refine, enlarge = net.refinement
    with torch.no_grad():
        refine.final_conv.weight.zero_()
        enlarge.weight.zero_()
        enlarge.bias[16:20] = 30  # the pixel itself
        stage = net.forward_stages(*torch.rand(2, 1, 3, 48, 96).unbind())[0]
    means = torch.nn.functional.avg_pool2d(stage[1], 2)
    torch.testing.assert_close(stage[0], means.repeat_interleave(2, 2).repeat_interleave(2, 3))


def test_small_subnets_have_nothing_of_larger_ones():
    small = extract(EASNetElastic(), SPACE.smallest())
    assert len(small.refinement) == 0 and len(small.heads) == 2
    count = sum(p.numel() for p in small.parameters())
    assert count < 0.06 * TestNetwork.parameters


def test_dilated_convolutions_read_multiples_of_16_channels():
    """Of others a CPU's gradients in bfloat16 are wrong."""
    net = EASNetElastic()
    for architecture in covering(SPACE):
        plain = extract(net, architecture)
        layers = [
            m for m in plain.modules() if isinstance(m, torch.nn.Conv2d) and max(m.dilation) > 1
        ]
        assert all(layer.in_channels % 16 == 0 for layer in layers)


@pytest.mark.parametrize("end", ["smallest", "largest"])
def test_gradients_under_autocast_are_finite(end):
    torch.manual_seed(0)
    net = EASNetElastic(max_disparity=48).to(memory_format=torch.channels_last)
    net = extract(net, getattr(SPACE, end)())
    with torch.autocast("cpu", torch.bfloat16):
        (stage,), volumes = net.forward_volumes(*torch.rand(2, 2, 3, 48, 96).unbind())
    outputs = (*stage, *(scores for scores, _ in volumes))
    sum(output.float().mean() for output in outputs).backward()
    assert all(p.grad.dtype == torch.float32 for p in net.parameters())
    assert all(p.grad.isfinite().all() for p in net.parameters())


@pytest.mark.parametrize("max_disparity", [0, 36, -24])
def test_a_range_that_has_no_candidates(max_disparity):
    with pytest.raises(ValueError, match=f"multiple of 24, not {max_disparity}"):
        create_model("easnet_elastic", max_disparity=max_disparity)
