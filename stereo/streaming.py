"""A predictor run over a sequence; reading, the network and writing work at the same time.

Example:
    >>> sequence = open_sequence("left.mp4", "right.mp4")
    >>> report = stream(vizoo.StereoPredictor(), sequence, "result")
    >>> report.files, report.frames, report.rate
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..common.files import check_formats
from ..common.summaries import spread
from ..vision.viz.colour import colour_range
from .infer import StereoPredictor
from .result import StereoResult
from .sequences import StereoFrame, StereoSequence, passed_over
from .sinks import FORMATS, open_sink
from .steadiness import Steadiness

__all__ = ["StreamReport", "disparities", "settle", "stream"]

_AHEAD = 4  # frames that are read before they are needed, or wait to be written
_PATIENCE = 30  # frames without content before the first that can be matched
_SILENCE = 10.0  # seconds without a picture after which a camera counts as gone
_RATE = 10.0  # frames a second of a video where the source says none
_ENDINGS = {"video": "_disparity.mp4", "png": "_disparity", "rrd": ".rrd"}
_ROOM = 1.25  # of colours, for what comes nearer than in the first frame


@dataclass
class StreamReport:
    """What came of a sequence."""

    size: tuple[int, int]  #: of the pictures, height and width
    scale: float  #: that all frames were matched at
    steady: bool  #: whether the disparities were steadied
    frames: int = 0  #: that were written
    dropped: int = 0  #: that a camera delivered while the network was busy
    seconds: float = 0.0  #: from the first frame to the last
    network_seconds: float = 0.0  #: of those, in the network and around it
    files: list[Path] = field(default_factory=list)  #: that were written, or folders of them
    notes: list[str] = field(default_factory=list)  #: for the user, one line each
    error: str | None = None  #: what ended it early
    interrupted: bool = False  #: whether Ctrl+C did
    lowest: float = np.inf  #: disparity, pixels
    highest: float = 0.0  #: likewise
    medians: list[float] = field(default_factory=list)  #: of each frame

    @property
    def rate(self) -> float:
        """Frames a second, all in all."""
        return self.frames / self.seconds if self.seconds else 0.0

    @property
    def network_rate(self) -> float:
        """Frames a second of the network alone."""
        return self.frames / self.network_seconds if self.network_seconds else 0.0

    def summary(self) -> dict[str, Any]:
        """What was found, as JSON values."""
        middle = float(np.median(self.medians)) if self.medians else 0.0
        return {
            "size": list(self.size),
            "disparity": {"min": self.lowest, "median": middle, "max": self.highest},
            "scale": self.scale,
            "steady": self.steady,
            "frames": self.frames,
            "dropped": self.dropped,
            "frames_per_second": {
                "all": round(self.rate, 3),
                "network": round(self.network_rate, 3),
            },
            "interrupted": self.interrupted,
        }


def settle(
    predictor: StereoPredictor,
    sequence: StereoSequence,
    *,
    scale: float | str = "auto",
    check: bool = True,
) -> StereoResult:
    """Match a sequence's first frame that can be matched: its scale is that of all frames.

    Iterating over the sequence still begins at its first frame. Frames at the beginning that are
    of one colour, as where a video fades in, are passed over. The arguments are the predictor's.

    Raises:
        ValueError: there is no frame, or none of the first that can be matched.

    Warns as the predictor does.
    """
    reason = f"{sequence.name}: no frame could be read"
    with closing(sequence.peek()) as frames:
        for count, frame in enumerate(frames, start=1):
            try:
                return predictor(frame.left, frame.right, scale=scale, check=check)
            except ValueError as error:
                reason = f"{sequence.name}, frame {frame.name}: {error}"
            if count == _PATIENCE:
                break
    raise ValueError("; ".join([reason, *sequence.notes]))


def disparities(
    predictor: StereoPredictor,
    sequence: StereoSequence,
    scale: float = 1.0,
    *,
    steady: bool = False,
    report: StreamReport | None = None,
) -> Generator[tuple[StereoFrame, np.ndarray]]:
    """Yield each frame with its disparity (H, W), 0 where it cannot be matched.

    The next frames are read meanwhile; of a camera, the oldest go where the network is slower.

    Args:
        predictor: of single pairs.
        sequence: is used up.
        scale: as `settle` found it.
        steady: whether earlier frames have a say (see `vizoo.stereo.steadiness`).
        report: is told what happens.

    Raises:
        ValueError: a frame has another size than the first.
    """
    steadied = Steadiness() if steady else None
    size: tuple[int, ...] | None = None
    failed: list[str] = []
    report = StreamReport((0, 0), scale, steady) if report is None else report
    try:
        with closing(_ahead(sequence, report)) as frames:
            for frame in frames:
                size = size or frame.left.shape
                if not frame.left.shape == frame.right.shape == size:
                    raise ValueError(
                        f"{sequence.name}, frame {frame.name}: the pictures have {_told(frame)} "
                        f"pixels, the first {size[1]}x{size[0]}"
                    )
                begin = time.perf_counter()
                try:
                    result = predictor(frame.left, frame.right, scale=scale, check=False)
                    disparity = result.disparity
                except ValueError as error:
                    failed.append(f"frame {frame.name}: {error}")
                    disparity = np.zeros(size[:2], np.float32)
                report.network_seconds += time.perf_counter() - begin
                yield frame, steadied(frame.left, disparity) if steadied else disparity
    finally:
        if failed:
            report.notes.append(passed_over(len(failed), failed[0]))


def stream(
    predictor: StereoPredictor,
    sequence: StereoSequence,
    out: str | os.PathLike,
    *,
    formats: Iterable[str] = ("video",),
    settled: StereoResult | None = None,
    steady: bool = False,
    rate: float | None = None,
    colours: tuple[float, float] | None = None,
    limit: int | None = None,
    tell: Callable[[int, int | None, float], None] | None = None,
) -> StreamReport:
    """Write the disparities of a sequence.

    Where the source fails, a file cannot be written or Ctrl+C is pressed, what was written so far
    is complete, and the report says so.

    Args:
        predictor: of single pairs.
        sequence: is used up.
        out: folder: made if it is missing.
        formats: ``video`` (``NAME_disparity.mp4``, colours), ``png`` (a folder ``NAME_disparity``
            of 16-bit PNG, 256 a pixel) or ``rrd`` (``NAME.rrd`` for rerun, the extra ``viewer``).
        settled: what `settle` found; None: it is asked.
        steady: as for `disparities`.
        rate: frames a second of the video; None: the source's, or 10 where it says none.
        colours: disparities of a video's first and last colour, pixels; None: by the first frame.
        limit: so many frames at most.
        tell: called after each frame with their number, the whole number where it is known, and
            frames a second.

    Raises:
        ValueError: as `settle` and `disparities`, where no frame was written yet; or an unknown
            format.
        OSError: nothing can be written.
        ImportError: rerun is not installed.
    """
    formats = check_formats(formats, FORMATS)
    first = settle(predictor, sequence) if settled is None else settled
    size = first.disparity.shape
    if colours is None:
        colours = (0.0, _ROOM * colour_range(first.disparity)[1])
    report = StreamReport((size[0], size[1]), first.scale, steady)
    paths = {form: Path(out) / f"{sequence.name}{_ENDINGS[form]}" for form in formats}
    old = {*paths["png"].glob("*.png")} if "png" in paths else set()
    names: set[str] = set()
    total = sequence.length if limit is None else min(limit, sequence.length or limit)
    begin = time.perf_counter()
    with ExitStack() as stack:
        sinks = [
            stack.enter_context(
                open_sink(form, path, report.size, rate or sequence.rate or _RATE, colours)
            )
            for form, path in paths.items()
        ]

        def write(frame: StereoFrame, disparity: np.ndarray) -> None:
            for sink in sinks:
                sink(frame, disparity)
            low, middle, high = spread(disparity).values()
            report.lowest, report.highest = min(report.lowest, low), max(report.highest, high)
            report.medians.append(middle)
            names.add(f"{frame.name}.png")
            report.frames += 1

        stopped = _run(predictor, sequence, write, report, limit, total, tell)
        report.seconds = time.perf_counter() - begin
        if not report.frames:
            raise stopped or ValueError(f"{sequence.name}: no frame could be read")
    report.interrupted = isinstance(stopped, KeyboardInterrupt)
    report.error = None if stopped is None or report.interrupted else str(stopped)
    report.files = list(paths.values())
    report.notes += sequence.notes
    if "png" in paths and report.highest > 256:
        report.notes.append("disparities beyond 256 px are that in 16-bit PNG, where those end")
    left = sum(path.name not in names for path in old)
    if left:
        report.notes.append(f"{left} files in {paths['png']} are of an earlier run, not of this")
    return report


def _run(
    predictor: StereoPredictor,
    sequence: StereoSequence,
    write: Callable[[StereoFrame, np.ndarray], None],
    report: StreamReport,
    limit: int | None,
    total: int | None,
    tell: Callable[[int, int | None, float], None] | None,
) -> BaseException | None:
    """Write frame after frame in a thread; return what ended it early."""
    pending: deque[Future] = deque()
    results = disparities(predictor, sequence, report.scale, steady=report.steady, report=report)
    begin = time.perf_counter()
    with ThreadPoolExecutor(1) as writer, closing(results):
        try:
            for count, result in enumerate(results, start=1):
                pending.append(writer.submit(write, *result))
                if len(pending) > _AHEAD:
                    pending.popleft().result()
                if tell is not None:
                    tell(count, total, count / (time.perf_counter() - begin))
                if count == limit:
                    break
            for future in pending:
                future.result()
        except (KeyboardInterrupt, Exception) as error:  # what was written is to be kept
            return error
    return None


def _ahead(sequence: StereoSequence, report: StreamReport) -> Generator[StereoFrame]:
    """Frames that a thread reads ahead.

    Raises:
        OSError: a camera is silent.
    """
    ready: queue.Queue[Any] = queue.Queue(_AHEAD)
    stop = threading.Event()
    ended = object()

    def put(item: Any) -> None:
        while not stop.is_set():
            try:
                return ready.put(item, timeout=0.05)
            except queue.Full:
                if sequence.live and item is not ended:
                    with suppress(queue.Empty):
                        ready.get_nowait()
                        report.dropped += 1

    def read() -> None:
        try:
            with closing(sequence):
                for frame in sequence:
                    put(frame)
                    if stop.is_set():
                        return
            put(ended)
        except Exception as error:  # goes on where the frames are taken
            put(error)

    reader = threading.Thread(target=read, daemon=True, name="vizoo-frames")
    reader.start()
    try:
        while True:
            try:
                item = ready.get(timeout=_SILENCE if sequence.live else None)
            except queue.Empty:
                raise OSError(f"{sequence.name}: no picture for {_SILENCE:g} seconds") from None
            if item is ended:
                return
            if isinstance(item, Exception):
                raise item
            yield item
    finally:
        stop.set()
        reader.join(2)  # one that waits for a camera is left behind


def _told(frame: StereoFrame) -> str:
    sizes = {f"{view.shape[1]}x{view.shape[0]}" for view in (frame.left, frame.right)}
    return " and ".join(sorted(sizes))
