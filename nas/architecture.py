"""An architecture: one value for each choice of a search space; what a search returns."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any

from ..common.files import JsonFile, check_version, shortened

__all__ = ["Architecture", "Scalar", "json_digest", "near"]

Scalar = int | float | str | bool  #: what a choice can choose from

_VERSION = 1


class Architecture(JsonFile, Mapping[str, Scalar | None]):
    """An immutable, hashable mapping from the names of choices to their values.

    None says that the choice does not matter here, such as the kernel of a block beyond the
    network's depth. Two architectures are equal if they give the same names the same values, in
    whatever order. Whether the values are any good only a search space knows:
    :meth:`~vizoo.nas.space.SearchSpace.validate`.

    Args:
        choices: name to value: int, float, str, bool or None.

    Raises:
        ValueError: a name is not a string or a value is nothing of these.

    Example:
        >>> a = Architecture({"depth": 2, "width": 16})
        >>> a.replace(width=24)["width"]
        24
    """

    __slots__ = ("_choices", "_hash", "_space")
    called = "an architecture"

    def __init__(self, choices: Mapping[str, Scalar | None]) -> None:
        self._choices = {name: _checked(name, value) for name, value in choices.items()}
        self._hash: int | None = None
        self._space: object = None

    @classmethod
    def _made(cls, choices: dict[str, Scalar | None], space: object) -> Architecture:
        """For a search space: unchecked, and known to be canonical there."""
        made = cls.__new__(cls)
        made._choices, made._hash, made._space = choices, None, space
        return made

    def __getitem__(self, name: str) -> Scalar | None:
        return self._choices[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._choices)

    def __len__(self) -> int:
        return len(self._choices)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Architecture):
            return NotImplemented
        return self._choices == other._choices

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self._choices.items()))
        return self._hash

    def __repr__(self) -> str:
        return f"Architecture({self._choices})"

    def __reduce__(self) -> tuple[type[Architecture], tuple[dict[str, Scalar | None]]]:
        # Hashes of strings differ between processes, so the cached one must not travel.
        return Architecture, (self._choices,)

    def replace(
        self, changes: Mapping[str, Scalar | None] | None = None, /, **more: Scalar | None
    ) -> Architecture:
        """A copy with some values changed: a mapping for names such as ``stages.0.depth``.

        Raises:
            ValueError: a name is not in this architecture.
        """
        changes = {**(changes or {}), **more}
        for name in changes:
            if name not in self._choices:
                raise ValueError(f"the architecture has no choice {name!r}{near(name, self)}")
        return Architecture({**self._choices, **changes})

    @property
    def digest(self) -> str:
        """SHA-256 of the architecture, the same in every process: a key for caches."""
        return json_digest(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """``{"version": 1, "choices": {name: value}}``."""
        return {"version": _VERSION, "choices": dict(self._choices)}

    @classmethod
    def from_json(cls, data: Any) -> Architecture:
        """Read what :meth:`to_json` gave.

        Raises:
            ValueError: it is not that, or of a version this program does not know.
        """
        if not isinstance(data, dict) or "version" not in data:
            raise ValueError(
                'not an architecture: wanted {"version": 1, "choices": {…}}, '
                f"found {shortened(data)}"
            )
        check_version(data, _VERSION, cls.called)
        if surplus := [str(key) for key in data if key not in ("version", "choices")]:
            raise ValueError(f"not an architecture: what is {surplus[0]!r} doing in it?")
        if not isinstance(data.get("choices"), dict):
            raise ValueError('not an architecture: "choices" has to map names to values')
        return cls(data["choices"])


def json_digest(data: Any) -> str:
    """SHA-256 of plain values, the same in every process."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def near(name: str, known: Any) -> str:
    """``"; did you mean 'x' or 'y'?"`` for a misspelt name, or the first of the known ones."""
    known = [str(other) for other in known]
    if matches := get_close_matches(str(name), known, n=2):
        return f"; did you mean {' or '.join(map(repr, matches))}?"
    if not known:
        return "; there are none"
    return f"; known are {', '.join(map(repr, known[:4]))}{' …' if len(known) > 4 else ''}"


def _checked(name: Any, value: Any) -> Scalar | None:
    if not isinstance(name, str) or not name:
        raise ValueError(f"the name of a choice has to be a string, not {shortened(name)}")
    if value is None or isinstance(value, (bool, str, int)):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real) and math.isfinite(value):
        return float(value)
    raise ValueError(
        f"choice {name!r} cannot have the value {shortened(value)}: "
        "wanted an int, a finite float, a str, a bool or None"
    )
