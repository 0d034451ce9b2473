"""The pages of `vizoo demo`: what is said of a pair, of networks, of a training."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from ...vision.io.images import to_bytes
from ...vision.viz.colour import colour_range, colourise
from . import page
from .plot import Series, front_plot, loss_plot
from .viewer import cloud_viewer

if TYPE_CHECKING:
    from ...nas.search.front import Front
    from .families import Card
    from .pair import Finding, Sample
    from .subnets import Subnet
    from .training import Training

__all__ = ["pair_page", "tour_page"]

_ERROR = 4.0  # pixels of the last colour
_COSTS = {
    "latency": (1.0, "latency [ms]"),
    "parameters": (1e6, "parameters [millions]"),
    "macs": (1e9, "multiply-adds [billions]"),
    "memory": (1e6, "activations [MB]"),
}
_METRICS = {
    "epe": (1, "mean error (EPE) [px]"),
    **{f"bad{n}": (100, f"pixels wrong by over {n} px [%]") for n in (1, 2, 3)},
    "d1": (100, "D1 [%]"),
}
_TITLE = "vizoo: depth from two pictures"


def pair_page(
    sample: Sample,
    findings: list[Finding],
    front: Front | None,
    machine: dict[str, Any],
    command: str,
) -> str:
    """The page of one pair.

    Args:
        sample: the pair.
        findings: of each network, the main one first, and of OpenCV.
        front: of the supernet among them, if there is one.
        machine: ``device``, ``threads`` (0 on a GPU), ``software``: what the times hold for.
        command: that infers the pair again.
    """
    parts = _seen(sample, findings, command)
    if any(_architecture(finding) is not None for finding in findings):
        parts.append(_family(sample, findings, front))
    parts += [_measured(sample, findings, machine), _origins(findings)]
    return page.page(_TITLE, _lead(sample, findings[0]), parts, _foot())


def tour_page(
    sample: Sample,
    findings: list[Finding],
    subnets: list[Subnet],
    training: Training,
    cards: list[Card],
    machine: dict[str, Any],
    command: str,
) -> str:
    """The page of the whole tour: of a pair as `pair_page`, and of what else was done."""
    parts = _seen(sample, findings, command)
    parts += [_measured(sample, findings, machine), _subnets(sample, subnets)]
    parts += [_training(training), _families(cards), _next(), _origins(findings)]
    return page.page(_TITLE, _lead(sample, findings[0]), parts, _foot())


def _lead(sample: Sample, main: Finding) -> str:
    height, width = sample.size
    trained = main.weights.facts["trained on"]
    return (
        f"{sample.title}, {width}\u00a0×\u00a0{height}\u00a0pixels, seen by {_name(main)}, "
        f"trained on: {trained}."
    )


def _foot() -> str:
    today = datetime.date.today().isoformat()
    return (
        f"Written by vizoo demo on {today}. This file holds all that it shows; nothing is loaded."
    )


def _seen(sample: Sample, findings: list[Finding], command: str) -> list[str]:
    """Warnings, figures, the pair, its disparity beside OpenCV's, the cloud."""
    main, classical = findings[0], findings[-1]
    parts = [page.paragraph(note, "warning") for note in sample.notes]
    parts += [_headline(main, classical), _input(sample, main)]
    parts += [_disparity(sample, main, classical, command), _cloud(sample, main)]
    return parts


def _headline(main: Finding, classical: Finding) -> str:
    cards = {}
    if main.scores:
        cards["mean error (EPE)"] = f"{main.scores['epe']:.2f} px"
        cards["the same by OpenCV’s StereoSGBM"] = f"{classical.scores['epe']:.2f} px"
        cards["pixels wrong by over 2 px"] = f"{100 * main.scores['bad2']:.1f} %"
    cards["a pair, on this machine"] = f"{main.timing.median:.0f} ms"
    cards["parameters"] = f"{main.parameters / 1e6:.2f} M"
    return page.cards(cards)


def _input(sample: Sample, main: Finding) -> str:
    captions = {
        "Left image; every disparity below is of its pixels.": sample.left,
        "Right image: the same scene from further right, so near things have moved left.": (
            sample.right
        ),
    }
    pictures = [page.figure(to_bytes(view), text, photo=True) for text, view in captions.items()]
    if sample.truth is None:
        return page.section("Input", page.gallery(*pictures))
    low, high, known = _range(sample, main)
    truth = colourise(sample.truth[0].numpy(), known, low=low, high=high)
    caption = "True disparity: how far a pixel moves between the two; large is near."
    pictures.append(page.figure(truth, caption))
    return page.section("Input and truth", page.gallery(*pictures, least=18))


def _disparity(sample: Sample, main: Finding, classical: Finding, command: str) -> str:
    low, high, known = _range(sample, main)
    bar = page.colour_bar(low, high, "px")
    pictures = []
    for finding in (main, classical):
        text = f"{_name(finding)}: {finding.timing.median:.0f} ms a pair."
        picture = colourise(finding.result.disparity, low=low, high=high)
        pictures.append(page.figure(picture, text, below=bar))
        if sample.truth is not None:
            pictures.append(_error(sample, finding, known))
    return page.section("Disparity", page.gallery(*pictures, least=24), page.command(command))


def _error(sample: Sample, finding: Finding, known: np.ndarray | None) -> str:
    error = np.abs(finding.result.disparity - sample.known[0][0].numpy()) + 1e-6  # 0 is unknown
    coloured = colourise(error, known, low=0.0, high=_ERROR, palette="inferno")
    shares = ", ".join(f"{100 * finding.scores[f'bad{n}']:.1f} %" for n in (1, 2, 3))
    return page.figure(
        coloured,
        f"Its error: {finding.scores['epe']:.2f} px in the mean; over 1, 2, 3 px: {shares}. "
        f"Errors above {_ERROR:g} px have the last colour.",
        below=page.colour_bar(0.0, _ERROR, "px", palette="inferno"),
    )


def _range(sample: Sample, main: Finding) -> tuple[float, float, np.ndarray | None]:
    """Values of the first and the last colour, and where the truth is known."""
    shown = main.result.disparity if sample.truth is None else sample.truth[0].numpy()
    known = None if sample.valid is None else sample.valid[0].numpy()
    return *colour_range(shown, known), known


def _cloud(sample: Sample, main: Finding) -> str:
    points, colours = main.result.points(sample.calibration)
    if not len(points):
        return page.section("Point cloud", page.paragraph("No pixel is near enough for a point."))
    caption = (
        f"{len(points):,} points from the disparity found. Drag to turn (one finger), pinch or "
        "click and scroll to zoom, arrow keys and + and − too, double click to return."
    )
    focal = sample.calibration.focal
    parts = [cloud_viewer(points, colours, focal=focal, size=sample.size, caption=caption)]
    if not sample.metric:
        text = (
            "No calibration was given: a camera whose focal length is the image's width is "
            "assumed, so the shape may be stretched in depth. --calib FILE makes it true."
        )
        parts.append(page.paragraph(text, "note"))
    return page.section("Point cloud", *parts)


def _subnets(sample: Sample, subnets: list[Subnet]) -> str:
    from .subnets import SUPERNET

    low, high = colour_range(*sample.known)
    pictures = []
    for subnet in subnets:
        kept = "" if subnet.met else " (missed)"
        caption = (
            f"At most {subnet.limit:g} ms{kept}: {subnet.timing.median:.0f} ms measured, "
            f"{subnet.parameters / 1e6:.2f} M parameters, EPE {subnet.scores['epe']:.2f} px"
        )
        coloured = colourise(subnet.result.disparity, low=low, high=high)
        pictures.append(page.figure(coloured, caption))
    text = (
        f"{SUPERNET} holds many networks in one set of weights. Each of these was cut out of it "
        "for a latency of this machine, without training: hundreds are compared by a prediction, "
        "the best is measured here."
    )
    note = f"Measured on {subnets[0].conditions}."
    return page.section(
        "A network for your latency",
        page.paragraph(text),
        page.gallery(*pictures, least=15),
        page.colour_bar(low, high, "px"),
        page.paragraph(note, "note"),
        page.command(*(subnet.command for subnet in subnets)),
    )


def _training(training: Training) -> str:
    losses = Series("loss of a batch", training.losses)
    plot = loss_plot(losses, training.interrupted or None, "step", "loss")
    text = (
        "FADNet++ tiny began with random weights and saw generated scenes for "
        f"{training.seconds:.0f} seconds, start-up included."
    )
    if training.interrupted:
        text += (
            " Half-way it was stopped as by Ctrl+C; the second command went on from there, with "
            "the same weights, optimiser and data."
        )
    parts = [page.paragraph(text), plot]
    if training.errors:
        _, error = training.errors[-1]
        said = f"At the end: EPE {error:.2f} px on scenes that it has not seen."
        parts.append(page.paragraph(said, "note"))
    parts.append(page.command(*training.commands))
    heading = "A training, interrupted and resumed" if training.interrupted else "A training"
    return page.section(heading, *parts)


def _families(cards: list[Card]) -> str:
    panels = []
    for card in cards:
        figures = [page.figure(picture, caption) for picture, caption in card.pictures]
        least = 9 if len(figures) > 2 else 11
        gallery = page.gallery(*figures, least=least)
        text, command = page.paragraph(card.text), page.command(*card.commands)
        panels.append(page.panel(card.title, text, gallery, command))
    text = (
        "The commands make the like of each picture. CHECKPOINT is what `vizoo fit` names when it "
        "ends."
    )
    return page.section("The other families", page.paragraph(text, "note"), page.panels(*panels))


def _next() -> str:
    return page.section(
        "Next",
        page.command(
            "vizoo demo LEFT RIGHT --calib FILE      # this page for a pair of your own",
            "vizoo infer stereo LEFT RIGHT --out result",
            "vizoo models                            # all networks, their size, cost and weights",
        ),
    )


def _family(sample: Sample, findings: list[Finding], front: Front | None) -> str:
    subnets = [finding for finding in findings if _architecture(finding) is not None]
    low, high, _ = _range(sample, subnets[0])
    pictures = []
    for finding in subnets:
        error = f", EPE {finding.scores['epe']:.2f} px" if finding.scores else ""
        caption = f"{finding.name.capitalize()}: {finding.timing.median:.0f} ms{error}"
        coloured = colourise(finding.result.disparity, low=low, high=high)
        pictures.append(page.figure(coloured, caption))
    said = page.paragraph(
        f"{subnets[0].weights.name} holds many networks in one set of weights. Each of "
        "these was cut out of it without training."
    )
    bar = page.colour_bar(low, high, "px")
    if front is None:
        plot = page.paragraph("The front of all its subnets did not come with the weights.", "note")
    else:
        plot = _front(front, subnets)
    row = page.gallery(*pictures, least=15)
    return page.section("One supernet, many networks", said, row, bar, plot)


def _front(front: Front, subnets: list[Finding]) -> str:
    cost = "latency" if all("latency" in row.costs for row in front.rows) else front.cost
    size, x_label = _COSTS[cost]
    name = front.metric.rpartition("/")[2]
    factor, y_label = _METRICS.get(name, (1, front.metric))
    points = [(row.costs[cost] / size, factor * row.error) for row in front.rows]
    errors = {row.architecture: (row.costs[cost], row.error) for row in front.rows}
    places = [
        (finding.name, *errors[_architecture(finding)])
        for finding in subnets
        if _architecture(finding) in errors
    ]
    marked = Series(
        "shown above",
        [(x / size, factor * y) for _, x, y in places],
        [label.removesuffix(" subnet") for label, *_ in places],
    )
    drawn = front_plot(Series("Pareto front", points), marked, x_label, y_label)
    where = front.conditions
    note = f"The best of {front.evaluated} subnets measured"
    if cost == "latency" and where:
        note += (
            f"; latency predicted for {where['device_name']}, {where['dtype']}"
            + (f", {_threads(where['threads'])}" if where.get("device") == "cpu" else "")
            + f", {where['width']}\u00a0×\u00a0{where['height']}\u00a0pixels"
        )
    return drawn + page.paragraph(f"{note}. Below and left is better.", "note")


def _measured(sample: Sample, findings: list[Finding], machine: dict[str, Any]) -> str:
    repetitions = findings[0].timing.repetitions
    head = ["", "parameters", "multiply-adds", "latency"]
    head += ["10 to 90 %"] if repetitions > 1 else []
    head += ["pairs/s"]
    head += ["EPE", "over 2 px"] if sample.truth is not None else []
    rows = []
    for finding in findings:
        time = finding.timing
        row = [_name(finding)]
        if finding.candidate is None:
            row += ["–", "–"]
        else:
            row += [f"{finding.parameters / 1e6:.2f} M", f"{finding.macs / 1e9:.1f} G"]
        row.append(f"{time.median:.1f} ms")
        if repetitions > 1:
            row.append(f"{time.p10:.1f} to {time.p90:.1f} ms")
        row.append(f"{1000 / time.median:.1f}")
        if finding.scores:
            row += [f"{finding.scores['epe']:.2f} px", f"{100 * finding.scores['bad2']:.1f} %"]
        rows.append(row)
    height, width = sample.size
    threads = f", {_threads(machine['threads'])}" if machine["threads"] else ""
    times = f"median of {repetitions}" if repetitions > 1 else "once each"
    note = (
        f"Measured while this page was made, on {machine['device']}{threads}, float32, "
        f"{width}\u00a0×\u00a0{height}\u00a0pixels, {times}; {machine['software']}."
    )
    return page.section("Measured here", page.table(head, rows), page.paragraph(note, "note"))


def _origins(findings: list[Finding]) -> str:
    networks = [finding.candidate.weights for finding in findings if finding.candidate]
    known = {weights.source: weights for weights in networks}
    parts = [page.facts({"weights": name, **w.facts}) for name, w in known.items()]
    return page.section("Weights", *parts)


def _architecture(finding: Finding) -> Any:
    return None if finding.candidate is None else finding.candidate.architecture


def _name(finding: Finding) -> str:
    if _architecture(finding) is None:
        return finding.name
    return f"{finding.weights.name}, {finding.name}"


def _threads(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''}"
