"""A training step of FADNet on the CPU against the published wiring, with peak memory.

    python -m benchmarks.stereo_training [--variants tiny micro …]

Each form runs in a process of its own, so that the peak is its own; the forms take turns. A step
is forward, loss of all scales, backward and Adam. `vizoo fit` is channels-last and keeps the memory
it has freed (`common/memory.py`).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from statistics import median

import torch
from rich.console import Console
from rich.table import Table

from benchmarks._machine import machine, peak_megabytes, seconds

FORMS = ("published", "channels-last", "vizoo fit", "vizoo fit, bfloat16")
SCALE_WEIGHTS = (0.32, 0.16, 0.08, 0.04, 0.02, 0.01, 0.005)


def run(name: str, form: str, batch: int, height: int, width: int, steps: int) -> dict:
    """Seconds of each step and the peak memory of this process in MB."""
    from benchmarks._published import published
    from vizoo.common.memory import keep_freed_memory
    from vizoo.stereo.losses import multiscale_loss
    from vizoo.vision.hub.create import create_model

    torch.manual_seed(0)
    if "fit" in form:
        keep_freed_memory()
    net = create_model(name).train()
    if form == "published":
        net = published(net)
    else:
        net.to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(net.parameters(), 1e-4)
    left, right = torch.rand(2, batch, 3, height, width)
    disparity = 50 * torch.rand(batch, 1, height, width) + 1
    losses = []

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled="bfloat16" in form):
            stages = net.forward_stages(left, right)
        loss = multiscale_loss(stages, disparity, disparity > 0, SCALE_WEIGHTS)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    step()
    return {
        "times": [seconds(step) for _ in range(steps)],
        "peak": peak_megabytes(),
        "loss": losses[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = ["micro", "tiny", "slight", "mobile"]
    parser.add_argument("--variants", nargs="*", default=default)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2, help="processes per form")
    parser.add_argument("--steps", type=int, default=3, help="steps per process")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--size", type=int, nargs=2, default=(320, 640), metavar=("H", "W"))
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.run:
        result = run(*options.run, options.batch, *options.size, options.steps)
        print(json.dumps(result))
        return
    console = Console(width=120)
    console.print(machine())
    size = "x".join(map(str, options.size))
    table = Table(title=f"FADNet, training step, batch {options.batch}, {size}")
    columns = ("variant", "form", "s / step", "times as fast", "peak MB", "first loss")
    for column in columns:
        table.add_column(column, justify="left" if column in columns[:2] else "right")
    for variant in options.variants:
        name = variant if variant == "fadnet" else f"fadnet_plus_{variant}"
        times = {form: [] for form in FORMS}
        last = {}
        for _ in range(options.rounds):
            for form in FORMS:
                command = [sys.executable, "-m", "benchmarks.stereo_training", "--run", name, form]
                command += ["--threads", options.threads, "--batch", options.batch]
                command += ["--size", *options.size, "--steps", options.steps]
                done = subprocess.run(
                    list(map(str, command)), capture_output=True, text=True, check=True
                )
                last[form] = json.loads(done.stdout.splitlines()[-1])
                times[form] += last[form]["times"]
        for form in FORMS:
            pairs = zip(times[FORMS[0]], times[form], strict=True)
            table.add_row(
                variant if form == FORMS[0] else "",
                form,
                f"{median(times[form]):.2f}",
                f"{median(a / b for a, b in pairs):.2f}",
                f"{last[form]['peak']:.0f}",
                f"{last[form]['loss']:.4f}",
            )
    console.print(table)


if __name__ == "__main__":
    main()
