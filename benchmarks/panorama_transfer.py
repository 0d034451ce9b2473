"""Panorama networks on real panoramas that none of them was trained on, against one depth for all.

    python -m benchmarks.panorama_transfer --data DIR MODEL [MODEL ...]

A model is whatever `vizoo infer panorama --model` takes. The data folder's `index.json` lists
panoramas with their depth. Predictions are scaled to the truth's median, as one picture tells
nothing of the scale; the constant is the truth's median. `absrel` is the mean of |d - t| / t over
all known pixels, `d1` the share of them within a quarter of the truth either way.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean

import numpy as np

from benchmarks._machine import arguments, start, table
from vizoo.panorama.infer import PanoramaPredictor

SOURCE = "folder of panoramas with depth, such as samples of 3D60 (vcl3d.github.io/3D60), as above"


def scores(depth: np.ndarray, truth: np.ndarray) -> tuple[float, float]:
    """Mean relative error, and the share within a factor of 1.25, after median scaling."""
    known = np.isfinite(truth) & (truth > 0)
    depth, truth = depth[known], truth[known]
    depth = depth * (np.median(truth) / np.median(depth))
    ratio = np.maximum(depth / truth, truth / depth)
    return float(np.mean(np.abs(depth - truth) / truth)), float(np.mean(ratio < 1.25))


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help=SOURCE)
    options, console = start(parser)
    entries = json.loads((options.data / "index.json").read_text())["with_truth"]
    truths = [np.load(options.data / entry["depth"]).squeeze() for entry in entries]
    columns = ["method", *(entry["name"] for entry in entries), "mean"]
    shown = table(columns, title="real panoramas: absrel, d1 %")

    def row(name: str, depths: list[np.ndarray]) -> None:
        found = [scores(depth, truth) for depth, truth in zip(depths, truths, strict=True)]
        found.append((mean(f[0] for f in found), mean(f[1] for f in found)))
        shown.add_row(name, *(f"{error:.3f}, {100 * share:.0f}" for error, share in found))

    row("constant", [np.ones_like(truth) for truth in truths])
    for model in options.models:
        predictor = PanoramaPredictor(model, device="cpu")
        row(model, [predictor(options.data / entry["image"]).depth for entry in entries])
    console.print(shown)


if __name__ == "__main__":
    main()
