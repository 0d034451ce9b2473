"""Which published networks `nas.convert` makes elastic, and what it finds in them.

python -m benchmarks.conversions [NAME ...] [--json docs/results/conversions.json]

Without names, those of `tests/nas/conversion/test_published.py`; weights are random.
"""

from __future__ import annotations

import random
import runpy
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from benchmarks._machine import arguments, record, start, table
from vizoo import nas

_LIST = Path(__file__).parents[1] / "tests/nas/conversion/test_published.py"
_KINDS = "width", "num_heads", "kernel", "depth"
_COLUMNS = ["network", "widths", "heads", "kernels", "depths", "smallest / largest", "s", "equal"]


def main() -> None:
    parser = arguments(__doc__, threads=1)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--json", metavar="FILE", help="gets the table as a record")
    options, console = start(parser)
    listed = runpy.run_path(str(_LIST))
    rows = []
    for name in options.names or [*listed["CHEAP"], *listed["SLOW"]]:
        rows.append(convert(name, listed))
        console.print(*rows[-1])
    console.print(table(_COLUMNS, rows))
    if options.json:
        record(
            options.json,
            "Which networks convert",
            f"{len(rows)} architectures of timm, torchvision (tv/), its segmentation (seg/), "
            "detection backbones (det/) and video networks, traced with images of 64x64 or of the "
            "size that they need: how many choices of widths, heads, kernels and depths there are, "
            "the smallest subnet's share of the parameters, CPU seconds of the conversion; equal: "
            "the largest subnet gives what the network gives, and the smallest and five random "
            "ones extracted give what the supernet gives, bit for bit.",
            "conversions",
            _COLUMNS,
            rows,
        )


@torch.no_grad()
def convert(published: str, listed: dict[str, Any]) -> list[str]:
    """A row of the table."""
    (net, image), same = listed["opened"](published), listed["same"]
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = nas.convert(net, image)
    seconds = time.process_time() - start
    choices = [choice.rpartition(".")[2] for choice in made.space.names]
    equal = same(made.net(image), net(image))
    rng = random.Random(0)
    smallest = made.space.smallest()
    for architecture in (smallest, *(made.space.sample(rng) for _ in range(5))):
        nas.activate(made.net, architecture)
        equal &= same(made.net(image), nas.extract(made.net, architecture)(image))
    least = sum(x.numel() for x in nas.extract(made.net, smallest).parameters())
    share = least / sum(x.numel() for x in net.parameters())
    counts = [str(choices.count(kind)) for kind in _KINDS]
    return [
        published.partition(":")[0],
        *counts,
        f"{share:.2f}",
        f"{seconds:.1f}",
        "yes" if equal else "no",
    ]


if __name__ == "__main__":
    main()
