"""What a step of a differentiable search costs, against training its one path alone.

    python -m benchmarks.dnas [--model covidnet3d_s] [--size 16 48 48] [--device cpu]

A step is draw, forward, loss, backward and the optimiser's step, with hard Gumbel-Softmax; the
extracted network of the same draw does the same without a draw. The forms take turns. Memory is the
peak of tensors within a step beyond what is there between steps.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import torch
from rich.table import Table
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from benchmarks._machine import arguments, in_turns, seconds, start, table
from vizoo.nas import Architecture, activate, extract, search_space
from vizoo.nas.differentiable import GumbelSoftmax, Logits, weighted
from vizoo.nas.supernet import elastic_modules
from vizoo.vision.hub.create import create_model


class Forms:
    """The steps that are compared, all on one draw."""

    def __init__(self, model: str, device: str, size: tuple[int, ...], batch: int) -> None:
        self.net = create_model(model).to(device).train()
        self.logits = Logits(search_space(self.net)).to(device)
        self.elastic = list(elastic_modules(self.net))
        self.x = torch.rand(batch, 1, *size, device=device)
        self.y = torch.randint(2, (batch,), device=device)
        self.weights = torch.optim.Adam(self.net.parameters(), 1e-3)
        self.adam = torch.optim.Adam(self.logits.parameters(), 3e-4)

    def take(self, seed: int) -> Architecture:
        """Extract the path that the seed draws."""
        self.seed = seed
        architecture = self._draw(False).architecture
        activate(self.net, architecture)
        self.plain = extract(self.net, architecture)
        self.plain_adam = torch.optim.Adam(self.plain.parameters(), 1e-3)
        return architecture

    def alone(self) -> None:
        F.cross_entropy(self.plain(self.x), self.y).backward()
        self.plain_adam.step()
        self.plain_adam.zero_grad()

    def weight_step(self) -> None:
        with weighted(self.elastic, self._draw(False)):
            F.cross_entropy(self.net(self.x), self.y).backward()
        self.weights.step()
        self.weights.zero_grad()

    def logit_step(self) -> None:
        self.net.requires_grad_(False)
        with weighted(self.elastic, self._draw(True)):
            F.cross_entropy(self.net(self.x), self.y).backward()
        self.net.requires_grad_(True)
        self.adam.step()
        self.adam.zero_grad()

    def search_step(self) -> None:
        self.logit_step()
        self.weight_step()

    def _draw(self, learn: bool) -> object:
        generator = torch.Generator().manual_seed(self.seed)
        return self.logits.draw(GumbelSoftmax(), generator, learn=learn)


def peak_bytes(step: Callable[[], object], device: str) -> int:
    """The peak of tensors within a step beyond what is there before it."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        step()
    events = [e for e in record.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


def compare(forms: Forms, device: str, draws: int, repeat: int) -> Table:
    """Medians over draws of the ratio to the extracted path."""
    steps = {"weights": forms.weight_step, "logits": forms.logit_step}
    steps["logits and weights"] = forms.search_step
    rows: dict[str, list[tuple[float, ...]]] = {name: [] for name in steps}
    for seed in range(draws):
        forms.take(seed)
        # In the first turn Adam's moments of this path come to be.
        calls = {"alone": forms.alone, **steps}
        times = in_turns(calls, repeat, lambda call: 1e3 * seconds(call, device))
        memory = {name: peak_bytes(step, device) for name, step in steps.items()}
        base = peak_bytes(forms.alone, device)
        for name in steps:
            alone = median(times["alone"]) * (2 if name == "logits and weights" else 1)
            rows[name].append((median(times[name]), alone, memory[name], base))
    columns = ["step", "ms", "alone, ms", "time", "MB", "alone, MB", "memory"]
    title = "a step against one of the extracted path, median over draws (largest)"
    shown = table(columns, title=title)
    for name, found in rows.items():
        time = [row[0] / row[1] for row in found]
        size = [row[2] / row[3] for row in found]
        ms, alone, peak, base = (median(values) for values in zip(*found, strict=True))
        shown.add_row(
            name,
            f"{ms:.0f}",
            f"{alone:.0f}",
            f"{median(time):.2f} ({max(time):.2f})",
            f"{peak / 1e6:.0f}",
            f"{base / 1e6:.0f}",
            f"{median(size):.2f} ({max(size):.2f})",
        )
    return shown


def main() -> None:
    parser = arguments(__doc__, size=(16, 48, 48), batch=2, draws=5, repeat=5, device="cpu")
    parser.add_argument("--model", default="covidnet3d_s", help="a supernet of volumes")
    options, console = start(parser)
    torch.manual_seed(0)
    forms = Forms(options.model, options.device, tuple(options.size), options.batch)
    console.print(compare(forms, options.device, options.draws, options.repeat))


if __name__ == "__main__":
    main()
