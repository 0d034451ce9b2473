"""A network guided by semi-global matching: its fusion, and what the predictor makes of it."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from network_tester import NetworkTester, slow
from stereo_fixtures import BlockMatcher
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from trainers import quiet_trainer

import vizoo
from vizoo.datasets.stereo import GeneratedStereo
from vizoo.nas.supernet import active, search_space
from vizoo.stereo.classical import fill_holes, semi_global_matching
from vizoo.stereo.confidence import confidence, left_right_difference
from vizoo.stereo.guided import MATCHING_BYTES, Guided, guidance, hidden
from vizoo.stereo.losses import fusion_loss
from vizoo.stereo.task import FusionTask
from vizoo.vision.inference import optimize, standalone
from vizoo.vision.sparsification import ause


class TestDisparityFusion(NetworkTester):
    name = "disparity_fusion"
    parameters = 102_788

    test_exports = slow(NetworkTester.test_exports)  # EASNet's has all of its operators

    def trained_outputs(self, net):
        return net.forward_scored(*self.inputs(net, batch=2))

    def test_what_the_odds_learn_changes_no_disparity(self, net):
        net = copy.deepcopy(net).train()
        self.trained_outputs(net)[1].sum().backward()
        learning = {name for name, p in net.named_parameters() if p.grad is not None}
        assert learning and learning == {n for n, _ in net.named_parameters() if "odds." in n}

    @pytest.mark.parametrize("size", [(65, 127), (40, 301), (1, 1)])
    def test_any_size_within_what_is_claimed(self, net, size):
        *views, claims, hints = self.inputs(net, *size)
        with torch.inference_mode():
            fused = net(*views, claims, hints)
            again, chance = net.predict(*views, claims, hints)
        assert fused.shape == chance.shape == (1, 1, *size) and fused.equal(again)
        assert 0 <= chance.min() and chance.max() <= 1
        assert claims.min() - 1e-4 <= fused.min() and fused.max() <= claims.max() + 1e-4

    @pytest.mark.parametrize("name", ["channels", "width"])
    def test_channels_are_refused(self, name):
        with pytest.raises(ValueError, match=f"{name} must be at least 1, not -1"):
            vizoo.create_model(self.name, **{name: -1})


class Given(nn.Module):
    """Says what it is told to, at the size of what it sees."""

    def __init__(self, disparity):
        super().__init__()
        self.disparity = nn.Buffer(disparity)

    def forward(self, left, right):
        size = left.shape[-2:]
        scale = size[1] / self.disparity.shape[-1]
        return scale * F.interpolate(self.disparity, size).expand(len(left), -1, -1, -1)


@pytest.fixture(scope="module")
def scene():
    return GeneratedStereo(1, 128, 256, seed=3, max_disparity=32)[0]


@pytest.fixture(scope="module")
def scaled():
    return standalone(vizoo.create_model("easnet_scaled.worlds").eval())


def views_of(scene):
    return scene["left"][None], scene["right"][None]


def test_holes_take_the_rows_smaller_neighbour():
    rows = torch.tensor([[0, 3, 0, 0, 5, 0], [0, 0, 0, 0, 0, 0], [2, 0, 1, 4, 0, 4]]).float()
    filled = [[3, 3, 3, 3, 5, 5], [0, 0, 0, 0, 0, 0], [2, 1, 1, 4, 4, 4]]
    assert fill_holes(rows.numpy()).tolist() == filled


def test_what_stands_behind_something_nearer_is_hidden():
    """Four pixels behind the left edge of a thing that is nearer by four, and what is outside."""
    disparity = torch.full((1, 1, 1, 20), 3.0)
    disparity[..., 12:16] = 7
    behind, outside = hidden(disparity)
    assert behind[0, 0, 0].tolist() == [0.75 if 8 <= place < 12 else 0 for place in range(20)]
    assert outside[0, 0, 0].tolist() == [0.75, 0.5, 0.25, *[0] * 17]


class Slope(nn.Module):
    """What a pair of this width would have whose disparity is 20 px and a tenth of the column."""

    def __init__(self, width):
        super().__init__()
        self.width = width

    def forward(self, left, right):
        height, width = left.shape[-2:]
        scale = 0.5 if width < self.width else 1
        column = (torch.arange(width) + 0.5) / scale - 0.5
        return (scale * (20 + column / 10)).expand(len(left), 1, height, width)


class First(nn.Module):
    """Fuses nothing: the network's disparity, of which it is sure."""

    def forward(self, left, right, claims, hints):
        return claims[:, :1]

    def predict(self, *given):
        disparity = self(*given)
        return disparity, torch.ones_like(disparity)


@pytest.mark.parametrize("size", [(64, 128), (65, 127), (17, 19)])
def test_what_is_found_at_half_of_the_size_lies_where_it_was_seen(size):
    """Enlarged, disparities are those of the pair's own size at its own places."""
    views = torch.rand(2, 2, 3, *size)
    net = Slope(size[1])
    disparity, certainty = Guided(net, First()).coarse(*views)
    inner = slice(1, size[1] - 2)  # nothing is known beyond the middle of a coarse pixel
    wanted = net(*views)[..., inner].expand(-1, -1, size[0], -1)
    torch.testing.assert_close(disparity[..., inner], wanted, atol=1e-3, rtol=0)
    assert disparity.shape == certainty.shape == (2, 1, *size) and not certainty.any()


def test_the_coarse_fusion_is_told_how_sure_the_network_is_and_the_fine_one_is_not(scene, scaled):
    told = []

    class Spy(First):
        def forward(self, left, right, claims, hints):
            told.append((left.shape[-2:], bool(hints[:, 0].any())))
            return super().forward(left, right, claims, hints)

    with torch.inference_mode():
        _, chance = Guided(scaled, Spy()).eval().predict(*views_of(scene))
    assert told == [((64, 128), True), ((128, 256), False)]
    assert chance.shape == (1, 1, 128, 256) and (chance == 1).all()


def test_detail_is_matched_at_the_size_of_the_pair(scene, scaled, monkeypatch):
    matched = []

    def spy(left, right, block, penalty, **how):
        matched.append((left.shape[1], block, penalty))
        return semi_global_matching(left, right, block=block, penalty=penalty, **how)

    monkeypatch.setattr("vizoo.stereo.guided.semi_global_matching", spy)
    with torch.inference_mode():
        Guided(scaled).eval()(*views_of(scene))
    (coarse, block, penalty), (fine, smaller, less) = matched
    assert (coarse, fine) == (64, 128) and smaller < block and less < penalty


def test_a_guided_network_knows_where_it_is_right(scene, scaled):
    """Whether or not the network says so itself."""
    truth, known = scene["disparity"][None], scene["valid"][None]
    for net in (scaled, BlockMatcher(32)):
        with torch.inference_mode():
            disparity, chance = Guided(net).eval().predict(*views_of(scene))
        error, chance = (disparity - truth).abs()[known], chance[known]
        assert ause(error.clamp(max=10), chance) < 0.5
        assert abs(chance.mean() - (error < 1).float().mean()) < 0.1


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (torch.rand(1, 3, 63, 127), r"one shape, not \(1, 3, 64, 128\) and \(1, 3, 63, 127\)"),
        (torch.zeros(1, 3, 64, 128, dtype=torch.uint8), "images"),
    ],
)
def test_views_are_checked_before_they_are_halved(other, told):
    with pytest.raises(ValueError, match=told):
        Guided(Slope(128), First())(torch.rand(1, 3, 64, 128), other)


@pytest.mark.parametrize("size", [(1, 1), (2, 40), (8, 8)])
def test_the_network_never_sees_less_than_eight_pixels(size):
    seen = []

    class Spy(Slope):
        def forward(self, left, right):
            seen.append(min(left.shape[-2:]))
            return super().forward(left, right)

    with torch.inference_mode():
        assert Guided(Spy(size[1]), First())(*torch.rand(2, 1, 3, *size)).shape == (1, 1, *size)
    assert seen == [8, 16]


def test_a_look_for_near_things_is_the_networks_alone(scene, scaled):
    """Guided, it would see but half of the small copy."""
    views = scene["left"], scene["right"]
    alone, guided = (vizoo.StereoPredictor(scaled, "cpu", guided=g) for g in (False, True))
    assert guided.alone(*views).equal(alone.alone(*views))
    assert alone.alone(*views).equal(alone.maps(*views)[:1])
    assert guided._largest(*views, alone.reach) == alone._largest(*views, alone.reach)
    assert guided._reached(*views, 1.0, True, None, False) == 1


def test_what_is_off_by_a_few_pixels_is_put_right(scene):
    truth, known = scene["disparity"][None], scene["valid"][None]
    wrong = truth.clone()
    wrong[..., 100:160] += 3
    with torch.inference_mode():
        fused = Guided(Given(wrong)).eval()(*views_of(scene))
    error, before = ((x - truth).abs()[..., 100:160][known[..., 100:160]] for x in (fused, wrong))
    assert (error > 1).float().mean() < 0.3 < (before > 1).float().mean()
    right = known.clone()
    right[..., 90:170] = False
    assert ((fused - truth).abs()[right] > 1).float().mean() < 0.2


@pytest.fixture
def shading():
    """Three quarters as bright, half at the right edge and a little less below."""
    across, down = torch.linspace(1, 0.67, 256), torch.linspace(1, 0.9, 128)
    return 0.75 * across * down[:, None]


def test_views_that_differ_in_brightness_are_matched_as_if_they_did_not(scene, scaled, shading):
    truth, known = scene["disparity"][None], scene["valid"][None]
    left, right = views_of(scene)
    errors = []
    for other in (right, right * shading):
        with torch.inference_mode():
            errors.append((Guided(scaled).eval()(left, other) - truth).abs()[known])
    alike, shaded = ((error > 1).float().mean() for error in errors)
    assert shaded < alike + 0.01


def test_the_network_sees_views_that_are_equally_bright(scene, scaled, shading):
    """Once it has looked at a quarter of the size, at views as they are."""
    ratios = []

    class Spy(nn.Module):
        def forward(self, left, right):
            means = (F.adaptive_avg_pool2d(view.mean(1), (1, 4)) for view in (left, right))
            ratios.append((left.shape[-1], torch.div(*means)))
            return scaled(left, right)

    left, right = views_of(scene)
    with torch.inference_mode():
        for view in (right, right * shading):
            Guided(Spy(), First())(left, view)
    (_, plain), (_, even), (rough, shaded), (half, evened) = ratios
    assert (rough, half) == (64, 128)
    assert (shaded / plain).min() > 1.3
    torch.testing.assert_close(evened, even, atol=0.1, rtol=0)


def test_the_left_view_is_made_as_bright_as_the_right_one(shading):
    """By what both see: of what is hidden, or of no disparity, nothing is known."""
    torch.manual_seed(0)
    left = F.interpolate(torch.rand(1, 3, 32, 64), (128, 256), mode="bilinear")
    disparity = torch.full((1, 1, 128, 256), 8.0)
    right = torch.roll(left, -8, -1) * shading
    right[..., -8:] = 1  # which the left view does not see
    disparity[..., 100:140] = torch.nan
    evened, same, claims, hints = guidance(disparity, torch.zeros_like(disparity), left, right)
    assert same is right and claims.shape[1] == 3 and hints.shape[1] == 6
    wanted = left * shading.roll(8, -1)
    before, after = ((view - wanted).abs()[..., 8:].mean() for view in (left, evened))
    assert after < 0.1 * before


def tilted(view, up, turn=0.0, stretch=0.0):
    """What a camera sees that is off by so many pixels: throughout, across and down the view."""
    height, width = view.shape[-2:]
    row, column = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    place = row + up + turn * (column / width - 0.5) + stretch * (row / height - 0.5)
    grid = torch.stack(((2 * column + 1) / width - 1, (2 * place + 1) / height - 1), -1)
    return F.grid_sample(view, grid[None], "bicubic", "border", align_corners=False).clamp(0, 1)


@pytest.mark.parametrize("off", [(2.0,), (-1.0, 1.5, 1.0)])
def test_views_that_are_not_level_are_matched_as_if_they_were(scene, scaled, off):
    truth, known = scene["disparity"][None], scene["valid"][None]
    left, right = views_of(scene)
    errors = []
    for other in (right, tilted(right, *off)):
        with torch.inference_mode():
            errors.append((Guided(scaled).eval()(left, other) - truth).abs()[known])
    level, crooked = ((error > 1).float().mean() for error in errors)
    assert crooked < level + 0.03


def test_the_right_view_is_made_level_with_the_left_one(scene):
    """By the rows of what both see; one that is level already is left as it is."""
    left, right = views_of(scene)
    truth = scene["disparity"][None].expand(2, -1, -1, -1)
    both = torch.cat((right, tilted(right, 0.7, -0.8, 0.4)))
    _, levelled, *_ = guidance(truth, torch.zeros_like(truth), left.expand_as(both), both)
    assert levelled[:1].equal(right)
    before, after = (
        (view - right)[..., 4:-4, 4:-4].abs().mean() for view in (both[1:], levelled[1:])
    )
    assert after < 0.25 * before


def test_what_differs_in_places_is_left():
    """An error of the disparity, or a gleam, is small beside what is averaged."""
    scene = GeneratedStereo(1, 128, 256, seed=7, max_disparity=32)[0]  # exposed alike
    left, right = views_of(scene)
    truth = scene["disparity"][None]
    gleam = right.clone()
    gleam[..., 40:48, 100:108] = 1
    evened = [guidance(truth, torch.zeros_like(truth), left, view)[0] for view in (right, gleam)]
    assert (evened[0] - evened[1]).abs().max() < 0.05 and (evened[0] - left).abs().mean() < 0.01


@pytest.mark.parametrize(("largest", "searched"), [(0.0, 16), (20.0, 32), (90.0, 112), (1e9, 512)])
def test_the_range_that_is_searched_is_the_networks(largest, searched, monkeypatch):
    seen = []

    def matching(left, right, disparities, fill, block, penalty):
        seen.append(disparities)
        return torch.zeros(left.shape[1:]).numpy()

    monkeypatch.setattr("vizoo.stereo.guided.semi_global_matching", matching)
    disparity = torch.linspace(0, largest, 6000).view(1, 1, 60, 100)
    views = torch.rand(2, 1, 3, 60, 100)
    *_, claims, hints = guidance(*Guided(Given(disparity)).claimed(*views), *views)
    assert seen == [searched]
    # Nothing is matched: the network's disparity stands for it, and all is a hole.
    assert claims.equal(disparity.expand(-1, 3, -1, -1))
    assert not hints[:, 0].any() and hints[:, 1].all()


def test_the_faster_form_and_the_predictor_give_the_same(scene):
    """Of a supernet too, whose active subnet is the one that is made faster."""
    scaled = vizoo.create_model("easnet_scaled.worlds").eval()
    with torch.inference_mode():
        plain, certainty = Guided(scaled).eval().predict(*views_of(scene))
        fast, sure = optimize(Guided(scaled)).predict(*views_of(scene))
    torch.testing.assert_close(fast, plain, rtol=1e-3, atol=2e-2)
    torch.testing.assert_close(sure, certainty, rtol=1e-3, atol=1e-2)
    predictor = vizoo.StereoPredictor(scaled, "cpu", guided=True)
    maps = predictor.maps(scene["left"], scene["right"])
    torch.testing.assert_close(maps, torch.cat((plain, certainty), 1)[0], rtol=1e-3, atol=2e-2)
    silent = vizoo.StereoPredictor(Guided(scaled, scored=False), "cpu")
    assert silent.maps(scene["left"], scene["right"]).shape == (2, 128, 256)


def test_bfloat16_keeps_fractions_of_a_pixel(scene):
    far = scene["disparity"][None] + 128  # there bfloat16 has whole pixels
    claims, hints = torch.cat((far, far + 0.3, far + 0.3), 1), torch.zeros(1, 6, *far.shape[-2:])
    fusion = vizoo.create_model("disparity_fusion.worlds").eval()
    with torch.inference_mode():
        full = fusion(*views_of(scene), claims, hints)
        half = optimize(fusion, torch.bfloat16)(*views_of(scene), claims, hints)
    assert half.dtype == torch.float32 and (full - half).abs().median() < 0.05


def test_a_batch_of_two_is_two_of_one(scene, scaled):
    other = GeneratedStereo(2, 128, 256, seed=3, max_disparity=32)[1]
    left, right = (torch.stack((scene[side], other[side])) for side in ("left", "right"))
    for net in (BlockMatcher(32), scaled):
        guided = Guided(net).eval()
        with torch.inference_mode():
            both = guided.predict(left, right)
            single = [guided.predict(left[i : i + 1], right[i : i + 1]) for i in range(2)]
        for together, *each in zip(both, *single, strict=True):
            torch.testing.assert_close(together, torch.cat(each), rtol=1e-3, atol=1e-2)


def test_what_is_not_finite_is_refused():
    net = Given(torch.full((1, 1, 32, 48), torch.nan))
    with pytest.raises(ValueError, match="the network's output is not finite"):
        vizoo.StereoPredictor(net, "cpu", guided=True)(*torch.rand(2, 3, 32, 48), check=False)


def test_the_default_is_guided_and_others_as_asked():
    assert vizoo.StereoPredictor(device="cpu").guided
    assert not vizoo.StereoPredictor(device="cpu", guided=False).guided
    assert not vizoo.StereoPredictor("fadnet_plus_tiny", "cpu").guided
    assert vizoo.StereoPredictor("fadnet_plus_tiny", "cpu", guided=True).guided


def test_the_loss_counts_wrong_pixels_and_false_hopes():
    truth = torch.tensor([4.0, 4, 0, 200]).view(1, 1, 1, 4)
    disparity = torch.tensor([4.5, 34, 9, 9]).view(1, 1, 1, 4)
    odds = torch.tensor([3.0, 1, 9, 9]).view(1, 1, 1, 4).log()  # chances of 3/4, 1/2, …
    loss = fusion_loss(disparity, odds, truth, truth > 0)
    unsure = -np.log(3 / 4) - np.log(1 / 2)
    assert loss.item() == pytest.approx((1 / 3 + 0.15 + 30 / 31 + 6 + unsure) / 2)
    assert fusion_loss(disparity, odds, truth, truth < 0) == 0


def test_training_learns_and_leaves_the_network(tmp_path):
    torch.manual_seed(0)
    task = FusionTask(stereo="easnet_scaled.worlds", optimizer="adamw", lr=3e-3)
    (net,), seen, fuse = task._stereo, [], task.net._fuse

    def spy(left, right, claims, hints):
        largest = active(net) == search_space(net).largest()
        seen.append((left.shape[-1], largest, bool(hints[:, 0].any())))
        return fuse(left, right, claims, hints)

    task.net._fuse = spy
    predict, looked = net.predict, []
    net.predict = lambda *views: (looked.append(views[0].shape[-1]), predict(*views))[1]
    before = {name: value.clone() for name, value in net.state_dict().items()}
    scenes = [*GeneratedStereo(2, 64, 128, seed=7, max_disparity=32)]  # drawn once
    batch = next(iter(DataLoader(scenes, 2)))

    @torch.no_grad()
    def losses():
        """Of the disparity, and of the odds."""
        disparity, odds = task.net.train().forward_scored(*task._guidance(batch))
        known, truth = batch["valid"], batch["disparity"]
        error = (disparity - truth).abs()[known]
        unsure = F.binary_cross_entropy_with_logits(odds[known], (error < 1).float())
        return (error / (1 + error) + 0.3 * error.clamp(max=20)).mean().item(), unsure.item()

    before_it = losses()
    trainer = quiet_trainer(tmp_path, max_epochs=16, enable_checkpointing=False)
    seen.clear(), looked.clear()
    trainer.fit(task, DataLoader(scenes, 2))
    for later, earlier in zip(losses(), before_it, strict=True):
        assert later < 0.9 * earlier
    # The largest subnet and any by turns, and without its certainty at times.
    steps = [step for step in seen if step[0] == 128][:16]
    assert all(largest for _, largest, _ in steps[::2])
    assert not all(largest for _, largest, _ in steps[1::2])
    sure = [place for place, (_, _, told) in enumerate(steps) if told]
    assert sure == [3, 6, 12, 15]
    # One step of three fuses at once, as at half of the size; the others fuse what that gives.
    assert [width for width, _, _ in seen[:10]] == 2 * [128, 64, 128, 64, 128]
    # Either way after a look at half of the size that it is given.
    assert looked[:12] == 2 * [64, 128, 32, 64, 32, 64]
    assert all(value.equal(before[name]) for name, value in net.state_dict().items())
    assert all(name.startswith("net.") for name in task.state_dict() if "metrics" not in name)
    predicted = task.predict_step({**batch, "name": ["a", "b"]}, 0)
    assert predicted["disparity"].shape == (2, 1, 64, 128)


def test_a_guided_network_says_what_it_is_and_how_far_it_sees():
    net = vizoo.create_model("easnet_small.worlds")
    guided = Guided(net)
    assert guided.architecture == {"name": "Guided", "net": net.architecture}
    alone, predictor = vizoo.StereoPredictor(net, "cpu"), vizoo.StereoPredictor(guided, "cpu")
    assert predictor.max_disparity == 2 * alone.max_disparity == 2 * 192
    assert predictor.reach == guided.reach == 2 * alone.reach
    assert predictor.guided and predictor.net.net is not guided
    mine = BlockMatcher(32)
    mine.architecture = "one of my own"  # no settings of `create_model`'s
    matcher = vizoo.StereoPredictor(Guided(mine), "cpu")
    assert matcher.guided and matcher.max_disparity is None
    assert Guided(mine).architecture["net"] == {"name": "BlockMatcher"}


def test_what_the_matching_holds_is_counted(scaled, monkeypatch):
    monkeypatch.setattr("vizoo.stereo.infer.held_memory", lambda: 0)
    alone, guided = (vizoo.StereoPredictor(scaled, "cpu", guided=g) for g in (False, True))
    alone._bytes = guided._bytes = 1000.0
    pixels = [p._pixels(1500, 2000, 1.2e9, False) for p in (alone, guided)]
    assert pixels[0] - pixels[1] == pytest.approx(MATCHING_BYTES * 2000 / 1000, abs=1)


def test_both_views_are_guided(scene, scaled):
    predictor = vizoo.StereoPredictor(scaled, "cpu", guided=True)
    result = predictor(scene["left"], scene["right"], check=False, both=True)
    other = predictor.maps(scene["right"].flip(-1), scene["left"].flip(-1))[0].flip(-1)
    torch.testing.assert_close(torch.from_numpy(result.right_disparity), other)
    disparity, peak = predictor.maps(scene["left"], scene["right"])
    known = scene["left"], scene["right"], disparity, peak
    difference = left_right_difference(disparity, other)
    for chosen, same in ((True, True), (False, False)):
        sure = confidence(*known, difference, guided=chosen)
        assert np.allclose(sure, result.confidence, atol=1e-4) == same


def test_a_thin_thing_hides_only_its_own_width():
    disparity = torch.zeros(1, 1, 1, 200)
    disparity[..., 150:155] = 60
    behind, _ = hidden(disparity)
    assert behind.nonzero()[:, -1].tolist() == [90, 91, 92, 93, 94]


class Filter(nn.Module):
    """A disparity that any runtime computes."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 1, 3, padding=1)

    def forward(self, left, right):
        return 8 + 4 * (self.conv(left) - self.conv(right))


def test_a_network_in_another_runtime_is_guided(scene, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setenv("VIZOO_HOME", str(tmp_path))
    torch.manual_seed(0)
    net = Filter()
    here, there = (
        vizoo.StereoPredictor(net, "cpu", runtime=name, guided=True)
        for name in ("torch", "onnxruntime")
    )
    assert there.guided and there.runtime == "onnxruntime"
    maps = [p.maps(scene["left"], scene["right"]) for p in (here, there)]
    torch.testing.assert_close(*maps, atol=1e-3, rtol=1e-3)


@pytest.mark.gpu
def test_on_a_gpu(scene, monkeypatch):
    monkeypatch.delenv("VIZOO_OPS", raising=False)  # kernels alone would refuse the CPU
    views = scene["left"], scene["right"]
    here, there = (
        vizoo.StereoPredictor("easnet_scaled.worlds", device, guided=True).maps(*views)
        for device in ("cpu", "cuda")
    )
    assert (here - there).abs().median() < 0.02
