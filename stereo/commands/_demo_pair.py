"""What `vizoo demo` looks at, and what it finds there: disparities, errors, times."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from ...nas.efficiency.measure import Timing
    from ...vision.io.calibration import StereoCalibration
    from ..infer import StereoResult
    from ..rectification import PairGeometry
    from ._demo_networks import Candidate

__all__ = ["Finding", "Sample", "generated_sample", "own_sample", "scene_sample", "show_all"]

# A room with things in front of it, not too crowded to be looked at.
_SCENE = {"height": 288, "width": 576, "max_disparity": 96, "clutter": 0.5, "photometric": False}
_SECONDS, _MOST = 10.0, 20  # of all timing together, and repetitions


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
        geometry: of a pair of files, or None where it is not known.
        notes: what is to be said of the pair, such as that it is not rectified.
    """

    title: str
    left: Tensor
    right: Tensor
    calibration: StereoCalibration
    metric: bool
    truth: Tensor | None = None
    valid: Tensor | None = None
    geometry: PairGeometry | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width, pixels."""
        return tuple(self.left.shape[1:])


@dataclass(frozen=True)
class Finding:
    """What one network made of a pair.

    Attributes:
        candidate: the network.
        result: its disparity.
        parameters, macs: of the network, on this pair's size.
        timing: of a forward pass on this pair, milliseconds.
        scores: ``epe`` (pixels), ``bad1`` … ``d1`` (shares), empty without truth.
    """

    candidate: Candidate
    result: StereoResult
    parameters: int
    macs: int
    timing: Timing
    scores: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        """The figures; milliseconds under ``latency``."""
        architecture = self.candidate.architecture
        return {
            "name": self.candidate.name,
            "weights": self.candidate.weights.source,
            "architecture": None if architecture is None else architecture.to_json(),
            "parameters": self.parameters,
            "macs": self.macs,
            "latency": self.timing.to_json(),
            **{name: round(value, 5) for name, value in self.scores.items()},
        }


def generated_sample(seed: int) -> Sample:
    """A generated scene, exact truth with it; the same for the same seed."""
    from ...datasets.stereo import GeneratedStereo

    scene = GeneratedStereo(1, seed=seed, **_SCENE)[0]
    return scene_sample(scene, f"Generated scene {seed}")


def scene_sample(scene: dict[str, Any], title: str) -> Sample:
    """A generated scene, with cameras 0.1 m apart whose focal length is the image's width."""
    from ...vision.io.calibration import StereoCalibration

    height, width = scene["left"].shape[1:]
    calibration = StereoCalibration(
        focal=float(width), baseline=0.1, cx=width / 2, cy=height / 2, width=width, height=height
    )
    views = (scene["left"], scene["right"])
    return Sample(title, *views, calibration, True, scene["disparity"], scene["valid"])


def own_sample(left: str, right: str, calibration: str | None) -> Sample:
    """A pair of files.

    Args:
        left, right: images of one size.
        calibration: a Middlebury, ETH3D or KITTI file; without it a camera is assumed whose focal
            length is the image's width, and depth counts in baselines.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: an image or the calibration cannot be read, or the sizes differ.
    """
    from ...vision.io.calibration import StereoCalibration, read_calibration
    from ...vision.io.images import read_image
    from ..rectification import measure_pair

    views = [read_image(left), read_image(right)]
    sizes = [f"{view.shape[2]}x{view.shape[1]}" for view in views]
    if sizes[0] != sizes[1]:
        raise ValueError(
            f"left and right differ in size: {left} {sizes[0]} against {right} {sizes[1]}; "
            "a rectified pair has one size"
        )
    height, width = views[0].shape[1:]
    if calibration is None:
        camera = StereoCalibration(focal=float(width), baseline=1.0, width=width, height=height)
    else:
        camera = read_calibration(calibration)
        if (camera.width, camera.height) not in ((None, None), (width, height)):
            camera = camera.resized(width, height)
    if views[0].equal(views[1]):
        geometry, notes = None, ["left and right are the same picture"]
    else:
        geometry = measure_pair(*(v.mul(255).byte().permute(1, 2, 0).numpy() for v in views))
        notes = geometry.warnings() if geometry else []
    found = {"geometry": geometry, "notes": notes}
    return Sample(Path(left).name, *views, camera, calibration is not None, **found)


def show_all(
    sample: Sample, found: list[Candidate], device: str, tell: Callable[[str], Any]
) -> list[Finding]:
    """Run every network on the pair, then time them in turns.

    Args:
        sample: the pair; gets a note where it is too near for the first network.
        found: the networks.
        device: as `StereoPredictor` takes it.
        tell: called with what takes time.
    """
    from ...nas.efficiency.counts import count, on_meta
    from ...nas.efficiency.measure import measure_in_turns
    from ...vision.complexity import example_inputs
    from ..infer import StereoPredictor
    from ..rectification import beyond_reach

    predictors = [StereoPredictor(candidate.net, device=device) for candidate in found]
    far = beyond_reach(predictors[0].max_disparity, sample.geometry, sample.calibration)
    sample.notes.extend(f"{found[0].name}: {note}" for note in far)
    tell("disparities")
    results = [predictor(sample.left, sample.right) for predictor in predictors]
    views = [view[None].to(predictors[0].device) for view in (sample.left, sample.right)]
    calls = [lambda net=predictor.net: net(*views) for predictor in predictors]
    start = time.perf_counter()
    measure_in_turns(calls, predictors[0].device, warmup=0, repetitions=1)
    round_ = time.perf_counter() - start
    repetitions = max(1, min(_MOST, int(_SECONDS / round_)))
    tell("latency, each " + ("once" if repetitions == 1 else f"{repetitions} times in turns"))
    timings = measure_in_turns(calls, predictors[0].device, warmup=0, repetitions=repetitions)
    findings = []
    for candidate, result, timing in zip(found, results, timings, strict=True):
        inputs = example_inputs(candidate.net, *sample.size, device="meta")
        costs = count(on_meta(candidate.net), *inputs)
        scores = _scores(sample, result)
        findings.append(Finding(candidate, result, costs.parameters, costs.macs, timing, scores))
    return findings


def _scores(sample: Sample, result: StereoResult) -> dict[str, float]:
    import torch

    from ..metrics import DisparityMetrics

    if sample.truth is None:
        return {}
    metrics = DisparityMetrics()
    found = torch.from_numpy(result.disparity)[None, None]
    metrics.update(found, sample.truth[None], sample.valid[None])
    values = metrics.compute()
    return {name: values[name].item() for name in ("epe", "bad1", "bad2", "bad3", "d1")}
