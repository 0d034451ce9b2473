"""What `vizoo demo` looks at, and what it finds there: disparities, errors, times."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from ...common.timing import Timing
    from ...datasets.stereo.calibration import StereoCalibration
    from ...nas.space import Architecture
    from ...stereo.result import StereoResult
    from .networks import Candidate, Weights

_ROOM: dict[str, Any] = {
    "height": 540,
    "width": 960,
    "max_disparity": 64,
    "layouts": ("room",),
    "floating": 0,
}
_SECONDS, _MOST = 6.0, 20  # of all timing together, and repetitions


@dataclass(frozen=True)
class Sample:
    """A pair of images.

    Attributes:
        title: what it is, for people.
        left, right: (3, H, W) float32 in [0, 1].
        calibration: of the cameras; assumed where ``metric`` is False.
        metric: whether the calibration is the true one, so that depth is in metres.
        truth: (1, H, W) disparity, pixels, or None.
        valid: (1, H, W) bool, where the truth is known, or None.
        notes: what is to be said of the pair, such as that it is not rectified.
    """

    title: str
    left: Tensor
    right: Tensor
    calibration: StereoCalibration
    metric: bool
    truth: Tensor | None = None
    valid: Tensor | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width, pixels."""
        height, width = self.left.shape[1:]
        return height, width

    @property
    def known(self) -> tuple[Tensor, np.ndarray]:
        """The truth of a pair that has one, and where it is known, (H, W)."""
        return cast("Tensor", self.truth), cast("Tensor", self.valid)[0].numpy()


@dataclass(frozen=True)
class Finding:
    """What a network, or OpenCV, made of a pair.

    Attributes:
        name: short, for tables and pictures.
        result: its disparity.
        timing: of one pair of this size, milliseconds.
        scores: ``epe`` (pixels), ``bad1`` … ``d1`` (shares), empty without truth.
        weights: of the network; None for OpenCV.
        architecture: of a subnet.
        parameters, macs: of the network, on this pair's size.
    """

    name: str
    result: StereoResult
    timing: Timing
    scores: dict[str, float]
    weights: Weights | None = None
    architecture: Architecture | None = None
    parameters: int = 0
    macs: int = 0

    @property
    def title(self) -> str:
        """The name; of a subnet with its supernet's."""
        if self.architecture is None or self.weights is None:
            return self.name
        return f"{self.weights.name}, {self.name}"

    def to_json(self) -> dict[str, Any]:
        """The figures; milliseconds under ``latency``."""
        figures = {
            "name": self.name,
            "weights": None if self.weights is None else self.weights.source,
            "architecture": None if self.architecture is None else self.architecture.to_json(),
            "latency": self.timing.to_json(),
            **{name: round(value, 5) for name, value in self.scores.items()},
        }
        if self.weights is not None:
            figures |= {"parameters": self.parameters, "macs": self.macs}
        return figures


def generated_sample(seed: int) -> Sample:
    """A generated room, exact truth with it; the same for the same seed."""
    from ...datasets.worlds.stereo import WorldStereo

    scene, calibration = WorldStereo(1, seed=seed, photometric=False, **_ROOM).pair(0)
    views = (scene["left"], scene["right"])
    title = f"Generated room {seed}"
    return Sample(title, *views, calibration, True, scene["disparity"], scene["valid"])


def own_sample(left: str, right: str, calibration: str | None) -> Sample:
    """A pair of files of one size, and their calibration's.

    Without that a camera is assumed whose focal length is the image's width, and depth counts in
    baselines.
    """
    from ...datasets.stereo.calibration import StereoCalibration, read_calibration, scaling_notes
    from ...stereo.infer import open_pair
    from ...stereo.rectification import check_pair
    from ...vision.io.images import to_bytes

    views = open_pair(left, right)
    height, width = views[0].shape[1:]
    notes: list[str] = []
    if calibration is None:
        camera = StereoCalibration(focal=float(width), baseline=1.0, width=width, height=height)
    else:
        known = read_calibration(calibration)
        camera = known.fitted(height, width)
        notes = scaling_notes((known.height, known.width), height, width)
    notes += check_pair(*map(to_bytes, views))
    return Sample(Path(left).name, *views, camera, calibration is not None, notes=notes)


def show_all(
    sample: Sample, networks: list[Candidate], device: str, tell: Callable[[str], Any]
) -> list[Finding]:
    """Run every network, then OpenCV's semi-global matching, on the pair, and time them in turns.

    The pair gets a note where it is too near for a network, which then looks at it made smaller.
    """
    from ...common.counts import count
    from ...common.timing import measure_in_turns
    from ...common.warned import collect_warnings
    from ...stereo.classical import semi_global_matching
    from ...stereo.guided import FUSION
    from ...stereo.infer import StereoPredictor
    from ...stereo.result import StereoResult
    from ...vision.hub.create import create_model
    from ...vision.inputs import example_inputs

    predictors = [
        StereoPredictor(network.net, device, guided=network.weights.guided) for network in networks
    ]
    tell("disparities")
    pair, results = (sample.left, sample.right), []
    calls: list[Callable[[], Any]] = [partial(p, *pair, check=False) for p in predictors]
    for network, call in zip(networks, calls, strict=True):
        with collect_warnings() as notes:
            results.append(call())
        sample.notes.extend(f"{network.name}: {note}" for note in notes)
    calls.append(partial(semi_global_matching, *pair))
    results.append(StereoResult(calls[-1](), results[0].image))
    place = predictors[0].device
    with collect_warnings():  # said above
        start = time.perf_counter()
        measure_in_turns(calls, place, warmup=0, repetitions=1)
        round_ = time.perf_counter() - start
        repetitions = max(1, min(_MOST, int(_SECONDS / round_)))
        tell("latency, each " + ("once" if repetitions == 1 else f"{repetitions} times in turns"))
        timings = measure_in_turns(calls, place, warmup=0, repetitions=repetitions)
    *known, classical = (
        (result, timing, scores(sample, result))
        for result, timing in zip(results, timings, strict=True)
    )
    findings = []
    for network, predictor, measured in zip(networks, predictors, known, strict=True):
        runs = [(network.net, sample.size)]
        if predictor.guided:  # both at half of the size, then the fusion at the pair's own
            height, width = sample.size
            half, fusion = ((height + 1) // 2, (width + 1) // 2), create_model(FUSION)
            runs = [(network.net, half), (fusion, half), (fusion, sample.size)]
        parts = [count(net, *example_inputs(net, *size, device="meta")) for net, size in runs]
        costs = sum(p.parameters for p in parts[:2]), sum(p.macs for p in parts)
        findings.append(
            Finding(network.name, *measured, network.weights, network.architecture, *costs)
        )
    return [*findings, Finding("StereoSGBM (OpenCV)", *classical)]


def scores(sample: Sample, result: StereoResult) -> dict[str, float]:
    """EPE, bad-1, bad-2, bad-3 and D1 of a disparity; empty where the truth is not known."""
    import torch

    from ...stereo.metrics import DisparityMetrics

    if sample.truth is None or sample.valid is None:
        return {}
    metrics = DisparityMetrics()
    disparity = torch.from_numpy(result.disparity)[None, None]
    metrics.update(disparity, sample.truth[None], sample.valid[None])
    values = metrics.compute()
    return {name: values[name].item() for name in ("epe", "bad1", "bad2", "bad3", "d1")}
