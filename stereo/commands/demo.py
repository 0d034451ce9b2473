"""`vizoo demo`: disparity, error, points and speed of one pair, as a page that needs no network."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...nas.search.front import Front
    from ._demo_pair import Finding, Sample

__all__ = ["add_arguments", "run"]

_SEED = 35


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("left", nargs="?", metavar="LEFT", help="a left image of your own")
    parser.add_argument("right", nargs="?", metavar="RIGHT", help="its right image")
    parser.add_argument(
        "--calib", metavar="FILE", help="of your pair: Middlebury, ETH3D or KITTI calibration"
    )
    parser.add_argument(
        "--model", metavar="NAME|FILE", help="weights to show (default: those that are shipped)"
    )
    parser.add_argument(
        "--train", action="store_true", help="train a small network first and show that one"
    )
    parser.add_argument("--epochs", type=int, metavar="N", help="of --train (default: its config)")
    parser.add_argument(
        "--seed", type=int, metavar="N", help=f"of the generated scene (default: {_SEED})"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 ...")
    parser.add_argument("--out", metavar="DIR", default="demo", help="default: demo")
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")


def run(args: argparse.Namespace) -> int:
    """Show a pair; return 0.

    Raises:
        ValueError: options that do not go together, no weights, or a pair that does not fit.
        FileNotFoundError: there is no such image, calibration or weight file.
    """
    # With --json the only thing on stdout is the JSON; training prints a great deal.
    quiet = contextlib.redirect_stdout(sys.stderr) if args.json else contextlib.nullcontext()
    with quiet:
        report = _show(args)
    print(json.dumps(report, indent=2) if args.json else _lines(report))
    return 0


def _show(args: argparse.Namespace) -> dict[str, Any]:
    out = _check(args)

    from ...vision.commands._work import warn
    from ...vision.device import choose_device
    from ._demo_networks import candidates, choose, open_weights
    from ._demo_pair import generated_sample, own_sample, scene_sample, show_all

    sources = [] if args.train else choose(args.model)
    device = choose_device(args.device)
    # What can be refused is refused before minutes of training.
    sample = own_sample(args.left, args.right, args.calib) if args.left else None
    for note in sample.notes if sample else ():
        warn(note)
    if args.train:
        from ._demo_training import clearest, train

        trained, scenes = train(out, args.epochs, args.device)
        sources = choose(trained)
        if sample is None and args.seed is None:
            sample = scene_sample(clearest(scenes), "The clearest of the test scenes")
    if sample is None:
        seed = _SEED if args.seed is None else args.seed
        _tell(f"generated scene {seed}")
        sample = generated_sample(seed)
    networks, front = candidates([open_weights(source) for source in sources], device, _tell)
    said = len(sample.notes)
    findings = show_all(sample, networks, args.device, _tell)
    for note in sample.notes[said:]:
        warn(note)
    return _write(out, "yours" if args.left else "pair", sample, findings, front, device)


def _check(args: argparse.Namespace) -> Path:
    from ...vision.commands._work import check_folder

    if (args.left is None) != (args.right is None):
        raise ValueError("give both LEFT and RIGHT, or neither")
    if args.calib is not None and args.left is None:
        raise ValueError("--calib belongs to a pair of yours: give LEFT and RIGHT too")
    if args.seed is not None and args.left is not None:
        raise ValueError("--seed is of the generated scene; with LEFT and RIGHT there is none")
    if args.seed is not None and args.seed < 0:
        raise ValueError(f"--seed must not be negative, got {args.seed}")
    if args.train and args.model is not None:
        raise ValueError("give either --train or --model, not both")
    if args.epochs is not None and not args.train:
        raise ValueError("--epochs belongs to --train")
    if args.epochs is not None and args.epochs < 1:
        raise ValueError(f"--epochs must be at least 1, not {args.epochs}")
    return check_folder(args.out)


def _write(
    out: Path,
    name: str,
    sample: Sample,
    findings: list[Finding],
    front: Front | None,
    device: Any,
) -> dict[str, Any]:
    """Write the page last, so that it is there only if all else is."""
    import platform

    import torch

    from ...nas.efficiency.provenance import device_name
    from ...vision.io.files import atomic_write
    from ._demo_page import demo_page

    machine = {
        "device": device_name(device),
        "threads": torch.get_num_threads() if device.type == "cpu" else 0,
        "software": f"torch {torch.__version__}, Python {platform.python_version()}",
    }
    text = demo_page(sample, findings, front, machine)
    files = _write_pair(out / name, sample, findings[0], name == "yours")
    path = out / f"{name}.html"
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    height, width = sample.size
    main = findings[0].candidate
    return {
        "page": str(path),
        "bytes": path.stat().st_size,
        "files": [str(file) for file in files],
        "pair": {"title": sample.title, "size": [width, height], "warnings": sample.notes},
        "weights": {"source": main.weights.source, **main.weights.facts},
        "networks": [finding.to_json() for finding in findings],
        "front": None if front is None else {"metric": front.metric, "subnets": len(front.rows)},
        "machine": machine,
    }


def _write_pair(folder: Path, sample: Sample, main: Finding, own: bool) -> list[Path]:
    """The disparity, and of a generated scene what is needed to infer it again."""
    from ...vision.io.calibration import write_calibration
    from ...vision.io.images import write_image
    from ...vision.viz.colour import comparison_picture

    camera = sample.calibration if sample.metric else None
    if own:
        return main.result.save(folder, Path(sample.title).stem, calibration=camera)
    write_image(folder / "left.png", sample.left)
    write_image(folder / "right.png", sample.right)
    write_calibration(folder / "calib.txt", sample.calibration)
    picture = comparison_picture(
        sample.left, main.result.disparity, sample.truth, sample.valid[0].numpy()
    )
    write_image(folder / "comparison.png", picture)
    written = [folder / name for name in ("left.png", "right.png", "calib.txt", "comparison.png")]
    return written + main.result.save(folder, "scene", calibration=camera)


def _lines(report: dict[str, Any]) -> str:
    found = [f"{report['pair']['title']}, {'x'.join(map(str, report['pair']['size']))}"]
    for network in report["networks"]:
        score = f", EPE {network['epe']:.2f} px" if "epe" in network else ""
        score += f", bad-2 {100 * network['bad2']:.1f} %" if "bad2" in network else ""
        where = "" if network["name"] in network["weights"] else f" of {network['weights']}"
        found.append(f"  {network['name']}{where}: {network['latency']['median']:.0f} ms{score}")
    cloud = any(file.endswith(".ply") for file in report["files"])
    kinds = "pictures and point cloud" if cloud else "disparity"
    found.append(f"{kinds}: {Path(report['files'][0]).parent}")
    found.append(
        f"page: {report['page']} ({report['bytes'] / 1e6:.1f} MB; open it in a browser, it needs "
        "no network)"
    )
    return "\n".join(found)


def _tell(what: str) -> None:
    print(f"vizoo demo: {what} ...", file=sys.stderr)
