"""When a choice matters: checking, simplifying, ordering and counting under conditions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .architecture import Scalar, near
from .values import Choice

__all__ = ["Condition", "checked_conditions", "count", "parents_first"]

Condition = Sequence[Mapping[str, Sequence[Scalar]]]
"""Any of these mappings, of a mapping all: another choice's name → the values it may have."""


def checked_conditions(
    choices: Mapping[str, Choice], conditions: Mapping[str, Condition]
) -> dict[str, Condition]:
    """Conditions with the choices' own values, without what goes without saying.

    Raises:
        ValueError: a condition names something unknown, or is not built as it should be.
    """
    checked = {}
    for name, condition in conditions.items():
        if name not in choices:
            raise ValueError(f"a condition is given for {name!r}{near(name, choices)}")
        if not isinstance(condition, (list, tuple)) or not all(
            isinstance(case, Mapping) for case in condition
        ):
            raise ValueError(
                f"the condition of {name!r} has to be a list of mappings, not {condition!r}"
            )
        checked[name] = [
            {other: _values(name, other, values, choices) for other, values in case.items()}
            for case in condition
        ]
    return _simplified(choices, checked)


def parents_first(names: Iterable[str], conditions: Mapping[str, Condition]) -> list[str]:
    """The names, each after those that its condition asks about, else in the given order.

    Raises:
        ValueError: conditions depend on each other in a circle.
    """
    waiting = {
        name: {other for case in conditions.get(name, ()) for other in case} for name in names
    }
    order: dict[str, None] = {}
    while len(order) < len(waiting):
        ready = next((n for n in waiting if n not in order and waiting[n] <= order.keys()), None)
        if ready is None:
            left = ", ".join(repr(n) for n in waiting if n not in order)
            raise ValueError(f"the conditions of these choices depend on each other: {left}")
        order[ready] = None
    return list(order)


def _values(
    name: str, other: str, values: Any, choices: Mapping[str, Choice]
) -> tuple[Scalar, ...]:
    if other not in choices:
        raise ValueError(f"the condition of {name!r} asks about {other!r}{near(other, choices)}")
    if not isinstance(values, (list, tuple)) or not values:
        raise ValueError(
            f"the condition of {name!r} needs a list of values of {other!r}, not {values!r}"
        )
    places = {choices[other].find(value) for value in values}
    if -1 in places:
        raise ValueError(
            f"the condition of {name!r} names values of {other!r} that it does not have: "
            f"{list(values)}; it has {list(choices[other].values)}"
        )
    return tuple(choices[other].values[index] for index in sorted(places))


def _simplified(
    choices: Mapping[str, Choice], conditions: Mapping[str, Condition]
) -> dict[str, Condition]:
    """Drops tests that always hold, and cases that never do or that another case includes."""
    simple: dict[str, Condition] = {}
    for name in parents_first(choices, conditions):
        if name not in conditions:
            continue
        cases = [
            {
                other: values
                for other, values in case.items()
                if other in simple or len(values) < len(choices[other].values)
            }
            for case in conditions[name]
            if all(simple.get(other) != () for other in case)
        ]
        kept: list[Mapping[str, Sequence[Scalar]]] = []
        for case in cases:
            if not any(_includes(other, case) for other in kept):
                kept = [other for other in kept if not _includes(case, other)] + [case]
        if {} not in kept:
            simple[name] = tuple(kept)
    return {name: simple[name] for name in choices if name in simple}


def _includes(wide: Mapping[str, Sequence], narrow: Mapping[str, Sequence]) -> bool:
    return all(
        other in narrow and set(narrow[other]) <= set(values) for other, values in wide.items()
    )


_Cases = frozenset[frozenset[tuple[str, frozenset[Scalar]]]]
_ALWAYS: _Cases = frozenset([frozenset()])


def count(values: Mapping[str, Sequence[Scalar]], conditions: Mapping[str, Condition]) -> int:
    """The number of canonical architectures of choices with these values and conditions.

    Choices are fixed one after the other, neighbours close together. What has been fixed matters by
    what it leaves of later conditions alone, so that there are few states.
    """
    when: dict[str, _Cases] = {
        name: frozenset(frozenset((o, frozenset(v)) for o, v in case.items()) for case in condition)
        for name, condition in conditions.items()
    }
    asked = {
        name: list(dict.fromkeys(o for case in conditions.get(name, ()) for o in case))
        for name in values
    }
    asking: dict[str, list[str]] = {name: [] for name in values}
    for name, others in asked.items():
        for other in others:
            asking[other].append(name)
    states: dict[frozenset[tuple[str, _Cases]], int] = {frozenset(): 1}
    for name in _neighbours_close(asked, asking):
        following: dict[frozenset[tuple[str, _Cases]], int] = {}
        for state, ways in states.items():
            left = dict(state)
            matters = left.pop(name, when.get(name, _ALWAYS))
            for value in values[name] if matters else (None,):
                changed = {n: _left(left.get(n, when[n]), name, value) for n in asking[name]}
                reached = frozenset((left | changed).items())
                following[reached] = following.get(reached, 0) + ways
        states = following
    return sum(states.values())


def _neighbours_close(
    asked: Mapping[str, Sequence[str]], asking: Mapping[str, Sequence[str]]
) -> list[str]:
    """Depth first: after each choice those that ask about it, each after all that it asks about."""
    order: dict[str, None] = {}
    stack = list(asked)
    while stack:
        name = stack.pop()
        if name in order:
            continue
        if missing := [other for other in asked[name] if other not in order]:
            stack += [name, *missing]
        else:
            order[name] = None
            stack += asking[name]
    return list(order)


def _left(cases: _Cases, name: str, value: Scalar | None) -> _Cases:
    """What is left of a condition once a choice has this value."""
    left = frozenset(
        frozenset(test for test in case if test[0] != name)
        for case in cases
        if all(test[0] != name or value in test[1] for test in case)
    )
    return _ALWAYS if frozenset() in left else left
