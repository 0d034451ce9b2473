"""What the commands for stereo pairs take: pairs and numbers."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._pairs import Pair


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


def chosen_pairs(args: argparse.Namespace) -> list[Pair]:
    """The pairs that are asked for.

    Raises:
        FileNotFoundError, ValueError: there is no such file, or the words do not fit together.
    """
    from ._pairs import find_folders, find_pairs, read_list

    if args.list is not None:
        if args.left is not None:
            raise ValueError("give either LEFT and RIGHT or --list FILE, not both")
        return read_list(args.list)
    if args.left is None:
        raise ValueError(
            "LEFT and RIGHT are missing (or --list FILE); see vizoo infer stereo --help"
        )
    return find_folders(args.left) if args.right is None else find_pairs(args.left, args.right)
