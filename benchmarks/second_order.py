"""What a step preconditioned by Eva or K-FAC costs, beside one of plain SGD.

python -m benchmarks.second_order [--model fadnet_plus_tiny] [--size 64 128] [--steps 40]

K-FAC looks at the curvature in every tenth step and decomposes it in every twentieth, so means say
what training costs; the dearest step is the one that decomposes. One process, on this machine.
"""

from __future__ import annotations

import time
from statistics import mean, median

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from vizoo import create_model
from vizoo.nas.distributed import Eva, KFACPreconditioner

from ._machine import arguments, start, table, trainer

EVERY = {"factor_every": 10, "inverse_every": 20}
WAYS = {
    "SGD": list,
    "Eva": lambda: [Eva()],
    "K-FAC, eigen": lambda: [KFACPreconditioner("eigen", **EVERY)],
    "K-FAC, inverse": lambda: [KFACPreconditioner("inverse", **EVERY)],
}
_WARMUP = 20  # as many as from one decomposition to the next


class Shifts(LightningModule):
    """Disparity of textures that are shifted."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        left, right, truth = batch
        return F.smooth_l1_loss(self.net(left, right), truth)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.net.parameters(), 1e-3, momentum=0.9)


class StepTimes(Callback):
    """Seconds of each step, without the loading of its batch."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_train_batch_start(self, *_: object) -> None:
        self._start = time.perf_counter()

    def on_train_batch_end(self, *_: object) -> None:
        self.seconds.append(time.perf_counter() - self._start)


def measure(model: str, size: tuple[int, int], steps: int, way: str) -> list[float]:
    """Seconds of steps."""
    torch.manual_seed(0)
    task, times = Shifts(create_model(model)), StepTimes()
    left = torch.rand(8, 3, *size)
    data = TensorDataset(left, left.roll(-4, -1), torch.full((8, 1, *size), 4.0))
    made = trainer(max_steps=_WARMUP + steps, max_epochs=-1, callbacks=[*WAYS[way](), times])
    made.fit(task, DataLoader(data, 2))
    return times.seconds[_WARMUP:]


def main() -> None:
    parser = arguments(__doc__, threads=1, model="fadnet_plus_tiny", size=(64, 128))
    parser.add_argument("--steps", type=int, default=40, help="to measure (default 40)")
    options, console = start(parser)
    found = {way: measure(options.model, options.size, options.steps, way) for way in WAYS}
    shown = table(["", "mean ms", "median ms", "dearest ms", "times SGD's mean"])
    for way, seconds in found.items():
        times = (1e3 * value for value in (mean(seconds), median(seconds), max(seconds)))
        ratio = mean(seconds) / mean(found["SGD"])
        shown.add_row(way, *(f"{value:.0f}" for value in times), f"{ratio:.2f}")
    console.print(f"{options.model}, batch 2, {options.size[0]}x{options.size[1]}")
    console.print(shown)


if __name__ == "__main__":
    main()
