"""The engine of neural architecture search: knows no task.

Build a network from `vizoo.nas.elastic` with choices where numbers stood, and it is a supernet:

>>> from vizoo.nas import Choice, activate, extract, search_space
>>> from vizoo.nas.elastic import Conv2d, Sequential
>>> width = Choice("width", (8, 16))
>>> net = Sequential(Conv2d(3, width, 3), Conv2d(width, 1, 3))
>>> architecture = search_space(net).smallest()
>>> small = extract(net, architecture)
"""

from typing import TYPE_CHECKING

from ..common.lazy import lazy

if TYPE_CHECKING:
    from .conversion.convert import Converted, convert
    from .conversion.importance import taylor_scores
    from .elastic.base import ElasticModule
    from .sorting import sort_channels
    from .space import Architecture, Choice, SearchSpace
    from .supernet import activate, active, extract, search_space, subnet_of
    from .values import Value, choices_of, concat, maximum, resolve

__all__, __getattr__, __dir__ = lazy(__name__)
