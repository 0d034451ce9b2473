"""Tuning without truth: what is learned from, when it ends, and what counts as an improvement."""

import copy
import itertools
import json
import math
import re
import sys

import pytest
import torch
from torch.nn.functional import avg_pool2d
from torch.nn.modules.batchnorm import _BatchNorm

from vizoo.datasets.stereo import GeneratedStereo, generate_scenes
from vizoo.datasets.stereo.transforms import recipe
from vizoo.stereo import _tuning_pairs, tuning
from vizoo.stereo._tuning_exam import Exam, _Marks
from vizoo.stereo._tuning_pairs import OwnPair, batches, divided, labelled, usable_pairs
from vizoo.stereo.infer import StereoPredictor
from vizoo.stereo.tuning import tune
from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.download import sha256_of
from vizoo.vision.hub.weights import load_weights, read_weights, save_weights
from vizoo.vision.io.images import to_bytes, write_image

QUICK = {"steps": 1, "crop": (64, 128), "batch_size": 2, "device": "cpu"}


def usable(predictor, pairs, most=40, crop=(64, 128), skip=lambda *_: None):
    return usable_pairs(predictor, pairs, most, crop, lambda *_: None, skip)


@pytest.fixture(scope="module")
def scenes():
    return generate_scenes(3, 128, 256, seed=4, max_disparity=20, clutter=0.2)


@pytest.fixture(scope="module")
def pairs(scenes):
    return [*zip(scenes["left"], scenes["right"], strict=True)]


@pytest.fixture(scope="module")
def net():
    return create_model("easnet_small", pretrained=True).eval()


@pytest.fixture(scope="module")
def light():
    """A network that learns quickly, for what depends on no weights."""
    torch.manual_seed(0)
    return create_model("fadnet_plus_micro").eval()


@pytest.fixture(scope="module")
def opened(net, pairs):
    """The pairs as tuning opens them."""
    return usable(StereoPredictor(net, "cpu"), pairs)[0]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Two scenes to measure on, and a small part of each, which is quick."""
    monkeypatch.setattr(tuning, "_VALIDATION", 2)

    def part(count, height, width, **settings):
        return GeneratedStereo(count, height // 4, width // 4, **settings)

    monkeypatch.setattr(tuning, "GeneratedStereo", part)


@pytest.fixture
def scripted(monkeypatch, pairs, opened):
    """What networks make of held-out pairs and generated scenes, the first before the training.

    A number goes for all pixels, or scenes, alike; a pair of numbers is the mean and by how much
    they scatter about it. Labels take no time, nor does it to open the pairs of the fixture.
    """

    def script(*rows):
        rows, draws = list(rows), torch.Generator().manual_seed(0)

        def marks(*_):
            pairs, scenes = (row if isinstance(row, tuple) else (row, 0) for row in rows.pop(0))
            noise = torch.randn(8, 8, generator=draws)
            noise = (noise - noise.mean()).repeat_interleave(32, 0).repeat_interleave(32, 1)
            apart = [scenes[0] + scenes[1] * sign for sign in (-1, 1, -1, 1)]
            return _Marks([pairs[0] + pairs[1] * noise], apart)

        monkeypatch.setattr(Exam, "marks", marks)

    def used(predictor, images, *rest):
        return ([*opened], {}) if images == pairs else usable_pairs(predictor, images, *rest)

    monkeypatch.setattr(tuning, "usable_pairs", used)
    monkeypatch.setattr(tuning, "labelled", lambda p, pairs, report: ([*map(dense, pairs)], 1.0))
    return script


@pytest.fixture
def untrained(monkeypatch):
    """Steps are counted, and change nothing."""

    def step(learner, batch, done):
        learner.steps += 1

    monkeypatch.setattr(tuning, "batches", lambda *_: itertools.repeat({}))
    monkeypatch.setattr(tuning._Learner, "step", step)


@pytest.mark.parametrize("name", ["easnet_small", "fadnet_plus_tiny"])
def test_networks_of_the_zoo(name, pairs, monkeypatch):
    """Two families, by their own losses, from names."""
    monkeypatch.setattr(tuning, "labelled", lambda p, pairs, report: ([*map(dense, pairs)], 1.0))
    told = []
    report = tune(name, pairs, **QUICK, report=lambda *step: told.append(step))
    assert (report.pairs, report.held_out, report.steps, report.labelled) == (2, 1, 1, 1)
    assert report.before.keys() < report.after.keys() == report.checks[0].keys() - {"step"}
    gain = report.before["disagreement"] - report.after["disagreement"]
    assert gain == pytest.approx(report.after["gain"], abs=1e-2) and report.stopped == ""
    assert report.verdict.startswith("an" if report.improved else "no ")
    assert report.network.architecture["name"] == name and not report.network.training
    record = tuning.model_info(name).record
    assert report.base == {"weights": name, "sha256": record.sha256}
    assert json.loads(json.dumps(report.to_json()))["settings"]["steps"] == 1
    assert ("pairs", 3, 3) in told and told[-1] == ("training", 1, 1)


def dense(pair):
    return pair._replace(disparity=torch.full_like(pair.left[:1], 6, dtype=torch.float16))


def test_a_supernets_part_is_tuned(pairs, scripted):
    net = create_model("easnet_light", pretrained=True)
    scripted((0.4, 1.0), (0.3, 1.0))
    report = tune(net, pairs, **QUICK)
    assert report.improved and "subnet" in report.network.architecture


def test_learning_follows_the_labels(net, pairs):
    """The loss of a batch falls; running statistics and the network that was given stay."""
    before = {name: value.clone() for name, value in net.state_dict().items()}
    learner = tuning._Learner(net, 96, 5e-3, torch.device("cpu"))
    left, right = pairs[0]
    wanted = torch.full((1, 1, 128, 256), 9.0)
    batch = {"left": left[None], "right": right[None], "disparity": wanted, "valid": wanted > 0}
    losses = []
    for _ in range(4):
        learner.step(batch, 0.0)
        losses.append(learner.task.loss(learner.task.outputs(batch), batch).item())
    assert losses[-1] < 0.95 * losses[0] and learner.steps == 4
    assert all(value.equal(before[name]) for name, value in net.state_dict().items())
    layers = dict(net.named_modules())
    for name, layer in learner.task.net.named_modules():
        if isinstance(layer, _BatchNorm):
            assert layer.running_mean.equal(layers[name].running_mean)


def test_rates_warm_up_and_fall_to_zero(net, pairs):
    learner = tuning._Learner(net, 96, 1e-3, torch.device("cpu"))
    learner.task.loss = lambda outputs, batch: outputs.sum()
    learner.task.outputs = lambda batch: sum(p.sum() for p in learner.task.net.parameters()) * 0
    rates = []
    for step in range(20):
        learner.step({}, step / 20)
        rates.append(learner.optimizer.param_groups[0]["lr"])
    assert rates[0] == pytest.approx(1e-4) and max(rates) < 1e-3 and rates[-1] < 1e-5


def test_a_loss_that_is_no_number_is_said(net):
    learner = tuning._Learner(net, 96, 1e-4, torch.device("cpu"))
    learner.task.loss = lambda outputs, batch: torch.tensor(float("nan"))
    learner.task.outputs = lambda batch: None
    with pytest.raises(ValueError, match="step 0: the loss is not finite; lower"):
        learner.step({}, 0)


def test_labels_are_what_the_network_is_sure_of(net, pairs, scenes):
    predictor, told = StereoPredictor(net, "cpu"), []
    (pair,), _ = usable(predictor, pairs[:1])
    assert pair.left.dtype == torch.uint8 and pair.left.shape == (3, 128, 256)
    (pair,), share = labelled(predictor, [pair], lambda *step: told.append(step))
    found = pair.sample()
    assert share == pytest.approx(float(found["valid"].float().mean()), abs=1e-3)
    assert told == [("labels", 0, 1), ("labels", 1, 1)]
    error = (found["disparity"] - scenes["disparity"][0]).abs()
    assert 0.2 < found["valid"].float().mean() < 1
    wrong = [(error[mask] > 1).float().mean() for mask in (found["valid"], ~found["valid"])]
    assert wrong[0] < 0.1 and wrong[0] < wrong[1] / 3


def test_half_of_a_batch_is_generated(pairs):
    learned = [dense(OwnPair(*(torch.full((3, 70, 130), 200, dtype=torch.uint8),) * 2))]
    drawn = [
        next(
            batches(
                learned,
                GeneratedStereo(4, 70, 130, seed=1, max_disparity=20),
                recipe("strong", 64, 128),
                2,
                torch.Generator().manual_seed(3),
            )
        )
        for _ in range(2)
    ]
    assert all(drawn[0][name].equal(drawn[1][name]) for name in drawn[0])
    own = [float(view.std((1, 2)).max()) < 1e-5 for view in drawn[0]["left"]]
    assert own == [True, False, True, False] and drawn[0]["left"].shape == (4, 3, 64, 128)
    flat = [float(disparity.std()) < 1e-3 for disparity in drawn[0]["disparity"]]
    assert flat == own and drawn[0]["valid"].all()


@pytest.mark.parametrize(
    ("rows", "improved", "kept"),
    [
        (((0.39, 1.0),), True, 0),
        ((((0.39, 0.5), 1.0),), False, 0),  # no more than chance would bring
        (((0.41, 0.5),), False, 0),
        (((0.39, 1.01),), False, 0),  # every generated scene is worse
        (((0.39, (1.01, 0.02)),), True, 0),  # some are
        (((0.39, (1.06, 0.2)),), False, 0),  # all in all they are forgotten
        (((0.38, 1.0), (0.35, 0.99), (0.36, 1.0), (0.1, 1.2)), True, 1),
    ],
)
def test_what_counts_as_an_improvement(
    light, pairs, scripted, untrained, tmp_path, rows, improved, kept
):
    scripted((0.4, 1.0), *rows)
    report = tune(light, pairs, **{**QUICK, "steps": len(rows)})
    assert report.improved is improved and len(report.checks) == len(rows)
    wanted = rows[kept][0][0] if isinstance(rows[kept][0], tuple) else rows[kept][0]
    assert report.after["disagreement"] == pytest.approx(wanted, abs=1e-4)
    assert report.after["gain"] == pytest.approx(0.4 - wanted, abs=1e-4)
    if not improved:
        same = zip(report.network.parameters(), light.parameters(), strict=True)
        assert all(one.equal(other) for one, other in same)
        with pytest.raises(ValueError, match="not written: no improvement: held-out pairs gain"):
            report.save(tmp_path / "mine.safetensors")
        assert not any(tmp_path.iterdir())


def test_training_ends_early(light, pairs, scripted, untrained):
    """After two checks that are no better than one before; the best one's weights are kept."""
    scripted((0.4, 1.0), (0.35, 1.0), (0.37, 1.0), (0.36, 1.0))
    report = tune(light, pairs, **{**QUICK, "steps": 10})
    assert report.improved and report.steps == 6
    assert report.after["disagreement"] == pytest.approx(0.35)
    first = report.checks[0]
    assert first["step"] == 2 and report.settings["steps"] == 10


@pytest.mark.parametrize(
    ("error", "says"), [(KeyboardInterrupt(), "interrupted"), (ValueError("not finite"), "not fin")]
)
def test_what_ends_it_leaves_the_best_check(light, pairs, scripted, monkeypatch, error, says):
    """Ctrl+C, or a loss that is not finite, after a check that was better, and before one."""
    learn = tuning._Learner.step

    def step(learner, batch, done):
        if learner.steps == last:
            raise error
        learn(learner, batch, done)

    monkeypatch.setattr(tuning._Learner, "step", step)
    last, rows = 2, ((0.4, 1.0), (0.35, 1.0), (0.37, 1.0))
    scripted(*rows)
    report = tune(light, pairs, **{**QUICK, "steps": 4})
    assert report.improved and report.steps == 2 and report.stopped.startswith(says)
    assert report.after["disagreement"] == pytest.approx(0.35)
    changed = zip(report.network.parameters(), light.parameters(), strict=True)
    assert any(not one.equal(other) for one, other in changed)
    last = 0
    scripted(*rows)
    with pytest.raises(type(error)):
        tune(light, pairs, **{**QUICK, "steps": 4})


def test_an_exam_tells_better_networks(net, pairs, scenes):
    """Weights that are disturbed lose by more than chance on held-out pairs and on scenes."""
    pair = OwnPair(*(to_bytes_view(view[:, :96]) for view in pairs[0]))
    worse = copy.deepcopy(net)
    with torch.no_grad():
        for index, values in enumerate(worse.parameters()):
            draws = torch.Generator().manual_seed(index)
            values += 0.1 * values.abs().mean() * torch.randn(values.shape, generator=draws)
    unseen = GeneratedStereo(2, 96, 192, seed=5, max_disparity=20)
    exam = Exam(worse, "cpu", [pair], unseen, 96)
    check = exam.compare(net)
    assert check["gain"] > 2 * check["gain_error"] > 0 and check["generated_gain"] > 0
    assert exam.better(check) and not exam.better(exam.compare(worse))
    back = Exam(net, "cpu", [pair], unseen, 96)
    assert not back.better(back.compare(worse))


def test_what_is_saved(light, pairs, scripted, tmp_path):
    base = save_weights(light, tmp_path / "base.safetensors")
    scripted((0.4, 1.0), (0.35, 1.0))
    report = tune(base, pairs, **QUICK)
    written = report.save(tmp_path / "mine.safetensors")
    tuned, facts = load_weights(written), read_weights(written).facts
    assert facts["tuning"]["base"] == {"weights": str(base), "sha256": sha256_of(base)}
    assert facts["tuning"]["before"]["generated_epe"] == 1 and facts["tuning"]["pairs"] == 2
    assert facts["trained_on"] == f"{base}, then 2 pairs without true disparities"
    states = [network.state_dict() for network in (light, tuned)]
    assert tuned.architecture == light.architecture
    assert any(not states[0][name].equal(value) for name, value in states[1].items())


def test_one_pair_is_parted_by_rows(net, pairs, scripted):
    left, right = pairs[0]
    scripted((0.4, 1.0), (0.35, 1.0))
    report = tune(net, [(left, right)], **QUICK)
    assert (report.pairs, report.held_out) == (1, 0)
    with pytest.raises(ValueError, match="one pair of 100x256 pixels is too little, 128 rows"):
        tune(net, [(left[:, :100], right[:, :100])], **QUICK)
    single = OwnPair(to_bytes_view(left), to_bytes_view(right))
    (learned,), (held,) = divided([single])
    assert learned.left.shape[1:] == (96, 256) and held.right.shape[1:] == (32, 256)
    assert held.right.equal(single.right[:, 96:])


def to_bytes_view(view):
    return torch.from_numpy(to_bytes(view)).permute(2, 0, 1)


@pytest.mark.parametrize(
    ("count", "held"), [(2, [1]), (5, [2]), (6, [1, 4]), (10, [1, 5, 8]), (40, [5, 15, 25, 35])]
)
def test_a_tenth_is_held_out(count, held):
    usable = [OwnPair(torch.tensor(index), torch.tensor(index)) for index in range(count)]
    learned, out = divided(usable)
    assert [int(pair.left) for pair in out] == held and len(learned) + len(held) == count


def test_pairs_that_will_not_do_are_skipped(net, tmp_path):
    noise = torch.rand(1, 3, 130, 430, generator=torch.Generator().manual_seed(2))
    texture = avg_pool2d(noise, 5, 1)[0]
    left, right, predictor = texture[:, :, :-8], texture[:, :, 8:], StereoPredictor(net, "cpu")
    for name, view in (("l.png", left), ("r.png", right)):
        write_image(tmp_path / name, to_bytes(view))
    (tmp_path / "cut.png").write_bytes((tmp_path / "l.png").read_bytes()[:3000])
    files = {name: tmp_path / f"{name}.png" for name in ("l", "r", "cut", "none")}
    given = [
        (files["l"], files["r"]),
        (files["cut"], files["r"]),
        (left, right[:, :-2]),
        (left, left),
        (right, left),
        (torch.full_like(left, 0.5), right),
        (files["none"], right),
        (left[:, :60], right[:, :60]),
    ]
    said = []
    (pair,), skipped = usable(predictor, given, skip=lambda *told: said.append(told))
    assert pair.left.shape == left.shape and said == [*skipped.items()]
    reasons = {str(files["cut"]): "cut.png", "pair 3": "differ in size", "pair 4": "same picture"}
    reasons |= {"pair 5": "look swapped", "pair 6": "one colour", str(files["none"]): "none.png"}
    reasons |= {"pair 8": "60x418 pixels are less than the 64x128 of a training sample"}
    assert skipped.keys() == reasons.keys()
    assert all(reason in skipped[name] for name, reason in reasons.items())
    assert not any("\n" in reason for reason in skipped.values())
    with pytest.raises(ValueError, match="none of 1 pairs can be used: pair 1: .*same picture"):
        tune(net, [(left, left)], **QUICK)
    gone = tmp_path / "none.png"
    with pytest.raises(ValueError) as error:
        tune(net, [(gone, gone)], **QUICK)
    assert str(error.value) == f"none of 1 pairs can be used: {gone}: no such file"
    with pytest.raises(ValueError, match="none of 0 pairs can be used"):
        tune(net, [], **QUICK)


def test_of_many_pairs_some_are_taken_evenly(net, pairs):
    taken, _ = usable(StereoPredictor(net, "cpu"), pairs, 2)
    firsts = [to_bytes_view(pairs[index][0]) for index in (0, 1)]
    assert all(pair.left.equal(view) for pair, view in zip(taken, firsts, strict=True))


def test_large_and_near_pairs_are_taken_smaller(net, pairs, monkeypatch):
    monkeypatch.setattr(_tuning_pairs, "_MOST_PIXELS", 128 * 256 // 4)
    (pair,), _ = usable(StereoPredictor(net, "cpu"), pairs[:1])
    assert pair.left.shape == (3, 64, 128)


def test_pairs_that_are_too_small_once_they_are_reduced(net, pairs, monkeypatch):
    """What was given and why it was made smaller is said; of several they are skipped."""
    predictor = StereoPredictor(net, "cpu")
    monkeypatch.setattr(predictor, "reach", 6.0)
    why = r"pixels \(of 128x256, reduced because disparities reach \d+ px\)"
    (near,), _ = usable(predictor, pairs[:1], crop=(0, 0))
    height, width = near.left.shape[1:]
    assert height < 64
    with pytest.raises(ValueError, match=rf"{height}x{width} {why} is too little, 128 rows"):
        divided([near])
    tall = [view.repeat(1, 3, 1) for view in pairs[0]]
    (kept,), skipped = usable(predictor, [pairs[0], tall], crop=(64, 64))
    assert kept.left.shape[1] >= 64 and skipped.keys() == {"pair 1"}
    said = rf"{height}x{width} {why} are less than the 64x64 of a training sample"
    assert re.fullmatch(said, skipped["pair 1"])


def test_raw_pairs_are_told_what_tuning_takes(net):
    noise = torch.rand(1, 3, 140, 430, generator=torch.Generator().manual_seed(2))
    texture = avg_pool2d(noise, 5, 1)[0]
    raw = (texture[:, :-7, :-8], texture[:, 7:, 8:])
    with pytest.raises(ValueError, match="not rectified.*`vizoo rectify --auto`") as refused:
        usable(StereoPredictor(net, "cpu"), [raw])
    assert "infer" not in str(refused.value)


def test_nothing_to_learn_is_said(net, pairs, monkeypatch):
    none = torch.zeros(128, 256)
    monkeypatch.setattr(_tuning_pairs, "agreed", lambda *_: (none, none.bool()))
    with pytest.raises(ValueError, match="sure of nothing in these pairs"):
        tune(net, pairs, **QUICK)


@pytest.mark.parametrize(
    "setting",
    [
        {"batch_size": 3},
        {"most_pairs": 0},
        {"steps": 0},
        {"minutes": 0},
        {"minutes": math.inf},
        {"minutes": math.nan},
        {"lr": math.nan},
        {"seed": -1},
        {"seed": 2**63},
        {"crop": (64, 100)},
        {"crop": (0, 64)},
    ],
)
def test_settings_out_of_range(monkeypatch, setting):
    """They are refused before anything is loaded or read."""
    monkeypatch.setattr(tuning, "load_network", lambda *_: pytest.fail("too late"))
    ((name, value),) = setting.items()
    wanted = {**QUICK, **({"steps": None} if name == "minutes" else {}), **setting}
    found = list(value) if name == "crop" else value
    with pytest.raises(ValueError, match=re.escape(f"{name} {found}: must be ")):
        tune("easnet_small", [], **wanted)


def test_minutes_end_it(light, pairs, scripted):
    scripted(*[(0.4, 1.0)] * 5)
    told = []
    report = tune(
        light, pairs, **{**QUICK, "steps": None}, minutes=1e-4, report=lambda *s: told.append(s)
    )
    assert report.steps == 1 and report.settings["minutes"] == 1e-4 and not report.improved
    assert told[-1][0] == "seconds of training"


@pytest.mark.parametrize("improved", [True, False])
def test_the_benchmark_shows_tuned_weights_where_there_are_some(
    improved, scenes, pairs, scripted, untrained, monkeypatch, capsys, benchmark
):
    module = benchmark("stereo_tuning")
    group = [(*pair, truth) for pair, truth in zip(pairs, scenes["disparity"][:, 0], strict=True)]
    monkeypatch.setattr(module, "halves", lambda folder: ({"A": group}, {"B": group[:1]}))
    monkeypatch.setattr(module, "cells", lambda network, *parts: ["1 / 2 / 3"] * 2)
    monkeypatch.setattr(sys, "argv", ["stereo_tuning", "--data", "none", "--steps", "1"])
    scripted((0.4, 1.0), (0.3 if improved else 0.5, 1.0))
    module.main()
    said = capsys.readouterr().out
    assert ("│ tuned" in said) is improved
    assert f"{'an' if improved else 'no'} improvement: held-out" in " ".join(said.split())
