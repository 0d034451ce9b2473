"""What the pages of `vizoo demo` show: pictures and figures for the template ``page.html``."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...vision.io.images import to_bytes
from ...vision.viz.colour import colour_range, colourise
from ...vision.viz.page import Legend, Picture, render
from ...vision.viz.plot import Series, front_plot, loss_plot
from .._tables import UNITS
from .subnets import SUPERNET
from .viewer import cloud_view

if TYPE_CHECKING:
    from ...nas.search.front import Front
    from .families import Card
    from .pair import Finding, Sample
    from .subnets import Subnet
    from .training import Training

_DOCS = Path(__file__).parents[2] / "docs"
_GUIDES = {
    "stereo": "a pair of your own",
    "training": "training, on data of your own",
    "search": "searching for a network",
    "multi_view": "many photographs",
    "panorama": "panoramas",
    "ct": "chest CT",
    "export": "export to ONNX",
}
_ERROR = Legend(0.0, 4.0, palette="inferno")
_METRICS = {
    "epe": (1, "mean error (EPE) [px]"),
    **{f"bad{n}": (100, f"pixels wrong by over {n} px [%]") for n in (1, 2, 3)},
    "d1": (100, "D1 [%]"),
}


def make_page(
    sample: Sample,
    findings: list[Finding],
    machine: dict[str, Any],
    command: str,
    folder: Path,
    front: Front | None = None,
    subnets: list[Subnet] | None = None,
    training: Training | None = None,
    cards: list[Card] | None = None,
) -> str:
    """The page of one pair, or with the last three that of the whole tour.

    The findings are of each network, the main one first, and of OpenCV; times hold for the
    machine's ``device``, ``threads`` (0 on a GPU) and ``software``; the page will lie in `folder`.
    """
    main = findings[0]
    height, width = sample.size
    shown = main.result.disparity if sample.truth is None else sample.truth[0].numpy()
    known = None if sample.valid is None else sample.valid[0].numpy()
    legend = Legend(*colour_range(shown, known))
    facts = {f.weights.source: f.weights.facts for f in findings if f.weights is not None}
    family = [finding for finding in findings if finding.architecture is not None]
    drawn = front is not None and _front(front, family)
    return render(
        Path(__file__).with_name("page.html"),
        {
            "title": "vizoo: depth from two pictures",
            "sample": sample,
            "findings": findings,
            "main": main,
            "classical": findings[-1],
            "size": f"{height}\u00a0×\u00a0{width}\u00a0pixels",
            "legend": legend,
            "inputs": _inputs(sample, legend, known),
            "disparities": _disparities(sample, findings, legend, known),
            "command": command,
            "cloud": _cloud(sample, main),
            "family": [] if subnets else family,
            "family_pictures": [_subnet(finding, legend) for finding in family],
            "front": drawn,
            "repetitions": main.timing.repetitions,
            "machine": machine,
            "threads": _threads,
            "supernet": SUPERNET,
            "subnets": subnets,
            "subnet_pictures": [_cut(subnet, legend) for subnet in subnets or []],
            "training": training,
            "training_plot": training and _losses(training),
            "cards": cards,
            "guides": _guides(folder),
            "origins": [{"weights": source, **told} for source, told in facts.items()],
            "today": datetime.date.today().isoformat(),
        },
    )


def _inputs(sample: Sample, legend: Legend, known: np.ndarray | None) -> list[Picture]:
    left = "Left image; every disparity below is of its pixels."
    right = "Right image: the same scene from further right, so near things have moved left."
    pictures = [
        Picture(to_bytes(sample.left), left, photo=True),
        Picture(to_bytes(sample.right), right, photo=True),
    ]
    if sample.truth is not None:
        truth = _coloured(sample.truth[0].numpy(), legend, known)
        caption = "True disparity: how far a pixel moves between the two; large is near."
        pictures.append(Picture(truth, caption))
    return pictures


def _disparities(
    sample: Sample, findings: list[Finding], legend: Legend, known: np.ndarray | None
) -> list[Picture]:
    """Disparity, and its error where the truth is known, of the main network and of OpenCV."""
    pictures = []
    for finding in (findings[0], findings[-1]):
        text = f"{finding.title}: {finding.timing.median:.0f} ms a pair."
        pictures.append(Picture(_coloured(finding.result.disparity, legend), text, legend=legend))
        if sample.truth is not None:
            error = np.abs(finding.result.disparity - sample.truth[0].numpy()) + 1e-6  # 0: unknown
            shares = ", ".join(f"{100 * finding.scores[f'bad{n}']:.1f} %" for n in (1, 2, 3))
            caption = (
                f"Its error: {finding.scores['epe']:.2f} px in the mean; over 1, 2, 3 px: "
                f"{shares}. Errors above {_ERROR.high:g} px have the last colour."
            )
            pictures.append(Picture(_coloured(error, _ERROR, known), caption, legend=_ERROR))
    return pictures


def _cloud(sample: Sample, main: Finding) -> dict[str, Any] | None:
    points, colours = main.result.points(sample.calibration)
    if not len(points):
        return None
    caption = (
        f"{len(points):,} points from the disparity found. Drag to turn (one finger), pinch or "
        "click and scroll to zoom, arrow keys and + and − too, double click to return."
    )
    focal = sample.calibration.focal
    return cloud_view(points, colours, focal=focal, size=sample.size, caption=caption)


def _subnet(finding: Finding, legend: Legend) -> Picture:
    error = f", EPE {finding.scores['epe']:.2f} px" if finding.scores else ""
    caption = f"{finding.name.capitalize()}: {finding.timing.median:.0f} ms{error}"
    return Picture(_coloured(finding.result.disparity, legend), caption)


def _cut(subnet: Subnet, legend: Legend) -> Picture:
    cut, kept = subnet.cut, " (missed)" if subnet.cut.missed else ""
    caption = (
        f"At most {subnet.limit:g} ms{kept}: {cut.latency:.0f} ms measured, "
        f"{cut.costs['parameters'] / 1e6:.2f} M parameters, EPE {subnet.scores['epe']:.2f} px"
    )
    return Picture(_coloured(subnet.result.disparity, legend), caption)


def _losses(training: Training) -> str:
    losses = Series("loss of a batch", training.losses)
    return loss_plot(losses, training.interrupted or None, "step", "loss")


def _front(front: Front, subnets: list[Finding]) -> dict[str, Any]:
    cost = "latency" if all("latency" in row.costs for row in front.rows) else front.cost
    size, x_label = UNITS[cost]
    factor, y_label = _METRICS.get(front.metric.rpartition("/")[2], (1, front.metric))
    places = {row.architecture: (row.costs[cost] / size, factor * row.error) for row in front.rows}
    marked = {f.name: places[f.architecture] for f in subnets if f.architecture in places}
    names = [name.removesuffix(" subnet") for name in marked]
    shown = Series("shown above", list(marked.values()), names)
    plot = front_plot(Series("Pareto front", list(places.values())), shown, x_label, y_label)
    where = ""
    if cost == "latency" and (known := front.conditions):
        threads = f", {_threads(known['threads'])}" if known.get("device") == "cpu" else ""
        where = (
            f"; latency predicted for {known['device_name']}, {known['dtype']}{threads}, "
            f"{known['height']}\u00a0×\u00a0{known['width']}\u00a0pixels"
        )
    return {"plot": plot, "evaluated": front.evaluated, "where": where}


def _guides(folder: Path) -> dict[str, str]:
    """Addresses of pages to read on, where this is a checkout: of the site if it is built."""
    site = _DOCS / "_build" / "html"
    root, suffix = (site, "html") if site.is_dir() else (_DOCS, "md")
    pages = {text: root / "guides" / f"{name}.{suffix}" for name, text in _GUIDES.items()}
    return {
        text: Path(os.path.relpath(page, folder.resolve())).as_posix()
        for text, page in pages.items()
        if page.is_file()
    }


def _coloured(values: np.ndarray, legend: Legend, known: np.ndarray | None = None) -> np.ndarray:
    return colourise(values, known, low=legend.low, high=legend.high, palette=legend.palette)


def _threads(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''}"
