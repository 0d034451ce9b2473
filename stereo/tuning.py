"""Tuning a network on pairs without true disparities, by what it already finds in them.

What several sizes of a pair and both of its views agree on is taken for truth, and learned from
disturbed crops of the pair, half and half with generated scenes, so that nothing is forgotten.
Pairs that are held out tell whether that helped.

Example:
    >>> report = tune("easnet_small", [("left.png", "right.png")], minutes=5)
    >>> if report.improved:
    ...     report.save("mine.safetensors")
"""

from __future__ import annotations

import copy
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ..datasets.stereo.scenes import GeneratedStereo
from ..datasets.stereo.transforms import recipe
from ..vision.hub.create import is_name, load_network
from ..vision.hub.download import sha256_of
from ..vision.hub.registry import model_info
from ..vision.hub.weights import save_weights
from ..vision.inference import standalone
from ..vision.io.images import ImageLike
from ._easnet_layers import MatchingNetwork
from ._tuning_exam import Exam
from ._tuning_pairs import Report, batches, divided, labelled, usable_pairs
from .agreement import SIZES
from .infer import StereoPredictor
from .task import StereoTask

__all__ = ["TuningReport", "tune"]

_CHECKS = 5  # of the held-out pairs, evenly spread over the training
_WARMUP = 10  # steps
_AVERAGE = 0.96  # what a step leaves of the average of the weights
_SCENES, _VALIDATION = 1_000_000, 8  # generated scenes to learn from, and to measure on


@dataclass(frozen=True)
class TuningReport:
    """What a tuning came to."""

    network: nn.Module  #: tuned where that is an improvement, else as it was; in evaluation mode
    improved: bool
    verdict: str  #: why it is an improvement, or none, in a line
    #: Of the weights at the start, in pixels: `disagreement` on held-out pairs (see
    #: `vizoo.stereo.agreement`), `generated_epe`, the error on generated scenes.
    before: dict[str, float]
    #: The same at the best of the checks, and what was gained since the start: `gain` and
    #: `generated_gain`, with their standard errors `gain_error` and `generated_gain_error`.
    after: dict[str, float]
    checks: list[dict[str, float]]  #: all of them, with `step`
    base: dict[str, Any]  #: the `weights` that were tuned and, if they are a file's, its `sha256`
    pairs: int  #: that were learned from
    held_out: int  #: pairs; 0 where a part of the only one was
    labelled: float  #: share of the learned pairs' pixels with a disparity to learn
    skipped: dict[str, str]  #: pairs that could not be used, and why
    stopped: str  #: what ended it before its time, such as ``interrupted``; else empty
    steps: int
    seconds: float
    settings: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """All but the network."""
        return {name: value for name, value in vars(self).items() if name != "network"}

    def save(self, path: str | os.PathLike) -> Path:
        """Write the tuned weights as safetensors, with this report in them.

        Raises:
            ValueError: they are no improvement, or `path` does not end in ``.safetensors``.
        """
        if not self.improved:
            raise ValueError(f"{path}: not written: {self.verdict}")
        origin = f"{self.base['weights']}, then {self.pairs} pairs without true disparities"
        return save_weights(self.network, path, trained_on=origin, tuning=self.to_json())


def tune(
    model: str | os.PathLike | nn.Module,
    pairs: Sequence[tuple[ImageLike, ImageLike]],
    *,
    minutes: float = 10.0,
    steps: int | None = None,
    lr: float = 1e-4,
    crop: tuple[int, int] = (128, 256),
    batch_size: int = 4,
    most_pairs: int = 40,
    seed: int = 0,
    device: str = "auto",
    report: Report = lambda what, done, total: None,
    skip: Callable[[str, str], None] = lambda name, reason: None,
) -> TuningReport:
    """Tune a stereo network on pairs without true disparities.

    A tenth of the pairs is held out, or three where that leaves twice as many, at least one; of a
    single pair its lowest quarter. Training ends early where two checks in a row are no better
    than one before them. Where a check was an improvement, Ctrl+C and a loss that is not finite
    end it too, and the best check's weights are those of the report.

    Args:
        model: a network of `create_model` (copied), or trained weights as `StereoPredictor` takes
            them.
        pairs: left and right images, rectified: paths, arrays or tensors, as `StereoPredictor`
            takes them. Those that cannot be read, are swapped, not rectified or smaller than a crop
            are left out.
        minutes: of training; reading and checking come on top.
        steps: of training, instead of minutes.
        lr: learning rate, which falls to zero.
        crop: height and width of a training sample, multiples of 64.
        batch_size: samples a step; even, as half of them are generated scenes.
        most_pairs: of a longer list so many are taken, evenly.
        seed: of crops, disturbances and scenes.
        device: ``auto`` (a GPU if there is one), or what ``torch.device`` takes.
        report: called as ``report(what, done, total)``.
        skip: called as ``skip(name, reason)`` as soon as a pair turns out to be left out.

    Raises:
        FileNotFoundError: there is no such weight file.
        ValueError: no such model, no pair that can be used, nothing that the network is sure of,
            settings out of range, or a loss that is not finite.
    """
    start = time.perf_counter()
    settings: dict[str, Any] = {
        "minutes": minutes if steps is None else None,
        "steps": steps,
        "lr": lr,
    }
    settings |= {"crop": list(crop), "batch_size": batch_size, "seed": seed}
    _check({**settings, "most_pairs": most_pairs})
    net = standalone(load_network(model, "stereo"))
    base = _base(model)
    predictor = StereoPredictor(net, device)
    usable, skipped = usable_pairs(predictor, pairs, most_pairs, crop, report, skip)
    learned, held = divided(usable)
    learned, share = labelled(predictor, learned, report)
    limit = float(predictor.max_disparity or 192)
    scenes, unseen = (
        GeneratedStereo(
            count, 256, 512, seed=own, max_disparity=limit, clutter=0.3, vertical_offset=0.3
        )
        for count, own in ((_SCENES, 1001 + seed), (_VALIDATION, 1000))
    )
    generator = torch.Generator().manual_seed(seed)
    drawn = batches(learned, scenes, recipe("strong", *crop), batch_size // 2, generator)
    exam = Exam(net, device, held, unseen, limit)
    learner = _Learner(net, limit, lr, predictor.device)
    checks, best, stopped = _trained(learner, drawn, exam, steps, 60 * minutes, report)
    if best is not None:
        net.load_state_dict(best)
    before, after = exam.start.means(), max(checks, key=exam.rank)
    return TuningReport(
        network=net.cpu().eval(),
        improved=best is not None,
        verdict=_verdict(best is not None, before, after),
        before=before,
        after={name: value for name, value in after.items() if name != "step"},
        checks=checks,
        base=base,
        pairs=len(learned),
        held_out=len(held) if len(usable) > 1 else 0,
        labelled=share,
        skipped=skipped,
        stopped=stopped,
        steps=learner.steps,
        seconds=round(time.perf_counter() - start, 1),
        settings={**settings, "sizes": list(SIZES)},
    )


def _check(settings: dict[str, Any]) -> None:
    """Raise a ValueError for settings out of range, before any work."""
    ranges: dict[str, tuple[Callable[[Any], bool], str]] = {
        "minutes": (lambda x: x is None or 0 < x < math.inf, "above 0, and finite"),
        "steps": (lambda x: x is None or x > 0, "above 0"),
        "lr": (lambda x: 0 < x < math.inf, "above 0, and finite"),
        "crop": (lambda x: all(side > 0 and side % 64 == 0 for side in x), "multiples of 64"),
        "batch_size": (lambda x: x > 0 and x % 2 == 0, "even and above 0"),
        "most_pairs": (lambda x: x > 0, "above 0"),
        "seed": (lambda x: 0 <= x < 2**63, "0 to 2^63 - 1"),
    }
    for name, (holds, wanted) in ranges.items():
        if not holds(settings[name]):
            raise ValueError(f"{name} {settings[name]}: must be {wanted}")


def _trained(
    learner: _Learner,
    drawn: Iterator[dict[str, Tensor]],
    exam: Exam,
    steps: int | None,
    seconds: float,
    report: Report,
) -> tuple[list[dict[str, float]], dict[str, Tensor] | None, str]:
    """Train for a number of steps, or seconds.

    Returns:
        All checks, the weights of the best one that is an improvement, if any, and what ended it.
    """
    checks: list[dict[str, float]] = []
    best, done, spent = None, 0.0, 0.0
    try:
        while done < 1:
            begun = time.perf_counter()
            learner.step(next(drawn), done)
            spent += time.perf_counter() - begun
            done = learner.steps / steps if steps else spent / seconds
            told = (learner.steps, steps) if steps else (int(spent), round(seconds))
            report("training" if steps else "seconds of training", *told)
            if done < min(1, (len(checks) + 1) / _CHECKS):
                continue
            net = learner.average.module
            checks.append({"step": learner.steps, **exam.compare(net)})
            if exam.better(checks[-1]) and max(checks, key=exam.rank) is checks[-1]:
                best = copy.deepcopy(net.state_dict())
            since = [check["gain"] for check in checks]
            if len(since) > 2 and max(since[-2:]) <= max(since[:-2]):
                break
    except (KeyboardInterrupt, ValueError) as error:
        if best is None:
            raise
        return checks, best, str(error) or "interrupted"
    return checks, best, ""


class _Learner:
    """A copy of a network, what trains it, and its average over the last steps.

    Running statistics stay as they are: those of a few crops are worse.
    """

    def __init__(self, net: nn.Module, limit: float, lr: float, device: torch.device) -> None:
        arguments = dict(cast("dict[str, Any]", net.architecture))
        name = arguments.pop("name")
        matching = isinstance(net, MatchingNetwork)
        self.task = StereoTask(
            name, arguments, loss="matching" if matching else "pooled", max_disparity=limit
        )
        self.task.net = copy.deepcopy(net).to(device).to(memory_format=torch.channels_last)
        self.task.train()
        for module in self.task.modules():
            if isinstance(module, _BatchNorm):
                module.eval()
        self.optimizer = torch.optim.AdamW(self.task.net.parameters(), lr, weight_decay=0)
        self.average = AveragedModel(self.task.net, multi_avg_fn=get_ema_multi_avg_fn(_AVERAGE))
        self.device, self.lr, self.steps = device, lr, 0

    def step(self, batch: dict[str, Tensor], done: float) -> None:
        """Learn from a batch, at a share of the way."""
        batch = {name: value.to(self.device) for name, value in batch.items()}
        rate = self.lr * min(1, (self.steps + 1) / _WARMUP) * 0.5 * (1 + math.cos(math.pi * done))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss = self.task.loss(self.task.outputs(batch), batch)
        if not loss.isfinite():
            raise ValueError(f"step {self.steps}: the loss is not finite; lower the learning rate")
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.task.net.parameters(), 10)
        self.optimizer.step()
        self.average.update_parameters(self.task.net)
        self.steps += 1


def _verdict(improved: bool, before: dict[str, float], after: dict[str, float]) -> str:
    gain = f"{after['gain']:.3f} px (standard error {after['gain_error']:.3f})"
    errors = " to ".join(f"{values['generated_epe']:.2f}" for values in (before, after))
    told = f"held-out pairs gain {gain}, the error on generated scenes {errors} px"
    return f"{'an improvement' if improved else 'no improvement'}: {told}"


def _base(model: str | os.PathLike | nn.Module) -> dict[str, Any]:
    if isinstance(model, nn.Module):
        return {"weights": type(model).__name__, "sha256": None}
    name = os.fspath(model)
    if os.path.isfile(name):
        return {"weights": name, "sha256": sha256_of(name)}
    record = model_info(name).record if is_name(model) else None
    return {"weights": name, "sha256": record.sha256 if record else None}
