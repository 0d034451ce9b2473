"""Which images, or pairs of them, a command was asked for, found before any work starts."""

from __future__ import annotations

import argparse
import glob
import math
import os
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from mimetypes import guess_type
from pathlib import Path

from ..common.files import few, read_json
from ..vision.io.images import SUFFIXES
from ..vision.io.pairing import (
    CONTACT_SHEET,
    SIDES,
    doubtful_pairing,
    files_below,
    images_in,
    read_columns,
    side_folders,
    sides_in,
)
from ._work import say_warnings, unique_names, warn


def find_images(words: Iterable[str]) -> dict[str, Path]:
    """The images that files, folders and globs name, by the first part of their results' names."""
    words = list(words)
    images = list({file.resolve(): file for word in words for file in expand(word)}.values())
    say_passed_over(words)
    return dict(zip(unique_names(images), images, strict=True))


def find_sorted(words: Sequence[str]) -> tuple[dict[str, Path], dict[str, str]]:
    """As `find_images`, and the names of the folders that images are sorted into.

    A folder without images stands for the folders of images in it. Those count as sorted, and so do
    several that are named themselves, in a folder without images. A glob that nothing but folders
    match names these. Says which folders of images are left out, beside images that are taken.

    Returns:
        The images, and the name of its folder for each that is sorted, both by result's name.
    """
    named = [inner for word in words for inner in _matching_folders(word) or [word]]
    inside = {word: _folders_in(word) for word in named}
    images = find_images(inner for word in named for inner in inside[word] or [word])
    into = {_place(inner) for word in named for inner in inside[word]}
    folders = {_place(word) for word in named if Path(word).is_dir()}
    count = Counter(folder.parent for folder in folders)
    into |= {f for f in folders if count[f.parent] > 1 and not images_in(f.parent)}
    homes = {name: _place(image.parent) for name, image in images.items()}
    taken = {image.resolve() for image in images.values()}
    beside = (Path(inner) for word in words for inner in _inner(word) or _globbed(word))
    left = [str(path) for path in beside if path.is_dir() and _left_out(path, taken)]
    if left:
        warn(f"images in these folders are passed over, name them too: {few(left)}")
    return images, {name: home.name for name, home in homes.items() if home in into}


def _place(path: str | Path) -> Path:
    """Where a path leads, by the names of links: a link may be called as a class."""
    return Path(os.path.abspath(path))


def _left_out(folder: Path, taken: Collection[Path]) -> bool:
    """Whether a folder has images, none of which are taken; not of results or hidden ones."""
    if folder.name.startswith(".") or _holds_results(folder):
        return False
    own = images_in(folder)
    return bool(own) and not any(Path(image).resolve() in taken for image in own)


def _holds_results(folder: Path) -> bool:
    """Whether a folder is one that an earlier run wrote into, whose pictures are no input."""
    try:
        summary = read_json(folder / "summary.json")
    except (OSError, ValueError):
        return False
    return isinstance(summary, dict) and {"kind", "items"} <= summary.keys()


def _matching_folders(word: str) -> list[str]:
    names = [name for name in _globbed(word) if not _holds_results(Path(name))]
    return names if all(Path(name).is_dir() for name in names) else []


def _globbed(word: str) -> list[str]:
    return [] if Path(word).exists() else sorted(glob.glob(word, recursive=True))


def _folders_in(word: str) -> list[str]:
    """The folders of images in a folder that has none itself, as classifiers are trained on."""
    return [] if Path(word).is_dir() and images_in(Path(word)) else _inner(word)


def _inner(word: str) -> list[str]:
    """The folders of images in a folder, without those of results."""
    inner = sorted(Path(word).iterdir()) if Path(word).is_dir() else []
    folders = (path for path in inner if path.is_dir() and not _holds_results(path))
    return [str(path) for path in folders if images_in(path)]


def expand(word: str) -> list[Path]:
    """The images that a file, a folder or a glob names, sorted.

    A glob of folders passes over those that hold results of an earlier run.
    """
    path = Path(word)
    if path.is_dir():
        files, nothing = images_in(path), f"no image in this folder ({' '.join(SUFFIXES)})"
        if not files:
            if others := _others(path):
                nothing += f", but {' '.join(sorted(others))}"
            if below := {file.parent: None for file in files_below(path, SUFFIXES)}:
                nothing += f"; images lie below it in {few(map(str, below))}"
    elif path.is_file() or not glob.has_magic(word):
        files, nothing = [path] if path.is_file() else [], "no such file"
    else:
        matches = map(Path, glob.glob(word, recursive=True))
        files = [file for file in matches if file.is_file() and file.name != CONTACT_SHEET]
        # A folder that is named is asked for.
        folders = {file.parent for file in files} if glob.has_magic(str(path.parent)) else set()
        results = sorted(filter(_holds_results, folders))
        files = [file for file in files if file.parent not in results]
        nothing = "no file matches"
        if results:
            nothing += f" outside results of an earlier run: {few(map(str, results))}"
    if not files:
        raise FileNotFoundError(f"{word}: {nothing}")
    return sorted(files)


def _others(folder: Path) -> Counter[str]:
    """How many images of each kind that is not read are in a folder; hidden files are none."""
    with os.scandir(folder) as entries:
        names = [e.name for e in entries if not e.name.startswith(".") and e.is_file()]
    pictures = (n for n in names if (guess_type(n, strict=False)[0] or "").startswith("image/"))
    suffixes = (os.path.splitext(name)[1].lower() for name in pictures)
    return Counter(suffix for suffix in suffixes if suffix not in SUFFIXES)


def say_passed_over(words: Iterable[str | Path]) -> None:
    """Say how many images of the folders among words are of kinds that are not read."""
    folders = {Path(word).resolve() for word in words if Path(word).is_dir()}
    others = sum(map(_others, folders), Counter())
    if others:
        files = f"{others.total()} image{'s' * (others.total() > 1)} in folders"
        warn(f"{files} passed over, of kinds that are not read: {' '.join(sorted(others))}")


_TRUTH = (".pfm", ".npy", ".png", ".exr")  # a third column that is no calibration


@dataclass(frozen=True)
class Pair:
    """One pair: its files, the first part of its results' names, and its calibration file."""

    left: Path
    right: Path
    name: str = ""
    calibration: Path | None = None


@say_warnings()
def asked_pairs(args: argparse.Namespace, command: str) -> list[Pair]:
    """The pairs that a command was asked for; says what is doubtful about them."""
    words = args.images
    if args.list is not None:
        if words:
            raise ValueError("give either LEFT and RIGHT or --list FILE, not both")
        return _read_list(args.list)
    if not words:
        raise ValueError(f"LEFT and RIGHT are missing (or --list FILE); see {command} --help")
    if len(words) == 1:
        return _find_folders(*words)
    # A shell puts the files of two globs one after the other.
    folders = [Path(word).parent for word in words]
    half = folders.count(folders[0]) if len(set(folders)) == 2 else len(words) // 2
    return find_pairs(words[:half], words[half:])


def some_of(pairs: Mapping[str, Pair]) -> list[str]:
    """Names of at most five pairs, spread over all: of one rig, which errs throughout."""
    return list(pairs)[:: math.ceil(len(pairs) / 5)]


def find_pairs(left: list[str], right: list[str]) -> list[Pair]:
    """Pair files, folders or globs in sorted order; warns where the names do not agree.

    Of several words each, as a shell makes them of a glob, the images are put together.
    """
    words = left, right
    lefts, rights = ([file for word in side for file in _expand(word)] for side in words)
    say_passed_over([*left, *right])
    if len(lefts) != len(rights):
        first, last = (" ".join(side[:1] + ["..."] * (len(side) > 1)) for side in words)
        raise ValueError(
            f"{first} gives {len(lefts)} images and {last} gives {len(rights)}: they are paired in "
            "sorted order, so the counts must agree (or name the pairs with --list)"
        )
    if doubt := doubtful_pairing(lefts, rights):
        warnings.warn(doubt, stacklevel=2)
    return _named([Pair(*pair) for pair in zip(lefts, rights, strict=True)])


def _find_folders(text: str) -> list[Pair]:
    """Find the pairs in a folder of one of the usual layouts.

    Those are a folder of left images beside one of right images (``image_2/*.png`` and
    ``image_3/*.png``), and folders that hold one pair each (``*/im0.png`` and ``*/im1.png``), whose
    names the results get; either with a ``calib.txt`` where there is one, or a
    ``calib/NAME.txt`` of each left image beside the folders.
    """
    root = Path(text)
    if not root.is_dir():
        raise FileNotFoundError(
            f"{text}: RIGHT is missing, and alone this is no folder of pairs; name the left and "
            "the right image, a folder, or --list FILE"
        )
    if (sides := side_folders(root)) is not None:
        pairs, calibration = find_pairs(*([str(side)] for side in sides)), calibration_in(root)
        return [
            replace(pair, calibration=calibration or calibration_in(root / "calib", pair.left.stem))
            for pair in pairs
        ]
    inner = (path for path in root.iterdir() if path.is_dir() and path.name[0] != ".")
    by_folder = {folder: _pair_of(folder) for folder in (root, *sorted(inner))}
    say_passed_over(folder for folder, pair in by_folder.items() if pair is None)
    pairs = [pair for pair in by_folder.values() if pair is not None]
    if not pairs:
        layouts = ", ".join(f"{left} and {right}" for left, right in SIDES)
        left, right = ("*_L.png", "*_R.png") if images_in(root) else ("*/L.png", "*/R.png")
        raise FileNotFoundError(
            f"{text}: no pairs in it: neither images nor folders of the names {layouts}; name them "
            f"as in '{text}/{left}' '{text}/{right}'"
        )
    return pairs if len({pair.name for pair in pairs}) == len(pairs) else _named(pairs)


def _pair_of(folder: Path) -> Pair | None:
    if (sides := sides_in(folder)) is None:
        return None
    return Pair(*sides, folder.resolve().name, calibration_in(folder))


def calibration_in(folder: Path, name: str = "calib") -> Path | None:
    file = folder / f"{name}.txt"
    return file if file.is_file() else None


def _read_list(path: str) -> list[Pair]:
    """Read a list: a line holds a left and a right image and, if wanted, a calibration file.

    A list of a data set will do too, whose third column is the true disparity: it is not used,
    which a warning says. Relative paths count from the list's folder; quotes and comments as in
    `read_columns`.
    """
    folder, form = Path(path).parent, "LEFT RIGHT [CALIBRATION]"
    pairs, truths = [], 0
    for number, words in read_columns(path, 2, 4, form):
        if len(words) > 2 and words[2].lower().endswith(_TRUTH):
            truths += 1
            words = words[:2]
        if len(words) > 3:
            raise ValueError(f"{path}, line {number}: {len(words)} columns; a line reads {form!r}")
        files = [folder / word for word in words]
        for file in files:
            if not file.is_file():
                raise FileNotFoundError(f"{path}, line {number}: {file}: no such file")
        pairs.append(Pair(files[0], files[1], calibration=files[2] if len(files) == 3 else None))
    if not pairs:
        raise ValueError(f"{path}: the list names no pair")
    if truths:
        warnings.warn(
            f"{path}: the third column of {truths} lines is a disparity map and is not used; here "
            "it may hold a calibration file",
            stacklevel=2,
        )
    return _named(pairs)


def _expand(text: str) -> list[Path]:
    try:
        return expand(text)
    except FileNotFoundError as error:
        # Before Python 3.11 "*/" gives files too.
        folders = filter(Path.is_dir, sorted(Path(text).glob("*")))
        inner = next(filter(None, map(_pair_of, folders)), None)
        if inner is None:
            raise
        raise FileNotFoundError(
            f"{text}: no image in this folder, but pairs in its folders: `vizoo infer stereo "
            f"{text}` takes them, or the globs '{text}/*/{inner.left.name}' "
            f"'{text}/*/{inner.right.name}'"
        ) from error


def _named(pairs: list[Pair]) -> list[Pair]:
    """Name results by the left file."""
    names = unique_names([pair.left for pair in pairs])
    return [replace(pair, name=name) for pair, name in zip(pairs, names, strict=True)]
