"""A training step of FADNet on the CPU against the published wiring, with peak memory.

    python -m benchmarks.stereo_training [--variants tiny micro …]

Each form runs in a process of its own, so that the peak is its own; the forms take turns. A step
is forward, loss of all scales, backward and Adam. `vizoo fit` is channels-last and keeps the memory
it has freed (`common/memory.py`).
"""

from __future__ import annotations

from statistics import median

import torch

from benchmarks._machine import (
    apart,
    arguments,
    peak_megabytes,
    seconds,
    start,
    table,
    times_as_fast,
)
from benchmarks._published import published
from vizoo.common.memory import keep_freed_memory
from vizoo.stereo.losses import multiscale_loss
from vizoo.vision.hub.create import create_model

FORMS = ("published", "channels-last", "vizoo fit", "vizoo fit, bfloat16")
SCALE_WEIGHTS = (0.32, 0.16, 0.08, 0.04, 0.02, 0.01, 0.005)


def run(name: str, form: str, batch: int, height: int, width: int, steps: int) -> dict:
    """Seconds of each step and the peak memory of this process in MB."""
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
    parser = arguments(__doc__, batch=4, size=(320, 640))
    parser.add_argument("--variants", nargs="*", default=["micro", "tiny", "slight", "mobile"])
    parser.add_argument("--rounds", type=int, default=2, help="processes per form")
    parser.add_argument("--steps", type=int, default=3, help="steps per process")
    options, console = start(parser)
    size = "x".join(map(str, options.size))
    columns = ["variant", "form", "s / step", "times as fast", "peak MB", "first loss"]
    shown = table(columns, title=f"FADNet, training step, batch {options.batch}, {size}", left=2)
    for variant in options.variants:
        name = variant if variant == "fadnet" else f"fadnet_plus_{variant}"
        times = {form: [] for form in FORMS}
        last = {}
        for _ in range(options.rounds):
            for form in FORMS:
                last[form] = apart(run, name, form, options.batch, *options.size, options.steps)
                times[form] += last[form]["times"]
        for form in FORMS:
            shown.add_row(
                variant if form == FORMS[0] else "",
                form,
                f"{median(times[form]):.2f}",
                f"{times_as_fast(times[FORMS[0]], times[form]):.2f}",
                f"{last[form]['peak']:.0f}",
                f"{last[form]['loss']:.4f}",
            )
    console.print(shown)


if __name__ == "__main__":
    main()
