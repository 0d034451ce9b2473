"""Training and evaluation of classifiers of volumes and of images."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn
from torch import Tensor
from torch.nn import functional as F

from ..common.files import few
from ..vision.hub.registry import model_info
from ..vision.training import NetworkTask, log_metrics, log_picture
from .metrics import ClassificationMetrics, positive_class
from .reports import confusion_picture, write_report

__all__ = ["ClassificationTask", "balanced_weights", "sets_of"]

_ROLES = {"fit": ("train", "val"), "validate": ("val",), "test": ("test",)}


class ClassificationTask(NetworkTask):
    """Trains a classifier by cross-entropy; reports scores of the whole set, not of batches.

    A batch has `volume` (B, 1, D, H, W) or `image` (B, 3, H, W), and `label` (B,). The names of the
    classes and the preset by which samples are prepared are those of the training set (its
    `classes` and `preset`); they go into checkpoints, and with them into released weights. A set
    whose classes have other names, or another order, is refused.

    Scores are those of `classification_scores`, such as `val/accuracy`. A test also writes
    `test_report.json` and `test_confusion.csv` into the run's folder.

    Args:
        model: name of a classifier, see `vizoo models`.
        model_args: its architecture arguments.
        classes: names of the classes; needed only for data that do not say them.
        positive: the class of `precision`, `sensitivity`, `f1` and `auc`; by default the one called
            NCP, COVID or positive, else of two classes the second.
        class_weights: of the loss: `none`, `balanced` (by how rare a class is among the training
            samples), or a number for each class.
        label_smoothing: share of the truth that is spread over all classes.
        mixup: of the Beta distribution by which pairs of training samples are mixed (Zhang et al.,
            ICLR 2018), such as 0.2; 0 mixes none.
        **training: see `NetworkTask`.

    Raises:
        ValueError: a setting is unknown, or out of its range; in `setup` also where classes do not
            fit.
    """

    quantity, shown = "label", "accuracy"
    val_metrics: ClassificationMetrics
    test_metrics: ClassificationMetrics

    def __init__(
        self,
        model: str = "covidnet3d_tiny",
        model_args: dict[str, Any] | None = None,
        *,
        classes: list[str] | None = None,
        positive: str | None = None,
        class_weights: Literal["none", "balanced"] | list[float] = "none",
        label_smoothing: float = 0.0,
        mixup: float = 0.0,
        **training: Any,
    ) -> None:
        if isinstance(class_weights, str) and class_weights not in ("none", "balanced"):
            raise ValueError(
                f"class_weights {class_weights!r}: choose none, balanced or a number for each class"
            )
        if not 0 <= label_smoothing < 1 or mixup < 0:
            raise ValueError(
                f"label_smoothing {label_smoothing} must be at least 0 and below 1, and mixup "
                f"{mixup} not negative"
            )
        super().__init__(model, model_args, **training)
        self.classes: tuple[str, ...] = ()
        self.preset: dict[str, Any] = {}
        self._weights: Tensor | None = None
        self._told: set[str] = set()
        if classes is not None:
            self._take_classes(classes, "classes")

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (B, classes) of volumes (B, 1, D, H, W) or images (B, 3, H, W)."""
        return self.net(inputs)

    def setup(self, stage: str) -> None:
        """Learn from the data what the classes are called and how samples are prepared."""
        known = getattr(self.net, "classes", None)
        if stage != "fit" and not self.classes and known:
            self._take_classes(known, "the weights")
            self.preset = dict(getattr(self.net, "input", {}))
        training = []
        for role, dataset in sets_of(self.trainer.datamodule, stage):
            where = f"{role} set {type(dataset).__name__}"
            if names := getattr(dataset, "classes", None):
                self._take_classes(names, where)
            if (preset := getattr(dataset, "preset", None)) is not None:
                self._take_preset(preset, where)
            training += [dataset] if role == "train" else []
        if stage == "predict":
            return
        if not self.classes:
            raise ValueError("the data do not say what their classes are called: give `classes`")
        positive = positive_class(self.classes, self.hparams.positive)
        self.val_metrics = ClassificationMetrics(positive)
        self.test_metrics = ClassificationMetrics(positive)
        if stage == "fit":
            if known and tuple(known) != self.classes and set(known) == set(self.classes):
                rank_zero_warn(
                    f"the data have the classes {', '.join(self.classes)}, the weights that this "
                    f"starts from {', '.join(known)}: the last layer takes each for another at "
                    "first; give the data's in that order"
                )
            self._weights = self._class_weights(training)
            if training and self.trainer.lightning_module is not self:
                # A search counts costs on it. Alone it would only slow the start down.
                self.example_input_array = _inputs_of(training[0][0])[None]

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """The loss of a batch, whose samples are mixed in pairs where `mixup` says so."""
        return super().training_step(self.mixed(batch), batch_idx)

    def mixed(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The batch with its samples mixed in pairs, where `mixup` says so."""
        alpha, kind, labels = self.hparams.mixup, _kind_of(batch), batch["label"]
        if not alpha:
            return batch
        # Numbers would come to the trainer's precision, which may have no sampler.
        alpha = torch.tensor(alpha, dtype=torch.float32)
        share = float(torch.distributions.Beta(alpha, alpha).sample())
        order = torch.randperm(len(labels), device=batch[kind].device)
        inputs = share * batch[kind] + (1 - share) * batch[kind][order]
        return {**batch, kind: inputs, "share": share, "other": labels[order]}

    def outputs(self, batch: dict[str, Any]) -> Tensor:
        """Logits of a batch, (B, classes)."""
        return self.net(_inputs_of(batch))

    def loss(self, outputs: Tensor, batch: dict[str, Any]) -> Tensor:
        """The loss of `outputs` against the labels, of mixed samples against both of theirs."""
        if "other" not in batch:
            return self._loss(outputs, batch["label"])
        first, other = (self._loss(outputs, batch[name]) for name in ("label", "other"))
        return batch["share"] * first + (1 - batch["share"]) * other

    def distillation_loss(
        self, outputs: Tensor, teacher_outputs: Tensor, batch: dict[str, Any]
    ) -> Tensor:
        """The divergence (Kullback-Leibler) of `outputs` from a teacher's."""
        teacher = teacher_outputs.detach().float().log_softmax(1)
        student = outputs.float().log_softmax(1)
        return F.kl_div(student, teacher, reduction="batchmean", log_target=True)

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Count a batch."""
        self.val_metrics.update(self.outputs(batch), batch["label"])

    def on_validation_epoch_end(self) -> None:
        """Log the metrics as `val/…`."""
        self._report("val", self.val_metrics)

    def test_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Count a batch."""
        self.test_metrics.update(self.outputs(batch), batch["label"])

    def on_test_epoch_end(self) -> None:
        """Log the metrics as `test/…`, and write the confusion matrix into the run's folder."""
        confusion = self._report("test", self.test_metrics)
        # All processes ask for the folder, because it is the first one's answer that counts.
        folder = Path(self.trainer.log_dir or self.trainer.default_root_dir)
        alone = self.trainer.lightning_module is self  # not one of many subnets
        if alone and self.trainer.is_global_zero and not self.trainer.fast_dev_run:
            logged = self.trainer.callback_metrics
            metrics = {n: float(v) for n, v in logged.items() if n.startswith("test/")}
            path = write_report(folder, metrics, confusion, self.classes, self.preset)
            rank_zero_info(f"report of the test, class by class: {path}")

    def predict_step(self, batch: dict[str, Any], batch_idx: int) -> dict[str, Any]:
        """The class of each sample by its name, with the probabilities of all."""
        probabilities = self.outputs(batch).float().softmax(1)
        names = self.classes or tuple(map(str, range(probabilities.shape[1])))
        predicted = [names[number] for number in probabilities.argmax(1).tolist()]
        return {
            "name": batch["name"],
            "probabilities": probabilities,
            "class": predicted,
            "classes": names,
        }

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the names of classes and how inputs are prepared, and what the network is."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["classes"], checkpoint["input"] = list(self.classes), self.preset

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take the names of classes and how inputs are prepared, where the checkpoint has them."""
        if checkpoint.get("classes"):
            self._take_classes(checkpoint["classes"], "the checkpoint")
        if checkpoint.get("input"):
            self._take_preset(checkpoint["input"], "the checkpoint")

    def _take_classes(self, names: Sequence[str], where: str) -> None:
        names = tuple(map(str, names))
        check_same_classes(names, self.classes, where)
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{where} has the class {', '.join(twice)} more than once")
        architecture = cast("dict[str, Any]", self.net.architecture)
        outputs = {**model_info(architecture["name"]).defaults, **architecture}.get("classes")
        if outputs != len(names):
            raise ValueError(
                f"{where} has {len(names)} classes ({', '.join(names)}), but the network "
                f"{outputs} outputs: set model_args: {{classes: {len(names)}}}"
            )
        self.classes = names

    def _take_preset(self, preset: Any, where: str) -> None:
        if dataclasses.is_dataclass(preset):
            preset = dataclasses.asdict(cast(Any, preset))
        plain = json.loads(json.dumps(dict(preset)))
        differing = [
            f"{key} {plain.get(key)!r} instead of {value!r}"
            for key, value in self.preset.items()
            if plain.get(key) != value
        ]
        if differing:
            rank_zero_warn(f"{where} prepares samples otherwise: {', '.join(differing)}")
        self.preset = self.preset or plain

    def _class_weights(self, training: Sequence[Any]) -> Tensor | None:
        wanted = self.hparams.class_weights
        if wanted == "none":
            return None
        if wanted == "balanced":
            labels = [label for dataset in training for label in dataset.labels]
            return balanced_weights(labels, self.classes)
        if len(wanted) != len(self.classes) or min(wanted) <= 0:
            raise ValueError(
                f"class_weights {list(wanted)}: wants a positive number for each of "
                f"{', '.join(self.classes)}"
            )
        return torch.tensor(wanted, dtype=torch.float32)

    def _loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        weights = None if self._weights is None else self._weights.to(outputs.device)
        smoothing = self.hparams.label_smoothing
        return F.cross_entropy(outputs.float(), labels, weight=weights, label_smoothing=smoothing)

    def _report(self, stage: str, metrics: ClassificationMetrics) -> Tensor:
        """Log the scores; returns the confusion matrix."""
        log_metrics(self, stage, metrics, self.shown)
        confusion = cast(Tensor, metrics.confusion)
        if self.trainer.sanity_checking:
            return confusion
        absent = [n for n, row in zip(self.classes, confusion, strict=True) if not row.any()]
        told = f"{stage}: no sample of {few(absent)}; scores that need one are left out"
        if absent and told not in self._told:  # once, not at each epoch or for each subnet
            self._told.add(told)
            rank_zero_warn(told)
        log_picture(self, f"{stage}/confusion", lambda: confusion_picture(confusion, self.classes))
        return confusion


def check_same_classes(names: Sequence[str], before: Sequence[str], where: str) -> None:
    """Raise a ValueError where names of classes differ from those that are known, if any are."""
    if before and names != before:
        raise ValueError(
            f"{where} has the classes {', '.join(names)}, not {', '.join(before)} as what came "
            "before: names and order have to be the same"
        )


def sets_of(data: Any, stage: str) -> Iterator[tuple[str, Any]]:
    """The roles and data sets of a stage (none of `predict`), of a data module that has some."""
    for role in _ROLES.get(stage, ()) if hasattr(data, "sets") else ():
        for dataset in data.sets(role):
            yield role, dataset


def _inputs_of(sample: dict[str, Any]) -> Tensor:
    return sample[_kind_of(sample)]


def _kind_of(sample: dict[str, Any]) -> str:
    """What the network is fed of a sample or a batch: its `volume`, or else its `image`."""
    for kind in ("volume", "image"):
        if kind in sample:
            return kind
    raise ValueError(f"samples of {', '.join(sample)}: a classifier takes a volume or an image")


def balanced_weights(labels: Sequence[int], classes: Sequence[str]) -> Tensor:
    """For each class how much rarer it is among training samples than if all were equally frequent.

    Returns:
        (C,): number of samples / (classes * samples of the class).

    Raises:
        ValueError: there is no sample of a class.
    """
    counts = torch.bincount(torch.as_tensor(labels), minlength=len(classes))
    absent = [name for name, count in zip(classes, counts.tolist(), strict=True) if not count]
    if absent:
        raise ValueError(
            f"class_weights balanced: no training sample of {', '.join(absent)}; give numbers"
        )
    return len(labels) / (len(classes) * counts.float())
