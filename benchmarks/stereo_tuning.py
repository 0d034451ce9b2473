"""Tuning without truth, measured: half of the pairs as images alone, the other half with truth.

    python -m benchmarks.stereo_tuning --data DIR [MODEL ...] [--minutes M] [--out FILE]

The data folder is that of `benchmarks.stereo_transfer`, of whose `pairs` those of ETH3D and
Middlebury are taken. Scenes by name are in turn one's and the other's, all sizes of a scene
together. Pairs are matched as `vizoo infer stereo` does.
"""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks._machine import arguments, start, table
from benchmarks.stereo_transfer import SOURCE, Pair, named_pairs, scores
from vizoo.common.files import write_json
from vizoo.common.progress import progress
from vizoo.stereo.infer import StereoPredictor
from vizoo.stereo.tuning import tune
from vizoo.vision.hub.create import load_network

_SETS = ("eth3d", "mb")


def halves(folder: Path) -> tuple[dict[str, list[Pair]], dict[str, list[Pair]]]:
    """Pairs to tune on and pairs to measure on, by set."""
    known = {name: pair for name, pair in named_pairs(folder).items() if name.startswith(_SETS)}
    scenes = sorted({_scene(name) for name in known})
    parts: tuple[dict, dict] = {}, {}
    for name, pair in known.items():
        group = "ETH3D" if name.startswith("eth3d") else "Middlebury"
        parts[scenes.index(_scene(name)) % 2].setdefault(group, []).append(pair)
    return parts


def _scene(name: str) -> str:
    return name if name.startswith("eth3d") else "_".join(name.split("_")[:2])


def cells(network: torch.nn.Module, *parts: dict[str, list[Pair]]) -> list[str]:
    """EPE, bad-1 and bad-2 of every group of every part."""
    predictor = StereoPredictor(network, device="cpu")

    def method(*views: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(predictor(*views, check=False).disparity)

    found = [scores(method, group) for part in parts for group in part.values()]
    return [f"{s['epe']:.2f} / {100 * s['bad1']:.1f} / {100 * s['bad2']:.1f}" for s in found]


def main() -> None:
    parser = arguments(__doc__, threads=1, minutes=10.0, lr=1e-4, seed=0)
    parser.add_argument("models", nargs="*", metavar="MODEL", default=["easnet_small"])
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help=SOURCE)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--out", type=Path, metavar="FILE", help="report.json of the last one")
    options, console = start(parser, width=200)
    tuned_on, others = halves(options.data)
    views = [pair[:2] for group in tuned_on.values() for pair in group]
    columns = [
        f"{name}, {word} ({len(group)})"
        for part, word in ((tuned_on, "tuned on"), (others, "other"))
        for name, group in part.items()
    ]
    shown = table(["weights", *columns], title="EPE / bad-1 / bad-2 in %")
    settings = {name: getattr(options, name) for name in ("minutes", "steps", "lr", "seed")}
    for model in options.models:
        shown.add_row(model, *cells(load_network(model, "stereo"), tuned_on, others))
        with progress() as tell:
            found = tune(model, views, device="cpu", report=tell, **settings)
        if found.improved:
            shown.add_row("tuned", *cells(found.network, tuned_on, others))
        shown.add_row(f"{found.verdict} ({found.steps} steps, {found.seconds:.0f} s)")
        if options.out is not None:
            write_json(options.out, found.to_json())
    console.print(shown)


if __name__ == "__main__":
    main()
