"""What commands share: sizes as typed, warnings in one line, folders, names of results."""

from __future__ import annotations

import argparse
import itertools
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile

from ..common.warned import collect_warnings

#: Those of `vision.runtimes`, which takes long to import.
RUNTIMES = "torch", "openvino", "onnxruntime"


def add_size(parser: argparse.ArgumentParser, default: str, text: str) -> None:
    """Add ``--size``; `parse_size` reads it."""
    parser.add_argument(
        "--size", default=default, metavar="HxW", help=f"{text} (default {default})"
    )


def add_lists(parser: argparse.ArgumentParser, what: str) -> None:
    """Add how many rooms or scans the lists of a generated data set have."""
    parser.add_argument(
        f"--{what}",
        type=int,
        nargs=3,
        default=(8, 2, 2),
        metavar=("TRAIN", "VAL", "TEST"),
        help=f"{what} of each list (default: 8 2 2)",
    )


def parse_size(
    text: str, option: str = "--size", example: str = "384x1280", what: str = "height and width"
) -> tuple[int, int]:
    """Height and width of ``"384x1280"``; the error names the option and gives the example."""
    match = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text)
    height, width = map(int, match.groups()) if match else (0, 0)
    if min(height, width) < 1:
        raise ValueError(f"{option} {text}: give {what} as in {option} {example}")
    return height, width


def number(text: str, fits: Callable[[float], bool], wanted: str) -> float:
    """An argument for which `fits` holds, as `wanted` says in words."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not fits(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}")
    return value


share = partial(number, fits=lambda value: 0 <= value <= 1, wanted="from 0 to 1")
seconds = partial(number, fits=lambda value: 0 <= value < math.inf, wanted="a time")
positive = partial(number, fits=lambda value: 0 < value < math.inf, wanted="above 0")


def check_folder(name: str, option: str = "--out") -> Path:
    """The folder of results, which need not exist yet; one that could not be made is refused."""
    if not name:
        raise ValueError(f"{option} is empty; name a folder (`.` for this one)")
    out = Path(name)
    there = next(one for one in (out.absolute(), *out.absolute().parents) if os.path.lexists(one))
    if not there.is_dir():
        kind = "a file" if there.exists() else "a link to what is not there"
        raise ValueError(f"{option} {out}: {there} is {kind}; name a folder")
    try:
        with TemporaryFile(dir=there):
            pass
    except OSError as error:
        told = f"{there} is not writable ({error.strerror}); name another folder"
        raise ValueError(f"{option} {out}: {told}") from error
    return out


def check_file(path: Path, suffix: str = "", told: str = "", option: str = "--out") -> None:
    """Refuse a result of another suffix, or which could not be written; `told` says what it is."""
    if suffix and path.suffix.lower() != suffix:
        raise ValueError(f"{option} {path}: {told} written as {suffix}; choose such a name")
    if path.is_dir():
        raise ValueError(f"{option} {path}: is a folder; name a file")
    check_folder(str(path.parent), option)


def check_apart(inputs: Iterable[Path], out: Path) -> None:
    """Refuse a folder of results that is one of the inputs, or holds one."""
    for path in inputs:
        home = path if path.is_dir() else path.parent
        if home.resolve() == out.resolve():
            raise ValueError(
                f"--out {out} is where {path.name} lies: results could overwrite data there, or be "
                "taken for it; name another folder"
            )


def check_least(args: argparse.Namespace, **least: int) -> None:
    """Refuse options below their least values; one that was not given (None) is passed over."""
    for name, bound in least.items():
        value = getattr(args, name)
        if value is not None and value < bound:
            raise ValueError(f"--{name.replace('_', '-')} {value}: must be at least {bound}")


def refuse(args: argparse.Namespace, names: Iterable[str], why: str) -> None:
    """Refuse the first of these options, as far as there are such, that was given."""
    for name in names:
        given = getattr(args, name, None)
        if given is not None and given is not False:
            raise ValueError(f"--{name.replace('_', '-')} {why}")


def unique_names(
    paths: Sequence[Path], stem: Callable[[Path], str] = lambda path: path.stem
) -> list[str]:
    """Names for the results of inputs, with folders in front where the stem is not unique.

    Where that does not tell them apart (``a.jpg`` beside ``a.png``), they have their suffixes. None
    is ``summary``, as ``summary.json`` is of all; where two would be alike, they are refused.
    """
    whole = [Path(os.path.abspath(path)) for path in paths]
    for base, folders in itertools.product((stem, lambda path: path.name), range(4)):
        above = [path.parts[1:-1][-folders:] if folders else () for path in whole]
        names = ["_".join((*a, base(path))) for a, path in zip(above, whole, strict=True)]
        if len({*names, "summary"}) > len(names):
            return names
    twice = Counter([*names, "summary"]).most_common(1)[0][0]
    files = [str(path) for path, name in zip(paths, names, strict=True) if name == twice]
    told = f"{' and '.join(files[:2])} would write results of one name"
    raise ValueError(f"{told}; infer them into different folders")


@contextmanager
def say_warnings() -> Iterator[list[str]]:
    """Collect the warnings of a block, and print each when it ends, by an error too."""
    notes: list[str] = []
    try:
        with collect_warnings() as notes:
            yield notes
    finally:
        for note in notes:
            warn(note)


def warn(message: str) -> None:
    """Print a warning as one line on stderr."""
    print(f"vizoo: warning: {message}", file=sys.stderr)
