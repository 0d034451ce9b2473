"""Sequences of stereo pairs: videos, folders, cameras, streams and ROS bags.

Example:
    >>> for frame in open_sequence("left.mp4", "right.mp4"):
    ...     result = predictor(frame.left, frame.right, scale=1.0, check=False)
"""

from __future__ import annotations

import glob
import os
import re
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..datasets.files import by_numbers, check_choice
from ..vision.io.images import SUFFIXES, read_pixels, used_bits
from ..vision.io.pairing import SIDES, doubtful_pairing, images_in, side_folders
from .bags import as_bytes, is_bag, open_bag
from .captures import LAYOUTS, open_captures, without_secrets

__all__ = ["StereoFrame", "StereoSequence", "open_sequence"]

_Transform = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


class StereoFrame(NamedTuple):
    """One pair of a sequence."""

    left: np.ndarray  #: (H, W, 3) uint8 RGB
    right: np.ndarray  #: likewise
    name: str  #: of its files: the left image's, or its number
    time: float | None = None  #: seconds, from any start; None where the source does not say


@dataclass
class StereoSequence:
    """Pairs in order, to be gone through once; `open_sequence` opens one."""

    name: str  #: first part of the names of results
    frames: Iterator[StereoFrame]  #: that are still to come; closing it closes the source
    rate: float | None = None  #: frames a second, where known
    length: int | None = None  #: frames, where known, as the source announces them
    live: bool = False  #: a camera or stream, which does not wait
    facts: dict[str, Any] = field(default_factory=dict)  #: what else a summary says of it
    notes: list[str] = field(default_factory=list)  #: what was found wrong so far, a line each

    def __iter__(self) -> Iterator[StereoFrame]:
        return self.frames

    def close(self) -> None:
        """Close the source, where there is something to close."""
        close = getattr(self.frames, "close", None)
        if close is not None:
            close()

    def transform(self, change: _Transform) -> None:
        """Change each pair that is still to come, left and right, as a `Rectifier` does."""
        self.frames = _transformed(self.frames, change)

    def peek(self) -> Generator[StereoFrame]:
        """Look at frames ahead, one after the other; iterating still begins at the first."""
        seen: deque[StereoFrame] = deque()
        try:
            for frame in self.frames:
                seen.append(frame)
                yield frame
        finally:
            self.frames = _resumed(seen, self.frames)


def _resumed(seen: deque[StereoFrame], rest: Iterator[StereoFrame]) -> Iterator[StereoFrame]:
    """Frames that were seen, then the rest, which is closed at the end."""
    with closing(StereoSequence("", rest)):
        while seen:
            yield seen.popleft()
        yield from rest


def open_sequence(
    source: str | os.PathLike | int,
    right: str | os.PathLike | int | None = None,
    *,
    layout: str = "auto",
    topics: tuple[str, str] | None = None,
) -> StereoSequence:
    """Open a sequence of pairs; those of a raw rig take a `StereoSequence.transform`.

    Args:
        source: a video; a folder or glob of left images; a folder that holds folders of left and
            right images (``left`` and ``right``, ``image_2`` and ``image_3``, ...); a number or
            ``camera:0``; the address of a stream (``rtsp://...``); a ROS 2 bag (or ROS 1), which
            needs the extra ``ros``.
        right: of the same kind, for the right view; None where the source holds both.
        layout: of a video, camera or stream that holds both views; ``auto`` looks which halves of
            its first picture are alike.
        topics: of a bag, left and right; None where there are just two of images.

    Raises:
        FileNotFoundError: there is no such file or folder, or no image in it.
        ValueError: it cannot be read, or the two sides do not belong together.
        ImportError: what reads bags is not installed.
    """
    check_choice("layout", layout, LAYOUTS)
    sources = [_source(word) for word in (source, right) if word is not None]
    kinds = [kind for kind, _ in sources]
    if len(set(kinds)) > 1:
        raise ValueError(f"left is {kinds[0]} and right is {kinds[1]}; give two of one kind")
    words = [word for _, word in sources]
    shown = without_secrets(words[0])
    if len(set(words)) < len(words) and kinds[0] != "a bag":
        raise ValueError(f"{shown}: named for both views; name the right view's source")
    if topics is not None and kinds[0] != "a bag":
        raise ValueError(f"topics are for bags, and {shown} is {kinds[0]}")
    if layout != "auto" and kinds[0] in ("a bag", "a folder"):
        raise ValueError(f"a layout is of pictures that hold both views, and {shown} is {kinds[0]}")
    if kinds[0] == "a bag":
        if len(words) > 1:
            raise ValueError(f"{words[0]} and {words[1]}: give one bag that holds both views")
        return _bag(Path(words[0]), topics)
    if kinds[0] == "a folder":
        return _folders(words)
    return _captured(words, layout, live=kinds[0] == "a camera")


def _source(word: str | os.PathLike | int) -> tuple[str, str]:
    """Which kind of source it is, and its path, address or, of a camera, ``camera:0``."""
    text = os.fspath(word) if not isinstance(word, int) else f"camera:{word}"
    path = Path(text)
    if re.fullmatch(r"camera:\d+", text) or "://" in text or path.is_char_device():
        return "a camera", text
    if text.isdecimal() and not path.exists():
        return "a camera", f"camera:{text}"
    if is_bag(path):
        return "a bag", text
    if path.is_dir() or (glob.has_magic(text) and not path.exists()):
        return "a folder", text
    if not (path.is_file() or path.is_fifo()):
        raise FileNotFoundError(f"{text}: no such file or folder")
    if path.suffix.lower() in SUFFIXES:
        raise ValueError(
            f"{text}: an image; a sequence is a video, a folder of images, a camera or a bag "
            "(`vizoo infer stereo` takes single pairs)"
        )
    return "a video", text


def _transformed(frames: Iterator[StereoFrame], change: _Transform) -> Iterator[StereoFrame]:
    with closing(StereoSequence("", frames)):
        for frame in frames:
            left, right = change(frame.left, frame.right)
            yield frame._replace(left=left, right=right)


def _folders(words: list[str]) -> StereoSequence:
    root = Path(words[0])
    if len(words) == 1:
        both = side_folders(root)
        if both is None:
            known = ", ".join(f"{left} and {right}" for left, right in SIDES)
            raise FileNotFoundError(
                f"{words[0]}: RIGHT is missing, and alone this folder has none of {known} in it"
            )
        words = [str(folder) for folder in both]
    notes: list[str] = []
    left, right = (_images(word, notes) for word in words)
    if len(left) != len(right):
        raise ValueError(
            f"{words[0]} holds {len(left)} images and {words[1]} {len(right)}: they are paired in "
            "order, so the counts must agree"
        )
    if doubt := doubtful_pairing(left, right):
        notes.append(doubt)
    stems = [path.stem for path in left]
    names = stems if len(set(stems)) == len(stems) else [f"{i:06d}" for i in range(len(stems))]
    name = root.resolve().name if root.is_dir() else "sequence"
    facts = dict(zip(("left", "right"), words, strict=True))
    frames = _read(list(zip(left, right, names, strict=True)), notes)
    return StereoSequence(name, frames, length=len(left), facts=facts, notes=notes)


def _images(word: str, notes: list[str]) -> list[Path]:
    """Images of a folder or glob, by their numbers: 2.png before 10.png."""
    folder = Path(word)
    if folder.is_dir():
        paths = images_in(folder)
    else:
        paths = [path for path in map(Path, glob.glob(word, recursive=True)) if path.is_file()]
    files = [file for file in paths if file.suffix.lower() in SUFFIXES]
    if others := sorted({*paths} - {*files}):
        kinds = "passed over, of kinds that are not read"
        notes.append(f"{word}: {len(others)} {kinds}, first {others[0]}")
    if not files:
        raise FileNotFoundError(f"{word}: no image there ({' '.join(SUFFIXES)})")
    return sorted(files, key=lambda file: by_numbers(str(file)))


def _read(pairs: list[tuple[Path, Path, str]], notes: list[str]) -> Iterator[StereoFrame]:
    failed = []
    shift = 0
    try:
        for left, right, name in pairs:
            try:
                views = read_pixels(left), read_pixels(right)
            except (ValueError, OSError) as error:
                failed.append(str(error))
                continue
            shift = max(shift, *(used_bits(view) - 8 for view in views))
            first, second = (as_bytes(view, shift) for view in views)
            yield StereoFrame(first, second, name)
    finally:
        if failed:
            notes.append(passed_over(len(failed), failed[0]))


def passed_over(count: int, reason: str) -> str:
    """The line that says so of frames."""
    return f"{count} frame{'s' * (count > 1)} passed over: {reason}" + " (the first)" * (count > 1)


def _captured(words: list[str], layout: str, live: bool) -> StereoSequence:
    captures = open_captures(words, layout, live)
    words = captures.sources
    facts = dict(zip(("left", "right"), words, strict=False))
    if len(words) == 1:
        facts["layout"] = captures.layout
    name = re.sub(r"[^\w.-]+", "_", words[0].replace("camera:", "camera")) if live else ""
    frames = _numbered(captures.pairs())
    name = name or Path(words[0]).stem
    return StereoSequence(name, frames, captures.rate, captures.length, live, facts, captures.notes)


def _bag(path: Path, topics: tuple[str, str] | None) -> StereoSequence:
    bag = open_bag(path, topics)
    facts = {"left": str(path), "topics": list(bag.topics)}
    frames = _numbered(bag.pairs())
    return StereoSequence(path.stem, frames, bag.rate, bag.length, False, facts, bag.notes)


def _numbered(pairs: Iterator[tuple[np.ndarray, np.ndarray, Any]]) -> Iterator[StereoFrame]:
    for index, (left, right, moment) in enumerate(pairs):
        yield StereoFrame(left, right, f"{index:06d}", moment)
