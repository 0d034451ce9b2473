"""The page of `vizoo demo`: what is said of a pair, of networks and of their front."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from ...vision.viz import page
from ...vision.viz.colour import colour_range, colourise
from ...vision.viz.plot import Series, front_plot
from ...vision.viz.viewer import cloud_viewer

if TYPE_CHECKING:
    from ...nas.search.front import Front
    from ._demo_pair import Finding, Sample

__all__ = ["demo_page"]

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


def demo_page(
    sample: Sample, findings: list[Finding], front: Front | None, machine: dict[str, Any]
) -> str:
    """The whole page.

    Args:
        sample: the pair.
        findings: of each network, the main one first.
        front: of the supernet among them, if there is one.
        machine: ``device``, ``threads`` (0 on a GPU), ``software``: what the times hold for.
    """
    main = findings[0]
    height, width = sample.size
    weights = main.candidate.weights
    lead = (
        f"{sample.title}, {width}\u00a0×\u00a0{height}\u00a0pixels, seen by {_name(main)}, "
        f"trained on: {weights.facts['trained on']}."
    )
    parts = [page.paragraph(note, "warning") for note in sample.notes]
    parts += [_headline(main), _input(sample), _disparity(sample, main), _cloud(sample, main)]
    if any(finding.candidate.architecture is not None for finding in findings):
        parts.append(_family(sample, findings, front))
    else:
        sentence = "No weights of a supernet came with this version, so no subnets are shown."
        parts.append(page.section("Other networks", page.paragraph(sentence)))
    parts.append(_networks(sample, findings, machine))
    parts.append(_origins(findings))
    today = datetime.date.today().isoformat()
    foot = (
        f"Written by vizoo demo on {today}. This file holds all that it shows; nothing is loaded."
    )
    return page.page("vizoo: depth from two pictures", lead, parts, foot)


def _headline(main: Finding) -> str:
    cards = {}
    if main.scores:
        cards["mean error (EPE)"] = f"{main.scores['epe']:.2f} px"
        cards["pixels wrong by over 2 px"] = f"{100 * main.scores['bad2']:.1f} %"
    cards["a pair, on this machine"] = f"{main.timing.median:.0f} ms"
    cards["pairs a second"] = f"{1000 / main.timing.median:.1f}"
    cards["parameters"] = f"{main.parameters / 1e6:.2f} M"
    return page.cards(cards)


def _input(sample: Sample) -> str:
    captions = {
        "Left image; every disparity below is of its pixels.": sample.left,
        "Right image: the same scene from further right, so near things have moved left.": (
            sample.right
        ),
    }
    pictures = [page.figure(_pixels(view), text, photo=True) for text, view in captions.items()]
    return page.section("Input", page.gallery(*pictures))


def _disparity(sample: Sample, main: Finding) -> str:
    found, known = main.result.disparity, None
    wanted = found if sample.truth is None else sample.truth[0].numpy()
    if sample.valid is not None:
        known = sample.valid[0].numpy()
    low, high = colour_range(wanted, known)
    bar = page.colour_bar(low, high, "px")
    pictures = [
        page.figure(
            colourise(found, low=low, high=high),
            f"Disparity found by {_name(main)}: how far a pixel moves between the images; "
            "large is near.",
            below=bar,
        )
    ]
    if sample.truth is not None:
        truth = colourise(wanted, known, low=low, high=high)
        pictures.append(page.figure(truth, "Truth; black where it is unknown.", below=bar))
        error = np.abs(found - wanted) + 1e-6  # 0 would count as unknown
        coloured = colourise(error, known, low=0.0, high=_ERROR, palette="inferno")
        scores = main.scores
        pictures.append(
            page.figure(
                coloured,
                f"Error: {scores['epe']:.2f} px in the mean; over 1, 2, 3 px: "
                + ", ".join(f"{100 * scores[f'bad{n}']:.1f} %" for n in (1, 2, 3))
                + f". Errors above {_ERROR:g} px have the last colour.",
                below=page.colour_bar(0.0, _ERROR, "px", palette="inferno"),
            )
        )
    return page.section("Disparity", page.gallery(*pictures))


def _cloud(sample: Sample, main: Finding) -> str:
    points, colours = main.result.points(sample.calibration)
    if not len(points):
        return page.section("Point cloud", page.paragraph("No pixel is near enough for a point."))
    caption = (
        f"{len(points):,} points from the disparity found. Drag to turn (one finger), pinch or "
        "click and scroll to zoom, arrow keys and + and − too, double click to return."
    )
    view = cloud_viewer(
        points, colours, focal=sample.calibration.focal, size=sample.size, caption=caption
    )
    parts = [view]
    if not sample.metric:
        parts.append(
            page.paragraph(
                "No calibration was given: a camera whose focal length is the image's width is "
                "assumed, so the shape may be stretched in depth. --calib FILE makes it true.",
                "note",
            )
        )
    return page.section("Point cloud", *parts)


def _family(sample: Sample, findings: list[Finding], front: Front | None) -> str:
    subnets = [f for f in findings if f.candidate.architecture is not None]
    wanted = subnets[0].result.disparity if sample.truth is None else sample.truth[0].numpy()
    known = None if sample.valid is None else sample.valid[0].numpy()
    low, high = colour_range(wanted, known)
    pictures = []
    for finding in subnets:
        error = f", EPE {finding.scores['epe']:.2f} px" if finding.scores else ""
        name = finding.candidate.name.capitalize()
        caption = f"{name}: {finding.timing.median:.0f} ms{error}"
        coloured = colourise(finding.result.disparity, low=low, high=high)
        pictures.append(page.figure(coloured, caption))
    said = page.paragraph(
        f"{subnets[0].candidate.weights.name} holds many networks in one set of weights. Each of "
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
        (finding.candidate.name, *errors[finding.candidate.architecture])
        for finding in subnets
        if finding.candidate.architecture in errors
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


def _networks(sample: Sample, findings: list[Finding], machine: dict[str, Any]) -> str:
    repetitions = findings[0].timing.repetitions
    head = ["network", "parameters", "multiply-adds", "latency"]
    head += ["10 to 90 %"] if repetitions > 1 else []
    head += ["pairs/s"]
    head += ["EPE", "over 2 px"] if sample.truth is not None else []
    rows = []
    for finding in findings:
        time = finding.timing
        row = [_name(finding), f"{finding.parameters / 1e6:.2f} M", f"{finding.macs / 1e9:.1f} G"]
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
    known = {f.candidate.weights.source: f.candidate.weights for f in findings}
    parts = [page.facts({"weights": name, **w.facts}) for name, w in known.items()]
    return page.section("Weights", *parts)


def _name(finding: Finding) -> str:
    candidate = finding.candidate
    if candidate.architecture is None:
        return candidate.name
    return f"{candidate.weights.name}, {candidate.name}"


def _threads(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''}"


def _pixels(view: Any) -> np.ndarray:
    return view.mul(255).round().byte().permute(1, 2, 0).contiguous().numpy()
