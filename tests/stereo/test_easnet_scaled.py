"""EASNet scaled: the checks of every network and supernet, its sizes and its range."""

from __future__ import annotations

import pytest
import torch
from network_tester import ExportTester, StereoNetworkTester, slow
from stereo_fixtures import one_peak
from supernet_tester import StereoSupernetTester
from torch.nn import functional as F

from vizoo.nas.supernet import activate, extract, search_space
from vizoo.stereo.easnet_scaled import EASNetScaled, _Copy, _Samples
from vizoo.stereo.infer import StereoPredictor
from vizoo.vision.hub.create import create_model

SPACE = search_space(EASNetScaled())
SIZES = {"1/4": 8, "1/3": 6, "1/2": 4, "2/3": 3, "1": 2}


def subnet(**allowed):
    return SPACE.restrict({name: [value] for name, value in allowed.items()}).largest()


class TestSupernet(StereoSupernetTester):
    name = "easnet_scaled"
    size = (48, 96)

    test_compiles = slow(StereoSupernetTester.test_compiles)  # for EASNet is


class TestNetwork(StereoNetworkTester):
    name = "easnet_scaled"
    parameters = 654_823
    multiple = 24
    trains_at_any_size = True
    architecture = {"subnet": subnet(size="1").to_json()}
    exported = {"subnet": SPACE.smallest().to_json()}

    test_exports = slow(StereoNetworkTester.test_exports)  # for EASNet light is

    @classmethod
    def build(cls, arguments):
        return one_peak(super().build(arguments))


class TestSmallCopy(ExportTester):
    name = "easnet_scaled"
    architecture = {"subnet": SPACE.smallest().to_json()}
    formats = ("torchscript",)


def test_the_largest_is_easnet_small():
    torch.manual_seed(0)
    small = create_model("easnet_small", max_disparity=48).eval()
    net = EASNetScaled(max_disparity=48).eval()
    renamed = {"refinement.0.": "refinement.", "upsampling.": "enlargement.1.logits."}
    state = net.state_dict()
    for name, value in small.state_dict().items():
        for old, new in renamed.items():
            name = new + name.removeprefix(old) if name.startswith(old) else name
        assert state[name].shape == value.shape
        state[name] = value
    net.load_state_dict(state)
    views = torch.rand(2, 1, 3, 64, 128).unbind()
    with torch.inference_mode():
        wanted, got = small(*views), net(*views)
    # At the border pixels read their neighbours' disparities, not 0.
    torch.testing.assert_close(got[..., 2:-8, 2:-4], wanted[..., 2:-8, 2:-4])


@pytest.mark.parametrize(("size", "factor"), SIZES.items())
def test_a_copy_holds_whole_cells_of_what_the_image_shows(size, factor):
    rows = torch.arange(0.5, 70)[:, None].expand(70, 95)
    columns = torch.arange(0.5, 95).expand(70, 95)
    image = torch.stack((rows, columns, rows + columns))[None]
    copy = _Copy(factor)(image)
    height, width = copy.shape[-2:]
    assert height % 6 == width % 6 == 0
    assert height * factor / 2 >= 70 > (height - 6) * factor / 2
    # Pixel i of the copy shows the image round factor / 2 (i + 0.5).
    inside = slice(1, int(60 / factor))
    places = (torch.arange(height) + 0.5) * factor / 2
    torch.testing.assert_close(copy[0, 0, inside, 1], places[inside], atol=1e-3, rtol=0)
    torch.testing.assert_close(copy[0, 1, 1, inside], places[inside], atol=1e-3, rtol=0)


@pytest.mark.parametrize("factor", [3, 4, 8])
def test_samples_begin_as_interpolation_and_move_as_told(factor):
    samples = _Samples(factor)
    with torch.no_grad():
        samples.offsets.weight.zero_()
        samples.offsets.bias.zero_()
    disparity, features = torch.rand(2, 1, 6, 9), torch.rand(2, 32, 6, 9)
    image = torch.rand(2, 3, 6 * factor - 1, 9 * factor - 2)
    with torch.inference_mode():
        enlarged, told = samples(disparity, features, image)
        assert told == factor
        wanted = F.interpolate(factor * disparity, scale_factor=factor, mode="bilinear")
        torch.testing.assert_close(enlarged, wanted)
        samples.offsets.bias[: factor**2] = 1  # one pixel of the map to the right
        moved, _ = samples(disparity, features, image)
    torch.testing.assert_close(moved[..., :-factor], wanted[..., factor:])


def test_not_finite_places_give_not_finite_disparities_and_end_nothing():
    samples = _Samples(4)
    features = torch.zeros(1, 32, 6, 9)
    features[..., 2, 3] = torch.nan
    disparity = torch.ones(1, 1, 6, 9, requires_grad=True)
    enlarged, _ = samples(disparity, features, torch.zeros(1, 3, 24, 36))
    lost = torch.zeros(24, 36, dtype=torch.bool)
    lost[8:12, 12:16] = True
    assert torch.equal(enlarged[0, 0].isnan(), lost)
    enlarged.nansum().backward()
    assert disparity.grad.isfinite().all()


@pytest.fixture(scope="module")
def supernet():
    return EASNetScaled(max_disparity=48).eval()


@pytest.mark.parametrize(("size", "factor"), SIZES.items())
@pytest.mark.parametrize(("share", "candidates"), [("half", 8), ("all", 16)])
def test_the_range_is_that_of_the_copy(supernet, size, factor, share, candidates):
    net = extract(supernet, subnet(size=size, candidates=share))
    views = torch.rand(2, 1, 3, 72, 144).unbind()
    with torch.inference_mode():
        (stage,), volumes = net.forward_volumes(*views)
    step = 3 * factor / 2
    assert [scores.shape[1] for scores, _ in volumes] == [
        candidates,
        candidates // 2,
        candidates // 4,
    ]
    assert [apart for _, apart in volumes] == [step, 2 * step, 4 * step]
    assert stage[2].max() <= step * (candidates - 1) + 1e-4
    assert net.max_disparity == step * candidates


def test_a_supernet_says_the_range_of_what_is_active():
    net = EASNetScaled(max_disparity=96)
    assert net.max_disparity == 96
    activate(net, {**search_space(net).largest(), "size": "1/2"})
    assert net.max_disparity == 192
    assert StereoPredictor(net, device="cpu").reach == 192


@pytest.mark.parametrize("max_disparity", [0, 20, -24])
def test_a_range_that_has_no_candidates(max_disparity):
    with pytest.raises(ValueError, match=f"multiple of 24, not {max_disparity}"):
        create_model("easnet_scaled", max_disparity=max_disparity)
