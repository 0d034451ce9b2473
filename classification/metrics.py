"""Accuracy of classifiers, over all samples of a set at once.

A mean of batches would weigh a short last batch too much, and has no precision or AUC at all.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.functional.classification import binary_auroc, multiclass_confusion_matrix
from torchmetrics.utilities import dim_zero_cat

__all__ = [
    "ClassificationMetrics",
    "check_labelled",
    "class_report",
    "classification_scores",
    "confusion_of",
    "positive_class",
]

_POSITIVE = ("ncp", "covid", "covid-19", "positive")
_TOP = (3, 5)


def positive_class(classes: Sequence[str], wanted: str | None = None) -> int | None:
    """The class whose precision, sensitivity, F1 and AUC are reported.

    Args:
        classes: names of all of them.
        wanted: its name; by default the one called NCP, COVID or positive in small or capital
            letters, else of two classes the second.

    Returns:
        Its number; None where there are more than two classes and none is called so.

    Raises:
        ValueError: no class is called as `wanted` says.
    """
    if wanted is not None:
        if wanted not in classes:
            raise ValueError(f"positive {wanted!r} is no class: choose {', '.join(classes)}")
        return list(classes).index(wanted)
    named = [number for number, name in enumerate(classes) if name.lower() in _POSITIVE]
    if named:
        return named[0]
    return 1 if len(classes) == 2 else None


def check_labelled(what: str, values: Tensor, labels: Tensor) -> None:
    """Raise a ValueError unless values are (N, C) and labels (N,), N at least 1."""
    if values.ndim != 2 or labels.shape != values.shape[:1] or not len(labels):
        raise ValueError(
            f"{what} {tuple(values.shape)} and labels {tuple(labels.shape)} must be (N, C) and "
            "(N,), N at least 1"
        )


def confusion_of(log_probabilities: Tensor, labels: Tensor) -> Tensor:
    """How often each true class (row) was taken for each class (column); (C, C) int64."""
    classes = log_probabilities.shape[1]
    return multiclass_confusion_matrix(log_probabilities.argmax(1), labels, classes)


def classification_scores(
    log_probabilities: Tensor, labels: Tensor, positive: int | None = None
) -> dict[str, Tensor]:
    """Scores of a whole set.

    `loss` (mean cross-entropy, without class weights), `accuracy`, `topK` for K of 3 and 5 where
    there are at least 2 K classes; of the positive class `precision`, `sensitivity`, `f1` and `auc`
    (area under the ROC curve of its probability against all others); with more than two classes
    `macro_precision`, `macro_sensitivity`, `macro_f1` and `macro_auc`, means over classes.

    No value is NaN for want of samples: means leave out classes of which there is no sample; what
    needs a sample of the positive class, or for the AUC also one of another, is missing without. A
    class that is never predicted has a precision of 0.

    Args:
        log_probabilities: (N, C).
        labels: (N,), int64.
        positive: number of the positive class.

    Returns:
        float32 scalars by name.

    Raises:
        ValueError: the shapes do not fit, or there is nothing to score.
    """
    check_labelled("log-probabilities", log_probabilities, labels)
    classes = log_probabilities.shape[1]
    true = log_probabilities.gather(1, labels[:, None])
    scores = {"loss": -true.mean()}
    confusion = confusion_of(log_probabilities, labels)
    scores["accuracy"] = confusion.trace() / confusion.sum()
    # Beaten by fewer than K; NaN is beaten by none, so that it must not count as first.
    rank = (log_probabilities > true).sum(1) + classes * true[:, 0].isnan()
    scores |= {f"top{k}": (rank < k).float().mean() for k in _TOP if 2 * k <= classes}
    each = _each_class(confusion)
    present = confusion.sum(1) > 0
    if positive is not None and present[positive]:
        scores |= {name: values[positive] for name, values in each.items()}
        if present.sum() > 1:
            scores["auc"] = _auc(log_probabilities, labels, positive)
    if classes > 2:
        scores |= {f"macro_{name}": values[present].mean() for name, values in each.items()}
        if present.sum() > 1:
            numbers = present.nonzero()[:, 0].tolist()
            areas = [_auc(log_probabilities, labels, number) for number in numbers]
            scores["macro_auc"] = torch.stack(areas).mean()
    return {name: value.float() for name, value in scores.items()}


def class_report(confusion: Tensor, classes: Sequence[str]) -> dict[str, dict[str, float | int]]:
    """For each class its number of samples, and with any its precision, sensitivity and F1."""
    each, report = _each_class(confusion), {}
    for number, name in enumerate(classes):
        samples = int(confusion[number].sum())
        scores = {key: float(values[number]) for key, values in each.items()} if samples else {}
        report[name] = {"samples": samples, **scores}
    return report


class ClassificationMetrics(Metric):
    """`classification_scores` over all batches and processes.

    Args:
        positive: number of the positive class.
    """

    full_state_update = False
    log_probabilities: list[Tensor]
    labels: list[Tensor]

    def __init__(self, positive: int | None = None) -> None:
        super().__init__()
        self.positive = positive
        self.confusion: Tensor | None = None  #: of the last `compute`, see `confusion_of`
        self.add_state("log_probabilities", [], dist_reduce_fx="cat")
        self.add_state("labels", [], dist_reduce_fx="cat")

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Take a batch: logits (B, C), or log-probabilities, and labels (B,)."""
        self.log_probabilities.append(logits.detach().float().log_softmax(1))
        self.labels.append(labels)

    def compute(self) -> dict[str, Tensor]:
        """The scores by name."""
        logs, labels = dim_zero_cat(self.log_probabilities), dim_zero_cat(self.labels)
        self.confusion = confusion_of(logs, labels).cpu()
        return classification_scores(logs, labels, self.positive)


def _each_class(confusion: Tensor) -> dict[str, Tensor]:
    """Scores of every class against the others, (C,) each; 0 where nothing can be divided by."""
    hits = confusion.diagonal().float()
    taken, there = confusion.sum(0), confusion.sum(1)
    return {
        "precision": hits / taken.clamp(min=1),
        "sensitivity": hits / there.clamp(min=1),
        "f1": 2 * hits / (taken + there).clamp(min=1),
    }


def _auc(log_probabilities: Tensor, labels: Tensor, number: int) -> Tensor:
    """Area under the ROC curve of one class's probability."""
    others = torch.cat((log_probabilities[:, :number], log_probabilities[:, number + 1 :]), 1)
    # Odds, since probabilities next to 1 are one number; ranks, since the library takes [0, 1].
    odds = log_probabilities[:, number] - others.logsumexp(1)
    ranks = odds.unique(return_inverse=True)[1]
    return binary_auroc(ranks / max(1, int(ranks.max())), (labels == number).long())
