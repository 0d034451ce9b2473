"""`vizoo demo`: what the zoo can do on this machine, as one page that needs no network."""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from ..nas.search.front import Front
    from ._demo.pair import Finding, Sample

__all__ = ["add_arguments", "run"]

_SEED = 42
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
        help=f"of --train, at most a minute each (default: {_EPOCHS})",
    )
    parser.add_argument(
        "--seed", type=int, metavar="N", help=f"show another generated pair (the tour's: {_SEED})"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 ...")
    parser.add_argument("--out", metavar="DIR", default="demo", help="default: demo")
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")


def run(args: argparse.Namespace) -> int:
    """Show a pair, or the whole tour; return 0.

    Raises:
        ValueError: options that do not go together, no weights, or a pair that does not fit.
        FileNotFoundError: there is no such image, calibration or weight file.
    """
    # With --json the only thing on stdout is the JSON; training prints a great deal.
    quiet = contextlib.redirect_stdout(sys.stderr) if args.json else contextlib.nullcontext()
    with quiet:
        out = _check(args)
        alone = args.left is not None or args.model is not None or args.seed is not None
        report = _pair(args, out) if alone else _tour(args, out)
    print(json.dumps(report, indent=2) if args.json else _lines(report))
    return 0


def _check(args: argparse.Namespace) -> Path:
    from ._work import check_folder

    if (args.left is None) != (args.right is None):
        raise ValueError("give both LEFT and RIGHT, or neither")
    if args.calib is not None and args.left is None:
        raise ValueError("--calib belongs to a pair of yours: give LEFT and RIGHT too")
    if args.seed is not None and args.left is not None:
        raise ValueError("--seed is of the generated room; with LEFT and RIGHT there is none")
    if args.seed is not None and args.seed < 0:
        raise ValueError(f"--seed must not be negative, got {args.seed}")
    for option in ("left", "model", "seed"):
        if args.train and getattr(args, option) is not None:
            name = "LEFT and RIGHT" if option == "left" else f"--{option}"
            raise ValueError(f"give either --train or {name}, not both")
    if args.epochs is not None and not args.train:
        raise ValueError("--epochs belongs to --train")
    if args.epochs is not None and args.epochs < 1:
        raise ValueError(f"--epochs must be at least 1, not {args.epochs}")
    return check_folder(args.out)


def _pair(args: argparse.Namespace, out: Path) -> dict[str, Any]:
    """One pair, seen by the network that was asked for and by those to compare it with."""
    from ..common.devices import choose_device
    from ._demo.pair import generated_sample, own_sample
    from ._demo.report import pair_page

    device = choose_device(args.device)
    if args.left is not None:
        sample = own_sample(args.left, args.right, args.calib)
    else:
        seed = _SEED if args.seed is None else args.seed
        _tell(f"generated room {seed}")
        sample = generated_sample(seed)
    findings, front = _look(args, sample, device)
    name = "yours" if args.left else "pair"
    command = _command(args, name)
    page = pair_page(sample, findings, front, _machine(device), command)
    return _write(out, name, page, sample, findings, front, _machine(device))


def _tour(args: argparse.Namespace, out: Path) -> dict[str, Any]:
    """The pair, subnets for this machine, a training, a picture of every other family."""
    from ..common.devices import choose_device
    from ._demo.families import family_cards
    from ._demo.pair import generated_sample
    from ._demo.report import tour_page
    from ._demo.subnets import cut_subnets
    from ._demo.training import test, train

    device = choose_device(args.device)
    clock = _Clock()
    clock.start("pair", "1/4 a generated pair, its disparity and StereoSGBM's; about 20 s")
    sample = generated_sample(_SEED)
    findings, _ = _look(args, sample, device)
    folder = out / "pair"
    files = _write_pair(folder, sample, findings[0], own=False)
    clock.start(
        "subnets", "2/4 networks cut out of a supernet, for three latencies; about a minute"
    )
    subnets = cut_subnets(sample, out / "subnets", _tell)
    epochs = (args.epochs or _EPOCHS) if args.train else 1
    minutes = "a minute" if epochs == 1 else f"about {0.8 * epochs:.0f} minutes"
    clock.start("training", f"3/4 a training of {minutes}, interrupted once and resumed")
    training = train(out, epochs, args.device, _tell)
    tested = test(training, args.device, _tell) if args.train else None
    clock.start("families", "4/4 the other families; seconds")
    views = shlex.join(str(folder / f"{side}.png") for side in ("left", "right"))
    cards = family_cards(sample, args.device, views)
    clock.stop()
    machine = _machine(device)
    command = _command(args, "pair")
    page = tour_page(sample, findings, subnets, training, cards, machine, command)
    report = _write(out, "index", page, sample, findings, None, machine, files)
    report["subnets"] = [subnet.to_json() for subnet in subnets]
    report["training"] = {**training.to_json(), "test": tested}
    report["families"] = [card.title for card in cards]
    report["seconds"] = clock.seconds
    return report


def _look(
    args: argparse.Namespace, sample: Sample, device: torch.device
) -> tuple[list[Finding], Front | None]:
    from ._demo.networks import candidates, choose, open_weights
    from ._demo.pair import show_all
    from ._work import warn

    for note in sample.notes:
        warn(note)
    sources = choose(args.model)
    networks, front = candidates([open_weights(source) for source in sources], device, _tell)
    said = len(sample.notes)
    findings = show_all(sample, networks, args.device, _tell)
    for note in sample.notes[said:]:
        warn(note)
    return findings, front


def _machine(device: torch.device) -> dict[str, Any]:
    import platform

    import torch

    from ..nas.efficiency.provenance import device_name

    return {
        "device": device_name(device),
        "threads": torch.get_num_threads() if device.type == "cpu" else 0,
        "software": f"torch {torch.__version__}, Python {platform.python_version()}",
    }


def _command(args: argparse.Namespace, name: str) -> str:
    """The command that infers the pair of the page again."""
    folder = Path(args.out) / name
    views = [args.left, args.right] if args.left else [folder / "left.png", folder / "right.png"]
    words = ["vizoo", "infer", "stereo", *map(str, views)]
    words += ["--model", args.model] if args.model else []
    calibration = args.calib if args.left else folder / "calib.txt"
    words += ["--calib", str(calibration)] if calibration else []
    return shlex.join([*words, "--out", "result"])


def _write(
    out: Path,
    name: str,
    text: str,
    sample: Sample,
    findings: list[Finding],
    front: Front | None,
    machine: dict[str, Any],
    files: list[Path] | None = None,
) -> dict[str, Any]:
    """Write the page last, so that it is there only if all else is."""
    from ..common.files import atomic_write

    if files is None:
        files = _write_pair(out / name, sample, findings[0], own=name == "yours")
    path = out / f"{name}.html"
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    height, width = sample.size
    weights = findings[0].candidate.weights
    return {
        "page": str(path),
        "bytes": path.stat().st_size,
        "files": [str(file) for file in files],
        "pair": {"title": sample.title, "size": [height, width], "warnings": sample.notes},
        "weights": {"source": weights.source, **weights.facts},
        "networks": [finding.to_json() for finding in findings],
        "front": None if front is None else {"metric": front.metric, "subnets": len(front.rows)},
        "machine": machine,
    }


def _write_pair(folder: Path, sample: Sample, main: Finding, own: bool) -> list[Path]:
    """The disparity, and of a generated room what is needed to infer it again."""
    from ..datasets.stereo.calibration import write_calibration
    from ..vision.io.images import write_image
    from ..vision.viz.colour import comparison_picture

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


class _Clock:
    """Says what begins and how long each part took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._part = ""
        self._started = 0.0

    def start(self, part: str, said: str) -> None:
        """End the part before and begin another."""
        self.stop()
        self._part, self._started = part, time.perf_counter()
        _tell(said)

    def stop(self) -> None:
        """End the part that runs, if one does."""
        if self._part:
            self.seconds[self._part] = round(time.perf_counter() - self._started, 1)
        self._part = ""


def _lines(report: dict[str, Any]) -> str:
    lines = [f"{report['pair']['title']}, {'x'.join(map(str, report['pair']['size']))} pixels"]
    for network in report["networks"]:
        source = network["weights"]
        where = "" if source is None or network["name"] in source else f" of {source}"
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
