"""`vizoo infer video`: disparity of videos, folders, cameras and bags of stereo pairs."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from signal import SIGINT
from typing import TYPE_CHECKING, Any

from ..common.interrupts import noted_signals
from ..common.progress import progress
from ..common.warned import collect_warnings
from ._cameras import add_raw_arguments
from ._items import add_run_arguments, end_run
from ._stereo import add_calibration, add_matching, add_stereo_model, rectify_frames
from ._work import check_apart, check_folder, check_least, say_warnings, warn

if TYPE_CHECKING:
    from ..stereo.sequences import StereoSequence
    from ..stereo.streaming import StreamReport


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="video, folder or quoted glob of left images; a camera (camera:0, or 0) or the "
        "address of a stream (rtsp://...); a ROS bag; alone: one that holds both views (side by "
        "side, one above the other, folders left and right, two topics)",
    )
    parser.add_argument("right", nargs="?", metavar="RIGHT", help="the same for the right view")
    add_stereo_model(parser)
    parser.add_argument("--out", metavar="DIR", required=True, help="folder of the results")
    parser.add_argument(
        "--format",
        nargs="+",
        default=["video"],
        choices=("video", "png", "rrd"),
        help="video: disparity in colours, NAME_disparity.mp4 (default); png: NAME_disparity/, 16 "
        "bits a frame, 256 a pixel, and with a calibration NAME_depth/, millimetres, and NAME_left/"
        "; rrd: NAME.rrd, for rerun",
    )
    parser.add_argument(
        "--layout",
        default="auto",
        choices=("auto", "side-by-side", "top-bottom"),
        help="how one picture holds both views (default: auto: which halves are alike)",
    )
    parser.add_argument(
        "--topics", nargs=2, metavar=("LEFT", "RIGHT"), help="of a bag (default: by their names)"
    )
    parser.add_argument(
        "--steady",
        action="store_true",
        help="less flicker: where pictures and disparities agree, the frames before have a say",
    )
    parser.add_argument(
        "--frames", type=int, metavar="N", help="at most so many (a camera: until Ctrl+C)"
    )
    parser.add_argument(
        "--rate", type=float, metavar="FPS", help="of the video (default: the source's, or 10)"
    )
    parser.add_argument(
        "--colours",
        type=float,
        nargs=2,
        metavar=("LOW", "HIGH"),
        help="disparities of the video's first and last colour, pixels (default: by the first "
        "frame)",
    )
    add_matching(parser)
    add_calibration(parser, "; depth is written with --format png or rrd")
    add_raw_arguments(parser)
    add_run_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Infer a sequence; return 0, 1 if it ended by an error, as a shell says if by a signal.

    Ctrl+C and the like are the usual end of a camera: 0 then.
    """
    _check(args)
    out = check_folder(args.out)
    words = [word for word in (args.source, args.right) if word is not None]
    check_apart((path for path in map(Path, words) if path.exists()), out)
    from ..common.summaries import item_summary, run_summary
    from ..stereo.captures import without_secrets
    from ..stereo.infer import StereoPredictor
    from ..stereo.sequences import open_sequence
    from ..stereo.sinks import check_forms
    from ..stereo.streaming import settle, stream
    from ..vision.io.pairing import side_folders
    from ._pairs import say_passed_over

    formats = check_forms(args.format)
    shown, topics = without_secrets(args.source), args.topics and tuple(args.topics)
    say_passed_over((None if args.right else side_folders(Path(args.source))) or words)
    sequence = open_sequence(args.source, args.right, layout=args.layout, topics=topics)
    rectifier, calibration = rectify_frames(args, sequence)
    if formats == ["video"] and (args.calib or args.focal):
        warn("no depth in `--format video`; `--format png` or `rrd` writes it")
    known = list(sequence.notes)
    for note in known:
        warn(note)
    where = args.device, args.dtype, args.runtime
    predictor = StereoPredictor(args.model, *where, guided=args.guided)
    largest = args.max_disparity
    if largest is None and calibration is not None and args.scale == "auto":
        largest = calibration.ndisp
    how = {"scale": args.scale, "max_disparity": largest, "check": not args.no_check}
    with say_warnings() as said:
        first = settle(predictor, sequence, **how)
    height, width = first.result.disparity.shape
    for note in predictor.forewarnings(height, width, args.scale):
        warn(f"{shown}: {note}")
    with noted_signals() as signals, collect_warnings() as later, progress() as bar:
        report = stream(
            predictor,
            sequence,
            out,
            formats=formats,
            settled=first,
            steady=args.steady,
            min_confidence=args.min_confidence,
            calibration=calibration,
            rectifier=rectifier,
            rate=args.rate,
            colours=args.colours and tuple(args.colours),
            limit=args.frames,
            tell=lambda done, total, rate: bar("frames", done, total, f"{rate:.1f} a second"),
            stop=lambda: signals,
        )
    known += said
    new = [note for note in (*later, *report.notes) if note not in known]
    for note in new:
        warn(note)
    results = report.summary(), report.seconds, report.files, [*known, *new]
    item: dict[str, Any] = {**item_summary(sequence.name, *results), **sequence.facts}
    if calibration is not None:
        item["camera"] = asdict(calibration)
    if report.error is not None:
        item["error"] = report.error
        warn(f"{shown}: {report.error}; what was written so far is complete")
    if not args.json:
        _show(shown, sequence, report)
    status = end_run(run_summary(predictor, args.model, "sequences", [item]), out, args.json)
    ended = 128 + (signals[0] if signals else SIGINT)
    return ended if report.interrupted and not sequence.live else status


def _check(args: argparse.Namespace) -> None:
    check_least(args, frames=1)
    if args.rate is not None and not 0 < args.rate <= 1000:
        raise ValueError(f"--rate {args.rate:g}: frames a second, above 0 and at most 1000")
    if args.colours is not None and not 0 <= args.colours[0] < args.colours[1]:
        low, high = args.colours
        raise ValueError(f"--colours {low:g} {high:g}: two disparities, the smaller one first")


def _show(source: str, sequence: StereoSequence, report: StreamReport) -> None:
    size = "{}x{}".format(*report.size)
    print(
        f"{source}: {report.frames} frames of {size} in {report.seconds:.1f} s: "
        f"{report.rate:.1f} a second (the network alone {report.network_rate:.1f})"
    )
    facts = report.summary()
    told, span = ["nothing is known"], facts["disparity"]
    if span is not None:
        told = ["disparity {min:.1f} to {max:.1f} px, median {median:.1f}".format(**span)]
    if "left_out" in facts:
        told.append(f"{facts['left_out']:.0%} left out")
    told += [f"matched at {report.scale:g} of the size"] * (report.scale != 1)
    told += filter(None, [sequence.facts.get("layout")])
    if "topics" in sequence.facts:
        told.append("left {}, right {}".format(*sequence.facts["topics"]))
    told += [f"{report.dropped} frames of the camera passed over"] * (report.dropped > 0)
    told += ["ended by Ctrl+C or a signal"] * report.interrupted
    print("  " + "; ".join(told))
    for file in report.files:
        print(f"  {file}{'/' * file.is_dir()}")
