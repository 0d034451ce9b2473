"""Every registered network as `vizoo infer` runs it: parameters, multiply-adds and milliseconds.

    python -m benchmarks.models [--models 'stereo/*'] [--json docs/results/models.json]

With `--threads 1`, the default, times are CPU times of the process, which other work on the
machine disturbs less. A supernet runs as its largest network.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median

import torch

from benchmarks._machine import arguments, record, seconds, start, table
from vizoo.common.counts import count, count_parameters
from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.registry import list_models, model_info
from vizoo.vision.inference import optimize
from vizoo.vision.inputs import example_inputs

SIZES = {
    "stereo": (384, 1280),
    "stereo-fusion": (384, 1280),
    "mvs": (512, 640),
    "mvs-fusion": (512, 640),
    "panorama": (512, 1024),
}
SMALL = {"nasbench201", "mbnet"}
VOLUMES = ("covidnet3d", "resnet3d", "densenet3d", "mc3")
COLUMNS = ["model", "input", "parameters, M", "GMAC", "ms"]


def size_of(name: str) -> tuple[int, int]:
    """Height and width at which a model is counted and timed."""
    if name in SMALL:
        return 32, 32
    if name.startswith(VOLUMES):
        return 128, 128
    return SIZES.get(model_info(name).task, (224, 224))


def row(name: str, least: float) -> list[str]:
    """A model's line, of three calls where they end within half a minute, or of `least` seconds."""
    torch.manual_seed(0)
    height, width = size_of(name)
    net = create_model(name).eval()
    macs = count(net, *example_inputs(net, height, width, device="meta")).macs
    inputs = example_inputs(net, height, width)
    fast = optimize(net)
    times: list[float] = []
    with torch.inference_mode():
        fast(*inputs)
        while sum(times) < least or len(times) < 3 and sum(times) < 30:
            times.append(seconds(lambda: fast(*inputs)))
    shape = inputs[0].shape
    several = f"{shape[1]} views of " if model_info(name).task == "mvs" else ""
    several = f"{shape[2]} slices of " if name.startswith(VOLUMES) else several
    return [
        f"`{name}`",
        f"{several}{height}x{width}",
        f"{count_parameters(net) / 1e6:.1f}",
        f"{macs / 1e9:.3g}" if macs < 1e10 else f"{macs / 1e9:.0f}",
        f"{1e3 * median(times):.0f}",
    ]


def main() -> None:
    parser = arguments(__doc__, threads=1)
    parser.add_argument("--models", default="*", help="pattern, as `vizoo models` takes")
    parser.add_argument("--seconds", type=float, default=2.0, help="to measure each, at least")
    parser.add_argument("--json", type=Path, help="write the table with where it comes from")
    options, console = start(parser)
    names = sorted(list_models(options.models), key=lambda name: (model_info(name).task, name))
    rows = [row(name, options.seconds) for name in names]
    console.print(table(COLUMNS, rows, left=2))
    if options.json:
        record(
            options.json,
            "Every model, what it costs",
            "Batch 1, float32, the path that `vizoo infer` takes; a supernet as its largest "
            "network. Milliseconds are the median of the calls"
            + (", in CPU time of one thread." if options.threads == 1 else "."),
            f"models --threads {options.threads}",
            COLUMNS,
            rows,
        )


if __name__ == "__main__":
    main()
