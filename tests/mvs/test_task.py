"""The multi-view-stereo task: schedules, learning, wide ranges, every built-in config."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml
from torch.utils.data import default_collate
from trainers import quiet_trainer

from vizoo.__main__ import main
from vizoo.datasets.mvs import MVSDataModule
from vizoo.datasets.worlds.views import WorldViews
from vizoo.mvs.dispmvs import start_from
from vizoo.mvs.task import FusionTask, MVSTask, depth_comparison
from vizoo.nas.training import SandwichSampler, SupernetTask
from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.weights import load_weights

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = sorted((ROOT / "configs" / "mvs").glob("*.yaml"))
SMALL = {"coarse_iterations": 1, "fine_iterations": 1}


def _task(**settings):
    return MVSTask("dispmvs_tiny", model_args=SMALL, **settings)


def _scenes(folder, length=2):
    return WorldViews(length, 128, 128, views=3, seed=1, layouts=["room"], cache=folder)


def _data(folder, length=2):
    sets = {name: [_scenes(folder, length)] for name in ("train", "val", "test", "predict")}
    return MVSDataModule(**sets, batch_size=1, workers=0)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """A folder of scenes that were generated once."""
    return str(tmp_path_factory.mktemp("drawn"))


@pytest.fixture(scope="module")
def batch(drawn):
    return default_collate([_scenes(drawn)[i] for i in range(2)])


@pytest.fixture(scope="module")
def single(batch):
    """The first of its samples."""
    return {name: values[:1] for name, values in batch.items()}


def test_a_range_that_is_narrowed():
    with pytest.raises(ValueError, match=r"range_factor must be at least 1, not 0\.5"):
        _task(range_factor=0.5)


@pytest.mark.filterwarnings("ignore::lightning.pytorch.utilities.warnings.PossibleUserWarning")
@pytest.mark.parametrize("task", [MVSTask, FusionTask])
def test_cameras_are_not_rounded(drawn, tmp_path, task):
    trainer = quiet_trainer(tmp_path, precision="bf16-true", limit_val_batches=1)
    module = task("dispmvs_tiny", SMALL) if task is MVSTask else task()
    with pytest.raises(ValueError, match="cameras in bfloat16 are off .* bf16-mixed"):
        trainer.validate(module, _data(drawn), verbose=False)


def test_training_lowers_the_loss(single):
    task = _task()
    optimizer = torch.optim.Adam(task.net.parameters(), lr=1e-3)
    losses = []
    for _ in range(5):
        torch.manual_seed(0)  # the same start
        loss = task.loss(task.outputs(single), single)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(task.net.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_a_subclass_need_not_save_arguments(single):
    task = _task(vary_sources=True, range_factor=2.0)
    task.hparams.clear()
    task.training_step(single, 0)
    task.predictions(single)


def test_models_for_something_else_are_refused():
    with pytest.raises(ValueError, match="model depth_fusion is for mvs-fusion, not for mvs$"):
        MVSTask("depth_fusion")
    with pytest.raises(ValueError, match="model dispmvs_tiny is for mvs, not for mvs-fusion"):
        FusionTask("dispmvs_tiny")


def test_sources_vary(batch):
    assert _task().mixed(batch) is batch
    task = _task(vary_sources=True)
    torch.manual_seed(0)
    seen = set()
    for _ in range(20):
        mixed = task.mixed(batch)
        views = [
            next(v for v in range(3) if torch.equal(image, batch["images"][0, v]))
            for image in mixed["images"][0]
        ]
        assert torch.equal(mixed["extrinsics"], batch["extrinsics"][:, views])
        assert torch.equal(mixed["intrinsics"], batch["intrinsics"][:, views])
        seen.add(tuple(views))
    assert seen == {(0, 1), (0, 2), (0, 1, 2)}


def test_some_batches_are_guided(single):
    with pytest.raises(ValueError, match=r"guided must be 0 to 1, not 1\.5"):
        _task(guided=1.5)
    task = _task(guided=0.5)
    torch.manual_seed(0)
    seen = [task.mixed(single) for _ in range(6)]
    guided = [one for one in seen if one is not single]
    assert 0 < len(guided) < len(seen)
    start, truth = guided[0]["start"], start_from(single["depth"])
    assert ((start - truth).abs() / truth).median() < 0.1
    task.loss(task.outputs(guided[0]), guided[0]).backward()


def test_checkpointing_changes_no_gradient(single):
    found = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        task = _task(checkpointing=checkpointing)
        torch.manual_seed(1)
        task.loss(task.outputs(single), single).backward()
        found.append([p.grad for p in task.net.parameters()])
    for plain, again in zip(*found, strict=True):
        torch.testing.assert_close(plain, again, rtol=1e-3, atol=1e-5)


def test_a_fusion_is_trained_alone(single):
    task = FusionTask(vary_sources=True)
    before = {name: tensor.clone() for name, tensor in task.state_dict().items()}
    assert {name.partition(".")[0] for name in before} == {"net"}  # of the fusion alone
    known = task._guided[0].net.state_dict()
    frozen = {name: tensor.clone() for name, tensor in known.items()}
    optimizer = torch.optim.SGD(task.parameters(), lr=0.1)
    loss = task.loss(task.outputs(task.mixed(single)), single)
    loss.backward()
    optimizer.step()
    after = task.state_dict()
    assert not any(torch.equal(before[name], after[name]) for name in before if "weight" in name)
    assert all(torch.equal(frozen[name], known[name]) for name in frozen)
    depth, chance = task.predictions(single)
    assert depth.shape == chance.shape == single["depth"].shape
    assert 0 <= chance.min() and chance.max() <= 1


def test_a_batch_without_truth_gives_zero(single):
    nothing = {**single, "valid": torch.zeros_like(single["valid"])}
    task = _task()
    loss = task.loss(task.outputs(nothing), nothing)
    loss.backward()
    assert loss == 0
    assert all(p.grad.isfinite().all() for p in task.net.parameters())


def test_wider_ranges_reach_the_network_alone(batch):
    task = _task(range_factor=2.0).eval()
    seen = []
    task.net.forward = lambda *inputs: seen.append(inputs[3]) or batch["depth"]
    task.validation_step(batch, 1)
    wanted = batch["depth_range"] * torch.tensor([0.5, 2.0])
    torch.testing.assert_close(seen[0], wanted)
    assert task.val_metrics.compute()["rel"] == 0


def test_fit_test_predict(drawn, tmp_path):
    task, data = _task(thresholds=[1.0, 10.0]), _data(drawn, 1)
    trainer = quiet_trainer(tmp_path, max_epochs=1, logger=True, gradient_clip_val=1.0)
    trainer.fit(task, data)
    assert {"val/rel_median", "val/abs", "val/within_10", "val/within_2%"} <= set(
        trainer.logged_metrics
    )
    (found,) = trainer.test(task, data, verbose=False)
    assert found["test/rel"] > 0
    predicted = trainer.predict(task, data)
    assert predicted[0]["depth"].shape == predicted[0]["confidence"].shape == (1, 1, 128, 128)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    net = load_weights(tmp_path / "last.ckpt")
    assert net.architecture == {"name": "dispmvs_tiny", **SMALL}


def test_picture(batch):
    truth, valid = batch["depth"][0], batch["valid"][0]
    picture = depth_comparison(
        batch["images"][0, 0], truth * 1.01, truth, valid, torch.ones_like(truth)
    )
    assert picture.shape == (128, 5 * 128, 3) and picture.dtype == "uint8"


def test_supernet_trains(drawn, tmp_path):
    net = {"feature_width": 1}
    task = SupernetTask(
        MVSTask("dispmvs_elastic", model_args=net),
        sampler=SandwichSampler(1),
        distillation="in_place",
        recalibration_batches=1,
    )
    trainer = quiet_trainer(tmp_path, max_epochs=1, limit_train_batches=1, limit_val_batches=1)
    trainer.fit(task, _data(drawn))
    assert {"val/largest/rel", "val/smallest/rel"} <= set(trainer.logged_metrics)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_built_in_configs_run(config, drawn, tmp_path, monkeypatch):
    """Its own settings, on small generated scenes and with the tiny network, one step."""
    monkeypatch.chdir(tmp_path)
    settings = yaml.safe_load(config.read_text())
    size = {"length": 2, "height": 128, "width": 128, "views": 2}
    scenes = {
        "class_path": "vizoo.datasets.worlds.views.WorldViews",
        "init_args": {**size, "cache": drawn},
    }
    data = settings["data"]["init_args"]
    for name in ("train", "val", "test", "predict"):
        if name in data:
            data[name] = [scenes]
    data |= {"batch_size": 1, "workers": 0}
    data.pop("samples_per_epoch", None)
    model = settings["model"]["init_args"]
    with torch.device("meta"):
        create_model(model["model"], **(model.get("model_args") or {}))
    if model["model"] != "depth_fusion":
        model |= {"model": "dispmvs_tiny", "model_args": SMALL}
    settings["trainer"] |= {"fast_dev_run": True, "accelerator": "cpu", "devices": 1}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(settings))
    assert main(["fit", "--config", "small.yaml"]) == 0
