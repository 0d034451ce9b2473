"""Detectors as classifiers: the rules on boxes made by hand, training, checkpoints."""

from __future__ import annotations

import pytest
import torch
import yaml

from vizoo.__main__ import main
from vizoo.vision.classification.detectors import (
    Detections,
    ImageDetector,
    class_scores,
    is_detector,
    load_detector,
)

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
def test_every_detector_learns_and_finds(name):
    net = ImageDetector(name, 3, "resnet18", 32)
    image, boxes = torch.rand(2, 3, 32, 32), torch.tensor([[4.0, 6, 20, 22]])
    losses = net.losses(image, [boxes, boxes], [torch.tensor([0]), torch.tensor([2])])
    sum(losses.values()).backward()
    assert len(losses) >= 2 and all(value.isfinite() for value in losses.values())
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
    net = load_detector(path)
    assert net.classes == ("mole", "ring", "plaque", "streak") and net.input["fit"] == "crop"
    assert net.rule == {"rule": "sum", "threshold": 0.01} and not net.training
    capsys.readouterr()
    assert main(["test", "--config", "small.yaml", "--ckpt_path", str(path)]) == 0
    told = capsys.readouterr().out
    assert "test/accuracy" in told and "test/answered" in told
    if pytest.importorskip("pycocotools"):
        assert "test/map_50" in told
    settings["model"]["init_args"]["classes"] = 3
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(settings))
    assert main(["fit", "--config", "wrong.yaml"]) == 2
    assert "the data have 4 classes" in capsys.readouterr().err
