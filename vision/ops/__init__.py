"""Operators that PyTorch lacks and that the tasks share."""

from .correlation import correlation
from .regression import soft_argmin
from .warp import warp_by_disparity

__all__ = ["correlation", "soft_argmin", "warp_by_disparity"]
