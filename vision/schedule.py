"""Lengths in shares of a training run, so that the same settings fit few samples and many."""

from __future__ import annotations

from math import inf, isinf
from typing import Any

__all__ = ["run_steps", "steps_of"]


def run_steps(trainer: Any) -> float:
    """The optimiser's steps from the first epoch to the last; infinite where no end is set."""
    steps = trainer.estimated_stepping_batches
    return inf if steps < 0 else steps


def steps_of(length: float, total: float, name: str) -> int:
    """A length in steps: a share of `total` where it is below 1, else the steps themselves.

    Args:
        length: as given by a user.
        total: steps of what it may be a share of.
        name: what the user calls it.

    Raises:
        ValueError: it is a share of what has no end.
    """
    if length >= 1 or not length:
        return int(length)
    if isinf(total):
        raise ValueError(
            f"{name} {length} is a share of the run, which has no end: set trainer.max_epochs or "
            "max_steps"
        )
    return round(length * total)
