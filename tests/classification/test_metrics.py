"""Scores of classifiers: against scikit-like definitions, pooled, without NaN."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
import torch

from vizoo.classification.metrics import (
    ClassificationMetrics,
    class_report,
    classification_scores,
    confusion_of,
    positive_class,
)
from vizoo.classification.reports import confusion_picture, write_predictions, write_report


def _logits(count, classes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, classes, generator=generator)
    return logits, torch.randint(classes, (count,), generator=generator)


def _slow_auc(scores, positive):
    """The share of pairs of a positive and a negative in the right order; ties count half."""
    ones, zeros = scores[positive], scores[~positive]
    above = (ones[:, None] > zeros).double() + 0.5 * (ones[:, None] == zeros).double()
    return above.mean().item()


def test_two_classes_by_hand():
    probabilities = torch.tensor([0.9, 0.8, 0.6, 0.4, 0.3, 0.2, 0.7, 0.1])
    labels = torch.tensor([1, 1, 0, 1, 0, 0, 1, 0])
    found = classification_scores(
        torch.stack([1 - probabilities, probabilities], 1).log(), labels, positive=1
    )
    # 3 of 4 positives found, one false alarm.
    assert {name: round(float(value), 4) for name, value in found.items() if name != "loss"} == {
        "accuracy": 0.75,
        "precision": 0.75,
        "sensitivity": 0.75,
        "f1": 0.75,
        "auc": 0.9375,
    }
    truth = torch.where(labels == 1, probabilities, 1 - probabilities)
    torch.testing.assert_close(found["loss"], -truth.log().mean())


@pytest.mark.parametrize("classes", [2, 3, 12])
def test_many_classes_against_plain_loops(classes):
    logits, labels = _logits(300, classes)
    found = classification_scores(logits.log_softmax(1), labels, positive=1)
    guess, precision, sensitivity, f1, auc = logits.argmax(1), [], [], [], []
    for number in range(classes):
        hits = float(((guess == number) & (labels == number)).sum())
        precision.append(hits / float((guess == number).sum()))
        sensitivity.append(hits / float((labels == number).sum()))
        f1.append(2 / (1 / precision[-1] + 1 / sensitivity[-1]) if hits else 0.0)
        auc.append(_slow_auc(logits.softmax(1)[:, number], labels == number))
    each = {"precision": precision, "sensitivity": sensitivity, "f1": f1, "auc": auc}
    for name, values in each.items():
        assert float(found[name]) == pytest.approx(values[1], abs=1e-5)
        if classes > 2:
            assert float(found[f"macro_{name}"]) == pytest.approx(sum(values) / classes, abs=1e-5)
    assert ("macro_f1" in found) == (classes > 2)
    assert {name for name in found if name.startswith("top")} == (
        {"top3", "top5"} if classes == 12 else set()
    )
    if classes == 12:
        order = logits.argsort(1, descending=True)
        top = (order[:, :5] == labels[:, None]).any(1).float().mean()
        assert found["top5"] == top


def test_probabilities_next_to_one_are_told_apart():
    logits = torch.tensor([[0.0, 40.0], [0.0, 60.0], [0.0, 30.0], [0.0, 50.0]])
    found = classification_scores(logits.log_softmax(1), torch.tensor([0, 1, 0, 1]), positive=1)
    assert found["auc"] == 1


def test_a_class_that_is_absent_leaves_no_nan():
    logits, labels = _logits(40, 3)
    labels[labels == 1] = 0
    found = classification_scores(logits.log_softmax(1), labels, positive=1)
    assert all(value.isfinite() for value in found.values())
    assert not {"precision", "sensitivity", "f1", "auc"} & set(found)
    recalls = [float((logits.argmax(1) == c)[labels == c].float().mean()) for c in (0, 2)]
    assert float(found["macro_sensitivity"]) == pytest.approx(sum(recalls) / 2)
    alone = classification_scores(logits.log_softmax(1), torch.ones_like(labels), positive=1)
    assert "sensitivity" in alone and "auc" not in alone and "macro_auc" not in alone
    never = torch.tensor([[5.0, 0.0], [5.0, 0.0]]).log_softmax(1)
    scores = classification_scores(never, torch.tensor([0, 1]), positive=1)
    assert scores["precision"] == 0 and scores["f1"] == 0


def test_a_network_that_diverged_hits_nothing():
    logits, labels = _logits(30, 6)
    found = classification_scores(logits.fill_(float("nan")), labels)
    assert found["loss"].isnan() and found["top3"] == 0


def test_batches_are_pooled_and_reset():
    logits, labels = _logits(50, 3)
    metric = ClassificationMetrics(positive=2)
    for start, stop in ((0, 40), (40, 49), (49, 50)):  # a short last batch weighs no more
        metric.update(logits[start:stop], labels[start:stop])
    whole = classification_scores(logits.log_softmax(1), labels, 2)
    found = metric.compute()
    assert found.keys() == whole.keys()
    for name, value in whole.items():
        torch.testing.assert_close(found[name], value)
    assert metric.confusion.equal(confusion_of(logits, labels))
    metric.reset()
    metric.update(logits[:5], labels[:5])
    metric.compute()
    assert metric.confusion.sum() == 5


@pytest.mark.parametrize(
    ("classes", "wanted", "found"),
    [
        (("CP", "NCP", "Normal"), None, 1),
        (("covid", "normal"), None, 0),
        (("CT-0", "CT-1/CT-2"), None, 1),
        (("acne", "eczema", "wart"), None, None),
        (("acne", "eczema", "wart"), "acne", 0),
    ],
)
def test_the_positive_class(classes, wanted, found):
    assert positive_class(classes, wanted) == found


def test_wrong_arguments():
    with pytest.raises(ValueError, match="positive 'ncp' is no class: choose CP, NCP"):
        positive_class(("CP", "NCP"), "ncp")
    with pytest.raises(ValueError, match=r"must be \(N, C\) and \(N,\)"):
        classification_scores(torch.zeros(2, 3), torch.zeros(3, dtype=torch.long))


def test_report_files(tmp_path):
    confusion = torch.tensor([[3, 1, 0], [0, 4, 0], [0, 0, 0]])
    metrics = {"test/auc": 0.5, "test/loss": float("nan")}
    path = write_report(tmp_path / "new", metrics, confusion, ("a", "b, c", "d"))
    content = json.loads(path.read_text())
    assert content["confusion"] == confusion.tolist()
    assert content["metrics"] == {"test/auc": 0.5, "test/loss": None}
    assert content["by_class"] == class_report(confusion, ("a", "b, c", "d"))
    assert content["by_class"]["a"] == {
        "samples": 4,
        "precision": 1,
        "sensitivity": 0.75,
        "f1": pytest.approx(6 / 7),
    }
    assert content["by_class"]["d"] == {"samples": 0}
    rows = list(csv.reader((tmp_path / "new" / "test_confusion.csv").open()))
    assert rows[0][1:] == ["a", "b, c", "d"] and rows[1] == ["a", "3", "1", "0"]


def test_table_of_predictions(tmp_path):
    write_predictions(tmp_path / "p.csv", ("a", "b"), ["x", "y/1"], [[0.25, 0.75], [1.0, 0.0]])
    rows = list(csv.DictReader((tmp_path / "p.csv").open()))
    assert rows[0] == {"name": "x", "class": "b", "a": "0.250000", "b": "0.750000"}
    assert rows[1]["class"] == "a"


@pytest.mark.parametrize("classes", [2, 30])
def test_picture(classes):
    names = [f"class $_${number}" for number in range(classes)]
    picture = confusion_picture(torch.eye(classes, dtype=torch.long), names)
    assert picture.ndim == 3 and picture.shape[2] == 3 and picture.dtype == "uint8"
    assert len(np.unique(picture @ np.array([1 << 16, 1 << 8, 1]))) > 10  # colours
