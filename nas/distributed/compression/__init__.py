"""Gradients that travel small: signs, sparse, of low rank, and what their compressors share."""

from typing import TYPE_CHECKING

from ....common.lazy import lazy

if TYPE_CHECKING:
    from .base import Compressor, Item

__all__, __getattr__, __dir__ = lazy(__name__)
