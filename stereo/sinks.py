"""Where the disparities of a sequence go: a video, a PNG of each frame, a recording for rerun.

Each is a context manager that yields ``write(frame, disparity)``. Videos and recordings get their
names when the block ends well, so that a reader never meets half of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import cv2
import numpy as np
from cv2 import VideoCapture

from ..common.extras import from_extra
from ..common.files import atomic_write
from ..vision.io.disparity import write_disparity
from ..vision.viz.colour import colourise
from .sequences import StereoFrame

__all__ = ["FORMATS", "open_sink", "recording", "pictures", "video"]

FORMATS = ("video", "png", "rrd")
"""What can be written of a sequence."""

_PNG_MOST = 65535 / 256  # pixels that a 16-bit PNG can hold
_LONGEST = 10.0  # seconds that a picture of a video stands at most

Write = Callable[[StereoFrame, np.ndarray], None]


def open_sink(
    form: str, path: Path, size: tuple[int, int], rate: float, colours: tuple[float, float]
) -> AbstractContextManager[Write]:
    """One of `FORMATS` at its `path`; size is (height, width), rate of frames a second."""
    if form == "video":
        return video(path, size, rate, colours)
    return recording(path) if form == "rrd" else pictures(path)


@contextmanager
def video(
    path: Path, size: tuple[int, int], rate: float, colours: tuple[float, float]
) -> Iterator[Write]:
    """A video of disparity in colours; frames that say their time stand until the next one's.

    The coder halves colours: of pictures of odd sizes it leaves out the last row or column.

    Args:
        path: ends on ``.mp4``.
        size: (height, width), pixels.
        rate: frames a second.
        colours: disparities of the first and the last colour, pixels.

    Raises:
        OSError: it cannot be written.
    """
    low, high = colours
    with atomic_write(path) as temporary:
        coding = cv2.VideoWriter.fourcc(*"mp4v")
        writer = cv2.VideoWriter(str(temporary), coding, rate, size[::-1])
        if not writer.isOpened():
            raise OSError(f"{path}: no video can be written: OpenCV has no MPEG-4 coder here")
        begin, written = None, 0

        def write(frame: StereoFrame, disparity: np.ndarray) -> None:
            nonlocal begin, written
            picture = cv2.cvtColor(colourise(disparity, low=low, high=high), cv2.COLOR_RGB2BGR)
            repeats = 1
            if frame.time is not None:
                begin = frame.time if begin is None else begin
                due = round((frame.time - begin) * rate) + 1
                repeats = min(max(due - written, 1), round(_LONGEST * rate))
            for _ in range(repeats):
                writer.write(picture)
            written += repeats

        try:
            yield write
        finally:
            writer.release()
        reader = VideoCapture(str(temporary))
        kept = int(reader.get(cv2.CAP_PROP_FRAME_COUNT))
        reader.release()
        if kept < written:  # OpenCV says nothing of a full disk
            raise OSError(f"{path}: {kept} of {written} frames could be written; is the disk full?")


@contextmanager
def pictures(folder: Path) -> Iterator[Write]:
    """A 16-bit PNG of each frame, 256 a pixel, as KITTI's; what is beyond 256 px becomes that."""

    def write(frame: StereoFrame, disparity: np.ndarray) -> None:
        write_disparity(folder / f"{frame.name}.png", np.minimum(disparity, _PNG_MOST))

    yield write


@contextmanager
def recording(path: Path) -> Iterator[Write]:
    """A recording for rerun's viewer: the left picture and the disparity, by frame and time.

    Raises:
        ImportError: rerun is not installed.
    """
    rerun = from_extra("viewer", "rerun", f"{path}: a recording for rerun")
    with atomic_write(path) as temporary:
        stream = rerun.RecordingStream("vizoo")
        stream.save(str(temporary))
        count = 0

        def write(frame: StereoFrame, disparity: np.ndarray) -> None:
            nonlocal count
            stream.set_time("frame", sequence=count)
            if frame.time is not None:
                stream.set_time("time", duration=frame.time)
            stream.log("left", rerun.Image(frame.left).compress(jpeg_quality=85))
            steps = np.clip(np.rint(256 * disparity), 0, 65535).astype(np.uint16)
            # A depth image is what the viewer colours, and of which it tells the values.
            stream.log("disparity", rerun.DepthImage(steps, meter=256, colormap="turbo"))
            count += 1

        try:
            yield write
        finally:
            stream.flush()
            stream.disconnect()
