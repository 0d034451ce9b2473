"""Which device to compute on, and in which type."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from .system import bfloat16_instructions

if TYPE_CHECKING:
    import torch

__all__ = ["DTYPES", "choose_device", "choose_dtype"]

DTYPES = ("float32", "bfloat16", "float16")  #: names of the types that a network can predict in


def choose_device(name: str) -> torch.device:
    """Return a device that works here.

    Args:
        name: ``cpu``, ``cuda``, ``cuda:1`` …, or ``auto``: a GPU if there is one.

    Raises:
        ValueError: there is no such device, or it cannot be used.
    """
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device).cpu()  # of `meta` nothing can be copied
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {name!r} cannot be used here: {reason}") from error
    return device


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return a type that a network can predict in on a device.

    Warns (``UserWarning``) of bfloat16 on a CPU without instructions for it.

    Raises:
        ValueError: there is no such type, or it is float16 and the device the CPU.
    """
    import torch

    if name not in DTYPES:
        raise ValueError(f"dtype {name!r} is not one of {', '.join(DTYPES)}")
    if name == "float16" and device.type == "cpu":
        raise ValueError("float16 needs a GPU; on the CPU use float32 or bfloat16")
    if name == "bfloat16" and device.type == "cpu" and bfloat16_instructions() == []:
        warnings.warn(
            "this CPU computes bfloat16 without hardware for it: float32 may be several times as "
            "fast",
            stacklevel=2,
        )
    return getattr(torch, name)
