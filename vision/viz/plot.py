"""Plots for an HTML page (see `page`), as SVG in the page's own colours."""

from __future__ import annotations

import html
import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Series", "front_plot", "loss_plot"]

# Matplotlib writes these; the page's style sheet decides what they are in light and in dark.
_COLOURS = {
    "#010101": "currentColor",
    "#020202": "var(--line)",
    "#030303": "var(--first)",
    "#040404": "var(--second)",
}
_INK, _GRID, _FIRST, _SECOND = _COLOURS
_SIZE = (6.0, 3.6)
_WINDOW = 15  # values whose mean is drawn


@dataclass(frozen=True)
class Series:
    """Points that belong together."""

    name: str  #: for the legend
    points: Sequence[tuple[float, float]]  #: (x, y) each
    labels: Sequence[str] = ()  #: beside each point, or empty


def front_plot(front: Series, marked: Series | None, x_label: str, y_label: str) -> str:
    """A front of points joined by steps, some of them marked.

    Args:
        front: small is good on both axes; at least one point.
        marked: points drawn larger, with labels.
        x_label: what the horizontal axis is, with its unit.
        y_label: what the vertical axis is, with its unit.

    Raises:
        ValueError: no point, or one that is not finite.
    """
    shown = [front, *([marked] if marked and marked.points else [])]
    _check(shown)

    def draw(axes: Axes) -> None:
        xs, ys = zip(*sorted(front.points), strict=True)
        axes.step(xs, ys, where="post", color=_FIRST, marker="o", markersize=5, label=front.name)
        for series in shown[1:]:
            xs, ys = zip(*series.points, strict=True)
            axes.plot(xs, ys, "o", color=_SECOND, markersize=9, label=series.name)
            for label, x, y in zip(series.labels, xs, ys, strict=False):
                note = axes.annotate(label, (x, y), (6, 6), textcoords="offset points")
                note.set(color=_INK, parse_math=False)
        axes.margins(x=0.12)

    return _svg(draw, x_label, y_label, f"{front.name}: {y_label} against {x_label}")


def loss_plot(losses: Series, interrupted: float | None, x_label: str, y_label: str) -> str:
    """A training's curve, with a line at the step where it was interrupted and resumed, if any.

    Raises:
        ValueError: no point, or one that is not finite.
    """
    _check([losses])

    def draw(axes: Axes) -> None:
        xs, ys = zip(*losses.points, strict=True)
        axes.plot(xs, ys, color=_FIRST, linewidth=1, alpha=0.35, label=losses.name)
        smooth = [mean(ys[max(0, end - _WINDOW) : end]) for end in range(1, len(ys) + 1)]
        axes.plot(xs, smooth, color=_FIRST, linewidth=2.5, label=f"mean of the last {_WINDOW}")
        if interrupted is not None:
            label = "interrupted, resumed"
            axes.axvline(interrupted, color=_SECOND, linestyle="--", linewidth=1.5, label=label)
        axes.set_ylim(bottom=0)

    return _svg(draw, x_label, y_label, f"{losses.name}: {y_label} against {x_label}")


def _check(shown: list[Series]) -> None:
    points = [value for series in shown for point in series.points for value in point]
    if not shown[0].points or not all(map(math.isfinite, points)):
        raise ValueError("a plot needs points, all of them finite")


def _svg(draw: Callable[[Axes], None], x_label: str, y_label: str, title: str) -> str:
    import matplotlib
    from matplotlib.figure import Figure

    # Words stay words; ids are the same in every run.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": title, "font.size": 11}):
        figure = Figure(figsize=_SIZE, layout="constrained")
        axes = figure.add_subplot()
        draw(axes)
        axes.set_xlabel(x_label, color=_INK)
        axes.set_ylabel(y_label, color=_INK)
        axes.grid(color=_GRID)
        axes.set_axisbelow(True)
        axes.tick_params(colors=_INK, length=0)
        axes.spines[:].set_visible(False)
        axes.legend(frameon=False, labelcolor=_INK)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    # What speaks of Matplotlib, a style that would hold for the whole page, and fonts.
    text = re.sub(r"<(metadata|style)\b.*?</\1>", "", text, flags=re.DOTALL)
    text = re.sub(r"font-family: [^;]*; ", "", text)
    for drawn, colour in _COLOURS.items():
        text = text.replace(drawn, colour)
    text = re.sub(r' (?:width|height)="[0-9.]+pt"', "", text, count=2)
    words = html.escape(title)
    return text.replace("<svg", f'<svg role="img" aria-label="{words}"', 1)
