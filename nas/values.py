"""Numbers that depend on choices: what an elastic layer takes where torch takes an int.

A `Choice` is a value itself; ``map``, arithmetic and :func:`concat` make
further ones of it, so that a network says each of its choices once:

>>> width = Choice("width", (16, 24, 32))
>>> hidden = width * 4
>>> joined = concat(width, hidden, 1)
>>> maximum(joined), resolve(joined, Architecture({"width": 16}))
(161, 81)

Plain ints pass through every function of this file. It needs no torch.
"""

from __future__ import annotations

import functools
import itertools
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from .architecture import Architecture, Scalar

__all__ = [
    "Central",
    "Choice",
    "Computed",
    "Place",
    "Placed",
    "Selection",
    "Value",
    "choices_of",
    "concat",
    "maximum",
    "resolve",
]
__all__ += ["cases", "joined", "outcomes", "segments"]


class Value(ABC):
    """A number that an architecture fixes. Immutable.

    Arithmetic (``+``, ``-``, ``*``, ``//`` with an int or another value) gives a new value.
    """

    @property
    @abstractmethod
    def choices(self) -> tuple[Choice, ...]:
        """The choices this value depends on, each once."""

    @abstractmethod
    def at(self, values: Mapping[str, Any]) -> Any:
        """The value where the choice of each name has the given value."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Value:
        return self  # nothing in it can change, and a supernet holds thousands

    def map(self, function: Callable[[Any], Any]) -> Computed:
        """What a pure function makes of it, such as ``width.map(lambda w: round_to(w * 6, 8))``."""
        return Computed(function, (self,))

    def __add__(self, other: Value | int) -> Computed:
        return Computed(operator.add, (self, other))

    def __radd__(self, other: int) -> Computed:
        return Computed(operator.add, (other, self))

    def __sub__(self, other: Value | int) -> Computed:
        return Computed(operator.sub, (self, other))

    def __rsub__(self, other: int) -> Computed:
        return Computed(operator.sub, (other, self))

    def __mul__(self, other: Value | int) -> Computed:
        return Computed(operator.mul, (self, other))

    def __rmul__(self, other: int) -> Computed:
        return Computed(operator.mul, (other, self))

    def __floordiv__(self, other: Value | int) -> Computed:
        return Computed(operator.floordiv, (self, other))


@dataclass(frozen=True)
class Choice(Value):
    """A name and the values it can have, the smallest network's first, the largest's last.

    Args:
        name: unique within a space.
        values: at least one; all different; numbers ascending. (Where a larger number makes a
            smaller network, such as a stride, choose a level and map it to the number.)

    Raises:
        ValueError: the name is empty, or the values are not as said.
    """

    name: str
    values: tuple[Scalar, ...]

    def __init__(self, name: str, values: Sequence[Scalar]) -> None:
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise ValueError(f"choice {name!r} needs a list of at least one value, not {values!r}")
        if any(value is None for value in values):
            raise ValueError(f"choice {name!r} cannot have None among its values: it means unused")
        values = tuple(cast("Scalar", Architecture({name: value})[name]) for value in values)
        if len(set(values)) < len(values):
            raise ValueError(f"choice {name!r} has a value twice in {list(values)}")
        if not any(isinstance(v, str) for v in values) and list(values) != sorted(values):
            raise ValueError(
                f"choice {name!r} needs its numbers in ascending order, not {list(values)}"
            )
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "values", values)

    @property
    def largest(self) -> Scalar:
        """The last value."""
        return self.values[-1]

    @property
    def smallest(self) -> Scalar:
        """The first value."""
        return self.values[0]

    @property
    def choices(self) -> tuple[Choice, ...]:
        """Itself alone."""
        return (self,)

    def at(self, values: Mapping[str, Any]) -> Any:
        """The value given to its name."""
        return values[self.name]

    def find(self, value: Any) -> int:
        """The index of ``value``, or −1. True is not 1 here, and 3.0 is 3."""
        for index, own in enumerate(self.values):
            if own == value and isinstance(own, bool) == isinstance(value, bool):
                return index
        return -1


@dataclass(frozen=True)
class Computed(Value):
    """A function of other values; made by ``map`` and arithmetic."""

    function: Callable[..., Any]
    operands: tuple[Value | int, ...]

    @property
    def choices(self) -> tuple[Choice, ...]:
        """Those of all operands, each once."""
        return tuple(dict.fromkeys(c for one in self.operands for c in choices_of(one)))

    def at(self, values: Mapping[str, Any]) -> Any:
        """The function of the operands' values."""
        given = (o.at(values) if isinstance(o, Value) else o for o in self.operands)
        return self.function(*given)


class _Concatenation(Computed):
    """The channels of a concatenation, part by part, and their sum; made by :func:`concat`."""


class Placed(Value):
    """A number of positions of a dimension that says where they lie."""

    @abstractmethod
    def runs(self, values: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
        """Start and length of each run of active positions; all of them where a value is None."""


class Place(NamedTuple):
    """When a position is active: from which value of a choice on; always without a choice."""

    choice: Choice | None = None
    least: Scalar = 0
    channel: int = 0  #: the same at all positions that go together, 0 where there is no choice
    kind: int = 0  #: the same for channels that may change places


@dataclass(frozen=True, eq=False)
class Selection(Placed):
    """Positions anywhere in a dimension, each active from some value of its choice on.

    So the most important channels are kept where they are, in whatever order they lie.
    """

    places: tuple[Place, ...]

    @functools.cached_property
    def choices(self) -> tuple[Choice, ...]:  # type: ignore[override]
        """Those of all positions, each once."""
        return tuple(dict.fromkeys(place.choice for place in self.places if place.choice))

    def at(self, values: Mapping[str, Any]) -> int:
        """How many positions are active."""
        return sum(length for _, length in self.runs(values))

    def runs(self, values: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
        """The active positions, joined where they touch."""
        given = tuple(values.get(choice.name) for choice in self.choices)
        if given not in self._known:
            self._known[given] = joined(
                (start, length)
                for name, least, start, length in self._stretches
                if (value := values.get(name)) is None or value >= least
            )
        return self._known[given]

    @functools.cached_property
    def _known(self) -> dict[tuple[Any, ...], tuple[tuple[int, int], ...]]:
        """Of values of the choices: all tensors of a layer ask for the same."""
        return {}

    @functools.cached_property
    def _stretches(self) -> list[tuple[Any, Scalar, int, int]]:
        """Choice, value, start and length of neighbours that are active together."""
        stretches, start = [], 0
        for (name, least), places in itertools.groupby(self.places, _condition):
            length = len(list(places))
            stretches.append((name, least, start, length))
            start += length
        return stretches


def _condition(place: Place) -> tuple[str | None, Scalar]:
    return place.choice.name if place.choice else None, place.least


@dataclass(frozen=True)
class Central(Placed):
    """The middle of a dimension, as many positions as the choice says: a convolution's kernel."""

    choice: Choice

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The one."""
        return (self.choice,)

    def at(self, values: Mapping[str, Any]) -> Any:
        """How many positions are active."""
        value = values.get(self.choice.name)
        return self.choice.largest if value is None else value

    def runs(self, values: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
        """The one run in the middle."""
        length = self.at(values)
        return (((cast("int", self.choice.largest) - length) // 2, length),)


def concat(*parts: Value | int) -> Value | int:
    """The channels of ``torch.cat`` of tensors with these numbers of channels.

    The parts stay known (:func:`segments`), because the active columns of a weight that reads the
    concatenation are the leading ones of *each* part. Arithmetic on the result forgets them.

    Returns:
        A value, or the plain sum if all parts are ints. Concatenations within it are flattened.
    """
    flat = tuple(itertools.chain.from_iterable(segments(part) for part in parts))
    if all(not isinstance(part, Value) for part in flat):
        return sum(flat)
    return flat[0] if len(flat) == 1 else _Concatenation(_total, flat)


def joined(parts: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Starts and lengths of parts in order, those that touch as one; empty ones are left out."""
    runs: list[tuple[int, int]] = []
    for start, length in parts:
        if runs and sum(runs[-1]) == start:
            runs[-1] = (runs[-1][0], runs[-1][1] + length)
        elif length:
            runs.append((start, length))
    return tuple(runs)


def segments(value: Value | int) -> list[Value | int]:
    """The parts of a concatenation in order; a list of the value itself for any other."""
    return list(value.operands) if isinstance(value, _Concatenation) else [value]


def choices_of(value: Value | int) -> tuple[Choice, ...]:
    """The choices that ``value`` depends on, each once, in order of appearance; () for an int."""
    return value.choices if isinstance(value, Value) else ()


def maximum(value: Value | int) -> int:
    """The largest number that ``value`` can be: how much weight a layer has to hold.

    For a concatenation the sum of its parts' maxima, whether or not they occur together.

    Raises:
        ValueError: the value is not an int for some choice.
    """
    return _largest(value, {})


def outcomes(value: Value) -> tuple[Any, ...]:
    """All that `value` can be, ascending, each once."""
    return tuple(sorted(set(cases(value))))


def cases(value: Value, fixed: Mapping[str, Any] = MappingProxyType({})) -> Iterator[Any]:
    """What `value` is for each combination of its choices' values that are not fixed by name."""
    given = {choice: fixed.get(choice.name) for choice in value.choices}
    options = (choice.values if own is None else (own,) for choice, own in given.items())
    for values in itertools.product(*options):
        yield value.at({choice.name: own for choice, own in zip(given, values, strict=True)})


def resolve(value: Value | int, architecture: Mapping[str, Any]) -> int:
    """The number that ``value`` is under ``architecture``.

    Where a choice does not matter (None in the architecture), the largest number it allows.

    Raises:
        ValueError: the architecture lacks a choice of the value, or the result is not an int.
    """
    for choice in choices_of(value):
        if choice.name not in architecture:
            raise ValueError(f"the architecture has no choice {choice.name!r}")
    return _largest(value, architecture)


def _largest(value: Value | int, fixed: Mapping[str, Any]) -> int:
    if not isinstance(value, Value):
        return value
    if isinstance(value, Placed):
        return value.at(fixed)
    if isinstance(value, Choice):  # whose values ascend
        given = fixed.get(value.name)
        return _integer(value.largest if given is None else given, [value.name])
    if isinstance(value, _Concatenation):
        return sum(_largest(part, fixed) for part in value.operands)
    names = [choice.name for choice in value.choices]
    return max(_integer(number, names) for number in cases(value, fixed))


def _integer(number: Any, names: list[str]) -> int:
    if isinstance(number, bool) or not hasattr(number, "__index__"):
        raise ValueError(
            f"a layer needs an int, and choice {', '.join(map(repr, names))} gives {number!r}: "
            "use .map(function) with a function that returns an int"
        )
    return operator.index(number)


def _total(*parts: int) -> int:
    return sum(parts)
