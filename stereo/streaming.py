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
from array import array
from collections import deque
from collections.abc import Callable, Generator, Iterable, MutableSequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ..common.summaries import spread
from ..datasets.stereo.calibration import StereoCalibration, read_calibration, scaling_notes
from ..vision.io.images import as_image
from ..vision.viz.colour import colour_range
from .infer import StereoPredictor, reduced
from .rectify import Rectifier
from .result import StereoResult
from .sequences import StereoFrame, StereoSequence, passed_over
from .sinks import check_forms, open_sinks
from .steadiness import Steadiness

__all__ = ["Settled", "StreamReport", "disparities", "settle", "stream"]

_AHEAD = 4  # frames that are read before they are needed, or wait to be written
_REMEDY = (
    "`vizoo infer video --raw CALIBRATION` does that by the cameras' calibration, and "
    "`vizoo infer video --auto-rectify` without one"
)
_PATIENCE = 30  # frames without content before the first that can be matched
_SILENCE = 10.0  # seconds without a picture after which a camera counts as gone
_PARTING = 2.0  # seconds for the reader of frames to end; one that waits for a camera is left
_RATE = 10.0  # frames a second of a video where the source says none
_ROOM = 1.25  # of colours, for what comes nearer than in the first frame
_TURN = 0.1  # seconds after which a wait looks whether it is to end
# So many frames, and from then on one of so many, are looked at in a small copy, at least so wide,
# in which what all but one pixel in fifty stay below can be seen: in narrower ones some networks
# find disparities as large as the picture.
_LOOKS, _NARROW, _NEARLY_ALL = 8, 144, 0.98


@dataclass(frozen=True)
class Settled:
    """How all frames of a sequence are matched: as the first one was."""

    result: StereoResult  #: of the first frame that can be matched
    scale: float | str  #: as it was asked for
    max_disparity: float | None  #: what ``auto`` goes by, pixels; None where there is no bound
    reach: float | None  #: the largest disparity that is seen so, pixels; None: any


def _numbers() -> MutableSequence[float]:
    """For one of each frame, of a camera that may run for days."""
    return array("d")


@dataclass
class StreamReport:
    """What came of a sequence."""

    size: tuple[int, int]  #: of the pictures, height and width
    scale: float  #: that all frames were matched at first
    reach: float | None  #: the largest disparity that is seen so, pixels; None: any
    steady: bool  #: whether the disparities were steadied
    frames: int = 0  #: that were written
    dropped: int = 0  #: that a camera delivered while the network was busy
    seconds: float = 0.0  #: from the first frame to the last
    network_seconds: float = 0.0  #: of those, in the network and around it
    files: list[Path] = field(default_factory=list)  #: that were written, or folders of them
    notes: list[str] = field(default_factory=list)  #: for the user, one line each
    error: str | None = None  #: what ended it early
    interrupted: bool = False  #: whether Ctrl+C did
    largest: list[float] = field(default_factory=list)  #: disparity, of frames that were looked at
    lowest: float = np.inf  #: disparity, pixels
    highest: float = 0.0  #: likewise
    #: of each frame in which some is known
    medians: MutableSequence[float] = field(default_factory=_numbers)
    confidences: MutableSequence[float] = field(default_factory=_numbers)  #: means of each frame
    #: shares of each frame's pixels
    left_out: MutableSequence[float] = field(default_factory=_numbers)

    @property
    def rate(self) -> float:
        """Frames a second, all in all."""
        return self.frames / self.seconds if self.seconds else 0.0

    @property
    def network_rate(self) -> float:
        """Frames a second of the network alone."""
        return self.frames / self.network_seconds if self.network_seconds else 0.0

    @property
    def beyond(self) -> int:
        """How many of the frames that were looked at have disparities beyond the reach."""
        return sum(largest > (self.reach or np.inf) for largest in self.largest)

    def summary(self) -> dict[str, Any]:
        """What was found, as JSON values."""
        middle = float(np.median(self.medians)) if self.medians else 0.0
        known = {"min": self.lowest, "median": middle, "max": self.highest}
        facts = {
            name: round(float(np.mean(values)), 4)
            for name, values in (("confidence", self.confidences), ("left_out", self.left_out))
            if values
        }
        return {
            "size": list(self.size),
            "disparity": known if self.medians else None,
            **facts,
            "scale": self.scale,
            "reach": None if self.reach is None else round(self.reach, 1),
            "beyond_reach": self.beyond,
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
    max_disparity: float | None = None,
    check: bool = True,
) -> Settled:
    """Match a sequence's first frame that can be matched, and all others like it.

    Where a scale is looked up it is that frame's for all of them, so that nothing jumps. Iterating
    over the sequence still begins at its first frame. Frames at the beginning that are of one
    colour, as where a video fades in, are passed over. The arguments are the predictor's.

    Raises:
        ValueError: there is no frame, or none of the first that can be matched.

    Warns as the predictor does.
    """
    reason = f"{sequence.name}: no frame could be read"
    with closing(sequence.peek()) as frames:
        for frame in islice(frames, _PATIENCE):
            try:
                result = predictor(
                    frame.left,
                    frame.right,
                    scale=scale,
                    max_disparity=max_disparity,
                    check=check,
                    remedy=_REMEDY,
                )
            except ValueError as error:
                reason = f"{sequence.name}, frame {frame.name}: {error}"
                continue
            reach = None if predictor.reach is None else predictor.reach / result.scale
            if max_disparity is None and reach is not None:
                max_disparity = 0.999 * reach  # the scale for that is the one that was found
            return Settled(result, scale, max_disparity, reach)
    raise ValueError("; ".join([reason, *sequence.notes]))


def disparities(
    predictor: StereoPredictor,
    sequence: StereoSequence,
    settled: Settled | None = None,
    *,
    steady: bool = False,
    min_confidence: float | None = None,
    report: StreamReport | None = None,
    stop: Callable[[], Any] = bool,
) -> Generator[tuple[StereoFrame, np.ndarray]]:
    """Yield each frame with its disparity (H, W), 0 where it is unknown.

    The next frames are read meanwhile; of a camera the newest is next, and those before it go where
    the network is slower.

    Args:
        predictor: of single pairs.
        sequence: is used up.
        settled: what `settle` found; None: it is asked.
        steady: whether earlier frames have a say (see `vizoo.stereo.steadiness`).
        min_confidence: pixels that are less sure, 0 to 1, are unknown.
        report: is told what happens.
        stop: asked again and again; where it says yes, no further frame comes.

    Raises:
        ValueError: a frame has another size than the first, or `min_confidence` is none.
    """
    _check_confidence(min_confidence)
    settled = settle(predictor, sequence) if settled is None else settled
    size = settled.result.image.shape
    steadied = Steadiness() if steady else None
    failed, reason = 0, ""
    report = _report(settled, steady) if report is None else report
    how: dict[str, Any] = {"scale": settled.scale, "max_disparity": settled.max_disparity}
    try:
        with closing(_ahead(sequence, report, stop)) as frames:
            for count, frame in enumerate(frames):
                if not frame.left.shape == frame.right.shape == size:
                    views = frame.left.shape, frame.right.shape
                    sizes = " and ".join(sorted({f"{x[0]}x{x[1]}" for x in views}))
                    raise ValueError(
                        f"{sequence.name}, frame {frame.name}: the pictures have {sizes} pixels, "
                        f"the first {size[0]}x{size[1]}"
                    )
                begin = time.perf_counter()
                try:
                    result = predictor(frame.left, frame.right, check=False, **how)
                    disparity, sure = result.disparity, result.confidence
                    if settled.reach is not None and (count < _LOOKS or count % _LOOKS == 0):
                        smaller = 2 * (1 + predictor.guided)  # alone a network sees half as far
                        scale = settled.result.scale / smaller
                        report.largest += _largest(predictor, frame, scale)
                except ValueError as error:
                    failed, reason = failed + 1, reason or f"frame {frame.name}: {error}"
                    disparity, sure = np.zeros(size[:2], np.float32), None
                report.network_seconds += time.perf_counter() - begin
                if steadied:
                    disparity = steadied(frame.left, disparity)
                if sure is not None:
                    report.confidences.append(float(sure.mean()))
                if sure is not None and min_confidence is not None:
                    disparity = np.where(sure < min_confidence, 0, disparity)
                    report.left_out.append(float((sure < min_confidence).mean()))
                yield frame, disparity
    finally:
        if failed:
            report.notes.append(passed_over(failed, reason))


def _check_confidence(least: float | None) -> None:
    if least is not None and not 0 <= least <= 1:
        raise ValueError(f"least confidence {least:g}: want 0 to 1")


def _largest(predictor: StereoPredictor, frame: StereoFrame, scale: float) -> list[float]:
    """About the largest disparity of a frame by its copy of this scale; none if it is too small."""
    left, right = (reduced(as_image(view), scale) for view in (frame.left, frame.right))
    if left.shape[2] < _NARROW:
        return []
    seen = predictor.alone(left, right).flatten().quantile(_NEARLY_ALL)
    return [float(seen) * frame.left.shape[1] / left.shape[2]]


def _report(settled: Settled, steady: bool) -> StreamReport:
    height, width = settled.result.disparity.shape
    return StreamReport((height, width), settled.result.scale, settled.reach, steady)


def stream(
    predictor: StereoPredictor,
    sequence: StereoSequence,
    out: str | os.PathLike,
    *,
    formats: Iterable[str] = ("video",),
    settled: Settled | None = None,
    steady: bool = False,
    min_confidence: float | None = None,
    calibration: StereoCalibration | str | os.PathLike | None = None,
    rectifier: Rectifier | None = None,
    rate: float | None = None,
    colours: tuple[float, float] | None = None,
    limit: int | None = None,
    tell: Callable[[int, int | None, float], None] | None = None,
    stop: Callable[[], Any] = bool,
) -> StreamReport:
    """Write the disparities of a sequence.

    Where the source fails, a file cannot be written or Ctrl+C is pressed, what was written so far
    is complete, and the report says so.

    Args:
        predictor: of single pairs.
        sequence: is used up.
        out: folder: made if it is missing.
        formats: ``video`` (``NAME_disparity.mp4``, colours), ``png`` (a folder ``NAME_disparity``
            of 16-bit PNG, 256 a pixel; with a calibration also ``NAME_depth``, 16-bit millimetres,
            and ``NAME_left``, the pictures that they belong to) or ``rrd`` (``NAME.rrd`` for rerun,
            the extra ``viewer``).
        settled: what `settle` found; None: it is asked.
        steady: as for `disparities`.
        min_confidence: likewise.
        calibration: of the pairs, or its file; by default the rectifier's.
        rectifier: what made the pairs of raw ones (`StereoSequence.transform`), where that is so:
            depth is also written for the raw left pictures, in ``NAME_depth_raw``.
        rate: frames a second of the video; None: the source's, or 10 where it says none. A lower
            one than a file's shows all frames, slower; a camera's are then left out in part.
        colours: disparities of a video's first and last colour, pixels; None: by the first frame.
        limit: so many frames at most.
        tell: called after each frame with their number, the whole number where it is known, and
            frames a second.
        stop: asked again and again; where it says yes, that is as Ctrl+C.

    Raises:
        ValueError: as `settle` and `disparities`, where no frame was written yet; an unknown
            format, a rate, colours or a limit that are none; or a calibration of pictures of
            another shape.
        OSError: nothing can be written.
        ImportError: rerun is not installed.
    """
    formats = check_forms(formats)
    _check_confidence(min_confidence)
    if isinstance(calibration, (str, os.PathLike)):
        calibration = read_calibration(calibration)
    if rate is not None and not 0 < rate <= 1000:
        raise ValueError(f"rate {rate:g}: frames a second, above 0 and at most 1000")
    if colours is not None and not 0 <= colours[0] < colours[1]:
        raise ValueError(f"colours {colours}: two disparities, the smaller one first")
    if limit is not None and limit < 1:
        raise ValueError(f"limit {limit}: must be at least 1")
    settled = settle(predictor, sequence) if settled is None else settled
    if colours is None:
        colours = (0.0, _ROOM * colour_range(settled.result.disparity)[1])
    if calibration is None and rectifier is not None:
        calibration = rectifier.calibration
    report = _report(settled, steady)
    if calibration is not None:
        height, width = report.size
        report.notes += scaling_notes((calibration.height, calibration.width), height, width)
        calibration = calibration.fitted(height, width)
    path = Path(out) / sequence.name
    rate = rate or sequence.rate or _RATE
    how = (rate, colours, calibration, rectifier, sequence.live)
    sinks = open_sinks(formats, path, report.size, *how)
    old = {path: {*path.glob("*.png")} for path in sinks}
    total = sequence.length if limit is None else min(limit, sequence.length or limit)
    begin = time.perf_counter()
    with ExitStack() as stack:
        writers = [stack.enter_context(sink) for sink in sinks.values()]

        def write(frame: StereoFrame, disparity: np.ndarray) -> None:
            for writer in writers:
                writer(frame, disparity)
            if (disparity > 0).any():
                low, middle, high = spread(disparity[disparity > 0]).values()
                report.lowest, report.highest = min(report.lowest, low), max(report.highest, high)
                report.medians.append(middle)
            for folder, files in old.items():
                files.discard(folder / f"{frame.name}.png")
            report.frames += 1

        loop = disparities(
            predictor,
            sequence,
            settled,
            steady=steady,
            min_confidence=min_confidence,
            report=report,
            stop=stop,
        )
        stopped = _run(loop, write, limit, total, tell)
        report.seconds = time.perf_counter() - begin
        pressed = isinstance(stopped, KeyboardInterrupt)
        report.interrupted = pressed or bool(stop())
        if not report.frames:
            none = ValueError(f"{sequence.name}: no frame could be read")
            raise stopped or (KeyboardInterrupt() if report.interrupted else none)
    report.error = None if stopped is None or pressed else str(stopped)
    report.files = list(sinks)
    report.notes += [*sequence.notes, *_remarks(report)]
    for path, files in old.items():
        if files:
            report.notes.append(f"{len(files)} files in {path} are of an earlier run, not of this")
    return report


def _remarks(report: StreamReport) -> Generator[str]:
    """What is to be said of disparities that are too large."""
    if report.beyond:
        yield (
            f"{report.beyond} of {len(report.largest)} frames that were looked at have disparities "
            f"to about {max(report.largest):.0f} px, and {report.reach:.0f} px is the largest that "
            "is seen at the scale of the first: what is nearer is wrong there; give the largest of "
            "all by --max-disparity (max_disparity=)"
        )
    if any(path.name.endswith("_disparity") for path in report.files) and report.highest > 256:
        yield "disparities beyond 256 px are that in 16-bit PNG, where those end"


def _run(
    results: Generator[tuple[StereoFrame, np.ndarray]],
    write: Callable[[StereoFrame, np.ndarray], None],
    limit: int | None,
    total: int | None,
    tell: Callable[[int, int | None, float], None] | None,
) -> BaseException | None:
    """Write frame after frame in a thread; return what ended it early."""
    pending: deque[Future] = deque()
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


def _ahead(
    sequence: StereoSequence, report: StreamReport, stop: Callable[[], Any]
) -> Generator[StereoFrame]:
    """Frames that a thread reads ahead: of a camera the newest alone."""
    ready: queue.Queue[Any] = queue.Queue(1 if sequence.live else _AHEAD)
    over = threading.Event()
    ended = object()

    def put(item: Any, waits: bool = True) -> None:
        while not over.is_set():
            try:
                return ready.put(item, waits, _TURN)
            except queue.Full:
                if not waits:
                    with suppress(queue.Empty):
                        ready.get_nowait()
                        report.dropped += 1

    def read() -> None:
        try:
            with closing(sequence):
                for frame in sequence:
                    put(frame, not sequence.live)
                    if over.is_set():
                        return
            put(ended)
        except Exception as error:  # goes on where the frames are taken
            put(error)

    reader = threading.Thread(target=read, daemon=True, name="vizoo-frames")
    reader.start()
    silent = 0.0
    try:
        while not stop():
            try:
                item = ready.get(timeout=_TURN)
            except queue.Empty:
                silent += _TURN
                if sequence.live and silent >= _SILENCE:
                    raise OSError(f"{sequence.name}: no picture for {_SILENCE:g} seconds") from None
                continue
            if item is ended:
                return
            if isinstance(item, Exception):
                raise item
            silent = 0.0
            yield item
    finally:
        over.set()
        reader.join(_PARTING)
