"""Layers whose numbers depend on choices: torch's names, and torch's layers where they do not.

>>> from vizoo.nas import Choice
>>> width, kernel = Choice("width", (8, 16)), Choice("kernel", (3, 5))
>>> Sequential(
...     Conv2d(3, width, kernel, padding="half", bias=False), BatchNorm2d(width), nn.ReLU()
... )
"""

from typing import TYPE_CHECKING

from ...common.lazy import lazy

if TYPE_CHECKING:
    from .base import ElasticModule
    from .containers import ModuleList, Operation, Sequential
    from .conv import (
        Conv2d,
        Conv3d,
        ConvTranspose2d,
        ConvTranspose3d,
        Linear,
        SqueezeExcite,
        weight_in_use,
    )
    from .norm import BatchNorm2d, BatchNorm3d, GroupNorm, LayerNorm

__all__, __getattr__, __dir__ = lazy(__name__)
