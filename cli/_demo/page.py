"""One HTML page that needs nothing but itself: pictures and data are inside, nothing is fetched.

Every function returns a piece of HTML; strings that it is given are text and are escaped.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from string import Template

import numpy as np

__all__ = [
    "cards",
    "colour_bar",
    "command",
    "facts",
    "figure",
    "gallery",
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
