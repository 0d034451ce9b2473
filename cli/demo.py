"""`vizoo demo`: what the zoo can do on this machine, as one page that needs no network."""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import sys
from pathlib import Path
from typing import Any

_EPOCHS = 12  # of --train


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("left", nargs="?", metavar="LEFT", help="a left image of your own")
    parser.add_argument("right", nargs="?", metavar="RIGHT", help="its right image")
    parser.add_argument(
        "--calib", metavar="FILE", help="of your pair: Middlebury, ETH3D or KITTI calibration"
    )
    parser.add_argument(
        "--model", metavar="NAME|FILE", help="weights to show on a pair (default: the best shipped)"
    )
    parser.add_argument(
        "--train", action="store_true", help="train ten minutes instead of one, then test"
    )
    parser.add_argument(
        "--epochs",
        type=int,
        metavar="N",
        help=f"of --train, about a minute each (default: {_EPOCHS})",
    )
    parser.add_argument(
        "--seed", type=int, metavar="N", help="show another generated pair (default: the tour's)"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 ...")
    parser.add_argument("--out", metavar="DIR", default="demo", help="default: demo")
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")


def run(args: argparse.Namespace) -> int:
    """Show a pair, or the whole tour; return 0."""
    from ._demo.tour import show_pair, show_tour

    # With --json the only thing on stdout is the JSON; training prints a great deal.
    with contextlib.redirect_stdout(sys.stderr) if args.json else contextlib.nullcontext():
        out = _check(args)
        own = None if args.left is None else (args.left, args.right, args.calib)
        pair = own or [str(out / "pair" / n) for n in ("left.png", "right.png", "calib.txt")]
        command = _command(args.model, *pair)
        if own or args.model is not None or args.seed is not None:
            report = show_pair(out, command, _tell, args.model, args.device, args.seed, own)
        else:
            epochs = (args.epochs or _EPOCHS) if args.train else 1
            report = show_tour(out, command, _tell, epochs, args.train, args.device)
    print(json.dumps(report, indent=2) if args.json else _lines(report))
    return 0


def _check(args: argparse.Namespace) -> Path:
    from ._work import check_folder, check_least

    if (args.left is None) != (args.right is None):
        raise ValueError("give both LEFT and RIGHT, or neither")
    if args.calib is not None and args.left is None:
        raise ValueError("--calib belongs to a pair of yours: give LEFT and RIGHT too")
    if args.seed is not None and args.left is not None:
        raise ValueError("--seed is of the generated room; with LEFT and RIGHT there is none")
    for option in ("left", "model", "seed"):
        if args.train and getattr(args, option) is not None:
            name = "LEFT and RIGHT" if option == "left" else f"--{option}"
            raise ValueError(f"give either --train or {name}, not both")
    if args.epochs is not None and not args.train:
        raise ValueError("--epochs belongs to --train")
    check_least(args, seed=0, epochs=1)
    return check_folder(args.out)


def _command(model: str | None, left: str, right: str, calibration: str | None) -> str:
    """The command that infers the pair of the page again."""
    words = ["vizoo", "infer", "stereo", left, right]
    words += ["--model", model] if model else []
    words += ["--calib", calibration] if calibration else []
    return shlex.join([*words, "--out", "result"])


def _lines(report: dict[str, Any]) -> str:
    lines = [f"{report['pair']['title']}, {'x'.join(map(str, report['pair']['size']))} pixels"]
    for network in report["networks"]:
        source = network["weights"]
        name = network["name"].removesuffix(", guided")
        where = "" if source is None or name in source else f" of {source}"
        lines.append(f"  {network['name']}{where}: {_figures(network)}")
    for subnet in report.get("subnets", ()):
        kept = "kept" if subnet["met"] else "MISSED"
        limit = f"at most {subnet['limit']:g} ms ({kept})"
        lines.append(f"  subnet of {subnet['supernet']}, {limit}: {_figures(subnet)}")
    if training := report.get("training"):
        first, last = training["losses"][0], training["losses"][-1]
        stop = training["interrupted"]
        lines.append(
            f"  a training of {training['seconds']:.0f} s: loss {first[1]:.2f} to {last[1]:.2f}"
            + (f", interrupted after step {stop} and resumed" if stop else "")
        )
    if seconds := report.get("seconds"):
        parts = ", ".join(f"{part} {value:.0f} s" for part, value in seconds.items())
        lines.append(f"took {sum(seconds.values()) / 60:.1f} minutes: {parts}")
    cloud = any(file.endswith(".ply") for file in report["files"])
    kinds = "pictures and point cloud" if cloud else "disparity"
    lines.append(f"{kinds}: {Path(report['files'][0]).parent}")
    lines.append(
        f"page: {report['page']} ({report['bytes'] / 1e6:.1f} MB; open it in a browser, it needs "
        "no network)"
    )
    return "\n".join(lines)


def _figures(network: dict[str, Any]) -> str:
    score = f", EPE {network['epe']:.2f} px" if "epe" in network else ""
    score += f", bad-2 {100 * network['bad2']:.1f} %" if "bad2" in network else ""
    return f"{network['latency']['median']:.0f} ms{score}"


def _tell(what: str) -> None:
    print(f"vizoo demo: {what} ...", file=sys.stderr)
