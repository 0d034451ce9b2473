"""Multi-view networks on real photographs that none of them was trained on, against a plane sweep.

    python -m benchmarks.mvs_transfer --data DIR [--worlds 8] [MODEL ...]

A model is whatever `vizoo infer mvs --model` takes; it runs alone and guided by the sweep. The
data folder's `index.json` lists scenes: views with cameras (x = K (R X + t)) and depth, and sets
of a reference and its sources. All methods search the scene's range (where it has none, the
truth's 2nd to 98th percentile, a quarter wider). Shown are the median of |d - t| / t, the share
of pixels within 5 % of the truth and how the confidence ranks |d - t| / t (0: as the truth would,
1: at random, more: it misleads), means over a scene's sets. Generated worlds, which networks may
be trained on, can stand beside.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from statistics import mean

import cv2
import numpy as np
import torch
from torch import Tensor

from benchmarks._machine import arguments, start, table
from vizoo.datasets.worlds.views import WorldViews
from vizoo.mvs.classical import PlaneSweep
from vizoo.mvs.infer import MVSPredictor, MVSResult
from vizoo.vision.io.images import read_image
from vizoo.vision.sparsification import ause

SOURCE = (
    "folder of scenes with cameras and depth, such as the samples of deep-video-mvs and DPSNet "
    "(github.com/ardaduz/deep-video-mvs, github.com/sunghoonim/DPSNet), laid out as above"
)
Set = tuple[Tensor, Tensor, Tensor, tuple[float, float], np.ndarray]


def sets(folder: Path, sources: int) -> dict[str, list[Set]]:
    """Scene to its sets: images, intrinsics, extrinsics, range, and the reference's depth."""
    scenes = {}
    for scene in json.loads((folder / "index.json").read_text())["scenes"]:
        if "depth" not in scene["views"][scene["sets"][0]["ref"]]:
            continue
        scenes[scene["name"].split("_")[0]] = [
            _set(folder, scene, [chosen["ref"], *_spread(chosen["src"], sources)])
            for chosen in scene["sets"]
        ]
    return scenes


def _spread(indices: list[int], count: int) -> list[int]:
    places = np.linspace(0, len(indices) - 1, min(count, len(indices)))
    return [indices[round(place)] for place in places]


def _set(folder: Path, scene: dict, chosen: list[int]) -> Set:
    views = [scene["views"][index] for index in chosen]
    images = torch.stack([read_image(folder / view["image"]) for view in views])
    intrinsics = torch.tensor([view["K"] for view in views])
    extrinsics = torch.eye(4).repeat(len(views), 1, 1)
    extrinsics[:, :3, :3] = torch.tensor([view["R"] for view in views])
    extrinsics[:, :3, 3] = torch.tensor([view["t"] for view in views])
    path, scale = folder / views[0]["depth"]["path"], views[0]["depth"]["scale_to_m"]
    raw = np.load(path) if path.suffix == ".npy" else cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
    truth = raw.astype(np.float32) * scale
    if "depth_min" in scene:
        limits = scene["depth_min"], scene["depth_max"]
    else:
        known = truth[np.isfinite(truth) & (truth > 0)]
        limits = np.quantile(known, 0.02) / 1.25, np.quantile(known, 0.98) * 1.25
    return images, intrinsics, extrinsics, tuple(map(float, limits)), truth


def worlds(count: int) -> list[Set]:
    """Generated scenes of four views."""
    members = []
    for sample in map(WorldViews(count, 240, 320, 4, seed=77).__getitem__, range(count)):
        cameras = sample["images"], sample["intrinsics"], sample["extrinsics"]
        near, far = sample["depth_range"].tolist()
        members.append((*cameras, (near, far), sample["depth"][0].numpy()))
    return members


def scores(result: MVSResult, truth: np.ndarray) -> tuple[float, float, float]:
    """Median relative error, the share of known pixels within 5 %, and the confidence's ranking."""
    known = np.isfinite(truth) & (truth > 0)
    error = np.abs(result.depth[known] - truth[known]) / truth[known]
    ranked = ause(torch.from_numpy(error).clamp(max=1), torch.from_numpy(result.confidence[known]))
    return float(np.median(error)), float(np.mean(error < 0.05)), ranked


def main() -> None:
    parser = arguments(__doc__, sources=6)
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help=SOURCE)
    parser.add_argument("--worlds", type=int, default=0, metavar="N", help="generated scenes too")
    options, console = start(parser)
    scenes = sets(options.data, options.sources)
    if options.worlds:
        scenes["worlds"] = worlds(options.worlds)
    title = "median relative error, within 5 %, ranking by confidence"
    shown = table(["method", *scenes, "s a view"], title=title)
    sweeps = {
        "plane sweep, 9x9 alone": PlaneSweep(windows=(9,), smooth=False),
        "plane sweep, squares of three sizes": PlaneSweep(smooth=False),
        "plane sweep, smooth": PlaneSweep(),
    }
    predictors = {name: MVSPredictor(sweep, device="cpu") for name, sweep in sweeps.items()}
    for model in options.models:
        for guided in (False, True):
            predictor = MVSPredictor(model, device="cpu", guided=guided)
            predictors[predictor.model + ", guided" * guided] = predictor
    for name, predictor in predictors.items():
        cells, begin = [], time.perf_counter()
        for members in scenes.values():
            results = [scores(predictor(*views), truth) for *views, truth in members]
            error, share, ranked = (mean(values) for values in zip(*results, strict=True))
            cells.append(f"{error:.3f}, {100 * share:.0f} %, {ranked:.2f}")
        taken = (time.perf_counter() - begin) / sum(map(len, scenes.values()))
        shown.add_row(name, *cells, f"{taken:.1f}")
    console.print(shown)


if __name__ == "__main__":
    main()
