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


def parse_size(text: str) -> tuple[int, int]:
    """Height and width of ``"384x1280"``.

    Raises:
        ValueError: another form, or a zero.
    """
    match = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text)
    height, width = map(int, match.groups()) if match else (0, 0)
    if min(height, width) < 1:
        raise ValueError(f"--size {text}: give height and width as in --size 384x1280")
    return height, width
