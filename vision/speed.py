"""How fast a network runs on this machine, plain and optimised."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from ..common.arguments import checked
from ..common.counts import count, count_parameters
from ..common.energy import joules
from ..common.memory import PeakMemory
from ..common.timing import measure
from ..nas.supernet import architecture_of
from .inference import optimize
from .inputs import example_inputs

__all__ = ["benchmark"]


@checked("net", "dtype", "seconds", height=1, width=1, batch=1)
def benchmark(
    net: nn.Module,
    height: int,
    width: int,
    *,
    batch: int = 1,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    seconds: float = 5.0,
) -> dict[str, Any]:
    """Time a network as it is, and as `inference.optimize` makes it.

    Args:
        net: copied, so that it stays as it is; timed in evaluation mode.
        height: of the images, in pixels.
        width: of the images, in pixels.
        batch: images at once.
        device: to run on.
        dtype: below float32 the plain network runs under autocast.
        seconds: how long to repeat each; at least three repetitions after one that warms up.

    Returns:
        ``model``, ``size`` [height, width], ``batch``, ``device``, ``dtype``, ``threads``,
        ``parameters``, ``macs`` (multiply-adds an image) and ``runs``: of ``plain`` and
        ``optimised`` the times ``median_ms``, ``p10_ms`` and ``p90_ms`` of so many ``repetitions``,
        and ``peak_bytes`` (on a GPU the allocator's; on the CPU the growth of resident memory
        beyond what was held before), ``joules`` of a pass and in ``energy`` what counted them, or
        None and why (see `vizoo.common.energy`).
    """
    device = torch.device(device)
    macs = count(net, *example_inputs(net, height, width, device="meta")).macs
    inputs = example_inputs(net, height, width, batch=batch, device=device)
    net = copy.deepcopy(net).eval().to(device)
    runs = {"plain": _time(net, inputs, dtype, seconds)}
    # The optimised copy casts by itself, so it runs without autocast.
    runs["optimised"] = _time(optimize(net, dtype), inputs, torch.float32, seconds)
    return {
        "model": architecture_of(net).get("name", type(net).__name__),
        "size": [height, width],
        "batch": batch,
        "device": str(device),
        "dtype": str(dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "parameters": count_parameters(net),
        "macs": macs,
        "runs": runs,
    }


def _time(
    net: nn.Module, inputs: tuple[torch.Tensor, ...], dtype: torch.dtype, seconds: float
) -> dict[str, Any]:
    device = inputs[0].device
    autocast = torch.autocast(device.type, dtype, enabled=dtype != torch.float32)
    with autocast, PeakMemory(device) as peak:
        timing = measure(lambda: net(*inputs), device, warmup=1, repetitions=3, seconds=seconds)
    with autocast:
        energy = joules(lambda: net(*inputs), device)
    return {
        "median_ms": timing.median,
        "p10_ms": timing.p10,
        "p90_ms": timing.p90,
        "repetitions": timing.repetitions,
        "peak_bytes": peak.bytes,
        **energy.to_json(),
    }
