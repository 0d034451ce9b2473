"""Does a stereo confidence rank errors, and is it the chance that it says?

    python -m benchmarks.stereo_confidence [--data DIR] [--guided] [MODEL ...]
    python -m benchmarks.stereo_confidence [--guided] --fit

Shown is the area between the sparsification curve and the best one as a share of a random order's
(0: as the truth would rank, 1: at random), errors counting to 10 px, in the mean of a group's
pairs: of the confidence, without and with the right image's disparity; of the difference between
the two views' disparities (a left-right check); of the difference from OpenCV's StereoSGBM; and of
what StereoSGBM's own check and uniqueness leave. Then, by tenths of the confidence on generated
scenes, the share of pixels within 1 px of the truth. `--fit` prints the coefficients of
`vizoo.stereo.confidence`, from generated scenes of other seeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import cv2
import numpy as np
import torch
from rich.table import Table
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from benchmarks._machine import arguments, start, table
from benchmarks.stereo_transfer import SOURCE, Pair, pairs
from vizoo.datasets.stereo import GeneratedStereo
from vizoo.datasets.worlds.stereo import WorldStereo
from vizoo.stereo.classical import semi_global_matching
from vizoo.stereo.confidence import evidence, left_right_difference
from vizoo.stereo.infer import StereoPredictor
from vizoo.vision.hub.registry import list_models
from vizoo.vision.io.images import to_bytes
from vizoo.vision.sparsification import ause

_SIZE = (256, 512)


def generated(count: int, seed: int) -> list[Pair]:
    """As many worlds, and as many layered scenes."""
    data = WorldStereo(count, *_SIZE, seed=seed), GeneratedStereo(count, *_SIZE, seed=seed)
    samples = (each[index] for each in data for index in range(count))
    return [(s["left"], s["right"], (s["disparity"] * s["valid"])[0]) for s in samples]


def orders(predictor: StereoPredictor, left: Tensor, right: Tensor) -> tuple[Tensor, dict]:
    """A disparity, and what may rank its pixels."""
    one = predictor(left, right, scale=1, check=False)
    both = predictor(left, right, scale=1, check=False, both=True)
    disparity = torch.from_numpy(one.disparity)
    classical = torch.from_numpy(semi_global_matching(left, right))
    views = [to_bytes(view) for view in (left, right)]
    matcher = cv2.StereoSGBM.create(0, 128, 5, 600, 2400, 1, uniquenessRatio=5)
    kept = torch.from_numpy(matcher.compute(*views) > 0).float()
    difference = left_right_difference(disparity, torch.from_numpy(both.right_disparity))
    return disparity, {
        "confidence": torch.from_numpy(one.confidence),
        "with both views": torch.from_numpy(both.confidence),
        "left-right": -difference,
        "from SGBM": -(disparity - classical).abs(),
        "SGBM's own": kept,
    }


def examples(name: str, scenes: list[Pair], guided: bool) -> Iterator[tuple[Tensor, Tensor]]:
    """Features (N, C) of pixels, and whether they are right."""
    predictor = StereoPredictor(name, "cpu", guided=guided)
    for left, right, truth in scenes:
        disparity, *peak = predictor.maps(left, right)
        other = predictor.maps(right.flip(-1), left.flip(-1))[0].flip(-1)
        difference = left_right_difference(disparity, other)
        parts = evidence(left, right, disparity, peak[0] if peak else None, difference, 1, guided)
        features = torch.stack([part.float() for part in parts if part is not None], -1)
        yield features[truth > 0], ((disparity - truth).abs() < 1)[truth > 0].float()


def fit(names: list[str], guided: bool) -> None:
    """Print coefficients for each kind of evidence that these networks give."""
    seen: dict[bool, list[tuple[Tensor, Tensor]]] = {}
    for name in names:
        for features, right in examples(name, generated(24, 501), guided):
            seen.setdefault(features.shape[1] == 4, []).append((features[::7], right[::7]))
    for peak, parts in seen.items():
        features, right = (torch.cat(part) for part in zip(*parts, strict=True))
        for both in (False,) if guided else (False, True):
            used = features if both else features[:, :-1]
            if guided:  # whose views are made alike
                used = used * (torch.arange(used.shape[1]) > 0)
            weights = torch.zeros(1 + used.shape[1], requires_grad=True)
            optimizer = torch.optim.LBFGS([weights], max_iter=200, line_search_fn="strong_wolfe")

            def loss() -> Tensor:
                optimizer.zero_grad()  # noqa: B023
                logit = weights[0] + used @ weights[1:]  # noqa: B023
                value = binary_cross_entropy_with_logits(logit, right)  # noqa: B023
                value.backward()
                return value

            optimizer.step(loss)
            if weights[1] < 0:  # what looks alike is no reason to doubt
                used = used * (torch.arange(used.shape[1]) > 0)
                optimizer.step(loss)
                weights.data[1] = 0
            values = weights.tolist()
            values = (
                values[:3] + (values[3:4] if peak else [0.0]) + (values[-1:] if both else [0.0])
            )
            shown = ", ".join(f"{value:.3f}" for value in values)
            print(f"({peak}, {both}): Coefficients({shown}),")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--data", type=Path, metavar="DIR", help=SOURCE)
    parser.add_argument("--guided", action="store_true", help="networks guided, not alone")
    parser.add_argument("--fit", action="store_true", help="print coefficients instead")
    options, console = start(parser, width=200)
    if options.fit:
        return fit(options.models or list_models("stereo/*", pretrained=True), options.guided)
    groups = {"generated": generated(8, 77)}
    if options.data is not None:
        groups |= {k: v for k, v in pairs(options.data).items() if k != "larger"}
    for name in options.models or list_models("stereo/*", pretrained=True):
        predictor = StereoPredictor(name, "cpu", guided=options.guided)
        columns = ["order", *groups, "mean"]
        shown = table(columns, title=f"{name}: 0 as the truth, 1 at random")
        ranked: dict[str, dict[str, list[float]]] = {}
        said, true = [], []
        for group, members in groups.items():
            for left, right, truth in members:
                disparity, ways = orders(predictor, left, right)
                known = truth > 0
                error = (disparity - truth).abs()[known]
                for way, order in ways.items():
                    cells = ranked.setdefault(way, {}).setdefault(group, [])
                    # Ties would keep the picture's order.
                    mixed = torch.randperm(len(error), generator=torch.Generator().manual_seed(0))
                    cells.append(ause(error[mixed].clamp(max=10), order[known][mixed]))
                if group == "generated":
                    said.append(ways["confidence"][known])
                    true.append(error < 1)
        for way, cells in ranked.items():
            means = [fmean(values) for values in cells.values()]
            shown.add_row(way, *(f"{value:.2f}" for value in (*means, fmean(means))))
        console.print(shown)
        console.print(_reliability(torch.cat(said), torch.cat(true)))


def _reliability(said: Tensor, true: Tensor) -> Table:
    """Tenths of the confidence, and how many of their pixels are right."""
    tenth = (10 * said).long().clamp(0, 9).numpy()
    counts = np.bincount(tenth, minlength=10)
    sums = [np.bincount(tenth, part.numpy(), 10) for part in (said, true.float())]
    columns = [f"{place / 10:.1f} to {(place + 1) / 10:.1f}" for place in range(10)]
    shown = table(["confidence", *columns], title="generated scenes")
    shown.add_row("pixels, %", *(f"{100 * share:.0f}" for share in counts / counts.sum()))
    for label, values in zip(("said", "right within 1 px"), sums, strict=True):
        shares = values / np.maximum(counts, 1)
        shown.add_row(f"{label}, %", *(f"{100 * share:.0f}" for share in shares))
    return shown


if __name__ == "__main__":
    main()
