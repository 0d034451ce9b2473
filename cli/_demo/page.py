"""One HTML page that needs nothing but itself: pictures and data are inside, nothing is fetched.

Every function returns a piece of HTML; strings that it is given are text and are escaped. Plots
are SVG in the page's own colours, and a point cloud can be turned by mouse, finger or key.
"""

from __future__ import annotations

import base64
import html
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from string import Template
from typing import TYPE_CHECKING

import numpy as np

from ...vision.viz.cloud import points_ahead

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "Series",
    "cards",
    "cloud_viewer",
    "colour_bar",
    "command",
    "facts",
    "figure",
    "front_plot",
    "gallery",
    "loss_plot",
    "page",
    "panel",
    "panels",
    "paragraph",
    "picture_uri",
    "section",
    "table",
]

_TEMPLATE = Path(__file__).with_name("page.html")
_STOPS = 24  # of a colour bar's gradient


def page(title: str, lead: str, parts: Iterable[str], foot: str = "") -> str:
    """The whole page.

    Args:
        title: text of the heading and of the browser's tab.
        lead: text of a sentence or two below it.
        parts: pieces of HTML that the other functions returned.
        foot: text of the last line.
    """
    template = Template(_TEMPLATE.read_text(encoding="utf-8"))
    words = {name: html.escape(text) for name, text in (("lead", lead), ("foot", foot))}
    return template.substitute(title=html.escape(title), body="\n".join(parts), **words)


def section(heading: str, *parts: str) -> str:
    """A heading and pieces of HTML below it."""
    return "\n".join((f"<section><h2>{html.escape(heading)}</h2>", *parts, "</section>"))


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph; ``kind`` is empty, ``note`` (quiet) or ``warning``."""
    name = f' class="{kind}"' if kind else ""
    return f"<p{name}>{html.escape(text)}</p>"


def cards(values: Mapping[str, str]) -> str:
    """Figures that catch the eye: label to value with its unit."""
    inner = (
        f'<div class="card"><b>{html.escape(value)}</b><span>{html.escape(label)}</span></div>'
        for label, value in values.items()
    )
    return f'<div class="cards">{"".join(inner)}</div>'


def gallery(*figures: str, least: float = 22.0) -> str:
    """Figures side by side as far as each keeps a width of ``least`` em, else below each other."""
    return f'<div class="gallery" style="--least: {least:g}rem">{"".join(figures)}</div>'


def figure(image: np.ndarray, caption: str, *, photo: bool = False, below: str = "") -> str:
    """A picture with its caption.

    Args:
        image: (H, W, 3) uint8 RGB.
        caption: text; it also describes the picture to those who do not see it.
        photo: see `picture_uri`.
        below: HTML between picture and caption, such as a `colour_bar`.
    """
    text = html.escape(caption)
    height, width = image.shape[:2]
    size = f'width="{width}" height="{height}"'
    tag = f'<img src="{picture_uri(image, photo=photo)}" alt="{text}" {size}>'
    return f"<figure>{tag}{below}<figcaption>{text}</figcaption></figure>"


def picture_uri(image: np.ndarray, *, photo: bool = False, most: int = 1280) -> str:
    """A picture as an address that holds the picture.

    Args:
        image: (H, W, 3) uint8 RGB.
        photo: as JPEG, smaller; otherwise as PNG, exact.
        most: wider pictures are reduced to this width, pixels.

    Raises:
        ValueError: no such array.
    """
    from PIL import Image

    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise ValueError(f"a picture is (H, W, 3) uint8, got {image.shape} {image.dtype}")
    drawn = Image.fromarray(np.ascontiguousarray(image))
    if drawn.width > most:
        height = max(1, round(drawn.height * most / drawn.width))
        drawn = drawn.resize((most, height), Image.Resampling.BOX)
    buffer, kind = io.BytesIO(), "jpeg" if photo else "png"
    drawn.save(buffer, kind, **({"quality": 90} if photo else {"optimize": True}))
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def colour_bar(low: float, high: float, unit: str, *, palette: str = "turbo") -> str:
    """The legend of `colour.colourise`: which colour is which value.

    Args:
        low: value of the first colour.
        high: value of the last colour.
        unit: goes with every value.
        palette: a name of Matplotlib's.
    """
    import matplotlib

    colours = matplotlib.colormaps[palette](np.linspace(0, 1, _STOPS))[:, :3]
    stops = ", ".join("#" + bytes((c * 255).round().astype(np.uint8)).hex() for c in colours)
    digits = 0 if high - low >= 20 else 1 if high - low >= 2 else 2
    unit = f" {unit}" if unit else ""
    ticks = (f"<span>{v:.{digits}f}{html.escape(unit)}</span>" for v in np.linspace(low, high, 5))
    return (
        f'<div class="bar" style="background: linear-gradient(90deg, {stops})"></div>'
        f'<div class="ticks">{"".join(ticks)}</div>'
    )


def command(*lines: str) -> str:
    """Commands as they are typed, one a line."""
    return f"<pre>{''.join(f'<code>{html.escape(line)}</code>' for line in lines)}</pre>"


def panel(heading: str, *parts: str) -> str:
    """A framed piece of a page: a smaller heading and HTML below it."""
    return "\n".join(
        (f'<article class="panel"><h3>{html.escape(heading)}</h3>', *parts, "</article>")
    )


def panels(*parts: str) -> str:
    """Panels side by side where there is room."""
    return f'<div class="panels">{"".join(parts)}</div>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of text; the first column is a name, the others are figures."""
    top = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return (
        f'<div class="scroll"><table><thead><tr>{top}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def facts(values: Mapping[str, str]) -> str:
    """A list of names and what there is to say of each; empty values are left out."""
    items = (
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>"
        for name, value in values.items()
        if value
    )
    return f"<dl>{''.join(items)}</dl>"


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
    """Points that belong together.

    Attributes:
        name: for the legend.
        points: (x, y) each.
        labels: beside each point, or empty.
    """

    name: str
    points: Sequence[tuple[float, float]]
    labels: Sequence[str] = ()


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
                axes.annotate(label, (x, y), (6, 6), textcoords="offset points", color=_INK)
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


def cloud_viewer(
    points: np.ndarray,
    colours: np.ndarray,
    *,
    focal: float,
    size: tuple[int, int],
    caption: str,
    most: int = 200_000,
) -> str:
    """The point cloud that one camera saw, at first from where that camera stood.

    The view turns about a point at the distance of the median point. Nine bytes a point
    are kept: coordinates to 1/65535 of the cloud's extent, colours exactly.

    Args:
        points: (N, 3): x right, y down, z forward, z > 0.
        colours: (N, 3) uint8 RGB.
        focal: of the camera that saw them, pixels.
        size: (height, width) of its image.
        caption: text below the view.
        most: points; of more an even sample is shown, each drawn larger, which the caption says.

    Raises:
        ValueError: the shapes differ, or there is no point in front of the camera.
    """
    points, colours = points_ahead(points, colours)
    spacing = 1 / focal
    if len(points) > most:
        spacing *= (len(points) / most) ** 0.5
        chosen = _spread(points, most, spacing)
        caption = f"{caption} {len(chosen):,} of {len(points):,} points are shown."
        points, colours = points[chosen], colours[chosen]
    low, high = points.min(axis=0), points.max(axis=0)
    extent = np.maximum(high - low, 1e-9)
    placed = np.rint((points - low) / extent * 65535).astype("<u2")
    data = base64.b64encode(placed.tobytes() + colours.tobytes()).decode()
    height, width = size
    numbers = {
        "count": len(points),
        "field": f"{width / focal:.6g}",
        "middle": f"{np.median(points[:, 2]):.6g}",
        "spacing": f"{spacing:.6g}",
        "aspect": f"{width / height:.6g}",
        "low": json.dumps([float(v) for v in low]),
        "high": json.dumps([float(v) for v in high]),
    }
    stored = " ".join(f'data-{name}="{value}"' for name, value in numbers.items())
    text = html.escape(caption)
    return (
        f'<figure class="cloud" {stored}>'
        f'<canvas tabindex="0" role="img" aria-label="{text}" '
        f'style="aspect-ratio: {width} / {height}"></canvas>'
        f'<script type="text/plain">{data}</script>'
        f"<noscript><p>The point cloud needs JavaScript.</p></noscript>"
        f"<figcaption>{text}</figcaption></figure>"
    )


def _spread(points: np.ndarray, most: int, spacing: float) -> np.ndarray:
    """Indices of at most ``most`` points, evenly spread over the camera's image, in mixed order."""
    mixed = np.random.default_rng(0).permutation(len(points))
    if len(points) < 2 * most:
        return mixed[:most]  # one in each cell would leave out whole rows
    cells = np.floor(points[mixed, :2] / points[mixed, 2:] / spacing).astype(np.int64)
    cells -= cells.min(axis=0)
    _, first = np.unique(cells[:, 1] * (cells[:, 0].max() + 1) + cells[:, 0], return_index=True)
    return mixed[np.sort(first)][:most]
