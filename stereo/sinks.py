"""Where the disparities of a sequence go: a video, a PNG of each frame, a recording for rerun.

Each is a context manager that yields ``write(frame, disparity)``, the disparity 0 where unknown.
Videos and recordings get their names when the block ends well, so that a reader never meets half of
one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import cv2
import numpy as np
import torch
from cv2 import VideoCapture

from ..common.extras import from_extra
from ..common.files import atomic_write, check_formats
from ..datasets.stereo.calibration import StereoCalibration
from ..vision.io.disparity import PNG_MOST, write_disparity
from ..vision.io.images import write_image
from ..vision.viz.colour import colourise
from .geometry import disparity_to_depth
from .rectify import Rectifier, RigRectifier
from .sequences import StereoFrame

__all__ = ["FORMATS", "check_forms", "open_sinks"]

FORMATS = ("video", "png", "rrd")
"""What can be written of a sequence."""

_LONGEST = 10.0  # seconds that a picture of a video stands at most

_Write = Callable[[StereoFrame, np.ndarray], None]
_Draw = Callable[[Path, StereoFrame, np.ndarray], None]


def check_forms(formats: Iterable[str]) -> list[str]:
    """Return what is to be written, each once.

    Raises:
        ValueError: one is none of `FORMATS`.
        ImportError: what writes it is not installed.
    """
    formats = check_formats(formats, FORMATS)
    if "rrd" in formats:
        _rerun()
    return formats


def _rerun() -> ModuleType:
    return from_extra("viewer", "rerun", "a recording for rerun")


def open_sinks(
    formats: Iterable[str],
    stem: Path,
    size: tuple[int, int],
    rate: float,
    colours: tuple[float, float],
    calibration: StereoCalibration | None = None,
    rectifier: Rectifier | None = None,
    live: bool = False,
) -> dict[Path, AbstractContextManager[_Write]]:
    """What writes, by the file or folder that it writes.

    Args:
        formats: some of `FORMATS`.
        stem: folder, and first part of the names in it.
        size: (height, width), pixels.
        rate: frames a second of a video.
        colours: disparities of the first and the last colour of a video, pixels.
        calibration: of the pairs, where it is known: with it, depth in millimetres and the left
            picture that it belongs to.
        rectifier: what made the pairs of raw ones, where that is so.
        live: whether a video may leave out frames for which its rate has no time.
    """

    def called(ending: str) -> Path:
        return stem.with_name(f"{stem.name}{ending}")

    sinks: dict[Path, AbstractContextManager[_Write]] = {}
    for form in formats:
        if form == "video":
            path = called("_disparity.mp4")
            sinks[path] = video(path, size, rate, colours, live)
        elif form == "rrd":
            sinks[called(".rrd")] = _recording(called(".rrd"), size, calibration)
        else:
            for what, draw in _drawings(calibration, rectifier).items():
                folder = called(f"_{what}")
                sinks[folder] = nullcontext(partial(_drawn, folder, draw))
    return sinks


def _drawings(
    calibration: StereoCalibration | None, rectifier: Rectifier | None
) -> dict[str, _Draw]:
    """What is written of each frame as a PNG, by the endings of the folders' names."""
    writers: dict[str, _Draw] = {
        "disparity": lambda path, _, values: write_disparity(path, np.minimum(values, PNG_MOST))
    }
    if calibration is not None or rectifier is not None:
        writers["left"] = lambda path, frame, _: write_image(path, frame.left)
    if calibration is not None:
        depth = partial(_depth, calibration)
        writers["depth"] = lambda path, _, values: write_image(path, _millimetres(depth(values)))
        if isinstance(rectifier, RigRectifier):
            raw = rectifier.depth_in_raw
            writers["depth_raw"] = lambda path, _, values: write_image(
                path, _millimetres(raw(depth(values)))
            )
    return writers


def _depth(calibration: StereoCalibration, disparity: np.ndarray) -> np.ndarray:
    """Depth (H, W) float32 of a disparity of a calibration's size, metres; 0 where unknown."""
    c = calibration
    return disparity_to_depth(torch.from_numpy(disparity), c.focal, c.baseline, c.doffs).numpy()


def _millimetres(depth: np.ndarray) -> np.ndarray:
    """Depth (H, W) as uint16; what is farther than that can say is unknown."""
    steps = np.rint(1000 * depth)
    return np.where(steps <= 65535, steps, 0).astype(np.uint16)


def _drawn(folder: Path, draw: _Draw, frame: StereoFrame, disparity: np.ndarray) -> None:
    draw(folder / f"{frame.name}.png", frame, disparity)


@contextmanager
def video(
    path: Path, size: tuple[int, int], rate: float, colours: tuple[float, float], live: bool = False
) -> Iterator[_Write]:
    """A video of disparity in colours; frames that say their time stand until the next one's.

    Where frames come faster than the rate, all are shown, slower; of a live source those that there
    is no time for are left out. The coder halves colours: of pictures of odd sizes it leaves out
    the last row or column.

    Args:
        path: ends on ``.mp4``.
        size: (height, width), pixels.
        rate: frames a second.
        colours: disparities of the first and the last colour, pixels.
        live: whether the frames are a camera's.

    Raises:
        OSError: it cannot be written.
    """
    low, high = colours
    with atomic_write(path) as temporary:
        writer = cv2.VideoWriter(str(temporary), cv2.VideoWriter.fourcc(*"mp4v"), rate, size[::-1])
        if not writer.isOpened():
            raise OSError(f"{path}: no video can be written: OpenCV has no MPEG-4 coder here")
        most = max(1, round(_LONGEST * rate))
        begin = latest = np.inf
        written = 0
        before: Any = None

        def write(frame: StereoFrame, disparity: np.ndarray) -> None:
            nonlocal begin, latest, written, before
            due = 1
            if frame.time is not None:
                if frame.time < latest:  # the first, or of a clock that was put back
                    begin = frame.time - written / rate
                latest = frame.time
                due = round((latest - begin) * rate) + 1 - written
                begin += max(due - most, 0) / rate
            due = max(due, 0 if live else 1)
            if not due:
                return
            picture = cv2.cvtColor(colourise(disparity, low=low, high=high), cv2.COLOR_RGB2BGR)
            for shown in [before] * (min(due, most) - 1) + [picture]:
                writer.write(shown)
                written += 1
            before = picture

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
def _recording(
    path: Path, size: tuple[int, int], calibration: StereoCalibration | None
) -> Iterator[_Write]:
    """A recording for rerun's viewer: the left picture and the disparity, by frame and time.

    With a calibration also the depth, which the viewer shows in space.
    """
    rerun: Any = _rerun()
    with atomic_write(path) as temporary:
        stream = rerun.RecordingStream("vizoo")
        stream.save(str(temporary))
        count, home = 0, ""
        if calibration is not None:
            c, home = calibration, "camera/"
            focal = (c.focal, c.focal_y or c.focal)
            height, width = size
            middle = (width - 1) / 2, (height - 1) / 2
            centre = middle if c.cx is None or c.cy is None else (c.cx, c.cy)
            camera = rerun.Pinhole(
                focal_length=focal, principal_point=centre, width=width, height=height
            )
            stream.log("camera", camera, static=True)

        def write(frame: StereoFrame, disparity: np.ndarray) -> None:
            nonlocal count
            stream.set_time("frame", sequence=count)
            if frame.time is not None:
                stream.set_time("time", duration=frame.time)
            stream.log(f"{home}left", rerun.Image(frame.left).compress(jpeg_quality=85))
            steps = np.clip(np.rint(256 * disparity), 0, 65535).astype(np.uint16)
            # A depth image is what the viewer colours, and of which it tells the values.
            stream.log("disparity", rerun.DepthImage(steps, meter=256, colormap="turbo"))
            if calibration is not None:
                depth = _millimetres(_depth(calibration, disparity))
                stream.log(f"{home}depth", rerun.DepthImage(depth, meter=1000))
            count += 1

        try:
            yield write
            try:
                stream.flush()
            except RuntimeError as error:
                raise OSError(f"{path}: cannot be written: {error}; is the disk full?") from error
        finally:
            stream.disconnect()
