"""Which device to compute on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["choose_device"]


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
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {name!r} cannot be used here: {reason}") from error
    return device
