"""Multi-view networks on real photographs that none of them was trained on, against a plane sweep.

    python -m benchmarks.mvs_transfer --data DIR [MODEL ...]

A model is whatever `vizoo infer mvs --model` takes. The data folder's `index.json` lists scenes:
views with cameras (x = K (R X + t)) and depth, and sets of a reference and its sources. All methods
search the scene's range (where it has none, the truth's 2nd to 98th percentile, a quarter wider).
Shown are the median of |d - t| / t and the share of pixels within 5 % of the truth, means over a
scene's sets.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean

import cv2
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from vizoo.mvs.classical import plane_sweep
from vizoo.mvs.infer import MVSPredictor
from vizoo.vision.io.images import read_image

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


def scores(depth: np.ndarray, truth: np.ndarray) -> tuple[float, float]:
    """Median relative error, and the share of known pixels within 5 %."""
    known = np.isfinite(truth) & (truth > 0)
    error = np.abs(depth[known] - truth[known]) / truth[known]
    return float(np.median(error)), float(np.mean(error < 0.05))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help=SOURCE)
    parser.add_argument("--sources", type=int, default=6)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    scenes = sets(options.data, options.sources)
    table = Table(title="real views: median relative error, within 5 %")
    for name in ("method", *scenes, "s a view"):
        table.add_column(name, justify="left" if name == "method" else "right")

    def row(name: str, method: Callable[..., np.ndarray]) -> None:
        cells, start = [], time.perf_counter()
        for members in scenes.values():
            found = [scores(method(*views), truth) for *views, truth in members]
            error, share = (mean(values) for values in zip(*found, strict=True))
            cells.append(f"{error:.3f}, {100 * share:.0f} %")
        taken = (time.perf_counter() - start) / sum(map(len, scenes.values()))
        table.add_row(name, *cells, f"{taken:.1f}")

    row("plane sweep", lambda *views: plane_sweep(*views)[0].numpy())
    for model in options.models:
        predictor = MVSPredictor(model, device="cpu")
        row(model, lambda *views: predictor(*views).depth)  # noqa: B023
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
