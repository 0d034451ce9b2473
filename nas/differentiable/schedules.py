"""Temperatures of a search: high at first, when all candidates shall be tried alike."""

from __future__ import annotations

from abc import ABC, abstractmethod

__all__ = ["Constant", "Exponential", "Linear", "Schedule"]


class Schedule(ABC):
    """A positive number that depends on the epoch."""

    @abstractmethod
    def at(self, epoch: int, epochs: int | None) -> float:
        """The value in an epoch, counted from 0, of so many; None where their number is open."""


class Constant(Schedule):
    """The same throughout.

    Args:
        value: above 0.
    """

    def __init__(self, value: float = 1.0) -> None:
        _positive(value=value)
        self.value = value

    def at(self, epoch: int, epochs: int | None) -> float:
        """The same in every epoch."""
        return self.value


class Linear(Schedule):
    """From `start` to `end` along a straight line; GDAS takes 10 to 0.1.

    Args:
        start: in the first epoch.
        end: in the last one.

    Raises:
        ValueError: a value is not positive; in `at` also where the number of epochs is open.
    """

    def __init__(self, start: float = 10.0, end: float = 0.1) -> None:
        _positive(start=start, end=end)
        self.start, self.end = start, end

    def at(self, epoch: int, epochs: int | None) -> float:
        """From `start` to `end`, a straight line over all epochs."""
        if epochs is None:
            raise ValueError(
                "a linear temperature needs an end: set trainer.max_epochs; where epochs have an "
                "end, max_steps will do"
            )
        return self.start + (self.end - self.start) * min(1.0, epoch / max(1, epochs - 1))


class Exponential(Schedule):
    """`start` times `factor` for every epoch; FBNet takes 5 and 0.956.

    Args:
        start: in the first epoch.
        factor: from epoch to epoch.
    """

    def __init__(self, start: float = 5.0, factor: float = 0.956) -> None:
        _positive(start=start, factor=factor)
        self.start, self.factor = start, factor

    def at(self, epoch: int, epochs: int | None) -> float:
        """`start` times `factor` for each epoch that has passed."""
        return self.start * self.factor**epoch


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"a temperature's {name} has to be positive, not {value}")
