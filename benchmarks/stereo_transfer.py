"""Stereo networks on real photographs, which none of them was trained on, against StereoSGBM.

    python -m benchmarks.stereo_transfer [MODEL ...] [--data ../shared/data/stereo_real]

A model is whatever `vizoo infer stereo --model` takes. The data folder has `playground` (im0.png,
im1.png, disp0.pfm) and `cones` (left.png, right.png, gt.png in whole pixels). All known pixels
count, occluded ones too. StereoSGBM (128 disparities, blocks of 5, holes filled from the smaller
neighbour in the row) is the best of its three modes. Speed is that of a 540x960 pair.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import cv2
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks._machine import machine, seconds
from vizoo.stereo.classical import semi_global_matching
from vizoo.stereo.infer import StereoPredictor
from vizoo.stereo.metrics import DisparityMetrics
from vizoo.vision.hub.registry import list_models
from vizoo.vision.io.images import read_image
from vizoo.vision.io.pfm import read_pfm

_MODES = {
    "SGBM": cv2.STEREO_SGBM_MODE_SGBM,
    "HH": cv2.STEREO_SGBM_MODE_HH,
    "3WAY": cv2.STEREO_SGBM_MODE_SGBM_3WAY,
}


def pairs(folder: Path) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """Name to left, right (3, H, W) and true disparity (H, W), 0 where unknown."""
    ground, cones = folder / "playground", folder / "cones"
    disparity = torch.from_numpy(read_pfm(ground / "disp0.pfm").copy())
    disparity = torch.where(disparity.isfinite(), disparity, 0)
    whole = torch.from_numpy(cv2.imread(str(cones / "gt.png"), cv2.IMREAD_UNCHANGED)).float()
    return {
        "playground": (read_image(ground / "im0.png"), read_image(ground / "im1.png"), disparity),
        "cones": (read_image(cones / "left.png"), read_image(cones / "right.png"), whole),
    }


def scores(method: Callable[[Tensor, Tensor], object], pair: tuple[Tensor, ...]) -> list[float]:
    """EPE in pixels, shares of pixels that are wrong by more than 1 and 2 pixels."""
    left, right, truth = pair
    metrics = DisparityMetrics(max_disparity=None)
    found = torch.as_tensor(method(left, right)).float()[None, None]
    metrics.update(found, truth[None, None], truth[None, None] > 0)
    values = metrics.compute()
    return [values[name].item() for name in ("epe", "bad1", "bad2")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--data", type=Path, default=Path("../shared/data/stereo_real"))
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    known = pairs(options.data)
    table = Table(title=f"photographs; {options.dtype}")
    table.add_column("method")
    for name in known:
        for score in ("EPE px", "bad-1 %", "bad-2 %"):
            table.add_column(f"{name}\n{score}", justify="right")
    table.add_column("540x960\npairs/s", justify="right")

    def row(name: str, method: Callable, rate: str) -> None:
        found = [scores(method, pair) for pair in known.values()]
        values = [
            f"{e:.3f}" if i == 0 else f"{100 * e:.1f}" for f in found for i, e in enumerate(f)
        ]
        table.add_row(name, *values, rate)

    for name, mode in _MODES.items():
        row(f"StereoSGBM {name}", lambda *views, mode=mode: semi_global_matching(*views, mode), "")
    views = torch.rand(2, 3, 540, 960).unbind()
    for model in options.models or list_models("stereo/*", pretrained=True):
        predictor = StereoPredictor(model, device="cpu", dtype=options.dtype)
        infer = partial(predictor, scale=1, check=False)
        infer(*views)
        times = [seconds(lambda: infer(*views)) for _ in range(options.repeat)]  # noqa: B023
        row(Path(model).name, lambda *v: infer(*v).disparity, f"{1 / median(times):.1f}")  # noqa: B023
    console = Console(width=120)
    console.print(machine())
    console.print(table)


if __name__ == "__main__":
    main()
