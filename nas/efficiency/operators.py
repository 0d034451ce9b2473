"""Latency as the sum of a network's operators, each measured alone.

The sum knows no fusion and no cache that is still warm, so it is off by a factor and an offset
that measured networks tell (`line`). In return a new network needs no measurement as long as its
operators are known, and the entries say what a layer costs.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ...common.counts import Operator, follow, on_meta
from ...common.layers import CHANNELS_LAST, channels_last
from ...common.timing import measure

__all__ = ["add_operators", "line", "operators_of"]

_SECONDS = 0.01  # that each operator is measured, at least


def line(sums: ArrayLike, measured: ArrayLike) -> Callable[[float], float]:
    """The line with the least squared relative error; without offset for a single point.

    Its values are never below zero.
    """
    x, y = np.asarray(sums, float), np.asarray(measured, float)
    columns = np.stack([x, np.ones_like(x)] if np.ptp(x) else [x], axis=1)
    answer = np.linalg.lstsq(columns / y[:, None], np.ones_like(y), rcond=None)[0].tolist()
    scale, offset = answer if len(answer) > 1 else (*answer, 0.0)
    return lambda value: max(0.0, scale * value + offset)


def operators_of(net: nn.Module, inputs: Sequence[Tensor]) -> tuple[list[Operator], int]:
    """The operators of a network in channels-last memory that inference leaves; and its memory.

    Batch norms are left out, since inference folds them into convolutions.
    """
    net = channels_last(on_meta(net))
    operators, memory = follow(net, *(_channels_last(tensor.to("meta")) for tensor in inputs))
    return [operator for operator in operators if "batch_norm" not in operator.key], memory


def add_operators(
    entries: MutableMapping[str, float | None],
    operators: Sequence[Operator],
    device: torch.device | str,
    dtype: torch.dtype,
) -> None:
    """Measure those operators, of any number of networks, that have no entry yet.

    Entries are median milliseconds, or None for what cannot run alone. An operator without the
    type runs in float32.
    """
    missing = {op.key: op for op in operators if op.key not in entries}
    for key, operator in missing.items():
        median = None
        for kind in dict.fromkeys((dtype, torch.float32)):
            try:
                call = _call(operator, device, kind)
                timing = measure(call, device, warmup=2, repetitions=5, seconds=_SECONDS)
            except (RuntimeError, NotImplementedError, IndexError):
                continue  # no kernel of this type, or one that wants more than random values
            median = round(timing.median, 5)
            break
        entries[key] = median  # last, so that what is interrupted has none and is measured again


def _call(operator: Operator, device: torch.device | str, dtype: torch.dtype) -> Callable[[], Any]:
    def real(value: Any) -> Any:
        if isinstance(value, Tensor):
            kind = dtype if value.is_floating_point() else value.dtype
            tensor = torch.empty_strided(value.shape, value.stride(), dtype=kind, device=device)
            return tensor.uniform_() if kind.is_floating_point else tensor.zero_()
        if isinstance(value, torch.device):
            return torch.device(device)
        return value

    args, kwargs = tree_map(real, (operator.args, operator.kwargs))
    return lambda: operator.function(*args, **kwargs)


def _channels_last(tensor: Tensor) -> Tensor:
    """An input without values, with the strides of that memory even where it has one channel."""
    layout = CHANNELS_LAST.get(tensor.dim())
    return tensor if layout is None else torch.empty_like(tensor, memory_format=layout)
