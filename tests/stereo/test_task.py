"""The stereo task: rounds, schedules, learning, and every built-in config as a user runs it."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import pytest
import torch
import trees
import yaml
from torch.utils.data import DataLoader
from trainers import quiet_trainer

from vizoo.__main__ import main
from vizoo.datasets.mixture import Part
from vizoo.datasets.stereo import (
    GeneratedStereo,
    StereoDataModule,
    StereoDataset,
    StereoRecord,
)
from vizoo.datasets.stereo.transforms import recipe
from vizoo.nas.training import SandwichSampler, SupernetTask
from vizoo.stereo.losses import matching_loss
from vizoo.stereo.task import DisparityWriter, FusionTask, Outputs, StereoTask
from vizoo.vision.callbacks import FixedStatistics, Frozen
from vizoo.vision.hub.registry import list_models
from vizoo.vision.hub.weights import load_weights
from vizoo.vision.io.disparity import read_disparity

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = sorted((ROOT / "configs" / "stereo").glob("*.yaml"))


_DRAWN = tempfile.TemporaryDirectory()  # scenes, which most tests share


def _data(length=4, **arguments):
    scenes = GeneratedStereo(length, 64, 128, seed=1, max_disparity=32, cache=_DRAWN.name)
    settings = {"crop_height": 64, "crop_width": 128, "batch_size": 2, "workers": 0}
    return StereoDataModule(
        train=[scenes],
        val=[scenes],
        test=[scenes],
        predict=[scenes],
        augmentation="none",
        **{**settings, **arguments},
    )


def _rates(task, steps, per_epoch, epochs, accumulate=1):
    task.trainer = type("Trainer", (), {})()
    task._trainer = task.trainer
    task.trainer.estimated_stepping_batches = per_epoch * epochs
    task.trainer.num_training_batches = per_epoch * accumulate - (accumulate > 1)
    task.trainer.accumulate_grad_batches = accumulate
    found = task.configure_optimizers()
    optimizer, scheduler = found["optimizer"], found["lr_scheduler"]["scheduler"]
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def test_rounds_change_weights_and_restart_the_learning_rate():
    task = StereoTask(
        "fadnet_plus_micro",
        scale_weights=[[1.0], [2.0]],
        round_epochs=[3, 2],
        lr=1.0,
        lr_milestones=[1, 2],
        lr_gamma=0.5,
    )
    assert [task.round_at(epoch)[0] for epoch in range(7)] == [0, 0, 0, 1, 1, 1, 1]
    expected = [1, 1, 0.5, 0.5, 0.25, 0.25] * 2
    assert _rates(task, 12, per_epoch=2, epochs=6) == expected
    # Three batches, two a step: an epoch ends with a step of one.
    assert _rates(task, 12, per_epoch=2, epochs=6, accumulate=2) == expected


@pytest.mark.parametrize("epochs", [[4], None])  # the last round goes on until the end
def test_warm_up_and_cosine(epochs):
    task = StereoTask(
        "fadnet_plus_micro", round_epochs=epochs, lr=1.0, lr_schedule="cosine", warmup_steps=3
    )
    rates = _rates(task, 9, per_epoch=2, epochs=4)
    assert rates[0] == pytest.approx(0.25) and rates[0] < rates[1] < rates[2]
    assert rates[3:] == sorted(rates[3:], reverse=True)
    assert rates[8] == pytest.approx(0, abs=1e-9)


def test_rounds_that_do_not_fit_together():
    with pytest.raises(ValueError, match="1 lists of scale_weights and round_epochs"):
        StereoTask("fadnet_plus_micro", scale_weights=[[1.0]], round_epochs=[1, 2])


def test_unknown_schedule_and_a_cosine_without_end():
    with pytest.raises(ValueError, match="cosin.*milestones, cosine or constant"):
        StereoTask("fadnet_plus_micro", lr_schedule="cosin")
    with pytest.raises(ValueError, match="needs an end"):
        _rates(StereoTask("fadnet_plus_micro", lr_schedule="cosine"), 1, 1, float("inf"))


def test_training_lowers_the_loss_of_both_stages(tmp_path):
    task = StereoTask("fadnet_plus_micro", lr=4e-3, optimizer="adamw")
    batch = next(iter(_loader(_data(length=2))))

    def losses():
        with torch.no_grad():
            stages = task.net.train().forward_stages(batch["left"], batch["right"])
        truth, known = batch["disparity"], batch["valid"]
        return [(stage[0] - truth)[known].abs().mean().item() for stage in stages]

    before = losses()
    settings = {"max_epochs": 20, "limit_val_batches": 0, "enable_checkpointing": False}
    quiet_trainer(tmp_path, **settings).fit(task, DataLoader([batch], batch_size=None))
    after = losses()
    assert all(new < 0.8 * old for new, old in zip(after, before, strict=True)), (before, after)


def _loader(data):
    data.setup("fit")
    return data.train_dataloader()


def test_metrics_and_predictions(tmp_path):
    task = StereoTask("fadnet_plus_micro")
    trainer = quiet_trainer(tmp_path)
    values = trainer.test(task, _data(), verbose=False)[0]
    assert {"test/epe", "test/epe_pixel", "test/bad1", "test/bad3", "test/d1"} <= set(values)
    found = trainer.predict(task, _data())
    assert len(found) == 4 and found[0]["disparity"].shape == (1, 1, 64, 128)


def test_a_fit_follows_a_validation(monkeypatch):
    task, maps = StereoTask("fadnet_plus_micro"), torch.ones(2, 1, 1, 4, 4)
    for name in ("log", "log_dict"):
        monkeypatch.setattr(task, name, lambda *_, **__: None)
    with torch.inference_mode():  # which Lightning validates in, but not within a fit
        task.val_metrics.update(*maps, maps[0] > 0)
        task.on_validation_epoch_end()
    task.val_metrics.update(*maps, maps[0] > 0)
    assert task.val_metrics.compute()["epe"] == 0


@pytest.mark.parametrize("suffix", ["png", "pfm", "npy"])
def test_predictions_are_written(tmp_path, suffix):
    writer = DisparityWriter(str(tmp_path / "found"), suffix)
    task = StereoTask("fadnet_plus_micro")
    task.forward = lambda left, right: 100 * left[:, :1]  # within what a PNG can hold
    found = quiet_trainer(tmp_path, callbacks=[writer]).predict(task, _data())
    for prediction in found:
        disparity, _ = read_disparity(tmp_path / "found" / f"{prediction['name'][0]}.{suffix}")
        expected = prediction["disparity"][0]
        torch.testing.assert_close(disparity, expected, rtol=0, atol=0.002)


def test_what_a_png_cannot_hold_is_cut_and_said(tmp_path):
    writer = DisparityWriter(str(tmp_path / "found"))
    task = StereoTask("fadnet_plus_micro")
    task.forward = lambda left, right: 400 * left[:, :1]
    with pytest.warns(UserWarning, match=r"are cut to 256 px.*pfm and npy hold more"):
        found = quiet_trainer(tmp_path, callbacks=[writer]).predict(task, _data())
    for prediction in found:
        disparity, _ = read_disparity(tmp_path / "found" / f"{prediction['name'][0]}.png")
        expected = prediction["disparity"][0].clamp(max=65535 / 256)
        torch.testing.assert_close(disparity, expected, rtol=0, atol=0.002)


@pytest.mark.parametrize(
    "twice", [lambda pairs: [pairs, pairs], lambda pairs: [Part(pairs, [0, 0])]]
)
def test_predictions_of_one_name_are_refused_before_the_first(tmp_path, twice):
    record = StereoRecord("testing/000000_10", "left.png", "right.png")
    data = StereoDataModule(predict=twice(StereoDataset([record])), workers=0)
    trainer = quiet_trainer(tmp_path, callbacks=[DisparityWriter(str(tmp_path / "found"))])
    with pytest.raises(ValueError, match=r"pairs are called testing/000000_10 .* overwrite"):
        trainer.predict(StereoTask("fadnet_plus_micro"), data)


def test_predictions_of_any_samples_are_written(tmp_path):
    pair = {"left": torch.rand(3, 64, 64), "right": torch.rand(3, 64, 64), "name": "a"}
    trainer = quiet_trainer(tmp_path, callbacks=[DisparityWriter(str(tmp_path / "written"))])
    trainer.predict(StereoTask("fadnet_plus_micro"), (DataLoader([pair]),))
    assert [path.stem for path in (tmp_path / "written").iterdir()] == ["a"]


def test_starts_from_weights(tmp_path):
    first = StereoTask("fadnet_plus_micro")
    trainer = quiet_trainer(tmp_path, max_epochs=1, limit_val_batches=0)
    trainer.fit(first, _data())
    trainer.save_checkpoint(tmp_path / "first.ckpt")
    second = StereoTask("fadnet_plus_micro", init_weights=str(tmp_path / "first.ckpt"))
    for name, tensor in first.net.state_dict().items():
        assert torch.equal(tensor, second.net.state_dict()[name]), name
    loaded = load_weights(tmp_path / "first.ckpt")
    assert loaded.architecture["name"] == "fadnet_plus_micro"
    with pytest.raises(ValueError, match="fadnet_plus_micro"):
        StereoTask("fadnet_plus_tiny", init_weights=str(tmp_path / "first.ckpt"))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_built_in_config_fits_together(config):
    settings = yaml.safe_load(config.read_text())
    task, data = (settings[part]["init_args"] for part in ("model", "data"))
    if settings["model"]["class_path"].endswith("FusionTask"):
        assert task["model"] in list_models("stereo-fusion/*")
        assert recipe(data["augmentation"], data["crop_height"], data["crop_width"]) is not None
        FusionTask(**task)
        return
    assert task["model"] in list_models("stereo/*")
    endless = [-1]
    assert sum(task.get("round_epochs", endless)) == settings["trainer"]["max_epochs"]
    predictions = 7 if task["model"].startswith("fadnet") else 4
    assert {len(weights) for weights in task["scale_weights"]} == {predictions}
    assert data["crop_height"] % 64 == data["crop_width"] % 64 == 0
    assert recipe(data["augmentation"], data["crop_height"], data["crop_width"]) is not None
    StereoTask(**{**task, "model": _small(task)})


def _small(task):
    if task["model"] == "disparity_fusion":
        return task["model"]
    return "fadnet_plus_micro" if task["model"].startswith("fadnet") else "easnet_small"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Environment variables of the configs, and miniature data sets there."""
    root = tmp_path_factory.mktemp("data")
    years = {f"KITTI{year}": trees.kitti(root / f"kitti{year}", year) for year in (2012, 2015)}
    return years | {
        "VIZOO_STOCK": trees.stock(root / "stock"),
        "SCENEFLOW": trees.sceneflow(root / "sceneflow"),
        "PAIRS": trees.middlebury2014(root / "pairs"),
        "HOME": root,  # where scenes are cached, which some configs have in common
    }


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_built_in_config_runs(config, data, tmp_path, monkeypatch):
    for name, folder in data.items():
        monkeypatch.setenv(name, str(folder))
    monkeypatch.chdir(tmp_path)
    whole = yaml.safe_load(config.read_text())
    settings = whole["data"]["init_args"]
    model = {"init_args": {"model": _small(whole["model"]["init_args"])}}
    small = {"trainer": {"fast_dev_run": 1}, "model": model}
    generated = {"length": 2, "height": 64, "width": 128}
    # This augmentation enlarges the miniature pictures to the crop.
    crop = {"augmentation": "strong", "crop_height": 64, "crop_width": 64}
    small["data"] = {"init_args": {"batch_size": 2, "workers": 0, "weights": None, **crop}}
    if "GeneratedStereo" in config.read_text():
        for role in {"train", "val", "test"} & set(settings):
            first = settings[role][0]
            first["init_args"].update(generated)
            small["data"]["init_args"][role] = [first]
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(small))
    name = f"stereo/{config.name}"
    assert main(["fit", "--config", name, "--config", "small.yaml"]) == 0


def test_frozen_parts_stay_and_the_rest_learns(tmp_path):
    task, frozen = StereoTask("fadnet_plus_micro"), Frozen(["net.extract_network"])
    before = {name: tensor.clone() for name, tensor in task.net.state_dict().items()}
    quiet_trainer(tmp_path, max_epochs=2, callbacks=[frozen]).fit(task, _data(length=2))
    for name, tensor in task.net.state_dict().items():
        assert torch.equal(tensor, before[name]) == name.startswith("extract_network."), name


def test_fixed_statistics_stay_over_epochs_and_all_else_learns(tmp_path):
    task = StereoTask("easnet_light", {"max_disparity": 48}, loss="matching", lr=1e-2)
    before = {name: tensor.clone() for name, tensor in task.net.state_dict().items()}
    # Between epochs Lightning validates, and puts back the modes that it found.
    trainer = quiet_trainer(tmp_path, max_epochs=2, callbacks=[FixedStatistics()])
    trainer.fit(task, _data(length=2))
    for name, tensor in task.net.state_dict().items():
        fixed = name.endswith(("running_mean", "running_var", "num_batches_tracked"))
        learnable = not name.rpartition(".")[2].startswith("matrix_")  # of kernels not in use
        assert torch.equal(tensor, before[name]) == fixed or not learnable, name


@pytest.mark.parametrize(
    ("name", "message"),
    [("net.extract_netwrk", "did you mean net.extract_network"), ("net", "nothing is left")],
)
def test_parts_that_cannot_be_frozen(tmp_path, name, message):
    trainer = quiet_trainer(tmp_path, max_epochs=1, callbacks=[Frozen([name])])
    with pytest.raises(ValueError, match=f"frozen: .*{message}"):
        trainer.fit(StereoTask("fadnet_plus_micro"), _data(length=2))


def test_an_optimizer_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match="no optimizer 'adamm'; did you mean adam"):
        StereoTask("fadnet_plus_micro", optimizer="adamm")
    with pytest.raises(ValueError, match="'adahessian' wants second derivatives"):
        StereoTask("fadnet_plus_micro", optimizer="adahessian")
    task = StereoTask("fadnet_plus_micro", optimizer_args={"weight_dcay": 1})
    with pytest.raises(ValueError, match="optimizer_args of adam: .*weight_dcay"):
        quiet_trainer(tmp_path, max_steps=1).fit(task, _data())
    StereoTask("fadnet_plus_micro", optimizer="lookahead_adam")


def test_distillation_follows_the_teacher_where_truth_is_known():
    task = StereoTask("fadnet_plus_micro", loss="upsampled", scale_weights=[[1.0]], max_disparity=8)
    teacher = Outputs([[torch.full((1, 1, 4, 6), 5.0)]])
    batch = {
        "disparity": torch.arange(24.0).view(1, 1, 4, 6),
        "valid": torch.arange(24).view(1, 1, 4, 6) != 3,
    }
    assert task.distillation_loss(teacher, teacher, batch) == 0
    seen = torch.zeros(1, 1, 4, 6, requires_grad=True)
    task.distillation_loss(Outputs([[seen]]), teacher, batch).backward()
    kept = [1, 2, 4, 5, 6, 7]
    assert seen.grad.flatten().nonzero().flatten().tolist() == kept


def test_matching_needs_scores(monkeypatch):
    monkeypatch.delattr("vizoo.stereo.fadnet._TwoStage.forward_volumes")
    with pytest.raises(ValueError, match="needs a network that gives its matching scores"):
        StereoTask("fadnet_plus_micro", loss="matching")


def test_logarithms_are_added_to_what_compares_at_full_size():
    batch = {"disparity": torch.full((1, 1, 4, 6), 3.0), "valid": torch.ones(1, 1, 4, 6) > 0}
    outputs = Outputs([[torch.full((1, 1, 4, 6), 5.0)], [batch["disparity"] + 1.5]])
    told = {"scale_weights": [[1.0]], "log_weight": 2.0}
    loss = StereoTask("fadnet_plus_micro", loss="upsampled", **told).loss(outputs, batch)
    torch.testing.assert_close(loss, torch.tensor(1.5 + 1.0 + 2 * math.log(3 * 2.5)))
    for wrong in ({**told, "loss": "pooled"}, {"loss": "matching", "log_weight": -1.0}):
        with pytest.raises(ValueError, match="log_weight must be 0 or more, and 0 with"):
            StereoTask("fadnet_plus_micro", **wrong)


@pytest.mark.parametrize(
    "model, size", [("easnet_light", (24, 48)), ("fadnet_plus_micro", (64, 128))]
)
def test_matching_adds_the_entropy_of_the_scores(model, size):
    task = StereoTask(model, {"max_disparity": 48}, loss="matching")
    views = torch.rand(2, 1, 3, *size)
    truth = torch.full((1, 1, *size), 7.0)
    batch = {"left": views[0], "right": views[1], "disparity": truth, "valid": truth > 0}
    outputs = task.outputs(batch)
    entropy = matching_loss(outputs.volumes, truth, batch["valid"])
    without = task.loss(outputs._replace(volumes=()), batch)
    torch.testing.assert_close(task.loss(outputs, batch), without + entropy)
    assert entropy > 0


def test_unknown_loss():
    with pytest.raises(
        ValueError, match="loss 'l1' is unknown: choose pooled, upsampled, matching"
    ):
        StereoTask("fadnet_plus_micro", loss="l1")


def test_a_supernet_is_trained_and_read_without_its_trainer(tmp_path):
    task = StereoTask("easnet_light", {"max_disparity": 48}, loss="upsampled", optimizer="adamw")
    trainer = quiet_trainer(tmp_path, max_epochs=1, limit_val_batches=1)
    wrapped = SupernetTask(task, SandwichSampler(0), distillation="in_place")
    trainer.fit(wrapped, _data(length=2))
    metrics = trainer.callback_metrics
    assert {"val/largest/epe", "val/smallest/epe", "train/loss"} <= set(metrics)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    net = load_weights(tmp_path / "last.ckpt")
    assert net.architecture == {"name": "easnet_light", "max_disparity": 48}
    state = task.net.state_dict()
    assert all(torch.equal(state[name], value) for name, value in net.state_dict().items())
