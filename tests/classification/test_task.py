"""The classification task: classes and presets, the loss, learning, resume, what files say."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch
from distributed_fits import score
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging
from ranks import run_ranks
from released import read_record
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, default_collate

from vizoo.classification.callbacks import PredictionTable
from vizoo.classification.task import ClassificationTask, balanced_weights
from vizoo.datasets.ct import CTDataModule, CTPreset, GeneratedCT
from vizoo.nas.differentiable import Cost, DifferentiableSearch, GumbelSoftmax, HalvedData
from vizoo.nas.training import SandwichSampler, SupernetTask
from vizoo.vision.hub.create import open_model
from vizoo.vision.hub.sharing import save_pretrained
from vizoo.vision.hub.weights import load_weights, save_weights

SMALL = {"encoding": [8, 0, 8, 8, 0]}
PRESET = CTPreset((16, 16), 8)


def _task(outputs=2, **settings):
    return ClassificationTask("covidnet3d_tiny", {"classes": outputs, **SMALL}, **settings)


class Named(GeneratedCT):
    """Generated scans with other names, or labels."""

    def __init__(self, length, names=None, preset=PRESET, only=None, **settings):
        super().__init__(length, preset=preset, depth=8, **settings)
        self.only = only
        self.classes = names or self.classes

    def draw(self, index, generator):
        self.classes, names = ("Normal", "NCP"), self.classes
        found = super().draw(index, generator)
        self.classes = names
        return found if self.only is None else {**found, "label": torch.tensor(self.only)}


def _data(length=4, **settings):
    sets = {role: [Named(length, seed=n)] for n, role in enumerate(("train", "val", "test"))}
    return CTDataModule(**{**sets, "batch_size": 2, "eval_batch_size": 3, "workers": 0, **settings})


def _trainer(folder, **arguments):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    defaults = {"max_epochs": 1, "num_sanity_val_steps": 0, "accelerator": "cpu"}
    return Trainer(default_root_dir=folder, **{**quiet, **defaults, **arguments})


@pytest.fixture(scope="module")
def batch():
    scans = GeneratedCT(4, preset=PRESET, depth=8)
    return default_collate([scans[index] for index in range(4)])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"class_weights": "even"}, "class_weights 'even': choose none, balanced"),
        ({"label_smoothing": 1.0}, "label_smoothing 1.0 must be at least 0 and below 1"),
        ({"mixup": -0.1}, "mixup -0.1 not negative"),
        ({"classes": ["a", "b", "c"]}, r"3 classes \(a, b, c\), but the network 2 outputs.*: 3"),
        ({"optimizer": "adm"}, "did you mean.*adam"),
        ({"lr_schedule": "cosin"}, "milestones, cosine or constant"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(ValueError, match=message) as error:
        _task(**settings)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("settings", [{}, {"mixup": 0.2, "label_smoothing": 0.1}])
def test_training_lowers_the_loss(batch, settings):
    task = _task(**settings)
    task.log = lambda *args, **kwargs: None
    task.net.dropout.p = 0
    optimizer = torch.optim.Adam(task.net.parameters(), 1e-3)
    losses = []
    for _ in range(12):
        losses.append(task.loss(task.outputs(batch), batch).item())
        optimizer.zero_grad()
        task.training_step(batch, 0).backward()
        optimizer.step()
    assert losses[-1] < 0.7 * losses[0]


def test_class_weights_and_smoothing(batch):
    task = _task(class_weights=[1.0, 3.0], label_smoothing=0.2)
    task._weights = torch.tensor([1.0, 3.0])
    logits, labels = torch.randn(4, 2), batch["label"]
    weights = task._weights[labels]
    truth = 0.9 * F.one_hot(labels, 2) + 0.1 * (1 - F.one_hot(labels, 2))
    wanted = -(truth * task._weights * logits.log_softmax(1)).sum() / weights.sum()
    torch.testing.assert_close(task.loss(logits, batch), wanted)
    found = balanced_weights([0, 0, 0, 1], ("a", "b"))
    torch.testing.assert_close(found, torch.tensor([2 / 3, 2.0]))
    with pytest.raises(ValueError, match="no training sample of b"):
        balanced_weights([0, 0], ("a", "b"))


def test_mixing_is_a_mean_of_both_losses(batch):
    task = _task(mixup=1.0)
    task.net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(8 * 256, 2))
    torch.manual_seed(3)
    task.log = lambda *args, **kwargs: None
    found = task.training_step(batch, 0)
    torch.manual_seed(3)
    share = torch.distributions.Beta(1.0, 1.0).sample()
    order = torch.randperm(4)
    x, y = batch["volume"], F.one_hot(batch["label"], 2).float()
    assert not torch.equal(order, torch.arange(4))
    mixed = task.net(share * x + (1 - share) * x[order])
    torch.testing.assert_close(found, F.cross_entropy(mixed, share * y + (1 - share) * y[order]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_mixing_is_as_fine_in_half_precision(batch, dtype):
    """As a trainer's precision of 16-true or bf16-true sets it."""
    task, shares = _task(mixup=1.0), []
    for kind in (torch.float32, dtype):
        torch.manual_seed(3)
        torch.set_default_dtype(kind)
        try:
            shares.append(task.mixed(batch)["share"])
        finally:
            torch.set_default_dtype(torch.float32)
    assert shares[0] == shares[1]


@pytest.mark.parametrize("distillation", ["in_place", "teacher"])
def test_all_who_learn_and_teach_in_a_step_are_given_the_same_mixed_samples(tmp_path, distillation):
    seen = []

    class Spy(ClassificationTask):
        def outputs(self, batch):
            seen.append(batch)
            return super().outputs(batch)

    task = Spy("covidnet3d_tiny", {"classes": 2}, mixup=1.0)
    teacher = task.net if distillation == "teacher" else None
    settings = {"teacher": teacher, "recalibration_batches": 0}
    wrapped = SupernetTask(task, SandwichSampler(1), distillation, **settings)
    _trainer(tmp_path, limit_train_batches=1, limit_val_batches=0).fit(wrapped, _data())
    assert len(seen) >= 3 and all(batch is seen[0] for batch in seen)
    assert 0 <= seen[0]["share"] <= 1 and len(seen[0]["other"]) == 2


def test_distillation_follows_the_teacher():
    teacher, student = torch.randn(3, 2), torch.randn(3, 2, requires_grad=True)
    task = _task()
    assert task.distillation_loss(teacher, teacher, {}).abs() < 1e-6
    task.distillation_loss(student, teacher, {}).backward()
    assert (student.grad != 0).all()


def test_fit_test_predict_and_release(tmp_path, caplog):
    task, data = _task(class_weights="balanced", warmup_steps=1), _data()
    trainer = _trainer(tmp_path, logger=True, gradient_clip_val=1.0)
    trainer.fit(task, data)
    assert {"val/loss", "val/accuracy", "val/auc", "val/sensitivity"} <= set(trainer.logged_metrics)
    (found,) = trainer.test(task, data, verbose=False)
    report = json.loads((Path(trainer.log_dir) / "test_report.json").read_text())
    assert report["metrics"]["test/loss"] == pytest.approx(found["test/loss"])
    assert report["classes"] == ["Normal", "NCP"] and report["input"]["size"] == [16, 16]
    confusion = torch.tensor(report["confusion"])
    assert confusion.sum() == 4
    assert found["test/accuracy"] == pytest.approx(float(confusion.trace()) / 4)

    trainer.save_checkpoint(tmp_path / "last.ckpt")
    net, trained = open_model(tmp_path / "last.ckpt", task="classification")
    assert trained and net.classes == ("Normal", "NCP") and CTPreset(**net.input) == PRESET
    save_pretrained(net, tmp_path / "released", licence="MIT", trained_on="generated scans")
    record = read_record(tmp_path / "released")
    assert record.classes == ("Normal", "NCP") and record.input["slices"] == 8
    assert "Normal, NCP" in (tmp_path / "released" / "README.md").read_text()
    for source in ("released", "released/model.safetensors"):
        again = open_model(tmp_path / source)[0]
        assert again.classes == net.classes and CTPreset(**again.input) == PRESET
    save_weights(net, tmp_path / "alone.safetensors", note="a fact")
    assert load_weights(tmp_path / "alone.safetensors").classes == net.classes

    predictor = _trainer(tmp_path, callbacks=[PredictionTable(str(tmp_path / "out"))])
    scans = Named(3, seed=5)
    with caplog.at_level("INFO", "lightning.pytorch.utilities.rank_zero"):
        found = predictor.predict(task, _data(predict=[scans]), ckpt_path=tmp_path / "last.ckpt")
    assert caplog.messages[-1].endswith(str(tmp_path / "out" / "predictions.csv"))
    rows = list(csv.DictReader((tmp_path / "out" / "predictions.csv").open()))
    assert [row["name"] for row in rows] == [scans[index]["name"] for index in range(3)]
    for row, shares in zip(rows, found[0]["probabilities"], strict=True):
        assert float(row["NCP"]) == pytest.approx(float(shares[1]), abs=1e-6)
        assert row["class"] == net.classes[int(shares.argmax())]


def test_classes_of_other_names_or_order_are_refused(tmp_path):
    turned = [Named(2, ("NCP", "Normal"), seed=9)]
    says = r"has the classes NCP, Normal, not Normal, NCP.*names and order have to be the same"
    with pytest.raises(ValueError, match=f"val set Named {says}"):
        _trainer(tmp_path).fit(_task(), _data(val=turned))
    trainer = _trainer(tmp_path)
    trainer.fit(_task(), _data(2))
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    with pytest.raises(ValueError, match="the checkpoint has the classes Normal, NCP, not NCP"):
        _trainer(tmp_path).test(_task(), _data(test=turned), ckpt_path=tmp_path / "last.ckpt")
    started = _task(init_weights=str(tmp_path / "last.ckpt"))
    with pytest.raises(ValueError, match=f"test set Named {says}"):
        _trainer(tmp_path).test(started, _data(test=turned))
    fresh = _task(init_weights=str(tmp_path / "last.ckpt"))
    held_out = [Named(2, ("NCP", "Normal"), seed=8)]
    with pytest.warns(UserWarning, match=r"classes NCP, Normal, the weights .* from Normal, NCP:"):
        _trainer(tmp_path).fit(fresh, _data(train=turned, val=held_out))
    with pytest.raises(ValueError, match=r"train set Named has 2 classes.*the network 3 outputs"):
        _trainer(tmp_path).fit(_task(3), _data())
    # Another training may give the same outputs another meaning.
    fresh = _task(init_weights=str(tmp_path / "last.ckpt"))
    sets = {role: [Named(2, ("a", "b"), seed=n)] for n, role in enumerate(("train", "val", "test"))}
    _trainer(tmp_path).fit(fresh, _data(**sets))
    assert fresh.classes == ("a", "b")


def test_other_preparation_is_told(tmp_path):
    other = [Named(2, preset=CTPreset((16, 16), 4), seed=9)]
    with pytest.warns(UserWarning, match="val set Named prepares samples otherwise: slices 4 inst"):
        _trainer(tmp_path).fit(_task(), _data(val=other, eval_batch_size=1))


def test_data_without_names(tmp_path, batch):
    class Plain(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return {"volume": batch["volume"][index], "label": batch["label"][index]}

    loader = DataLoader(Plain(), 2)
    with pytest.raises(ValueError, match="do not say what their classes are called: give `classes"):
        _trainer(tmp_path).fit(_task(), loader)
    with pytest.raises(ValueError, match="classes has the class ill more than once"):
        _task(classes=["ill", "ill"])
    task = _task(classes=["healthy", "ill"])
    _trainer(tmp_path).fit(task, loader, loader)
    with pytest.raises(ValueError, match="samples of picture: a classifier takes a volume or an"):
        task.outputs({"picture": batch["volume"]})


def test_a_class_without_scans_is_told_once(tmp_path):
    trainer = _trainer(tmp_path, max_epochs=2)
    with pytest.warns(UserWarning) as told:
        trainer.fit(_task(), _data(val=[Named(3, only=0, seed=7)]))
    says = "val: no sample of NCP; scores that need one are left out"
    assert [str(warning.message) for warning in told].count(says) == 1
    found = {n: v for n, v in trainer.callback_metrics.items() if n.startswith("val/")}
    assert set(found) == {"val/loss", "val/accuracy"}
    assert all(value.isfinite() for value in found.values())


def test_a_resumed_run_ends_as_an_uninterrupted_one(tmp_path):
    states = []
    for epochs in ((2,), (1, 2)):
        kept = None
        for last in epochs:
            torch.manual_seed(0)
            task = _task(lr_schedule="constant")
            task.net.dropout.p = 0  # which draws from a state that no checkpoint holds
            trainer = _trainer(tmp_path, max_epochs=last)
            trainer.fit(task, _data(), ckpt_path=kept)
            kept = tmp_path / f"{last}.ckpt"
            trainer.save_checkpoint(kept)
        states.append(task.net.state_dict())
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name


def test_averaged_weights_and_bfloat16(tmp_path):
    task = _task(class_weights="balanced")
    average = EMAWeightAveraging(decay=0.5)
    trainer = _trainer(tmp_path, precision="bf16-mixed", callbacks=[average])
    trainer.fit(task, _data())
    assert trainer.callback_metrics["val/loss"].isfinite()
    assert all(p.isfinite().all() for p in task.net.parameters())


def test_a_network_says_all_its_arguments_in_its_checkpoint(tmp_path):
    """Those that `init_weights` brought too, so that the checkpoint stands without the file."""
    trainer = _trainer(tmp_path)
    trainer.fit(_task(), _data(2))
    trainer.save_checkpoint(tmp_path / "first.ckpt")
    started = ClassificationTask("covidnet3d_tiny", init_weights=str(tmp_path / "first.ckpt"))
    trainer.fit(started, _data(2))
    trainer.save_checkpoint(tmp_path / "second.ckpt")
    (tmp_path / "first.ckpt").unlink()
    assert load_weights(tmp_path / "second.ckpt").architecture["encoding"] == SMALL["encoding"]


def test_a_network_of_timm_is_read_from_its_checkpoint_and_resumed(tmp_path):
    images = [{"image": torch.rand(3, 32, 32), "label": torch.tensor(n % 2)} for n in range(4)]
    loader, name = DataLoader(images, batch_size=2), "timm/test_resnet.r160_in1k"
    task = ClassificationTask(name, {"classes": 2}, classes=["a", "b"])
    trainer = _trainer(tmp_path, limit_val_batches=0)
    trainer.fit(task, loader)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    wanted = {"name": "image_classifier", "backbone": "test_resnet.r160_in1k", "classes": 2}
    net = load_weights(tmp_path / "last.ckpt")
    assert net.architecture == wanted and net.classes == ("a", "b")
    resumed = ClassificationTask.load_from_checkpoint(tmp_path / "last.ckpt", weights_only=True)
    assert resumed.net.architecture == wanted
    for key, value in task.net.state_dict().items():
        assert torch.equal(value, resumed.net.state_dict()[key]), key
    started = ClassificationTask(name, init_weights=str(tmp_path / "last.ckpt"))
    assert started.net.architecture == wanted


class _Steps(DifferentiableSearch):
    """Notes what the steps of each optimiser change."""

    def configure_optimizers(self):
        found = super().configure_optimizers()
        self.changes = {"weights": set(), "logits": set()}
        for who, entry in zip(("weights", "logits"), found, strict=True):
            before = {}

            def remember(*_, before=before):
                before.update({n: p.detach().clone() for n, p in self.named_parameters()})

            def compare(*_, before=before, who=who):
                named = self.named_parameters()
                self.changes[who] |= {n for n, p in named if not torch.equal(p, before[n])}

            entry["optimizer"].register_step_pre_hook(remember)
            entry["optimizer"].register_step_post_hook(compare)
        return found


def test_a_search_step_changes_every_logit_vector_and_no_weight_and_the_reverse(tmp_path):
    task = ClassificationTask("covidnet3d_tiny", {"classes": 2})
    search = _Steps(task, GumbelSoftmax(), cost=Cost(1e6, "macs"), recalibration_batches=1)
    trainer = _trainer(tmp_path, limit_train_batches=1)
    trainer.fit(search, HalvedData(_data(8)))
    vectors = {name for name, _ in search.named_parameters() if name.startswith("logits.")}
    assert len(vectors) == 5 and search.changes["logits"] == vectors
    assert search.changes["weights"] and not search.changes["weights"] & vectors
    assert {"val/derived/auc", "search/macs"} <= set(trainer.callback_metrics)
    trainer.save_checkpoint(tmp_path / "search.ckpt")
    assert load_weights(tmp_path / "search.ckpt").classes == ("Normal", "NCP")


def test_two_processes_score_as_one(tmp_path):
    """They share five scans unevenly, and three to predict; of one they say that it is too few."""
    said = "1 samples to evaluate on 2 processes: take fewer (trainer.devices 1)"
    assert run_ranks(2, score, str(tmp_path / "of2"), 2) == [said, said]
    assert score(0, str(tmp_path / "of1"), 1) is None
    two, one = (json.loads((tmp_path / f"of{n}/test_report.json").read_text()) for n in (2, 1))
    assert two["confusion"] == one["confusion"] and sum(map(sum, one["confusion"])) == 5
    assert {"test/auc", "test/macro_auc", "test/loss"} <= set(one["metrics"])
    assert two["metrics"] == pytest.approx(one["metrics"], abs=1e-5)
    table = (tmp_path / "of2/predictions.csv").read_text().split()
    assert [row.split(",")[0][-2:] for row in table[1:]] == ["00", "01", "02"]
