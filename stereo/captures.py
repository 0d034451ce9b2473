"""Stereo pairs of videos, cameras and streams, through OpenCV: of one source or of two."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

__all__ = ["LAYOUTS", "Captures", "open_captures"]

LAYOUTS = ("auto", "side-by-side", "top-bottom")
"""How one picture holds both views."""

_ALIKE, _CLEARLY = 0.5, 0.1  # correlation of a picture's halves that are views of one scene
_SAME = 0.03, 0.5  # of a picture's contrast, and levels: two codings of one differ by less
_FASTEST = 1000  # frames a second; some sources name a clock's rate instead
_DAMAGED = 10  # pictures in a row at most; after more, the source has ended


@dataclass(frozen=True)
class Captures:
    """One or two open captures of OpenCV, and their first pictures."""

    sources: list[str]  #: as they may be shown, addresses without passwords
    captures: list[Any]
    first: list[Any]  #: pictures, (H, W, 3) uint8 RGB
    layout: str  #: of a source that holds both views
    rate: float | None  #: frames a second, as the source says
    length: int | None  #: frames, as the source announces them
    live: bool
    notes: list[str]  #: what was found wrong, for the user

    def pairs(self) -> Iterator[tuple[np.ndarray, np.ndarray, float | None]]:
        """Go through the pairs: left and right, (H, W, 3) uint8 RGB, and seconds where known.

        Damaged pictures are passed over. Notes say how many, and whether a source ended too early.
        """
        begin, count, pictures = time.monotonic(), 0, self.first
        missing = damaged = 0
        names = " and ".join(self.sources)
        try:
            while missing <= _DAMAGED:
                count += 1
                if all(picture is not None for picture in pictures):
                    damaged, missing = damaged + missing, 0
                    halves = len(pictures) == 1
                    left, right = _halves(pictures[0], self.layout) if halves else pictures
                    clock = time.monotonic() - begin if self.live else None
                    seconds = (count - 1) / self.rate if self.rate and not self.live else clock
                    yield left, right, seconds
                else:
                    missing += 1
                # All are grabbed before any is decoded, so that they are of one time.
                grabbed = zip(self.captures, [c.grab() for c in self.captures], strict=True)
                pictures = [_decoded(capture) if good else None for capture, good in grabbed]
            count -= missing
            told = f"{names}: ends after {count}"
            if self.live:
                self.notes.append(f"{told} frames: no more pictures come")
            # What a file announces may be an estimate, by a frame or a per cent.
            elif self.length is not None and count < min(self.length - 1, 0.99 * self.length):
                self.notes.append(f"{told} of {self.length} frames: cut short, or damaged")
        finally:
            if damaged:
                self.notes.append(f"{names}: {damaged} of {count} frames passed over: damaged")
            for capture in self.captures:
                capture.release()


def open_captures(sources: list[str], layout: str = "auto", live: bool = False) -> Captures:
    """Open one source that holds both views, or two.

    Args:
        sources: files, or, where ``live``, addresses or ``camera:0``.
        layout: one of `LAYOUTS`, of a single source.
        live: whether they are cameras or streams.

    Raises:
        ValueError: one cannot be opened or has no picture, two do not belong together, or the
            picture of one cannot be halved.
    """
    if len(sources) == 2 and layout != "auto":
        raise ValueError(f"{layout} is for one source that holds both views, not for two")
    shown = [without_secrets(source) for source in sources]
    captures: list[Any] = []
    notes: list[str] = []
    try:
        with _quiet():
            for source in sources:
                captures.append(_capture(source, live))
            first: list[Any] = [_decoded(c) if c.grab() else None for c in captures]
        for source, picture in zip(shown, first, strict=True):
            if picture is None:
                raise ValueError(f"{source}: no picture comes from it")
        rates = [_number(capture, cv2.CAP_PROP_FPS) for capture in captures]
        lengths = [0 if live else int(_number(c, cv2.CAP_PROP_FRAME_COUNT)) for c in captures]
        if len(sources) == 1:
            layout = _layout(shown[0], first[0], layout, notes)
        else:
            _check_two(shown, first, [0.0] if live else rates)
        views = first if len(first) == 2 else _halves(first[0], layout)
        if _same(*views):
            notes.append(
                f"{' and '.join(shown)}: both views are the same picture, "
                "apart from its coding: there is no depth in it"
            )
        if len(sources) == 2 and min(lengths) > 0 and lengths[0] != lengths[1]:
            notes.append(
                f"{shown[0]} has {lengths[0]} frames and {shown[1]} {lengths[1]}: pairs "
                "are counted from the first, which is wrong where one of them lost frames"
            )
    except BaseException:
        for capture in captures:
            capture.release()
        raise
    length = min(lengths) if min(lengths) > 0 else None
    rate = rates[0] if 0 < rates[0] < _FASTEST else None
    return Captures(shown, captures, first, layout, rate, length, live, notes)


def without_secrets(word: str) -> str:
    """An address without the name, password, query and fragment that may be part of it."""
    if "://" not in word:
        return word
    return re.split(r"[?#]", re.sub(r"(://)[^/]*@", r"\1", word))[0]


def _capture(word: str, live: bool) -> Any:
    camera = re.fullmatch(r"camera:(\d+)", word)
    capture = cv2.VideoCapture(int(camera[1]) if camera else word)
    if capture.isOpened():
        return capture
    capture.release()
    if camera:
        raise ValueError(f"{word}: no such camera, or another program uses it")
    if live:
        raise ValueError(f"{without_secrets(word)}: no stream comes from this address")
    raise ValueError(
        f"{word}: no video, or one whose end was never written, or of unknown coding; copy it once "
        "more, or record to AVI or MKV, which can be read without their end"
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what OpenCV and FFmpeg print when a source cannot be opened."""
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
    log = getattr(cv2.utils, "logging", cv2)  # where it is since OpenCV 4.13
    level = log.setLogLevel(0)
    try:
        yield
    finally:
        log.setLogLevel(level)


def _number(capture: Any, key: int) -> float:
    """A property of a capture; 0 where it does not say."""
    value = float(capture.get(key))
    return value if np.isfinite(value) and value > 0 else 0.0


def _decoded(capture: Any) -> np.ndarray | None:
    """The picture that was grabbed, (H, W, 3) uint8 RGB."""
    good, picture = capture.retrieve()
    if not good or picture is None:
        return None
    return cv2.cvtColor(picture, cv2.COLOR_BGR2RGB if picture.ndim == 3 else cv2.COLOR_GRAY2RGB)


def _check_two(sources: list[str], first: list[Any], rates: list[float]) -> None:
    sizes = [f"{picture.shape[0]}x{picture.shape[1]}" for picture in first]
    if sizes[0] != sizes[1]:
        raise ValueError(
            f"{sources[0]} has {sizes[0]} pixels and {sources[1]} {sizes[1]}; a rectified pair "
            "has one size"
        )
    if min(rates) > 0 and abs(rates[0] - rates[1]) > 0.01 * rates[0]:
        raise ValueError(
            f"{sources[0]} has {rates[0]:g} frames a second and {sources[1]} {rates[1]:g}: their "
            "frames do not belong together"
        )


def _layout(word: str, picture: np.ndarray, layout: str, notes: list[str]) -> str:
    """How a picture holds both views; a note where another layout than it looks like is given."""
    alike = {kind: _likeness(*_halves(picture, kind)) for kind in LAYOUTS[1:]}
    best, other = sorted(alike, key=lambda kind: -alike[kind])
    clear = alike[best] >= max(_ALIKE, alike[other] + _CLEARLY)
    if layout == "auto":
        if not clear:
            raise ValueError(
                f"{word}: neither its halves beside nor those above each other are clearly two "
                f"views of one scene; name the layout ({' or '.join(LAYOUTS[1:])}), or the right "
                "view's source"
            )
        layout = best
    elif clear and layout != best:
        notes.append(f"{word}: taken as {layout}, but its halves look like {best}")
    side, length = ("width", picture.shape[1]) if layout == LAYOUTS[1] else ("height", len(picture))
    if length % 2:
        raise ValueError(f"{word}: an odd {side} of {length} pixels cannot be halved ({layout})")
    return layout


def _halves(picture: np.ndarray, layout: str) -> tuple[np.ndarray, np.ndarray]:
    height, width = (length // 2 for length in picture.shape[:2])
    if layout == "side-by-side":
        return picture[:, :width], picture[:, width : 2 * width]
    return picture[:height], picture[height : 2 * height]


def _same(left: np.ndarray, right: np.ndarray) -> bool:
    """Whether two views are one picture, be it coded twice."""
    share, levels = _SAME
    contrast = float(left.std())
    return contrast > 1 and cv2.absdiff(left, right).mean() < share * contrast + levels


def _likeness(left: np.ndarray, right: np.ndarray) -> float:
    """Correlation of the middle of one picture with the same rows of another, at its best."""
    size = (160, max(24, round(160 * left.shape[0] / max(left.shape[1], 1))))
    left, right = (
        cv2.resize(cv2.cvtColor(view, cv2.COLOR_RGB2GRAY), size, interpolation=cv2.INTER_AREA)
        for view in (left, right)
    )
    middle = left[2:-2, 48:-16]
    if middle.std() < 1:
        return 0.0
    return float(cv2.matchTemplate(right, middle, cv2.TM_CCOEFF_NORMED).max())
