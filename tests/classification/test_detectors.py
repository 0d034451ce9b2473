"""Detectors as classifiers: the rules on boxes made by hand, training, checkpoints."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import yaml
from distributed_fits import detect
from ranks import run_ranks

from vizoo.__main__ import main
from vizoo.classification.detection_task import DetectionTask
from vizoo.classification.detectors import (
    Detections,
    ImageDetector,
    class_scores,
    is_detector,
    load_detector,
)
from vizoo.datasets.images import GeneratedLesions, ImageDataModule, ImagePreset

CONFIG = "configs/classification/skin_detector_generated.yaml"


def found(*scored):
    labels, scores = (torch.tensor(column) for column in zip(*scored, strict=True))
    return Detections(torch.rand(len(scored), 4), scores, labels)


def test_rules_by_hand():
    """One sure box of class 1, two less sure ones of class 2."""
    boxes = found((1, 0.8), (2, 0.6), (2, 0.5), (0, 0.2))
    best, both = (class_scores(boxes, 4, rule, threshold=0.3) for rule in ("best", "sum"))
    assert best.tolist() == pytest.approx([0, 0.8 / 1.4, 0.6 / 1.4, 0]) and best.argmax() == 1
    assert both.tolist() == pytest.approx([0, 0.8 / 1.9, 1.1 / 1.9, 0]) and both.argmax() == 2
    assert class_scores(boxes, 4, "best", threshold=0.9).isnan().all()
    assert class_scores(boxes, 4, "best", threshold=0.1)[0] > 0
    assert (
        class_scores(Detections(*(torch.zeros(0, 4), torch.zeros(0), torch.zeros(0).long())), 2)
        .isnan()
        .all()
    )
    with pytest.raises(ValueError, match="rule 'most' is none of best, sum"):
        class_scores(boxes, 4, "most")


@pytest.mark.parametrize(
    "name", ["retinanet", "fcos", "ssdlite", pytest.param("fasterrcnn", marks=pytest.mark.slow)]
)
def test_every_detector_learns_and_answers_in_its_classes(name):
    torch.manual_seed(0)
    net = ImageDetector(name, 3, "resnet18", 32)
    image, boxes = torch.rand(2, 3, 32, 32), torch.tensor([[4.0, 6, 20, 22]])
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)

    def loss():
        torch.manual_seed(1)  # Faster R-CNN learns from a random choice of its proposals
        losses = net.losses(image, [boxes, boxes], [torch.tensor([0]), torch.tensor([2])])
        assert len(losses) >= 2
        return sum(losses.values())

    before = loss()
    before.backward()
    optimizer.step()
    with torch.no_grad():
        assert loss() < before
    with pytest.raises(ValueError, match="training mode"):
        net(image)
    net.eval()
    with torch.inference_mode():
        each = net(image)
    assert len(each) == 2
    for detections in each:
        assert detections.boxes.shape == (len(detections.scores), 4)
        assert ((detections.labels >= 0) & (detections.labels < 3)).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("yolo", 2), "detector 'yolo' is none of fasterrcnn"),
        (("fcos", 2, "resnet20"), "backbone 'resnet20' is none of resnet18"),
        (("fcos", 0), "classes 0"),
    ],
)
def test_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        ImageDetector(*arguments)


def test_pretrained_ssdlite_is_refused():
    with pytest.raises(ValueError, match="ssdlite starts from random numbers"):
        ImageDetector("ssdlite", 2).load_pretrained()


def test_the_config_trains_tests_and_loads(root, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    settings = yaml.safe_load((root / CONFIG).read_text())
    settings["model"]["init_args"] |= {"size": 32, "threshold": 0.01, "rule": "sum"}
    for role in ("train", "val", "test", "predict"):
        arguments = settings["data"]["init_args"][role][0]["init_args"]
        arguments |= {"length": 4, "side": 32, "preset": {**arguments["preset"], "size": [32, 32]}}
    settings["data"]["init_args"] |= {"workers": 0, "batch_size": 2, "eval_batch_size": 2}
    quiet = {"logger": False, "enable_progress_bar": False, "accelerator": "cpu"}
    settings["trainer"] |= {"max_epochs": 1, **quiet}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(settings))
    assert main(["fit", "--config", "small.yaml"]) == 0
    path = tmp_path / "checkpoints/last.ckpt"
    assert is_detector(path)
    (tmp_path / "NET.SAFETENSORS").touch()
    assert not is_detector(tmp_path / "NET.SAFETENSORS")
    net = load_detector(path)
    assert net.classes == ("mole", "ring", "plaque", "streak") and net.input["fit"] == "crop"
    assert net.rule == {"rule": "sum", "threshold": 0.01} and not net.training
    capsys.readouterr()
    assert main(["test", "--config", "small.yaml", "--ckpt_path", str(path)]) == 0
    told = capsys.readouterr().out
    assert "test/accuracy" in told and "test/answered" in told
    if pytest.importorskip("pycocotools"):
        assert "test/map_50" in told


class Lesions(GeneratedLesions):
    """Four small images of two classes, named as told, perhaps without boxes."""

    def __init__(self, classes=("mole", "ring"), boxed=True, seed=1):
        super().__init__(4, 2, ImagePreset((32, 32), 1.0, scale=(1, 1)), side=32, seed=seed)
        self.classes, self.boxed = classes, boxed

    def picture(self, index):
        sample = super().picture(index)
        boxes = ("boxes", "box_labels")
        return {k: v for k, v in sample.items() if self.boxed or k not in boxes}


@pytest.mark.parametrize(
    ("train", "val", "message"),
    [
        ({"classes": ("mole", "ring", "streak")}, {}, "train set Lesions has 3 classes"),
        ({}, {"classes": ("ring", "mole")}, "val set Lesions has the classes ring, mole, not mole"),
        ({"boxed": False}, {}, "train set Lesions: images without boxes"),
        ({}, {"boxed": False}, "val set Lesions: images without boxes"),
    ],
)
def test_sets_that_are_refused(train, val, message):
    data = ImageDataModule(train=[Lesions(**train)], val=[Lesions(**val, seed=2)], workers=0)
    data.setup("fit")
    task = DetectionTask("ssdlite", 2)
    task.trainer = SimpleNamespace(datamodule=data)
    with pytest.raises(ValueError, match=message):
        task.setup("fit")


def test_a_start_from_another_detector_is_refused(tmp_path):
    task = DetectionTask("fcos", 2, "resnet18", 32)
    checkpoint = {
        "state_dict": task.state_dict(),
        "hyper_parameters": dict(task.hparams),
        "classes": ["mole", "ring"],
        "input": {},
    }
    torch.save(checkpoint, tmp_path / "fcos.ckpt")
    for wanted in (("fcos", 3), ("retinanet", 2)):
        with pytest.raises(ValueError, match="fcos.ckpt") as caught:
            DetectionTask(*wanted, "resnet18", 32, init_weights=str(tmp_path / "fcos.ckpt"))
        assert "\n" not in str(caught.value)


def test_precision_without_a_box_to_find_is_left_out(monkeypatch):
    pytest.importorskip("pycocotools")
    task = DetectionTask("ssdlite", 2)
    nothing = Detections(torch.zeros(0, 4), torch.zeros(0), torch.zeros(0).long())
    monkeypatch.setattr(task, "forward", lambda image: [nothing] * len(image))
    logged = {}
    monkeypatch.setattr(task, "log", lambda name, value, **_: logged.update({name: value}))
    empty = [torch.zeros(0, 4)], [torch.zeros(0).long()]
    batch = dict(zip(("boxes", "box_labels"), empty, strict=True))
    task.validation_step({"image": torch.rand(1, 3, 32, 32), "label": torch.ones(1), **batch}, 0)
    task.on_validation_epoch_end()
    assert set(logged) == {"val/accuracy", "val/answered"}


def test_two_processes_measure_as_one(tmp_path):
    """They share five images unevenly."""
    pytest.importorskip("pycocotools")
    one = detect(0, str(tmp_path / "of1"), 1)
    assert run_ranks(2, detect, str(tmp_path / "of2"), 2) == [pytest.approx(one)] * 2
    assert 0 < one["test/map_50"] < 1
