"""What `vizoo demo` shows: one pair, or a tour of the zoo, each as a page of its own."""

from __future__ import annotations

import platform
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ...common.devices import choose_device
from ...common.files import write_text
from ...datasets.stereo.calibration import write_calibration
from ...nas.efficiency.provenance import device_name
from ...nas.search.front import Front
from ...vision.io.images import write_image
from ...vision.viz.colour import comparison_picture
from .._work import warn
from .families import family_cards
from .networks import candidates, choose, open_weights
from .pair import Finding, Sample, generated_sample, own_sample, show_all
from .report import make_page
from .subnets import cut_subnets
from .training import test, train

_Tell = Callable[[str], None]

_SEED = 51


def show_pair(
    out: Path,
    command: str,
    tell: _Tell,
    model: str | None,
    device: str,
    seed: int | None,
    own: tuple[str, str, str | None] | None,
) -> dict[str, Any]:
    """One pair, seen by the network that was asked for and by those to compare it with.

    That is a generated room of a seed, or of one's `own` the left and right image and calibration
    file. The command, for the page, infers the pair again; `tell` is told what begins. Returns what
    was written and measured.
    """
    where = choose_device(device)
    if own is not None:
        sample = own_sample(*own)
    else:
        seed = _SEED if seed is None else seed
        tell(f"generated room {seed}")
        sample = generated_sample(seed)
    findings, front = _look(sample, model, where, tell)
    name = "pair" if own is None else "yours"
    files = _write_pair(out / name, sample, findings[0], own=own is not None)
    return _write(out / f"{name}.html", command, where, sample, findings, files, front)


def show_tour(
    out: Path, command: str, tell: _Tell, epochs: int, tested: bool, device: str
) -> dict[str, Any]:
    """The pair, subnets for this machine, a training, a picture of every other family.

    The training takes about a minute for each of `epochs`; a test follows if `tested`.
    What else is given and returned is as of `show_pair`.
    """
    where = choose_device(device)
    seconds: dict[str, float] = {}

    @contextmanager
    def part(name: str, said: str) -> Iterator[None]:
        tell(said)
        started = time.perf_counter()
        yield
        seconds[name] = round(time.perf_counter() - started, 1)

    with part("pair", "1/4 a generated pair, its disparity and StereoSGBM's; about 20 s"):
        sample = generated_sample(_SEED)
        findings, _ = _look(sample, None, where, tell)
        folder = out / "pair"
        files = _write_pair(folder, sample, findings[0], own=False)
    with part("subnets", "2/4 networks cut out of a supernet, for three latencies; about a minute"):
        subnets = cut_subnets(sample, out / "subnets", tell)
    minutes = "a minute" if epochs == 1 else f"about {0.8 * epochs:.0f} minutes"
    with part("training", f"3/4 a training of {minutes}, interrupted once and resumed"):
        training = train(out, epochs, device, tell)
        scores = test(training, device, tell) if tested else None
    with part("families", "4/4 the other families; seconds"):
        views = shlex.join(str(folder / f"{side}.png") for side in ("left", "right"))
        cards = family_cards(sample, device, views)
    told = (None, subnets, training, cards)
    report = _write(out / "index.html", command, where, sample, findings, files, *told)
    report["subnets"] = [subnet.to_json() for subnet in subnets]
    report["training"] = {**training.to_json(), "test": scores}
    report["families"] = [card.title for card in cards]
    report["seconds"] = seconds
    return report


def _look(
    sample: Sample, model: str | None, device: torch.device, tell: _Tell
) -> tuple[list[Finding], Front | None]:
    for note in sample.notes:
        warn(note)
    networks, front = candidates([open_weights(source) for source in choose(model)], device, tell)
    said = len(sample.notes)
    findings = show_all(sample, networks, str(device), tell)
    for note in sample.notes[said:]:
        warn(note)
    return findings, front


def _write(
    path: Path,
    command: str,
    device: torch.device,
    sample: Sample,
    findings: list[Finding],
    files: list[Path],
    front: Front | None,
    *tour: Any,
) -> dict[str, Any]:
    """Write the page last, so that it is there only if all else is."""
    machine = {
        "device": device_name(device),
        "threads": torch.get_num_threads() if device.type == "cpu" else 0,
        "software": f"torch {torch.__version__}, Python {platform.python_version()}",
    }
    write_text(path, make_page(sample, findings, machine, command, path.parent, front, *tour))
    height, width = sample.size
    weights = findings[0].weights
    return {
        "page": str(path),
        "bytes": path.stat().st_size,
        "files": [str(file) for file in files],
        "pair": {"title": sample.title, "size": [height, width], "warnings": sample.notes},
        "weights": None if weights is None else {"source": weights.source, **weights.facts},
        "networks": [finding.to_json() for finding in findings],
        "front": None if front is None else {"metric": front.metric, "subnets": len(front.rows)},
        "machine": machine,
    }


def _write_pair(folder: Path, sample: Sample, main: Finding, own: bool) -> list[Path]:
    """The disparity, and of a generated room what is needed to infer it again."""
    camera = sample.calibration if sample.metric else None
    if own:
        return main.result.save(folder, Path(sample.title).stem, calibration=camera)
    write_image(folder / "left.png", sample.left)
    write_image(folder / "right.png", sample.right)
    write_calibration(folder / "calib.txt", sample.calibration)
    picture = comparison_picture(sample.left, main.result.disparity, *sample.known)
    write_image(folder / "comparison.png", picture)
    written = [folder / name for name in ("left.png", "right.png", "calib.txt", "comparison.png")]
    return written + main.result.save(folder, "scene", calibration=camera)
