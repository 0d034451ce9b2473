"""When a choice matters: checking, simplifying, ordering and counting under conditions."""

from __future__ import annotations

import math
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


# Counting. Choices that no condition ties together multiply. Within what is tied, one choice that
# certainly matters is fixed to each of its values in turn, which unties the rest.
_Case = frozenset[tuple[str, frozenset[Scalar]]]
_Cases = frozenset[_Case]
_ALWAYS: _Cases = frozenset([frozenset()])
_NEVER: _Cases = frozenset()


def count(values: Mapping[str, Sequence[Scalar]], conditions: Mapping[str, Condition]) -> int:
    """The number of canonical architectures of choices with these values and conditions."""
    when = {
        name: frozenset(
            frozenset((other, frozenset(v)) for other, v in case.items())
            for case in conditions[name]
        )
        if name in conditions
        else _ALWAYS
        for name in values
    }
    return _count_parts(when, values, {})


def _count_parts(
    when: Mapping[str, _Cases], values: Mapping[str, Sequence[Scalar]], known: dict
) -> int:
    return math.prod(_count_tied(part, values, known) for part in _untied(when))


def _count_tied(
    when: Mapping[str, _Cases], values: Mapping[str, Sequence[Scalar]], known: dict
) -> int:
    if len(when) == 1:
        ((name, cases),) = when.items()
        return len(values[name]) if cases else 1
    key = frozenset(when.items())
    if key not in known:
        asked = [other for cases in when.values() for case in cases for other, _ in case]
        parent = max((n for n in when if when[n] == _ALWAYS), key=asked.count)
        tests = {v for cases in when.values() for case in cases for o, v in case if o == parent}
        # Values that every condition treats alike leave the same rest.
        alike: dict[frozenset, list[Scalar]] = {}
        for value in values[parent]:
            alike.setdefault(frozenset(t for t in tests if value in t), []).append(value)
        known[key] = sum(
            len(group) * _count_parts(_fixed(when, parent, group[0]), values, known)
            for group in alike.values()
        )
    return known[key]


def _fixed(when: Mapping[str, _Cases], name: str, value: Scalar | None) -> dict[str, _Cases]:
    """The other choices and their conditions once ``name`` has this value (None: none)."""
    left, dead = {}, []
    for other, cases in when.items():
        if other == name:
            continue
        met = [
            frozenset(test for test in case if test[0] != name)
            for case in cases
            if all(test[0] != name or value in test[1] for test in case)
        ]
        left[other] = _ALWAYS if frozenset() in met else frozenset(met)
        if left[other] == _NEVER and cases != _NEVER:
            dead.append(other)
    for other in dead:
        if other in left:
            left = _fixed(left, other, None)
    return left


def _untied(when: Mapping[str, _Cases]) -> list[dict[str, _Cases]]:
    """Groups of choices such that no condition asks across groups."""
    group = {name: name for name in when}

    def root(name: str) -> str:
        while group[name] != name:
            group[name] = name = group[group[name]]
        return name

    for name, cases in when.items():
        for case in cases:
            for other, _ in case:
                group[root(name)] = root(other)
    parts: dict[str, dict[str, _Cases]] = {}
    for name, cases in when.items():
        parts.setdefault(root(name), {})[name] = cases
    return list(parts.values())
