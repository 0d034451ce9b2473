"""The engine of neural architecture search: knows no task.

Build a network from `vizoo.nas.elastic` with choices where numbers stood, and it is a supernet:

>>> from vizoo.nas import Choice, activate, extract, search_space
>>> from vizoo.nas.elastic import Conv2d, Sequential
>>> width = Choice("width", (8, 16))
>>> net = Sequential(Conv2d(3, width, 3), Conv2d(width, 1, 3))
>>> architecture = search_space(net).smallest()
>>> small = extract(net, architecture)
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .elastic.base import ElasticModule
    from .sorting import sort_channels
    from .space import Architecture, Choice, SearchSpace
    from .supernet import activate, active, extract, search_space
    from .values import Value, choices_of, concat, maximum, resolve

__all__ = [
    "Architecture",
    "Choice",
    "ElasticModule",
    "SearchSpace",
    "Value",
    "activate",
    "active",
    "choices_of",
    "concat",
    "extract",
    "maximum",
    "resolve",
    "search_space",
    "sort_channels",
]

_PUBLIC = {
    "Architecture": ".space",
    "Choice": ".space",
    "ElasticModule": ".elastic.base",
    "SearchSpace": ".space",
    "Value": ".values",
    "activate": ".supernet",
    "active": ".supernet",
    "choices_of": ".values",
    "concat": ".values",
    "extract": ".supernet",
    "maximum": ".values",
    "resolve": ".values",
    "search_space": ".supernet",
    "sort_channels": ".sorting",
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
