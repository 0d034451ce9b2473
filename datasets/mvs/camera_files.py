"""Camera and pair text files of the MVSNet family.

A camera file::

    extrinsic
    (4 lines: the 4x4 matrix from world to camera)

    intrinsic
    (3 lines: the 3x3 matrix)

    425.0 2.5

The last line is the depth range, written in one of two forms: ``min max``, or ``min interval
[planes [max]]``. Reading one for the other is this family's commonest mistake, so the form can be
said; otherwise the count of numbers and their order decide (see ``parse_range``).

A pair file holds the number of views, then for each view a line with its index and a line
``n source score source score ...``, best first.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...common.files import write_text
from ..files import check_choice, read_text

__all__ = [
    "RANGE_FORMS",
    "CameraFile",
    "parse_range",
    "read_camera_file",
    "read_pair_file",
    "write_camera_file",
    "write_pair_file",
]

#: How the last line of a camera file is to be read.
RANGE_FORMS = ("auto", "max", "interval")

_PLANES = 192  # of a file that gives an interval and no count, as MVSNet has it
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_WHOLE = re.compile(r"[0-9]{1,9}")


class CameraFile(NamedTuple):
    """What a camera file says."""

    intrinsics: Tensor  #: (3, 3) float32
    extrinsics: Tensor  #: (4, 4) float64, world to camera
    #: (least, greatest) depth as the file has them, unchecked; None without a line
    depth_range: tuple[float, float] | None


def parse_range(numbers: Sequence[float], form: str = "auto") -> tuple[float, float]:
    """Return (least, greatest) depth from the numbers of a camera file's last line.

    Args:
        numbers: two to four.
        form: ``max``: the first two are min and max. ``interval``: min, interval, and perhaps the
            number of planes (else 192) and the max. ``auto``: two numbers are min and max, unless
            the second is not greater than the first and so can only be an interval; more are of
            the interval form.

    Raises:
        ValueError: there are fewer than two numbers or more than four, or the form is unknown.

    Example:
        >>> parse_range([425.0, 935.0]), parse_range([425.0, 2.5, 192])
        ((425.0, 935.0), (425.0, 902.5))
    """
    check_choice("range form", form, RANGE_FORMS)
    if not 2 <= len(numbers) <= 4:
        raise ValueError(
            f"the depth range has {len(numbers)} numbers: want 'min max' or 'min interval [planes "
            "[max]]'"
        )
    least, second = float(numbers[0]), float(numbers[1])
    if form == "max" or (form == "auto" and len(numbers) == 2 and second > least):
        return least, second
    if len(numbers) == 4:
        return least, float(numbers[3])
    planes = numbers[2] if len(numbers) == 3 else _PLANES
    return least, least + second * (planes - 1)


def read_camera_file(path: str | os.PathLike, form: str = "auto") -> CameraFile:
    """Read a camera file; for the form of its depth range see ``parse_range``.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no camera file; the message names the file and the line. Whether the
            camera and the range make sense is checked where they are used.
    """
    text = read_text(path, "camera")
    words = [(n, word) for n, line in enumerate(text.splitlines(), 1) for word in line.split()]
    place = 0

    def take(count: int, heading: str, what: str) -> list[float]:
        nonlocal place
        if place >= len(words) or words[place][1].lower() != heading:
            said = "it ends"
            if place < len(words):
                said = f"line {words[place][0]} has {_show(words[place][1])}"
            raise ValueError(f"{path}: not a camera file: '{heading}' expected, but {said}")
        values = words[place + 1 : place + 1 + count]
        numbers = [_number(path, line, word) for line, word in values]
        if len(numbers) < count:
            raise ValueError(
                f"{path}: the {what} has {len(numbers)} of {count} numbers; the file is cut short"
            )
        place += 1 + count
        return numbers

    extrinsics = torch.tensor(take(16, "extrinsic", "extrinsic matrix"), dtype=torch.float64)
    intrinsics = torch.tensor(take(9, "intrinsic", "intrinsic matrix")).view(3, 3)
    rest = [_number(path, line, word) for line, word in words[place:]]
    try:
        depth_range = parse_range(rest, form) if rest else None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return CameraFile(intrinsics, extrinsics.view(4, 4), depth_range)


def write_camera_file(
    path: str | os.PathLike,
    intrinsics: Tensor,
    extrinsics: Tensor,
    depth_range: tuple[float, float],
    form: str = "max",
) -> None:
    """Write a camera file, atomically; numbers are written so that float32 comes back unchanged.

    The form ``max`` writes the range as ``min max``, ``interval`` as ``min interval 192 max``.
    """
    lines = ["extrinsic", *map(_row, extrinsics.tolist()), ""]
    lines += ["intrinsic", *map(_row, intrinsics.tolist()), ""]
    least, greatest = depth_range
    middle = [(greatest - least) / (_PLANES - 1), _PLANES] if form == "interval" else []
    write_text(path, "\n".join([*lines, _row([least, *middle, greatest]), ""]))


def read_pair_file(path: str | os.PathLike) -> dict[int, list[tuple[int, float]]]:
    """Read a pair file.

    Returns:
        For each view's index its sources, best first, as (index, score). A list may be empty, and
        may hold fewer sources than its first number says, as some of BlendedMVS do.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no pair file; the message names the file and the line.
    """
    lines = read_text(path, "pair").splitlines()
    count = _whole(path, 1, lines[0].strip(), "the number of views")
    pairs: dict[int, list[tuple[int, float]]] = {}
    at = 1
    for _ in range(count):
        if at >= len(lines) or not lines[at].strip():
            raise ValueError(f"{path}: {len(pairs)} of {count} views; the file is cut short")
        view = _whole(path, at + 1, lines[at].strip(), "a view's index")
        if view in pairs:
            raise ValueError(f"{path}, line {at + 1}: view {view} is there twice")
        pairs[view] = _sources(path, at + 2, lines[at + 1] if at + 1 < len(lines) else "")
        at += 2
    for number, line in enumerate(lines[at:], at + 1):
        if line.strip():
            raise ValueError(f"{path}, line {number}: more views than the {count} of line 1")
    return pairs


def write_pair_file(
    path: str | os.PathLike, pairs: Mapping[int, Sequence[tuple[int, float]]]
) -> None:
    """Write a pair file, atomically."""
    lines = [str(len(pairs))]
    for view, sources in pairs.items():
        listed = "".join(f" {source} {score:.6g}" for source, score in sources)
        lines += [str(view), f"{len(sources)}{listed}"]
    write_text(path, "\n".join([*lines, ""]))


def _sources(path: str | os.PathLike, number: int, line: str) -> list[tuple[int, float]]:
    words = line.split()
    if not words:
        return []
    stated = _whole(path, number, words[0], "the number of sources")
    listed = words[1:]
    if len(listed) % 2 or len(listed) // 2 > stated:
        raise ValueError(
            f"{path}, line {number}: {stated} sources stated, but {len(listed)} numbers follow; "
            "want 'n source score source score ...'"
        )
    sources = [
        (_whole(path, number, view, "a source"), _number(path, number, score))
        for view, score in zip(listed[::2], listed[1::2], strict=True)
    ]
    if len({source for source, _ in sources}) < len(sources):
        raise ValueError(f"{path}, line {number}: a source is listed twice")
    return sources


def _number(path: str | os.PathLike, line: int, word: str) -> float:
    value = float(word) if _NUMBER.fullmatch(word) else math.nan
    if not math.isfinite(value):
        raise ValueError(f"{path}, line {line}: {_show(word)} is not a number")
    return value


def _whole(path: str | os.PathLike, line: int, word: str, what: str) -> int:
    if not _WHOLE.fullmatch(word):
        raise ValueError(f"{path}, line {line}: {what} expected, found {_show(word)}")
    return int(word)


def _show(word: str) -> str:
    return repr(word if len(word) <= 24 else word[:24] + "...")


def _row(values: Sequence[float]) -> str:
    # Nine significant digits tell every float32 from its neighbours.
    return " ".join(f"{value:.9g}" for value in values)
