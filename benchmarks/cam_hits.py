"""Whether maps of a CT classifier point at lesions: the pointing game on generated scans.

A map scores where its maximum lies in a lesion, or near one. It is for the class that the scan has,
whatever was predicted. Beside it stand the same numbers of a random voxel of the lungs, and of all
that the network sees.

python -m benchmarks.cam_hits CHECKPOINT [--scans 50] [--seed 1000] [--tolerance 10]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from scipy.ndimage import distance_transform_edt

from benchmarks._machine import arguments, start, table
from vizoo.classification.ct_infer import CTPredictor, CTResult
from vizoo.datasets.ct import CTVolume, GeneratedCT, to_scan

_LUNG = (-950, -650)  # Hounsfield units, without vessels and lesions


def scans(classes: tuple[str, ...], count: int, seed: int, shape: tuple[int, int, int]):
    """Volumes with lesions, where these are, and the names of their classes."""
    data = GeneratedCT(count * len(classes), len(classes), seed=seed)
    if data.classes != classes:
        raise SystemExit(f"trained for {classes}; generated scans have {data.classes}")
    ill = [i for i, label in enumerate(data.labels) if classes[label] != "Normal"][:count]
    for index in track(ill, "scans", console=Console(stderr=True)):
        values, lesions, affine = data.chest(index).scan(shape)
        yield CTVolume(values, affine), lesions, classes[data.labels[index]]


def score(result: CTResult, lesions: np.ndarray, distance: np.ndarray) -> tuple[float, float]:
    """Distance of the map's maximum to a lesion, mm, and the share of its heat in lesions."""
    _, place = result.peak()
    column, row, plane = np.rint(np.linalg.inv(result.volume.affine) @ [*place, 1])[:3].astype(int)
    heat = result.map()
    return distance[plane, row, column], heat[lesions].sum() / max(heat.sum(), 1e-9)


def main() -> None:
    parser = arguments(__doc__, scans=50, shape=(32, 96, 96))
    parser.add_argument("model", nargs="?", help="checkpoint of `vizoo fit`, or weight file")
    parser.add_argument("--seed", type=int, default=1000, help="of the scans, none of training's")
    parser.add_argument("--tolerance", type=float, default=10.0, help="mm")
    options, console = start(parser)
    if options.model is None:
        print("cam_hits: give a checkpoint of a CT classifier", file=sys.stderr)
        return
    predictor = CTPredictor(options.model)
    stages = [name for name, _ in predictor.net.named_modules() if name.count(".") == 1]
    stages = [name for name in stages if name.startswith(("stages.", "features."))]
    methods = [("auto", None, True), ("auto", None, False), ("cam", None, False)]
    methods += [("windows", None, False), *(("grad-cam", stage, True) for stage in stages)]
    methods.append(("occlusion", None, False))
    rows: dict[str, list[tuple[float, float]]] = {}
    chances, right = [], 0
    for volume, lesions, kind in scans(
        predictor.classes, options.scans, options.seed, options.shape
    ):
        distance = distance_transform_edt(~lesions, sampling=volume.spacing)
        lung = lesions | ((volume.values > _LUNG[0]) & (volume.values < _LUNG[1]))
        near = distance <= options.tolerance
        plain = predictor(volume, method=None)
        right += plain.predicted == kind
        seen = to_scan(torch.ones(plain.sample["volume"].shape[1:]), plain.sample) > 0.5
        chances.append([(lesions[part].mean(), near[part].mean()) for part in (lung, seen)])
        for method, layer, mirrors in methods:
            settings = {"method": method, "layer": layer, "mirrors": mirrors}
            result = predictor(volume, explained=kind, **settings)
            name = f"auto: {result.method}" if method == "auto" else result.method
            rows.setdefault(name, []).append(score(result, lesions, distance))
    title = (
        f"{Path(options.model).name} ({predictor.name}), {options.scans} scans with lesions, "
        f"{right} classified rightly"
    )
    columns = ["", "in a lesion", f"within {options.tolerance:g} mm", "heat in lesions"]
    shown = table(columns, title=title)
    for name, found in rows.items():
        distances, heat = np.array(found).T
        cells = ((distances == 0).mean(), (distances <= options.tolerance).mean(), heat.mean())
        shown.add_row(name, *(f"{100 * cell:.0f} %" for cell in cells))
    for name, shares in zip(("the lungs", "what is seen"), np.array(chances).mean(0), strict=True):
        cells = (*shares, shares[0])
        shown.add_row(f"chance: a voxel of {name}", *(f"{100 * cell:.0f} %" for cell in cells))
    console.print(shown)


if __name__ == "__main__":
    main()
