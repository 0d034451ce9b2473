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
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple, cast

import torch
from torch import Generator, Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ..datasets.stereo.scenes import GeneratedStereo
from ..datasets.stereo.transforms import RandomScale, recipe
from ..vision.hub.create import is_name, load_network
from ..vision.hub.download import sha256_of
from ..vision.hub.registry import model_info
from ..vision.hub.weights import save_weights
from ..vision.inference import standalone
from ..vision.io.images import to_bytes
from .agreement import SIZES, agreed, alike
from .infer import Image, StereoPredictor, open_pair, reduced
from .metrics import DisparityMetrics
from .rectification import check_pair
from .task import StereoTask

__all__ = ["TuningReport", "tune"]

_MOST_PIXELS = 1_000_000  # of a pair that is learned from; larger ones are reduced
_HELD_OUT, _ENOUGH = 10, 3  # one of so many pairs, and so many where that leaves twice as many
_ROWS = 128  # that a single pair needs at least, to hold a quarter of them out
_CHECKS = 4  # of the held-out pairs, evenly spread over the training
_LEAST = 0.002  # share of held-out pixels by which the measure has to grow
_FORGOTTEN = 1.05  # the error on generated scenes grows to at most so many times what it was
_WARMUP = 10  # steps
_AVERAGE = 0.96  # what a step leaves of the average of the weights
_SMALLER = RandomScale(-1.0, 0.0, probability=0.7)  # the sizes at which pairs are matched
_SCENES, _VALIDATION = 1_000_000, 8  # generated scenes to learn from, and to measure on

Report = Callable[[str, int, int | None], None]


@dataclass(frozen=True)
class TuningReport:
    """What a tuning came to."""

    network: nn.Module  #: tuned where that is an improvement, else as it was; in evaluation mode
    improved: bool
    verdict: str  #: why it is an improvement, or none, in a line
    #: Measures of the weights at the start: `agreement`, the share of held-out pixels where all
    #: sizes and both views agree; `matched`, the share where they also lead to a place that looks
    #: alike, which has to grow; `generated_epe`, the error on generated scenes, in pixels.
    before: dict[str, float]
    after: dict[str, float]  #: the same of the tuned weights, at the best of the checks
    checks: list[dict[str, float]]  #: all of them, with `step`
    base: dict[str, Any]  #: the `weights` that were tuned and, if they are a file's, its `sha256`
    pairs: int  #: that were learned from
    held_out: int  #: pairs; 0 where a part of the only one was
    labelled: float  #: share of the learned pairs' pixels with a disparity to learn
    skipped: dict[str, str]  #: pairs that could not be used, and why
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


class _Pair(NamedTuple):
    """One pair at the size at which it is matched, as bytes (3, H, W)."""

    left: Tensor
    right: Tensor
    disparity: Tensor | None = None  #: (1, H, W) float16, 0 where the network is not sure

    def views(self) -> tuple[Tensor, Tensor]:
        return self.left.float() / 255, self.right.float() / 255

    def sample(self) -> dict[str, Tensor]:
        left, right = self.views()
        disparity = cast("Tensor", self.disparity).float()
        return {"left": left, "right": right, "disparity": disparity, "valid": disparity > 0}


def tune(
    model: str | os.PathLike | nn.Module,
    pairs: Sequence[tuple[Image, Image]],
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
) -> TuningReport:
    """Tune a stereo network on pairs without true disparities.

    A tenth of the pairs is held out, or three where that leaves twice as many, at least one; of a
    single pair its lowest quarter. Training ends early where two checks in a row are no better
    than one before them.

    Args:
        model: a network of `create_model` (copied), or trained weights as `StereoPredictor` takes
            them.
        pairs: left and right images, rectified: paths, arrays or tensors, as `StereoPredictor`
            takes them. Those that cannot be read, are swapped or not rectified are left out.
        minutes: of training; reading and checking come on top.
        steps: of training, instead of minutes.
        lr: learning rate, which falls to zero.
        crop: height and width of a training sample, multiples of 64.
        batch_size: samples a step; even, as half of them are generated scenes.
        most_pairs: of a longer list so many are taken, evenly.
        seed: of crops, disturbances and scenes.
        device: ``auto`` (a GPU if there is one), or what ``torch.device`` takes.
        report: called as ``report(what, done, total)``.

    Raises:
        FileNotFoundError: there is no such weight file.
        ValueError: no such model, no pair that can be used, nothing that the network is sure of,
            settings out of range, or a loss that is not finite.
    """
    start = time.perf_counter()
    if batch_size < 2 or batch_size % 2 or most_pairs < 1:
        raise ValueError(f"batch_size {batch_size} is not even, or most_pairs {most_pairs} not > 0")
    if not (minutes > 0 if steps is None else steps > 0) or not lr > 0:
        raise ValueError("minutes, steps and lr must be above 0")
    net = standalone(load_network(model, "stereo"))
    predictor = StereoPredictor(net, device)
    usable, skipped = _usable(predictor, pairs, most_pairs, report)
    learned, held = _divided(usable)
    limit = float(predictor.max_disparity or 192)
    scenes, unseen = (
        GeneratedStereo(
            count, 256, 512, seed=own, max_disparity=limit, clutter=0.3, vertical_offset=0.3
        )
        for count, own in ((_SCENES, 1001 + seed), (_VALIDATION, 1000))
    )
    for index, pair in enumerate(learned):
        report("labels", index, len(learned))
        learned[index] = _labelled(predictor, pair)
    report("labels", len(learned), len(learned))
    known = [pair.disparity > 0 for pair in learned if pair.disparity is not None]
    labelled = mean(float(valid.float().mean()) for valid in known)
    if not labelled:
        raise ValueError(
            "the network is sure of nothing in these pairs: its views and sizes disagree; look at "
            "what `vizoo infer stereo` finds, or start from other weights"
        )
    generator = torch.Generator().manual_seed(seed)
    batches = _batches(learned, scenes, recipe("strong", *crop), batch_size // 2, generator)

    def measure(network: nn.Module) -> dict[str, float]:
        return _measures(StereoPredictor(network, device), held, unseen, limit)

    before = measure(net)
    learner = _Learner(net, limit, lr, predictor.device)
    checks: list[dict[str, float]] = []
    best, spent = None, 0.0
    while (done := learner.steps / steps if steps else spent / (60 * minutes)) < 1:
        begun = time.perf_counter()
        learner.step(next(batches), done)
        spent += time.perf_counter() - begun
        told = (learner.steps, steps) if steps else (int(spent), round(60 * minutes))
        report("training" if steps else "seconds of training", *told)
        done = learner.steps / steps if steps else spent / (60 * minutes)
        if done < min(1, (len(checks) + 1) / _CHECKS):
            continue
        found = measure(learner.average.module)
        checks.append({"step": learner.steps, **found})
        if _better(found, before) and (best is None or found["matched"] > best[0]["matched"]):
            best = found, copy.deepcopy(learner.average.module.state_dict())
        since = [check["matched"] for check in checks]
        if len(since) > 2 and max(since[-2:]) <= max(since[:-2]):
            break
    if best is not None:
        net.load_state_dict(best[1])
    after = best[0] if best else max(checks, key=lambda check: check["matched"])
    after = {name: value for name, value in after.items() if name != "step"}
    settings: dict[str, Any] = {
        "minutes": None if steps else minutes,
        "steps": steps,
        "lr": lr,
        "crop": list(crop),
    }
    settings |= {"batch_size": batch_size, "seed": seed, "sizes": list(SIZES)}
    return TuningReport(
        network=net.cpu().eval(),
        improved=best is not None,
        verdict=_verdict(before, after),
        before=before,
        after=after,
        checks=checks,
        base=_base(model),
        pairs=len(learned),
        held_out=len(held) if len(usable) > 1 else 0,
        labelled=labelled,
        skipped=skipped,
        steps=learner.steps,
        seconds=round(time.perf_counter() - start, 1),
        settings=settings,
    )


class _Learner:
    """A copy of a network, what trains it, and its average over the last steps.

    Running statistics stay as they are: those of a few crops are worse.
    """

    def __init__(self, net: nn.Module, limit: float, lr: float, device: torch.device) -> None:
        arguments = dict(cast("dict[str, Any]", net.architecture))
        name = arguments.pop("name")
        matching = hasattr(net, "forward_volumes")
        self.task = StereoTask(
            name, arguments, loss="matching" if matching else "pooled", max_disparity=limit
        )
        self.task.net = copy.deepcopy(net).to(device).to(memory_format=torch.channels_last)
        self.task.train()
        for module in self.task.modules():
            if isinstance(module, _BatchNorm):
                module.eval()
        self.optimizer = torch.optim.AdamW(self.task.net.parameters(), lr, weight_decay=0)
        average = get_ema_multi_avg_fn(_AVERAGE)
        self.average = AveragedModel(self.task.net, multi_avg_fn=average)
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


def _usable(
    predictor: StereoPredictor, pairs: Sequence[tuple[Image, Image]], most: int, report: Report
) -> tuple[list[_Pair], dict[str, str]]:
    """The pairs to work with, and by name what is wrong with others."""
    count = min(most, len(pairs))
    chosen = [index * len(pairs) // count for index in range(count)]
    usable, skipped = [], {}
    for done, index in enumerate(chosen):
        report("pairs", done, count)
        left, right = pairs[index]
        try:
            usable.append(_opened(predictor, left, right))
        except (ValueError, OSError) as error:
            name = os.fspath(left) if isinstance(left, (str, os.PathLike)) else f"pair {index + 1}"
            skipped[name] = " ".join(str(error).split())
    report("pairs", count, count)
    if not usable:
        first = "".join(f": {name}: {reason}" for name, reason in list(skipped.items())[:1])
        raise ValueError(f"none of {len(pairs)} pairs can be used{first}")
    return usable, skipped


def _opened(predictor: StereoPredictor, left: Image, right: Image) -> _Pair:
    """A pair at the size at which the network would match it."""
    given = open_pair(left, right)
    share = min(1.0, math.sqrt(_MOST_PIXELS / given[0][0].numel()))
    views = [reduced(view, share)[0] for view in given]
    doubts = check_pair(*map(to_bytes, views))
    if doubts:
        raise ValueError(doubts[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is beyond reach is matched at a smaller size
        scale = predictor(*views, check=False).scale
    return _Pair(*((255 * reduced(view, scale)[0]).round().byte() for view in views))


def _divided(usable: list[_Pair]) -> tuple[list[_Pair], list[_Pair]]:
    """Pairs to learn from and to hold out."""
    if len(usable) == 1:
        height = usable[0].left.shape[1]
        if height < _ROWS:
            raise ValueError(f"one pair of {height} rows is too little: give several, or larger")
        cut = height * 3 // 4
        left, right, _ = usable[0]
        return [_Pair(left[:, :cut], right[:, :cut])], [_Pair(left[:, cut:], right[:, cut:])]
    count = max(1, round(len(usable) / _HELD_OUT), min(_ENOUGH, len(usable) // 3))
    held = {(2 * index + 1) * len(usable) // (2 * count) for index in range(count)}
    learned = [pair for index, pair in enumerate(usable) if index not in held]
    return learned, [usable[index] for index in sorted(held)]


def _matched(predictor: StereoPredictor, pair: _Pair) -> tuple[Tensor, Tensor]:
    def match(left: Tensor, right: Tensor, scale: float) -> Tensor:
        return torch.from_numpy(predictor(left, right, scale=scale, check=False).disparity)

    return agreed(match, *pair.views())


def _labelled(predictor: StereoPredictor, pair: _Pair) -> _Pair:
    disparity, sure = _matched(predictor, pair)
    return pair._replace(disparity=torch.where(sure, disparity, 0)[None].half())


def _batches(
    pairs: list[_Pair],
    scenes: GeneratedStereo,
    augment: Any,
    half: int,
    generator: Generator,
) -> Iterator[dict[str, Tensor]]:
    """Batches without end: as many samples of pairs as of generated scenes."""
    drawn = 0
    while True:
        samples = []
        for _ in range(half):
            index = int(torch.randint(len(pairs), (), generator=generator))
            pair = _SMALLER(pairs[index].sample(), generator)
            samples += [pair, scenes[drawn % len(scenes)]]
            drawn += 1
        samples = [augment(sample, generator) for sample in samples]
        names = ("left", "right", "disparity", "valid")
        yield {name: torch.stack([sample[name] for sample in samples]) for name in names}


def _measures(
    predictor: StereoPredictor, held: list[_Pair], scenes: GeneratedStereo, limit: float
) -> dict[str, float]:
    """What `TuningReport.before` and `after` hold."""
    agreement, matched = [], []
    for pair in held:
        disparity, sure = _matched(predictor, pair)
        agreement.append(float(sure.float().mean()))
        matched.append(float((sure & alike(*pair.views(), disparity)).float().mean()))
    metrics = DisparityMetrics(limit)
    for index in range(len(scenes)):
        scene = scenes[index]
        found = predictor(scene["left"], scene["right"], scale=1, check=False).disparity
        metrics.update(
            torch.from_numpy(found)[None, None], scene["disparity"][None], scene["valid"][None]
        )
    values = {"agreement": mean(agreement), "matched": mean(matched)}
    return {**values, "generated_epe": float(metrics.compute()["epe"])}


def _better(found: dict[str, float], before: dict[str, float]) -> bool:
    kept = found["generated_epe"] <= _FORGOTTEN * before["generated_epe"]
    return kept and found["matched"] >= before["matched"] + _LEAST


def _verdict(before: dict[str, float], after: dict[str, float]) -> str:
    shares = " to ".join(f"{100 * values['matched']:.1f}" for values in (before, after))
    errors = " to ".join(f"{values['generated_epe']:.2f}" for values in (before, after))
    told = f"of held-out pixels {shares} % match, the error on generated scenes {errors} px"
    return f"{'an improvement' if _better(after, before) else 'no improvement'}: {told}"


def _base(model: str | os.PathLike | nn.Module) -> dict[str, Any]:
    if isinstance(model, nn.Module):
        return {"weights": type(model).__name__, "sha256": None}
    name = os.fspath(model)
    if os.path.isfile(name):
        return {"weights": name, "sha256": sha256_of(name)}
    record = model_info(name).record if is_name(model) else None
    return {"weights": name, "sha256": record.sha256 if record else None}
