"""What benchmarks share: how they start, measure, and show where figures come from."""

from __future__ import annotations

import argparse
import datetime
import multiprocessing
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from vizoo.common.files import write_json
from vizoo.common.memory import held_memory
from vizoo.common.timing import milliseconds
from vizoo.nas.efficiency.provenance import device_name


def arguments(doc: str, threads: int = 2, **defaults: Any) -> argparse.ArgumentParser:
    """A parser of a benchmark's options, described by the first line of its docstring.

    Each option is of its default's type; a tuple is a size, such as height and width.
    """
    made = argparse.ArgumentParser(description=doc.splitlines()[0])
    for name, default in {"threads": threads, **defaults}.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(default, tuple):
            sides = tuple("DHW"[-len(default) :])
            made.add_argument(option, type=int, nargs=len(sides), default=default, metavar=sides)
        else:
            made.add_argument(option, type=type(default), default=default)
    return made


def start(parser: argparse.ArgumentParser, width: int = 120) -> tuple[Any, Console]:
    """The options, their threads set, and a console that has told what the machine is."""
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    console = Console(width=width)
    console.print(machine())
    return options, console


def machine() -> str:
    """CPU, threads and PyTorch version in one line."""
    return f"{device_name('cpu')}, {torch.get_num_threads()} threads, torch {torch.__version__}"


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]] = (),
    title: str | None = None,
    left: int = 1,
) -> Table:
    """A table of figures: the first `left` columns stand left, the others right."""
    made = Table(title=title)
    for place, column in enumerate(columns):
        made.add_column(column, justify="left" if place < left else "right")
    for row in rows:
        made.add_row(*row)
    return made


def record(
    path: str | os.PathLike,
    title: str,
    about: str,
    command: str,
    columns: Sequence[str],
    rows: list[list[str]],
) -> None:
    """Write a table with where it comes from, as `docs/results` keeps them."""
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    )
    content = {
        "title": title,
        "about": about,
        "command": f"python -m benchmarks.{command}",
        "machine": machine(),
        "commit": done.stdout.strip(),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "columns": columns,
        "rows": rows,
        "quoted": [],
    }
    write_json(path, content)


def seconds(function: Callable[[], object], device: torch.device | str = "cpu") -> float:
    """Time of one call: wall time, or with one thread of a CPU the CPU time of the process."""
    if torch.device(device).type != "cpu" or torch.get_num_threads() > 1:
        return milliseconds(function, device) / 1e3
    begun = time.process_time()
    function()
    return time.process_time() - begun


def in_turns(
    calls: dict, repeat: int, clock: Callable[[Callable], Any] = seconds, warmup: int = 1
) -> dict:
    """What the clock says of each call in `repeat` turns, after those that warm up."""
    times: dict[Any, list] = {name: [] for name in calls}
    for _ in range(warmup + repeat):
        for name, call in calls.items():
            times[name].append(clock(call))
    return {name: taken[warmup:] for name, taken in times.items()}


@torch.inference_mode()
def measured(networks: dict[str, Callable], inputs: Sequence, repeat: int) -> dict[str, tuple]:
    """Of each network its times in turns, in seconds, and its output."""
    outputs = {}

    def call(name: str) -> None:
        outputs[name] = networks[name](*inputs)

    times = in_turns({name: partial(call, name) for name in networks}, repeat)
    return {name: (times[name], outputs[name]) for name in networks}


def times_as_fast(slow: Sequence[float], fast: Sequence[float]) -> float:
    """The median over the turns."""
    return median(a / b for a, b in zip(slow, fast, strict=True))


def trainer(**settings: Any) -> Any:
    """Lightning's, on the CPU, which writes and shows nothing."""
    from lightning.pytorch import Trainer  # would be part of others' memory

    silent = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    return Trainer(accelerator="cpu", **dict.fromkeys(silent, False), **settings)


def settled(net: nn.Module) -> nn.Module:
    """Batch norms that do something, as after training."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 2)
    return net.eval()


def apart(function: Callable, *arguments: object) -> Any:
    """Call in a process of its own: memory that another run has freed would hide a peak."""
    context, threads = multiprocessing.get_context("spawn"), torch.get_num_threads()
    with context.Pool(1, torch.set_num_threads, (threads,)) as pool:
        return pool.apply(function, arguments)


def gemm_rate(dtype: torch.dtype = torch.float32) -> float:
    """Multiply-adds per second of a large matrix product, best of ten."""
    a = torch.rand(1536, 1536).to(dtype)
    return len(a) ** 3 / min(seconds(lambda: a @ a) for _ in range(10))


def copy_rate() -> float:
    """Bytes read and written per second when a large tensor is copied, best of ten."""
    a = torch.rand(1 << 24)
    b = torch.empty_like(a)
    return 8 * a.numel() / min(seconds(lambda: b.copy_(a)) for _ in range(10))


def peak_megabytes() -> float:
    """The largest resident memory this process has had; 0 outside Linux."""
    return held_memory(most=True) / (1 << 20)
