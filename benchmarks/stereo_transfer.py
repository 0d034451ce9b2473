"""Stereo networks on real photographs, which none of them was trained on, against StereoSGBM.

    python -m benchmarks.stereo_transfer --data DIR [MODEL ...]
    python -m benchmarks.stereo_transfer --data DIR --each MODEL

A model is whatever `vizoo infer stereo --model` takes; it runs alone and guided by semi-global
matching. The data folder has `playground` (im0.png, im1.png, disp0.pfm), `cones` (left.png,
right.png, gt.png in whole pixels) and `pairs`, a folder for each of `index.json` with left.png,
right.png and truth.png (256 x disparity). All known pixels count, occluded ones too but with
`--non-occluded`, which tells by the truth what both views see; a group's scores are means over its
pairs, and those of all in `pairs` together come last. With `--off 2` right views lie two pixels too
low, as a poor rectification leaves them. StereoSGBM (128 disparities, blocks of 5, holes filled
from the smaller neighbour) is run in its three modes, StereoBM likewise. Speed is that of a 540x960
pair, and memory kept as by commands.
`--each` shows one network pair by pair, as `vizoo infer stereo --no-guided` runs it: size, the
largest true disparity, the scale of the first matching, error, time and memory.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean, median

import cv2
import numpy as np
import torch
from rich.table import Table
from torch import Tensor

from benchmarks._machine import apart, arguments, peak_megabytes, seconds, start, table
from vizoo.common.memory import keep_freed_memory
from vizoo.stereo.classical import block_matching, semi_global_matching
from vizoo.stereo.guided import hidden
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


SOURCE = (
    "folder of pairs with true disparities, such as those of Middlebury (vision.middlebury.edu), "
    "ETH3D (eth3d.net) and KITTI (cvlibs.net), laid out as above"
)
_LARGE = 512  # rows of a picture of Middlebury's from which it counts as larger
_OTHERS = "playground", "cones"  # beside the pairs of `pairs`
Pair = tuple[Tensor, Tensor, Tensor]


def pairs(folder: Path) -> dict[str, list[Pair]]:
    """Group to its pairs: left, right (3, H, W) and true disparity (H, W), 0 where unknown."""
    ground, cones = folder / "playground", folder / "cones"
    disparity = torch.from_numpy(read_pfm(ground / "disp0.pfm").copy())
    disparity = torch.where(disparity.isfinite(), disparity, 0)
    groups = {
        "playground": [(*_views(ground, "im0.png", "im1.png"), disparity)],
        "cones": [(*_views(cones), _whole(cones / "gt.png"))],
    }
    for name, pair in named_pairs(folder).items():
        group = {"eth3d": "ETH3D", "kitti15": "KITTI"}.get(name.split("_")[0])
        group = group or ("larger" if pair[0].shape[1] > _LARGE else "Middlebury")
        groups.setdefault(group, []).append(pair)
    return groups


def named_pairs(folder: Path) -> dict[str, Pair]:
    """Those of `pairs` by name."""
    root = folder / "pairs"
    names = [entry["name"] for entry in json.loads((root / "index.json").read_text())]
    return {n: (*_views(root / n), _whole(root / n / "truth.png") / 256) for n in names}


def seen(pair: Pair) -> Pair:
    """The pair, its truth known only where the right view sees the same."""
    left, right, truth = pair
    behind, outside = hidden(truth[None, None])
    return left, right, torch.where((behind + outside)[0, 0] == 0, truth, 0)


def lowered(pair: Pair, pixels: float) -> Pair:
    """The pair, its right view so many pixels too low."""
    left, right, truth = pair
    view, matrix = right.permute(1, 2, 0).numpy(), np.float32([[1, 0, 0], [0, 1, pixels]])
    view = cv2.warpAffine(
        view, matrix, view.shape[1::-1], flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE
    )
    return left, torch.from_numpy(view.clip(0, 1)).permute(2, 0, 1), truth


def _views(folder: Path, left: str = "left.png", right: str = "right.png") -> tuple[Tensor, Tensor]:
    return read_image(folder / left), read_image(folder / right)


def _whole(path: Path) -> Tensor:
    return torch.from_numpy(cv2.imread(str(path), cv2.IMREAD_UNCHANGED).astype("float32"))


def scores(method: Callable[[Tensor, Tensor], object], group: list[Pair]) -> dict[str, float]:
    """EPE in pixels, shares of pixels that are wrong by more than 1 and 2 pixels, and D1."""
    return _means([_score(method, pair) for pair in group])


def _score(method: Callable[[Tensor, Tensor], object], pair: Pair) -> dict[str, float]:
    left, right, truth = pair
    metric = DisparityMetrics(max_disparity=None)
    disparity = torch.as_tensor(method(left, right)).float()[None, None]
    metric.update(disparity, truth[None, None], truth[None, None] > 0)
    return {name: float(value) for name, value in metric.compute().items()}


def _means(values: list[dict[str, float]]) -> dict[str, float]:
    return {name: mean(each[name] for each in values) for name in values[0]}


def cell(group: str, values: list[dict[str, float]]) -> str:
    """Means of scores as the table shows them; the truth of KITTI's is no better than for D1."""
    means = _means(values)
    bad = ["d1"] if group == "KITTI" else ["bad1", "bad2"]
    return " / ".join([f"{means['epe']:.2f}", *(f"{100 * means[name]:.1f}" for name in bad)])


def each(model: str, dtype: str, known: dict[str, list[Pair]]) -> Table:
    """Every pair on its own, each in a process of its own."""
    columns = [
        "pair",
        "size",
        "largest, px",
        "scale",
        "EPE",
        "bad-2, %",
        "seconds",
        "GB of process",
    ]
    shown = table(columns, title=f"{model}, {dtype}")
    for group, members in known.items():
        for number, (left, right, truth) in enumerate(members):
            disparity, scale, taken, peak = apart(_alone, model, dtype, left.numpy(), right.numpy())
            error = (torch.from_numpy(disparity) - truth).abs()[truth > 0]
            height, width = truth.shape
            shown.add_row(
                f"{group} {number + 1}",
                f"{height}x{width}",
                f"{float(truth.max()):.0f}",
                f"{scale:g}",
                f"{float(error.mean()):.2f}",
                f"{100 * float((error > 2).float().mean()):.1f}",
                f"{taken:.1f}",
                f"{peak * 2**20 / 1e9:.2f}",
            )
    return shown


def _alone(
    model: str, dtype: str, left: np.ndarray, right: np.ndarray
) -> tuple[np.ndarray, float, float, float]:
    """Disparity, scale of the first matching, seconds, and the most that the process held, MiB."""
    warnings.simplefilter("ignore")
    predictor = StereoPredictor(model, "cpu", dtype, guided=False)
    begin = time.perf_counter()
    result = predictor(torch.from_numpy(left), torch.from_numpy(right), check=False)
    taken = time.perf_counter() - begin
    return result.disparity, result.scale, taken, peak_megabytes()


def main() -> None:
    parser = arguments(__doc__, dtype="float32", repeat=9)
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help=SOURCE)
    parser.add_argument("--scale", default=1.0, type=lambda s: s if s == "auto" else float(s))
    parser.add_argument("--each", action="store_true", help="pair by pair")
    parser.add_argument("--non-occluded", action="store_true", help="where both views see the same")
    parser.add_argument(
        "--off", type=float, default=0.0, metavar="PIXELS", help="right views lie lower by"
    )
    options, console = start(parser, width=200)
    keep_freed_memory()
    known = pairs(options.data)
    for members in known.values():
        if options.non_occluded:
            members[:] = map(seen, members)
        if options.off:
            members[:] = [lowered(pair, options.off) for pair in members]
    if options.each:
        for model in options.models or list_models("stereo/*", pretrained=True):
            console.print(each(model, options.dtype, known))
        return
    columns = ["method"]
    together = [name for name in known if name not in _OTHERS]
    counts = {name: len(group) for name, group in known.items()}
    counts["together"] = sum(counts[name] for name in together)
    for name, count in counts.items():
        title = "EPE / D1 %" if name == "KITTI" else "EPE / bad-1 / bad-2 %"
        columns.append(f"{name} ({count})\n{title}")
    shown = table([*columns, "540x960\npairs/s"], title=f"photographs; {options.dtype}")

    def row(name: str, method: Callable, rate: str) -> None:
        values = {g: [_score(method, pair) for pair in members] for g, members in known.items()}
        values["together"] = sum((values[group] for group in together), [])
        shown.add_row(name, *(cell(*item) for item in values.items()), rate)

    def rate(method: Callable) -> str:
        method(*views)
        times = [seconds(lambda: method(*views)) for _ in range(options.repeat)]
        return f"{1 / median(times):.1f}"

    cv2.setNumThreads(options.threads)
    # Noise would be work that no picture makes; a smooth one has texture and matches.
    views = known["ETH3D"][0][:2]
    views = [cv2.resize(v.permute(1, 2, 0).numpy(), (960, 540)) for v in views]
    views = [torch.from_numpy(view).permute(2, 0, 1) for view in views]
    classical = {
        f"StereoSGBM {name}": partial(semi_global_matching, mode=mode)
        for name, mode in _MODES.items()
    }
    for name, method in {"StereoBM": block_matching, **classical}.items():
        row(name, method, rate(method))
    for model in options.models or list_models("stereo/*", pretrained=True):
        for guided in (False, True):
            predictor = StereoPredictor(model, "cpu", options.dtype, guided=guided)
            infer = partial(predictor, scale=options.scale, check=False)
            name = Path(model).name + ", guided" * guided
            row(name, lambda *v: infer(*v).disparity, rate(infer))  # noqa: B023
    console.print(shown)


if __name__ == "__main__":
    main()
