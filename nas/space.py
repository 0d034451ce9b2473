"""Search spaces: the choices of a network in order, and what can be done with them.

Pure Python, without torch: whatever trains, measures or searches supernets speaks these words.

>>> depth = Choice("depth", (1, 2))
>>> kernels = [Choice(f"kernel{i}", (3, 5, 7)) for i in range(2)]
>>> space = SearchSpace([depth, *kernels], {"kernel1": [{"depth": (2,)}]})
>>> space.count()
12
>>> space.smallest()
Architecture({'depth': 1, 'kernel0': 3, 'kernel1': None})
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any

from ..common.files import check_version, shortened
from .architecture import Architecture, Scalar, json_digest, near
from .conditions import Condition, checked_conditions, count, parents_first
from .values import Choice

__all__ = ["Architecture", "Choice", "Condition", "SearchSpace"]

_VERSION = 1


class SearchSpace:
    """The choices of a network, in order, and when each of them matters.

    Every architecture it gives is canonical: choices that do not matter are None, so that two
    architectures are the same network exactly if they are equal.

    Args:
        choices: with different names.
        conditions: name of a choice → when it matters: any of these mappings from another
            choice's name to those of its values under which this one matters (all of a mapping's
            entries have to hold; a choice that does not matter itself has no value). A choice
            without condition always matters; one with an empty list never.

    Raises:
        ValueError: a name occurs twice, or a condition names something unknown or depends on
            itself.
    """

    def __init__(
        self, choices: Iterable[Choice], conditions: Mapping[str, Condition] | None = None
    ) -> None:
        self._choices: dict[str, Choice] = {}
        for choice in choices:
            if self._choices.setdefault(choice.name, choice) is not choice:
                raise ValueError(f"two choices have the name {choice.name!r}")
        self._conditions = checked_conditions(self._choices, conditions or {})
        self._order = [self._choices[n] for n in parents_first(self._choices, self._conditions)]
        self._plan = [
            (choice, tuple(tuple(c.items()) for c in self._conditions.get(choice.name, ({},))))
            for choice in self._order
        ]

    @property
    def choices(self) -> Mapping[str, Choice]:
        """Name → choice, in order."""
        return MappingProxyType(self._choices)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the choices, in order."""
        return tuple(self._choices)

    @property
    def conditions(self) -> Mapping[str, Condition]:
        """Name → when it matters, simplified; choices that always matter are left out."""
        return MappingProxyType(self._conditions)

    def __iter__(self) -> Iterator[Choice]:
        return iter(self._choices.values())

    def __len__(self) -> int:
        """The number of choices."""
        return len(self._choices)

    def __bool__(self) -> bool:
        return True

    def __contains__(self, architecture: object) -> bool:
        """Whether it is a canonical architecture of this space."""
        if not isinstance(architecture, Architecture):
            return False
        try:
            return self.validate(architecture) == architecture
        except ValueError:
            return False

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SearchSpace):
            return NotImplemented
        return self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        count = self.count()
        shown = f"{count:,}" if count < 10**6 else f"10^{math.log10(count):.1f}"
        return f"SearchSpace({len(self)} choices, {shown} architectures)"

    def build(self, pick: Callable[[Choice], Scalar]) -> Architecture:
        """The canonical architecture whose values ``pick`` gives, unchecked.

        It is asked only for choices that matter, after those that their conditions ask about.
        """
        values: dict[str, Scalar | None] = dict.fromkeys(self._choices)
        for choice, cases in self._plan:
            for case in cases:
                for other, allowed in case:
                    if values[other] not in allowed:
                        break
                else:
                    values[choice.name] = pick(choice)
                    break
        return Architecture._made(values, self)

    def sample(self, rng: random.Random) -> Architecture:
        """Every choice that matters drawn uniformly and independently."""
        return self.build(lambda choice: rng.choice(choice.values))

    def largest(self) -> Architecture:
        """Every choice that matters at its last value."""
        return self.build(lambda choice: choice.largest)

    def smallest(self) -> Architecture:
        """Every choice that matters at its first value."""
        return self.build(lambda choice: choice.smallest)

    def count(self) -> int:
        """The number of architectures, exact, without listing them."""
        return count({c.name: c.values for c in self}, self._conditions)

    def enumerate(self) -> Iterator[Architecture]:
        """All architectures, each once, the smallest first; ask :meth:`count` before."""
        current = self.smallest()
        smallest = {choice.name: choice.smallest for choice in self}
        while True:
            yield current
            for place in reversed(range(len(self._order))):
                turned = self._order[place]
                index = turned.find(current[turned.name])
                if 0 <= index < len(turned.values) - 1:
                    break
            else:
                return
            earlier = (c.name for c in self._order[:place])
            kept = {name: v for name in earlier if (v := current[name]) is not None}
            kept[turned.name] = turned.values[index + 1]
            current = self.build(_picking(smallest | kept))

    def validate(self, architecture: Mapping[str, Scalar | None]) -> Architecture:
        """Check an architecture and bring it into canonical form: what does not matter is None.

        Args:
            architecture: name → value; choices that do not matter may be missing, None, or have
                any of their values.

        Returns:
            The canonical architecture, in this space's order.

        Raises:
            ValueError: one line with the choice, the value and what is allowed.
        """
        if isinstance(architecture, Architecture) and architecture._space is self:
            return architecture
        if not isinstance(architecture, Mapping):
            raise ValueError(
                f"{shortened(architecture)} is no architecture: give a value for each choice, "
                "such as search_space(net).smallest()"
            )
        values = {}
        for name, value in architecture.items():
            choice = self._choices.get(name)
            if choice is None:
                raise ValueError(
                    f"there is no choice {name!r} in this space{near(name, self.names)}"
                )
            if value is not None:
                index = choice.find(value)
                if index < 0:
                    raise ValueError(
                        f"choice {name!r} cannot be {value!r}; allowed: {_listed(choice.values)}"
                    )
                values[name] = choice.values[index]

        def given(choice: Choice) -> Scalar:
            if choice.name in values:
                return values[choice.name]
            state = "is None" if choice.name in architecture else "is missing"
            raise ValueError(
                f"choice {choice.name!r} {state}, and it matters in this architecture; "
                f"allowed: {_listed(choice.values)}"
            )

        return self.build(given)

    def mutate(
        self, architecture: Architecture, rng: random.Random, probability: float = 0.1
    ) -> Architecture:
        """Another architecture near this one, unless the space holds only one.

        Each choice that matters is changed with ``probability``, and if none was, one of them;
        choices that come to matter are drawn uniformly.
        """
        if not 0 <= probability <= 1:
            raise ValueError(f"the probability of a mutation is between 0 and 1, not {probability}")
        old = self.validate(architecture)
        mutable = [c.name for c in self if old[c.name] is not None and len(c.values) > 1]
        chosen = {name for name in mutable if rng.random() < probability}
        if not chosen and mutable:
            chosen = {rng.choice(mutable)}

        def pick(choice: Choice) -> Scalar:
            value = old[choice.name]
            if value is None:
                return rng.choice(choice.values)
            if choice.name not in chosen:
                return value
            return rng.choice([other for other in choice.values if other != value])

        return self.build(pick)

    def crossover(self, a: Architecture, b: Architecture, rng: random.Random) -> Architecture:
        """Each choice from either parent with equal chance.

        From the one where it matters if it matters in one, and drawn if in neither.
        """
        a, b = self.validate(a), self.validate(b)

        def pick(choice: Choice) -> Scalar:
            values = [v for p in (a, b) if (v := p[choice.name]) is not None]
            return rng.choice(values or choice.values)

        return self.build(pick)

    def neighbours(self, architecture: Architecture, name: str | None = None) -> list[Architecture]:
        """All architectures that differ in one choice; what comes to matter by it is largest.

        With a choice's name those that differ in that one.
        """
        old = self.validate(architecture)
        used = {name: value for name, value in old.items() if value is not None}
        values = {choice.name: choice.largest for choice in self} | used
        return [
            self.build(_picking(values | {choice.name: value}))
            for choice in (self if name is None else [self._choices[name]])
            for value in choice.values
            if old[choice.name] not in (None, value)
        ]

    def restrict(self, allowed: Mapping[str, Sequence[Scalar]]) -> SearchSpace:
        """The part of the space in which some choices have fewer values.

        Args:
            allowed: a choice's name, or a pattern such as ``"stages.*.depth"``, → the values to
                keep. Where several patterns meet in a choice, what all of them allow.

        Returns:
            A space with the same choices in the same order; each of its architectures is one of
            this space. A choice that can no longer matter keeps its name and is always None.

        Raises:
            ValueError: a pattern meets no choice, a value is none of its choices', or a choice
                would be left without values.
        """
        kept = {choice.name: list(choice.values) for choice in self}
        for pattern, values in allowed.items():
            if isinstance(values, str) or not isinstance(values, (Sequence, set, frozenset)):
                raise ValueError(f"{pattern!r} needs a list of values, not {values!r}")
            met = [c for c in self if c.name == pattern or fnmatchcase(c.name, pattern)]
            if not met:
                raise ValueError(f"no choice is called {pattern!r}{near(pattern, self.names)}")
            for value in values:
                if all(choice.find(value) < 0 for choice in met):
                    raise ValueError(
                        f"{pattern!r} cannot be {value!r}; "
                        f"{met[0].name!r} has {_listed(met[0].values)}"
                    )
            for choice in met:
                wanted = {choice.values[i] for i in map(choice.find, values) if i >= 0}
                kept[choice.name] = [v for v in kept[choice.name] if v in wanted]
                if not kept[choice.name]:
                    raise ValueError(
                        f"{pattern!r} leaves choice {choice.name!r} without values: "
                        f"it has {_listed(choice.values)}"
                    )
        conditions = {
            name: [
                {other: [v for v in values if v in kept[other]] for other, values in case.items()}
                for case in condition
                if all(set(values) & set(kept[other]) for other, values in case.items())
            ]
            for name, condition in self._conditions.items()
        }
        return SearchSpace([Choice(n, values) for n, values in kept.items()], conditions)

    def holds(self, part: SearchSpace) -> bool:
        """Whether a space is what `restrict` makes of this one, or this one itself."""
        try:
            return self.restrict({c.name: c.values for c in part}) == part
        except ValueError:
            return False

    def encode(self, architecture: Architecture) -> list[float]:
        """One number for each value of each choice: 1 where chosen, else 0.

        All 0 for a choice that does not matter, so different architectures differ.
        """
        checked = self.validate(architecture)
        return [float(checked[c.name] == value) for c in self for value in c.values]

    @property
    def digest(self) -> str:
        """SHA-256 of the space, the same in every process: what a table or predictor is for."""
        return json_digest(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Plain values for `from_json`: choices in order, and conditions."""
        return {
            "version": _VERSION,
            "choices": [{"name": c.name, "values": list(c.values)} for c in self],
            "conditions": {
                name: [{other: list(values) for other, values in case.items()} for case in cases]
                for name, cases in self._conditions.items()
            },
        }

    @classmethod
    def from_json(cls, data: Any) -> SearchSpace:
        """Read what :meth:`to_json` gave.

        Raises:
            ValueError: it is not that, or of a version this program does not know.
        """
        if not isinstance(data, dict) or not isinstance(data.get("choices"), list):
            raise ValueError('not a search space: wanted {"version": 1, "choices": […], …}')
        check_version(data, _VERSION, "a search space")
        choices = []
        for entry in data["choices"]:
            if not isinstance(entry, dict) or set(entry) != {"name", "values"}:
                raise ValueError('not a search space: a choice has a "name" and "values", no more')
            choices.append(Choice(entry["name"], entry["values"]))
        conditions = data.get("conditions", {})
        if not isinstance(conditions, dict):
            raise ValueError('not a search space: "conditions" has to map names to lists')
        return cls(choices, conditions)


def _picking(values: Mapping[str, Scalar]) -> Callable[[Choice], Scalar]:
    return lambda choice: values[choice.name]


def _listed(values: Sequence[Scalar]) -> str:
    shown = ", ".join(repr(value) for value in values[:12])
    return shown + (f" … ({len(values)} values)" if len(values) > 12 else "")
