"""`vizoo infer video`: disparity of videos, folders, cameras and bags of stereo pairs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.progress import progress
from ..stereo import DEFAULT_MODEL
from ._items import add_run_arguments, end_run
from ._numbers import scale
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
    parser.add_argument(
        "--model",
        metavar="NAME|FILE",
        default=DEFAULT_MODEL,
        help="NAME or NAME.TAG of `vizoo models --pretrained`, hf-hub:ORG/NAME, or a weight file "
        f"(default: {DEFAULT_MODEL}, small and fast)",
    )
    parser.add_argument("--out", metavar="DIR", required=True, help="folder of the results")
    parser.add_argument(
        "--format",
        nargs="+",
        default=["video"],
        metavar="F",
        help="video: disparity in colours, NAME_disparity.mp4 (default); png: NAME_disparity/, 16 "
        "bits a frame, 256 a pixel; rrd: NAME.rrd, for rerun",
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
        "--scale",
        type=scale,
        default="auto",
        metavar="S",
        help="match at S times the size, above 0 and at most 1 (default: auto: what the first "
        "frame needs, for all)",
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
    parser.add_argument(
        "--no-check", action="store_true", help="do not look at the first pair's geometry"
    )
    add_run_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Infer a sequence; return 0, 1 if it ended by an error, 130 if a recording by Ctrl+C."""
    _check(args)
    out = check_folder(args.out)
    words = [word for word in (args.source, args.right) if word is not None]
    check_apart((path for path in map(Path, words) if path.exists()), out)
    from ..common.files import check_formats
    from ..common.summaries import item_summary, run_summary
    from ..stereo.infer import StereoPredictor
    from ..stereo.sequences import open_sequence
    from ..stereo.sinks import FORMATS
    from ..stereo.streaming import settle, stream

    formats = check_formats(args.format, FORMATS)
    topics = args.topics and tuple(args.topics)
    sequence = open_sequence(args.source, args.right, layout=args.layout, topics=topics)
    predictor = StereoPredictor(args.model, device=args.device, dtype=args.dtype)
    with say_warnings() as said:
        first = settle(predictor, sequence, scale=args.scale, check=not args.no_check)
    height, width = first.disparity.shape
    for note in predictor.forewarnings(height, width, first.scale):
        warn(f"{args.source}: {note}")
    with progress() as bar:
        report = stream(
            predictor,
            sequence,
            out,
            formats=formats,
            settled=first,
            steady=args.steady,
            rate=args.rate,
            colours=args.colours and tuple(args.colours),
            limit=args.frames,
            tell=lambda done, total, rate: bar("frames", done, total, f"{rate:.1f} a second"),
        )
    for note in report.notes:
        warn(note)
    notes = [*said, *report.notes]
    item: dict[str, Any] = {
        **item_summary(sequence.name, report.summary(), report.seconds, report.files, notes),
        **sequence.facts,
    }
    if report.error is not None:
        item["error"] = report.error
        warn(f"{args.source}: {report.error}; what was written so far is complete")
    if not args.json:
        _show(args, sequence, report)
    status = end_run(run_summary(predictor, args.model, "sequences", [item]), out, args.json)
    return 130 if report.interrupted and not sequence.live else status


def _check(args: argparse.Namespace) -> None:
    check_least(args, frames=1)
    if args.rate is not None and not 0 < args.rate <= 1000:
        raise ValueError(f"--rate {args.rate:g}: frames a second, above 0 and at most 1000")
    if args.colours is not None and not 0 <= args.colours[0] < args.colours[1]:
        low, high = args.colours
        raise ValueError(f"--colours {low:g} {high:g}: two disparities, the smaller one first")


def _show(args: argparse.Namespace, sequence: StereoSequence, report: StreamReport) -> None:
    height, width = report.size
    print(
        f"{args.source}: {report.frames} frames of {width}x{height} in {report.seconds:.1f} s: "
        f"{report.rate:.1f} a second (the network alone {report.network_rate:.1f})"
    )
    middle = report.summary()["disparity"]["median"]
    told = [f"disparity {report.lowest:.1f} to {report.highest:.1f} px, median {middle:.1f}"]
    told += [f"matched at {report.scale:g} of the size"] * (report.scale != 1)
    if "layout" in sequence.facts:
        told.append(sequence.facts["layout"])
    if "topics" in sequence.facts:
        told.append("left {}, right {}".format(*sequence.facts["topics"]))
    told += [f"{report.dropped} frames of the camera passed over"] * (report.dropped > 0)
    told += ["ended by Ctrl+C"] * report.interrupted
    print("  " + "; ".join(told))
    for file in report.files:
        print(f"  {file}{'/' * file.is_dir()}")
