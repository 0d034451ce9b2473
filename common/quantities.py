"""Quantities as people type and read them: 40ms, 0.04s, 2M, 10G, 512MB."""

from __future__ import annotations

import math
import re

__all__ = ["KINDS", "parse_quantity", "show_joules", "show_quantity", "unit_of"]

_TIMES = {"us": 1e-3, "ms": 1.0, "s": 1e3}
_COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}
_BYTES = {
    **{f"{letter}b": 1000.0**power for power, letter in enumerate(("", "k", "m", "g", "t"))},
    **{f"{letter}ib": 1024.0**power for power, letter in enumerate("kmgt", start=1)},
}
KINDS: dict[str, tuple[dict[str, float], str]] = {
    "latency": (_TIMES, "a time such as 40ms or 0.04s"),
    "parameters": (_COUNTS, "a number such as 2M or 2000000"),
    "macs": (_COUNTS, "a number such as 10G"),
    "memory": (_BYTES, "bytes such as 512MB or 1.5GiB"),
}
"""Quantity to its units, and what to type: milliseconds, values, multiply-adds, bytes."""


def parse_quantity(kind: str, text: str, option: str) -> float:
    """The number that `text` means, in milliseconds, values, multiply-adds or bytes.

    Args:
        kind: a key of `KINDS`.
        text: as typed; upper and lower case are alike.
        option: what the error calls it.

    Raises:
        ValueError: no positive number, or a unit that the quantity does not have.

    Example:
        >>> parse_quantity("latency", "0.04s", "--max-latency")
        40.0
    """
    units, wanted = KINDS[kind]
    match = re.fullmatch(r"(\d+\.?\d*|\.\d+)(?:e([+-]?\d+))?\s*([a-z]*)", text.strip().lower())
    if match is None or match[3] not in units:
        raise ValueError(f"{option} {text}: give {wanted}")
    value = float(f"{match[1]}e{match[2] or 0}") * units[match[3]]
    if not 0 < value < math.inf:
        raise ValueError(f"{option} {text}: must be more than 0")
    return value


def unit_of(kind: str, value: float) -> tuple[float, str]:
    """The unit in which a value reads well, as ``(1e6, "M")``, ``(1.0, "ms")``."""
    if kind == "latency":
        return 1.0, "ms"
    ending = "B" if kind == "memory" else ""
    for letter, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 0.9995 * size:  # three digits of less would be those of a thousand
            return size, f"{letter}{ending}"
    return 1.0, ending


def show_quantity(kind: str, value: float) -> str:
    """The number with its unit, as in ``40.0 ms``, ``5.08 M``, ``37.4 G``, ``512 MB``."""
    size, unit = unit_of(kind, value)
    digits = ".1f" if kind == "latency" and value >= 10 else ".3g"
    return f"{value / size:{digits}} {unit}".rstrip()


def show_joules(value: float) -> str:
    """Energy with its unit, as in ``1.23 J``, ``45.6 mJ``."""
    return f"{value:.3g} J" if value >= 0.9995 else f"{1e3 * value:.3g} mJ"
