"""The states of the global generators, so that what draws from them goes on where it stopped."""

from __future__ import annotations

import random
from typing import Any, cast

import numpy as np
import torch

__all__ = ["random_state", "set_random_state"]


def random_state() -> dict[str, Any]:
    """The states of the global generators of Python, NumPy and PyTorch, on all its devices."""
    name, numbers, *rest = cast("tuple[Any, ...]", np.random.get_state())
    return {
        "python": random.getstate(),
        "numpy": [name, numbers.tolist(), *rest],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Go on with the states that `random_state` gave; on GPUs where there are as many as then."""
    random.setstate(state["python"])
    name, numbers, *rest = state["numpy"]
    np.random.set_state((name, np.array(numbers, dtype=np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
