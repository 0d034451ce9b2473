"""Fits an ensemble: every member's temperature and how they are combined, by validation images."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset

from ..common.arguments import checked
from ..common.extras import from_extra
from ..datasets.files import check_choice
from ..datasets.images.datamodule import collate_images
from ..datasets.mixture import LabelledSamples, check_listed
from .calibration import fit_temperature
from .ensemble import METHODS, align, check_classes, fit_combination, report_on
from .ensemble_file import EnsembleFile, ListedMember
from .members import ImageMember

__all__ = ["fit_ensemble"]


@checked("members", batch=1)
def fit_ensemble(
    members: Sequence[str | os.PathLike[str]],
    validation: Sequence[LabelledSamples],
    test: Sequence[LabelledSamples] = (),
    *,
    method: str = "mean",
    flips: bool = False,
    calibrate: bool = True,
    batch: int = 32,
    device: str = "auto",
    report: Callable[[str, int, int], Any] = lambda *_: None,
) -> tuple[EnsembleFile, tuple[Tensor, Tensor]]:
    """Fit to validation images, and score on these and on the test images.

    Args:
        members: trained weights as `ImageMember` takes them.
        validation: sets that no member has learnt from.
        test: further sets, only measured on.
        method: one of `ensemble.METHODS`.
        flips: ask about each image and its three mirror images.
        calibrate: fit a temperature to each member first, else all are 1.
        batch: images at a time.
        device: such as `auto` or `cuda:1`.
        report: called with what is asked, how many images are done and of how many.

    Returns:
        The ensemble, for `write_ensemble`, with its scores by set (`val`, `test`); and of the last
        set the probabilities (N, C) and labels (N,).

    Raises:
        FileNotFoundError: there is no such weight file.
        ImportError: something is to be fitted, and SciPy is not installed.
        ValueError: an unknown method, no member, no validation set, a set in place of a list,
            classes differ, or a member that is to be calibrated answers for no image of it.
    """
    check_choice("method", method, METHODS)
    check_listed("validation", validation)
    check_listed("test", test)
    sources = [os.fspath(source) for source in members]
    if not sources:
        raise ValueError("no members: an ensemble has one at least")
    if not validation:
        raise ValueError("no validation images: an ensemble is fitted to some")
    if method == "weighted" or calibrate:  # said before the members are asked, which takes minutes
        from_extra("scipy", "scipy.optimize", "vizoo ensemble")
    asked = [ImageMember(source, device=device) for source in sources]
    classes = asked[0].classes
    for source, member in zip(sources, asked, strict=True):
        check_classes(member.classes, classes, source)
    sets = {role: data for role, data in (("val", validation), ("test", test)) if data}
    labels = {role: _labels(data, classes, role) for role, data in sets.items()}
    temperatures = [1.0] * len(sources)
    calibrated: dict[str, Tensor] = {}
    for role, data in sets.items():  # `val` first: what is refused by it costs no test images
        answers = []
        for number, (source, member) in enumerate(zip(sources, asked, strict=True)):
            what = f"{Path(source).name}, {role}"
            logs = _ask(member, data, flips, batch, lambda *done, what=what: report(what, *done))
            logs = align(logs, member.classes, classes)
            if calibrate and role == "val":
                temperatures[number] = fit_temperature(*_answered(logs, labels[role], source))
            answers.append((logs / temperatures[number]).log_softmax(1))
        calibrated[role] = torch.stack(answers)
    combination = fit_combination(method, calibrated["val"], labels["val"])
    scores = {role: report_on(logs, labels[role], combination) for role, logs in calibrated.items()}
    listed = tuple(map(ListedMember, sources, temperatures))
    last = list(sets)[-1]
    return (
        EnsembleFile(classes, listed, combination, flips, scores),
        (combination(calibrated[last]), labels[last]),
    )


def _labels(data: Sequence[LabelledSamples], classes: Sequence[str], role: str) -> Tensor:
    """The class of every image, by the members' order."""
    labels: list[int] = []
    for dataset in data:
        check_classes(dataset.classes, classes, f"{role} set {type(dataset).__name__}")
        labels += [classes.index(dataset.classes[label]) for label in dataset.labels]
    return torch.tensor(labels)


def _ask(
    member: ImageMember,
    data: Sequence[LabelledSamples],
    flips: bool,
    batch: int,
    report: Callable[[int, int], Any],
) -> Tensor:
    """Log-probabilities of all images, prepared as the member wants them."""
    prepared = [dataset.with_preset(member.preset) for dataset in data]
    whole: ConcatDataset = ConcatDataset(cast("list[Dataset]", prepared))
    answers, done = [], 0
    for images in DataLoader(whole, batch, collate_fn=collate_images):
        answers.append(member(images["image"], flips))
        done += len(images["image"])
        report(done, len(whole))
    return torch.cat(answers)


def _answered(logs: Tensor, labels: Tensor, source: str) -> tuple[Tensor, Tensor]:
    there = ~logs.isnan().any(1)
    if not there.any():
        raise ValueError(f"{source} finds no box in any validation image: train it for longer")
    return logs[there], labels[there]
