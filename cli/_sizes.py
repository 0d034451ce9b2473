"""The ``--size HxW`` argument."""

from __future__ import annotations

import argparse
import re

__all__ = ["add_size", "parse_size"]


def add_size(parser: argparse.ArgumentParser, default: str, text: str) -> None:
    """Add ``--size``; `parse_size` reads it."""
    parser.add_argument(
        "--size", default=default, metavar="HxW", help=f"{text} (default {default})"
    )


def parse_size(text: str, option: str = "--size", example: str = "384x1280") -> tuple[int, int]:
    """Height and width of ``"384x1280"``.

    Raises:
        ValueError: another form, or a zero; it names the option and gives the example.
    """
    match = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text)
    height, width = map(int, match.groups()) if match else (0, 0)
    if min(height, width) < 1:
        raise ValueError(f"{option} {text}: give height and width as in {option} {example}")
    return height, width
