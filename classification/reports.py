"""Results of classifiers: the report of a test, predictions as a table, confusion as a picture."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ..common.files import write_csv, write_json
from ..vision.viz.colour import draw_figure
from . import NOTICE
from .metrics import class_report

__all__ = ["confusion_picture", "write_predictions", "write_report", "write_results"]

_NUMBERS = 20  # classes of a confusion at most whose counts are written into the cells


def write_report(
    folder: str | os.PathLike[str],
    metrics: Mapping[str, float],
    confusion: Tensor,
    classes: Sequence[str],
    preset: Mapping[str, Any] | None = None,
) -> Path:
    """Write `test_report.json`, and beside it the confusion matrix as `test_confusion.csv`.

    Confusion is (C, C) counts: rows are true classes, columns predicted ones.

    Returns:
        The report: classes, input (the preset), metrics (null where not finite), confusion, and by
        class its number of samples, precision, sensitivity and F1.
    """
    path = Path(folder) / "test_report.json"
    content = {
        "classes": list(classes),
        "input": dict(preset or {}),
        "metrics": {k: v if math.isfinite(v) else None for k, v in metrics.items()},
        "confusion": confusion.tolist(),
        "by_class": class_report(confusion, classes),
    }
    write_json(path, content)
    rows = ([name, *row] for name, row in zip(classes, confusion.tolist(), strict=True))
    write_csv(path.with_name("test_confusion.csv"), ["true \\ predicted", *classes], rows)
    return path


def write_predictions(
    path: str | os.PathLike[str],
    classes: Sequence[str],
    names: Sequence[str],
    probabilities: Sequence[Sequence[float]],
) -> None:
    """Write a CSV table of `name`, `class` (the most probable one) and each class's probability."""
    rows = (
        [name, classes[max(range(len(row)), key=row.__getitem__)], *(f"{p:.6f}" for p in row)]
        for name, row in zip(names, probabilities, strict=True)
    )
    write_csv(path, ["name", "class", *classes], rows)


def write_results(
    path: str | os.PathLike[str],
    what: str,
    classes: Sequence[str],
    reports: Iterable[Mapping[str, Any]],
    network: str,
    facts: Sequence[str] = (),
) -> None:
    """Write a CSV table of what was inferred, a row for each; the class of a failure is empty.

    Args:
        path: of the table.
        what: key of the name in a report, `scan` or `image`.
        classes: names, in the order of the columns.
        reports: of each its name, and `class`, `probabilities` by class and `warnings`, or `error`.
        network: name of the network that answered.
        facts: keys of further columns.
    """
    header = [what, "class", *(f"p_{name}" for name in classes), *facts]
    header += ["network", "warnings", "error", "notice"]
    rows = []
    for report in reports:
        shares = report.get("probabilities")
        row = [report[what], report.get("class", "")]
        row += [f"{shares[name]:.6f}" if shares else "" for name in classes]
        row += [report.get(key, "") for key in facts]
        words = ["; ".join(report.get("warnings", [])), report.get("error", ""), NOTICE]
        rows.append([*row, network, *words])
    write_csv(path, header, rows)


def confusion_picture(confusion: Tensor, classes: Sequence[str]) -> np.ndarray:
    """Counts (C, C), rows true classes, their share of a row as colour; (H, W, 3) uint8 RGB."""
    from matplotlib.figure import Figure

    counts = confusion.cpu().numpy()
    shares = counts / counts.sum(1, keepdims=True).clip(1)
    inches = min(12.0, 2.5 + 0.6 * len(classes))
    figure = Figure(figsize=(inches, inches), dpi=100, layout="constrained")
    axes = figure.subplots()
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    places = range(len(classes))
    axes.set_xticks(places, classes, rotation=90 if len(classes) > 3 else 0, parse_math=False)
    axes.set_yticks(places, classes, parse_math=False)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    for row, column in np.ndindex(*counts.shape) if len(classes) <= _NUMBERS else ():
        colour = "white" if shares[row, column] > 0.5 else "black"
        axes.text(column, row, str(counts[row, column]), ha="center", va="center", color=colour)
    return draw_figure(figure)
