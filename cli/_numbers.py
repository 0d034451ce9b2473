"""Numbers that commands for stereo pairs take."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable


def scale(text: str) -> float | str:
    """The argument of `--scale`."""
    if text == "auto":
        return text
    return _number(text, lambda value: 0 < value <= 1, "above 0 and at most 1, nor auto")


def share(text: str) -> float:
    """An argument from 0 to 1."""
    return _number(text, lambda value: 0 <= value <= 1, "from 0 to 1")


def positive(text: str) -> float:
    """An argument above 0."""
    return _number(text, lambda value: 0 < value < math.inf, "above 0")


def _number(text: str, fits: Callable[[float], bool], wanted: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not fits(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}")
    return value
