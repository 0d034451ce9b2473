"""Architecture arguments, held to the signature of the function that builds the network."""

from __future__ import annotations

import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from ...common.files import shortened

__all__ = ["check_arguments"]


def check_arguments(name: str, function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Compare arguments with a function's parameters and their annotations.

    Args:
        name: what errors call the function.
        function: its hints resolve at run time.
        given: argument to value.

    Raises:
        ValueError: an argument that it does not take, or a value of another type.
    """
    parameters = inspect.signature(function).parameters
    unknown = [key for key in given if key not in parameters]
    if unknown:
        takes = ", ".join(parameters) or "none"
        raise ValueError(
            f"{name} has no architecture argument {', '.join(map(repr, unknown))}; it takes {takes}"
        )
    hints = typing.get_type_hints(function) if given else {}
    for key, value in given.items():
        if not _fits(value, hints.get(key, Any)):
            wanted = parameters[key].annotation
            wanted = wanted if isinstance(wanted, str) else inspect.formatannotation(wanted)
            raise ValueError(f"{name}: {key} must be of type {wanted}, not {shortened(value)}")


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a hint's type; what lists and mappings hold counts too."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, each) for each in inner)
    if hint in (int, float):  # NumPy's numbers too, but True is none, and JSON has no NaN
        kind = Integral if hint is int else Real
        return isinstance(value, kind) and not isinstance(value, bool) and math.isfinite(value)
    if origin is Sequence:
        listed = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
        return listed and all(_fits(item, inner[0]) for item in value)
    if origin is Mapping:
        return isinstance(value, Mapping) and all(
            _fits(key, inner[0]) and _fits(item, inner[1]) for key, item in value.items()
        )
    return isinstance(value, origin or hint)
