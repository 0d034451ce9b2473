"""Stereo pairs of ROS bags, read by `rosbags`: ROS 2 (SQLite, MCAP) and ROS 1."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from ..common.extras import from_extra
from ..vision.io.images import used_bits

__all__ = ["Bag", "decode", "is_bag", "open_bag"]

_IMAGES = ("sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage")
_SUFFIXES = (".bag", ".db3", ".mcap")
# Words of topics that differ between the left and the right one.
_SIDES = (("left", "right"), ("cam0", "cam1"), ("infra1", "infra2"), ("image_0", "image_1"))
_TIMED = 30  # pictures by whose times the rate is known
_APART = 0.35  # of the time between frames: pictures farther apart are no pair
_WAITING = 100  # pictures of one side at most that wait for the other's

# Encodings of ROS to type, values a pixel, and OpenCV's conversion to RGB.
_ENCODINGS: dict[str, tuple[Any, int, int | None]] = {
    "mono8": (np.uint8, 1, None),
    "8UC1": (np.uint8, 1, None),
    "mono16": (np.uint16, 1, None),
    "16UC1": (np.uint16, 1, None),
    "rgb8": (np.uint8, 3, None),
    "bgr8": (np.uint8, 3, cv2.COLOR_BGR2RGB),
    "8UC3": (np.uint8, 3, cv2.COLOR_BGR2RGB),
    "rgba8": (np.uint8, 4, cv2.COLOR_RGBA2RGB),
    "bgra8": (np.uint8, 4, cv2.COLOR_BGRA2RGB),
    "rgb16": (np.uint16, 3, None),
    "bgr16": (np.uint16, 3, cv2.COLOR_BGR2RGB),
    **{
        f"bayer_{order}{bits}": (kind, 1, getattr(cv2, f"COLOR_Bayer{order.upper()}2RGB"))
        for bits, kind in ((8, np.uint8), (16, np.uint16))
        for order in ("rggb", "bggr", "gbrg", "grbg")
    },
    **dict.fromkeys(("uyvy", "yuv422"), (np.uint8, 2, cv2.COLOR_YUV2RGB_UYVY)),
    **dict.fromkeys(("yuyv", "yuv422_yuy2"), (np.uint8, 2, cv2.COLOR_YUV2RGB_YUY2)),
}


def is_bag(path: Path) -> bool:
    """Whether a path looks like a ROS bag: by its suffix, or of a folder by what lies in it."""
    if path.is_dir():
        files = (path.glob(f"*{suffix}") for suffix in _SUFFIXES[1:])
        return (path / "metadata.yaml").is_file() or any(any(found) for found in files)
    return path.suffix.lower() in _SUFFIXES


@dataclass(frozen=True)
class Bag:
    """A bag and the two topics of its pairs."""

    path: Path  #: a folder, or a file
    topics: tuple[str, str]  #: left and right
    length: int  #: pairs at most
    rate: float | None  #: of them a second, about
    notes: list[str] = field(default_factory=list)  #: what was found wrong, for the user

    def pairs(self) -> Iterator[tuple[np.ndarray, np.ndarray, float]]:
        """Go through the pairs: left and right, (H, W, 3) uint8 RGB, and the left one's seconds.

        Pictures belong together by the times in their headers; a note says what was passed over.
        """
        tolerance = 1e9 * _APART / self.rate if self.rate else 0
        damaged: list[str] = []
        alone = done = shift = 0
        waiting: tuple[deque[tuple[int, Any]], ...] = (deque(), deque())
        try:
            with closing(_messages(self.path, self.topics)) as messages:
                for side, stamp, message in messages:
                    waiting[side].append((stamp, message))
                    if len(waiting[side]) > _WAITING:
                        waiting[side].popleft()
                        alone += 1
                    while all(waiting):
                        apart = waiting[0][0][0] - waiting[1][0][0]
                        if abs(apart) > tolerance:
                            waiting[int(apart > 0)].popleft()
                            alone += 1
                            continue
                        taken = [queue.popleft() for queue in waiting]
                        try:
                            views = [decode(message) for _, message in taken]
                        except ValueError as error:
                            damaged.append(str(error))
                            continue
                        # It may begin in the dark.
                        shift = max(shift, *(used_bits(view) - 8 for view in views))
                        left, right = (as_bytes(view, shift) for view in views)
                        done += 1
                        yield left, right, taken[0][0] / 1e9
            alone += sum(map(len, waiting))
        finally:
            if damaged:
                self.notes.append(f"{self.path}: {len(damaged)} pairs passed over: {damaged[0]}")
            if alone:
                self.notes.append(
                    f"{self.path}: {alone} pictures have no partner of their time, beside {done} "
                    "pairs"
                )
            if 0 < shift < 8:
                self.notes.append(f"{self.path}: 16-bit pictures were taken as of {8 + shift} bits")


def open_bag(path: Path, topics: tuple[str, str] | None = None) -> Bag:
    """Find the pairs of a bag.

    Args:
        path: the bag.
        topics: left and right; None where there are two of images, or two by their names.

    Raises:
        FileNotFoundError: there is no such bag.
        ValueError: it cannot be read, or has no such topics; the message lists those it has.
        ImportError: `rosbags` is not installed.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such bag")
    with closing(_reader(path)) as reader:
        known = {
            name: topic.msgcount
            for name, topic in reader.topics.items()
            if topic.msgtype in _IMAGES
        }
        listed = ", ".join(f"{name} ({count})" for name, count in known.items()) or "none"
        chosen = topics or _two(list(known))
        if chosen is None:
            raise ValueError(
                f"{path}: no two topics of images that are clearly left and right; name the "
                f"topics, left and right, of: {listed}"
            )
        for name in chosen:
            if not known.get(name):
                raise ValueError(f"{path}: no image of the topic {name}; there are: {listed}")
        if chosen[0] == chosen[1]:
            raise ValueError(f"{path}: left and right are both {chosen[0]}; there are: {listed}")
    with closing(_messages(path, chosen[:1])) as messages:
        times = [stamp for _, stamp, _ in islice(messages, _TIMED)]
    gap = float(np.median(np.diff(sorted(times)))) if len(times) > 1 else 0.0
    length, rate = min(known[name] for name in chosen), 1e9 / gap if gap > 0 else None
    bags = sorted({re.sub(r"_\d+$", "", file.stem) for file in _files(path)})  # without the part
    told = f"{path}: {len(bags)} recordings are read as one, by time: {', '.join(bags)}"
    return Bag(path, chosen, length, rate, [told] if len(bags) > 1 else [])


def _two(names: list[str]) -> tuple[str, str] | None:
    """The only left and right ones of topics."""
    pairs = [
        (name, name.replace(*side))
        for name in names
        for side in _SIDES
        if side[0] in name and name.replace(*side) in names
    ]
    if len(pairs) == 1:
        return pairs[0]
    return (names[0], names[1]) if len(names) == 2 and not pairs else None


def _files(path: Path) -> list[Path]:
    """The bag, or the files in its folder where what lists them, written at the end, is missing."""
    if not path.is_dir() or (path / "metadata.yaml").is_file():
        return [path]
    return sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES[1:]) or [path]


def _reader(path: Path) -> Any:
    highlevel = from_extra("ros", "rosbags.highlevel", f"{path}: reading a ROS bag")
    types = from_extra("ros", "rosbags.typesys", f"{path}: reading a ROS bag")
    try:
        # Definitions that a bag lacks are those of a release; pictures are alike in all.
        known = types.get_typestore(types.Stores.ROS2_HUMBLE)
        reader = highlevel.AnyReader(_files(path), default_typestore=known)
        reader.open()
    except Exception as error:  # readers of SQLite, YAML and MCAP meet damage in many ways
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path}: no ROS bag that can be read: {reason}") from error
    return reader


def _messages(path: Path, topics: Sequence[str]) -> Generator[tuple[int, int, Any]]:
    """Side, time in nanoseconds and message, in the order of the bag."""
    with closing(_reader(path)) as reader:
        wanted = [c for c in reader.connections if c.topic in topics]
        try:
            for connection, logged, data in reader.messages(connections=wanted):
                message = reader.deserialize(data, connection.msgtype)
                stamp = message.header.stamp
                moment = stamp.sec * 10**9 + stamp.nanosec
                yield topics.index(connection.topic), moment or logged, message
        except (ValueError, OSError, ImportError):
            raise
        except Exception as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(f"{path}: damaged, and read so far: {reason}") from error


def decode(message: Any) -> np.ndarray:
    """A message's picture: uint8 or uint16, (H, W) or (H, W, 3) RGB.

    Raises:
        ValueError: its encoding is unknown, or its data are damaged.
    """
    try:
        return _decoded(message)
    except cv2.error as error:
        size = f"{message.height}x{message.width} pixels of " if hasattr(message, "width") else ""
        how = getattr(message, "encoding", getattr(message, "format", ""))
        raise ValueError(f"{size}{how} cannot be decoded: {error.err}") from error


def _decoded(message: Any) -> np.ndarray:
    if hasattr(message, "format"):
        data = np.frombuffer(bytes(message.data), np.uint8)
        flags = cv2.IMREAD_COLOR | cv2.IMREAD_ANYDEPTH
        picture = cv2.imdecode(data, flags) if len(data) else None
        if picture is None:
            raise ValueError(f"a compressed picture ({message.format}) cannot be decoded")
        return np.ascontiguousarray(picture[:, :, ::-1])
    if message.encoding not in _ENCODINGS:
        raise ValueError(f"encoding {message.encoding!r} is none of {', '.join(_ENCODINGS)}")
    dtype, channels, conversion = _ENCODINGS[message.encoding]
    kind = np.dtype(dtype).newbyteorder(">" if message.is_bigendian else "<")
    height, width, step = message.height, message.width, message.step
    row = width * channels * kind.itemsize
    data = np.frombuffer(bytes(message.data), np.uint8)
    if step < row or len(data) < step * height or not row * height:
        raise ValueError(
            f"{len(data)} bytes cannot hold {height}x{width} pixels of {message.encoding}"
        )
    rows = np.ascontiguousarray(data[: step * height].reshape(height, step)[:, :row])
    shape = (height, width, channels) if channels > 1 else (height, width)
    picture = rows.view(kind).astype(dtype).reshape(shape)
    return picture if conversion is None else cv2.cvtColor(picture, conversion)


def as_bytes(view: np.ndarray, shift: int) -> np.ndarray:
    """A picture as (H, W, 3) uint8, where it has 16 bits without so many of the lowest."""
    if view.dtype == np.uint16:
        view = np.minimum(view >> shift, 255).astype(np.uint8)
    return np.repeat(view[:, :, None], 3, axis=2) if view.ndim == 2 else view
