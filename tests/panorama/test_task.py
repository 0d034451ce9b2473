"""The panorama task: labels, losses, what must not count, learning, resume, every config."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
import trees
import yaml
from torch.utils.data import default_collate
from trainers import quiet_trainer

from vizoo.__main__ import main
from vizoo.datasets.panorama import PanoramaDataModule, write_panoramas
from vizoo.datasets.panorama.transforms import SphereAugmentation
from vizoo.datasets.worlds.panorama import WorldPanoramas
from vizoo.panorama.task import PanoramaTask, depth_comparison
from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.weights import load_weights

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = sorted((ROOT / "configs" / "panorama").glob("*.yaml"))
SMALL = {"texture_level": 0}


def _task(**settings):
    return PanoramaTask("spheredepth_tiny", model_args=SMALL, **settings)


@functools.cache
def _rooms():
    return list(WorldPanoramas(4, 16))


def _data(length=2, **settings):
    names = ("train", "val", "test", "predict")
    sets = dict.fromkeys(names, [lambda: _rooms()[:length]])
    return PanoramaDataModule(**{**sets, "batch_size": 2, "workers": 0, **settings})


@pytest.fixture(scope="module")
def batch():
    rooms, change = WorldPanoramas(2, 32, seed=1), SphereAugmentation(tilt=5)
    return default_collate([change(rooms[i], torch.Generator().manual_seed(i)) for i in range(2)])


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"loss": "l1"}, "loss 'l1' is none of fixed, adaptive, log"),
        ({"loss_weight": "pixel"}, "loss_weight 'pixel'"),
        ({"loss_threshold": 0.0}, "loss_threshold must be above 0"),
        ({"scale_free": 0.5}, "scale_free must be 0 to 1, and 0 unless loss is log, not 0.5"),
        ({"loss": "log", "scale_free": 1.5}, "scale_free must be 0 to 1"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        _task(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"loss": "adaptive"},
        {"loss": "log"},
        {"loss": "log", "scale_free": 0.5},
        {"loss_weight": "solid_angle"},
    ],
)
def test_training_lowers_the_loss(batch, settings):
    torch.manual_seed(0)
    task = _task(**settings)
    optimizer = torch.optim.AdamW(task.net.parameters(), lr=8e-3)
    losses = []
    for _ in range(4):
        loss = task.loss(task.outputs(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize(
    "settings",
    [{"loss": "fixed"}, {"loss": "adaptive"}, {"loss": "log"}, {"loss": "log", "scale_free": 0.5}],
)
def test_what_is_not_valid_touches_nothing(batch, settings):
    """Neither the loss, nor a gradient, nor a metric."""
    torch.manual_seed(0)
    valid = torch.rand(batch["depth"].shape) > 0.3
    found = []
    for planted in (0.0, float("nan"), float("inf"), -1e30):
        torch.manual_seed(1)
        task = _task(**settings)
        spoilt = {**batch, "valid": valid, "depth": torch.where(valid, batch["depth"], planted)}
        value = task.loss(task.outputs(spoilt), spoilt)
        value.backward()
        task.eval().test_step(spoilt, 0)
        scores = task.test_metrics.compute().values()
        found.append((value.detach(), *(p.grad for p in task.net.parameters()), *scores))
    assert all(x.isfinite().all() for x in found[0])
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_the_loss_of_logarithms_knows_no_scale(batch):
    task, larger = _task(loss="log"), {**batch, "depth": 3 * batch["depth"]}
    outputs = [output.detach() for output in task.outputs(batch)]
    loss = task.loss(outputs, batch)
    scaled = task.loss([3 * output for output in outputs], larger)
    torch.testing.assert_close(scaled, loss, rtol=0.02, atol=0)  # but for a centimetre
    assert task.loss(outputs, larger) > 1.1 * loss or task.loss(outputs, larger) < 0.9 * loss


def test_a_loss_may_leave_the_scale_free(batch):
    """Each picture's own; to a share of it the scale counts."""
    scales = torch.tensor([[3.0], [0.5]])
    outputs = [output.detach() for output in _task().outputs(batch)]
    scaled = [scales * output for output in outputs]
    free, half = _task(loss="log", scale_free=1.0), _task(loss="log", scale_free=0.5)
    torch.testing.assert_close(
        free.loss(scaled, batch), free.loss(outputs, batch), rtol=0.02, atol=0
    )
    counted = _task(loss="log")
    for each in (outputs, scaled):
        mean = (free.loss(each, batch) + counted.loss(each, batch)) / 2
        torch.testing.assert_close(half.loss(each, batch), mean)


def test_the_loss_of_logarithms_reaches_a_depth_of_zero(batch):
    task = _task(loss="log")
    outputs = [torch.zeros_like(output).requires_grad_() for output in task.outputs(batch)]
    task.loss(outputs, batch).backward()
    assert (outputs[0].grad < 0).any() and outputs[0].grad.isfinite().all()


def test_a_batch_without_truth_gives_zero(batch):
    nothing = {**batch, "valid": torch.zeros_like(batch["valid"])}
    task = _task()
    loss = task.loss(task.outputs(nothing), nothing)
    loss.backward()
    assert loss == 0 and all(p.grad.isfinite().all() for p in task.net.parameters())


def test_image_and_labels_turn_together(batch):
    """Half a turn of the sphere is a roll of image and truth by half their width."""
    plain = {key: batch[key] for key in ("image", "depth", "valid")}
    half = torch.diag(torch.tensor([-1.0, 1, -1])).expand(2, 3, 3)
    rolled = {key: value.roll(value.shape[3] // 2, 3) for key, value in plain.items()}
    torch.manual_seed(0)
    task = _task().eval()
    turned = {**plain, "rotation": half}
    one = task.loss(task.outputs(turned), turned)
    torch.testing.assert_close(one, task.loss(task.outputs(rolled), rolled), rtol=1e-3, atol=1e-3)
    labels = task._labels(task.outputs(turned), turned)[0]
    assert (labels == task._labels(task.outputs(rolled), rolled)[0]).float().mean() > 0.99


def test_scale_weights_choose_outputs(batch):
    torch.manual_seed(0)
    task = _task()
    outputs = task.outputs(batch)
    task.scale_weights = [1, 0, 0, 0]
    alone = task.loss(outputs, batch)
    task.scale_weights = [0, 1, 0, 0]
    coarse = task.loss(outputs, batch)
    task.scale_weights = [1, 0.5, 0, 0]
    torch.testing.assert_close(task.loss(outputs, batch), alone + 0.5 * coarse)


def test_distillation_follows_the_teacher_where_truth_is_known(batch):
    task = _task()
    valid = batch["valid"].clone()
    valid[:, :, 16:] = False
    half = {**batch, "valid": valid}
    teacher = (torch.full((2, 5120), 2.0),)
    assert task.distillation_loss(teacher, teacher, half) == 0
    seen = torch.full((2, 5120), 3.0, requires_grad=True)
    task.distillation_loss((seen,), teacher, half).backward()
    known = task._labels((seen,), half)[1]
    assert torch.equal(seen.grad != 0, known) and 0 < known.sum() < known.numel()


def test_a_teachers_scale_may_be_left_free(batch):
    """Also of one whose mesh is finer than the student's."""
    task, teacher = _task(loss="log", scale_free=1.0), (torch.full((2, 5120), 2.0),)
    depth = torch.full((2, 1280), 3.0, requires_grad=True)
    assert task.distillation_loss((depth,), teacher, batch) < 1e-6
    uneven = depth * torch.linspace(1, 2, 1280)
    loss = task.distillation_loss((uneven,), teacher, batch)
    loss.backward()
    assert loss > 0.01 and depth.grad.isfinite().all()


def test_fit_test_predict(tmp_path):
    task, data = _task(warmup_steps=1), _data()
    trainer = quiet_trainer(tmp_path, max_epochs=1, logger=True, gradient_clip_val=1.0)
    trainer.fit(task, data)
    assert {"val/mre", "val/mre_sphere", "val/rmse", "val/d1"} <= set(trainer.logged_metrics)
    (found,) = trainer.test(task, data, verbose=False)
    assert 0 < found["test/mre"] < 10 and found["test/mre"] != found["test/mre_sphere"]
    predicted = trainer.predict(task, data)
    assert predicted[0]["depth"].shape == (1, 1, 16, 32)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    net = load_weights(tmp_path / "last.ckpt")
    assert net.architecture == {"name": "spheredepth_tiny", **SMALL}


def test_a_resumed_run_ends_as_an_uninterrupted_one(tmp_path):
    states = []
    for epochs in ((2,), (1, 2)):
        kept = None
        for last in epochs:
            torch.manual_seed(0)
            task, data = _task(lr_schedule="constant"), _data(length=4)
            trainer = quiet_trainer(tmp_path, max_epochs=last, limit_val_batches=0)
            trainer.fit(task, data, ckpt_path=kept)
            kept = tmp_path / f"{last}.ckpt"
            trainer.save_checkpoint(kept)
        states.append(task.net.state_dict())
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name


def test_bfloat16_until_max_steps(tmp_path):
    task = _task()
    quiet_trainer(tmp_path, max_steps=2, precision="bf16-mixed").fit(task, _data())
    assert all(p.isfinite().all() for p in task.net.parameters())


def test_picture(batch):
    truth = batch["depth"][0].clone()
    truth[:, :4] = 0
    picture = depth_comparison(batch["image"][0], batch["depth"][0] * 1.1, truth)
    assert picture.shape == (4 * 32, 64, 3) and picture.dtype == "uint8"
    assert (picture[32:36] == 0).all() and (picture[64:68] > 0).any()


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    return trees.stock(tmp_path_factory.mktemp("stock"))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_built_in_configs_run(config, tmp_path, monkeypatch, stock):
    """Its own settings and its own reader, on small rooms and with the tiny network, one step."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VIZOO_STOCK", str(stock))
    settings = yaml.safe_load(config.read_text())
    model = settings["model"]["init_args"]
    with torch.device("meta"):
        create_model(model["model"], **(model.get("model_args") or {}))
    model |= {"model": "spheredepth_tiny", "model_args": SMALL}
    data = settings["data"]["init_args"]
    for name in ("train", "val", "test", "predict"):
        for entry in data.get(name, []):
            arguments, layout = entry["init_args"], entry["class_path"].rpartition(".")[2]
            if layout == "WorldPanoramas":
                arguments |= {"length": 2 if name == "train" else 1, "height": 16}
                arguments.pop("cache", None)
                continue
            layout = {"ThreeD60": "3d60"}.get(layout, layout.lower())
            monkeypatch.setenv(arguments["root"].removeprefix("$"), str(tmp_path / layout))
            if not (tmp_path / layout).is_dir():
                lists = dict.fromkeys(("train", "val", "test"), _rooms()[:2])
                write_panoramas(lists, tmp_path / layout, layout)
            arguments["size"] = [16, 32]
    data |= {"batch_size": 2, "workers": 0}
    data.pop("samples_per_epoch", None)
    settings["trainer"] |= {"fast_dev_run": True, "accelerator": "cpu", "devices": 1}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(settings))
    assert main(["fit", "--config", "small.yaml"]) == 0


def test_missing_files_are_one_line_before_training(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("STANFORD2D3D", str(tmp_path))
    (tmp_path / "train.txt").write_text("a.png b.png\n")
    words = ["fit", "--config", "panorama/spheredepth_stanford2d3d.yaml"]
    assert main([*words, "--trainer.default_root_dir", str(tmp_path)]) == 2
    said = [x for x in capsys.readouterr().err.splitlines() if x.startswith("vizoo: error")]
    assert len(said) == 1 and "1 of 1 panoramas missing, first" in said[0]
