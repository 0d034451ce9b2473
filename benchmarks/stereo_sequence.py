"""Disparity of generated stereo sequences: flicker and error with and without `--steady`; speed.

    python -m benchmarks.stereo_sequence [--frames 100] [--size 192 320] [--model NAME [--guided]]

A rig moves through a room, a street and over a table top, each of which stands still; pictures have
noise of their own in each frame. Flicker is the mean change of the error between two frames at the
points that both see. Then all frames run as two videos through `stream`, which reads, matches and
writes at the same time, and through its parts one after the other. CPU times are those of the
process, which other work disturbs less.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import cv2
import numpy as np

from benchmarks._machine import arguments, start
from vizoo.datasets.worlds.sequence import WorldSequence
from vizoo.stereo import DEFAULT_MODEL
from vizoo.stereo.infer import StereoPredictor
from vizoo.stereo.sequences import open_sequence
from vizoo.stereo.sinks import open_sinks
from vizoo.stereo.steadiness import Steadiness, flicker
from vizoo.stereo.streaming import settle, stream
from vizoo.vision.io.images import to_bytes

FORMS = ("video", "png")
LAYOUTS = ("room", "street", "table")


def measure(predictor: StereoPredictor, sequence: WorldSequence, video: list) -> dict:
    """Flicker, end-point error and bad-1 of both ways; the pictures go into the videos."""
    steady, before = Steadiness(), {}
    rows = {name: [] for name in ("raw", "steady")}
    spent = 0.0
    for frame in sequence:
        views = [to_bytes(frame[side]) for side in ("left", "right")]
        for writer, view in zip(video, views, strict=True):
            writer.write(np.ascontiguousarray(view[:, :, ::-1]))
        raw = predictor(*views, scale=1.0, check=False).disparity
        begin = time.process_time()
        found = {"raw": raw, "steady": steady(views[0], raw)}
        spent += time.process_time() - begin
        truth, valid = frame["disparity"][0].numpy(), frame["valid"][0].numpy()
        for name, disparity in found.items():
            error = np.where(valid, disparity - truth, np.nan)
            size = np.abs(error[valid])
            change = np.nan
            if name in before:
                change = flicker(error, before[name], frame["earlier"].numpy())
            rows[name].append((change, size.mean(), 100 * (size > 1).mean()))
            before[name] = error
    figures = {name: np.nanmean(values, axis=0) for name, values in rows.items()}
    return {**figures, "ms": 1e3 * spent / len(sequence)}


def one_by_one(predictor: StereoPredictor, files: list[Path], folder: Path) -> np.ndarray:
    """Seconds of reading, of matching and of writing, where each waits for the one before."""
    sequence, spent = open_sequence(*files), np.zeros(3)
    size = next(frames := sequence.peek()).left.shape[:2]
    frames.close()
    with ExitStack() as stack:
        sinks = open_sinks(FORMS, folder / "parts", size, sequence.rate, (0, 60))
        writers = [stack.enter_context(sink) for sink in sinks.values()]
        for frame in timed(sequence, spent[:1]):
            begin = time.perf_counter()
            disparity = predictor(frame.left, frame.right, scale=1.0, check=False).disparity
            matched = time.perf_counter()
            for write in writers:
                write(frame, disparity)
            spent[1:] += matched - begin, time.perf_counter() - matched
    return spent


def timed(frames: Iterable, spent: np.ndarray) -> Iterator:
    """The frames; how long each took is added up."""
    iterator = iter(frames)
    while True:
        begin = time.perf_counter()
        frame = next(iterator, None)
        spent += time.perf_counter() - begin
        if frame is None:
            return
        yield frame


def main() -> None:
    parser = arguments(__doc__, threads=1, size=(192, 320))
    parser.add_argument("--frames", type=int, default=100, help="of each sequence")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--guided", action=argparse.BooleanOptionalAction, help="as infer video")
    options, console = start(parser, width=110)
    height, width = options.size
    predictor = StereoPredictor(options.model, guided=options.guided)
    how = "guided" if predictor.guided else "alone"
    console.print(f"{options.model} {how}; {height}x{width}; load {os.getloadavg()[0]:.1f}")
    columns = ("sequence", "flicker", "steady", "EPE", "steady", "bad-1 %", "steady", "ms")
    console.print(f"{options.frames} frames each, px; ms of CPU that steadying takes a frame")
    console.print("".join(f"{column:>10}" for column in columns))
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{side}.mp4" for side in ("left", "right")]
        coding = cv2.VideoWriter.fourcc(*"mp4v")
        video = [cv2.VideoWriter(str(file), coding, 20, (width, height)) for file in files]
        for seed, layout in enumerate(LAYOUTS):
            sequence = WorldSequence(options.frames, height, width, layouts=[layout], seed=seed)
            figures = measure(predictor, sequence, video)
            pairs = zip(figures["raw"], figures["steady"], strict=True)
            cells = [f"{value:.3f}" for pair in pairs for value in pair]
            cells = [layout, *cells, f"{figures['ms']:.1f}"]
            console.print("".join(f"{cell:>10}" for cell in cells))
        for writer in video:
            writer.release()
        settled = settle(predictor, open_sequence(*files), scale=1.0, check=False)
        how = {"settled": settled, "formats": FORMS}
        parts = one_by_one(predictor, files, Path(folder))
        told = ", ".join(
            f"{name} {1e3 * part / options.frames / len(LAYOUTS):.1f}"
            for name, part in zip(("reading", "matching", "writing"), parts, strict=True)
        )
        console.print(f"one after the other: {told}; ms a frame")
        for steady in (False, True):
            begin = time.process_time()
            report = stream(predictor, open_sequence(*files), folder, steady=steady, **how)
            spent = 1e3 * (time.process_time() - begin) / report.frames
            console.print(
                f"{report.frames} frames {'steadied' if steady else 'as they are'}: "
                f"{report.rate:.2f} a second, the network alone {report.network_rate:.2f}; "
                f"{spent:.0f} ms of CPU a frame; {report.seconds / parts.sum():.2f} of the sum of "
                "the parts"
            )


if __name__ == "__main__":
    main()
