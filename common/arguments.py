"""Arguments, held to the signature of the function that they are for."""

from __future__ import annotations

import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, TypeVar, cast

from .files import shortened

__all__ = ["check_arguments", "checked"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def checked(*names: str, **least: int) -> Callable[[_Function], _Function]:
    """Let a function refuse, in one line, arguments of other types than its annotations say.

    Args:
        *names: arguments whose types are checked.
        **least: likewise, and numbers that are no smaller.

    Example:
        >>> @checked("name", count=1)
        ... def draw(name: str, count: int = 8) -> None: ...
        >>> draw("a", count=0)
        Traceback (most recent call last):
        ValueError: draw: count must be at least 1, not 0
    """

    def decorate(function: _Function) -> _Function:
        order = tuple(inspect.signature(function).parameters)
        told = function.__qualname__.removesuffix(".__init__")

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            given = dict(zip(order, args, strict=False)) | kwargs
            check_arguments(told, function, {n: given[n] for n in (*names, *least) if n in given})
            for name, bound in least.items():
                if (value := given.get(name)) is not None and value < bound:
                    raise ValueError(f"{told}: {name} must be at least {bound}, not {value}")
            return function(*args, **kwargs)

        return cast(_Function, call)

    return decorate


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
    if origin is typing.Literal:
        return value in inner
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, each) for each in inner)
    if hint in (int, float):  # NumPy's numbers too, but True is none, and JSON has no NaN
        kind = Integral if hint is int else Real
        numeric = isinstance(value, kind) and not isinstance(value, bool)
        return numeric and (isinstance(value, Integral) or math.isfinite(value))
    if origin in (Sequence, list, tuple):
        if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
            return False
        hints = inner if origin is tuple and ... not in inner else inner[:1] * len(value)
        return len(hints) == len(value) and all(map(_fits, value, hints))
    if origin in (Mapping, dict):
        return isinstance(value, Mapping) and all(
            _fits(key, inner[0]) and _fits(item, inner[1]) for key, item in value.items()
        )
    return isinstance(value, origin or hint)
