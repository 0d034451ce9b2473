"""A plot as SVG, a piece of an HTML page (see `page`) whose colours it takes."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Series", "front_plot", "nice_ticks"]

_WIDTH, _HEIGHT = 460, 310
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 14, 16, 46  # margins round the axes


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
        x_label, y_label: what the axes are, with units.

    Raises:
        ValueError: no point, or one that is not finite.
    """
    shown = [front, *([marked] if marked and marked.points else [])]
    points = [point for series in shown for point in series.points]
    if not front.points or not all(map(math.isfinite, (v for point in points for v in point))):
        raise ValueError("a front needs points, all of them finite")
    xs, ys = (nice_ticks(min(axis), max(axis)) for axis in zip(*points, strict=True))
    place = _Placing(xs, ys)
    parts = [_axis(place, xs, ys, x_label, y_label)]
    ordered = sorted(front.points)
    steps = [f"M{place.x(ordered[0][0]):.1f} {place.y(ordered[0][1]):.1f}"]
    steps += [f"H{place.x(x):.1f}V{place.y(y):.1f}" for x, y in ordered[1:]]
    parts.append(f'<path class="line" d="{"".join(steps)}"/>')
    for series, kind, radius in zip(shown, ("first", "second"), (3.5, 6), strict=False):
        labels = series.labels or [""] * len(series.points)
        for (x, y), label in zip(series.points, labels, strict=True):
            parts.append(_dot(place.x(x), place.y(y), kind, radius, label))
    parts.append(_legend([(s.name, k) for s, k in zip(shown, ("first", "second"), strict=False)]))
    title = html.escape(f"{front.name}: {y_label} against {x_label}")
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{title}">'
        f"<title>{title}</title>{''.join(parts)}</svg>"
    )


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers at equal steps of 1, 2 or 5 times a power of ten that enclose a range.

    Args:
        low, high: of the values, low <= high.
        count: about so many steps.

    Example:
        >>> nice_ticks(0.93, 2.7)
        [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    """
    span = max(high - low, 1e-6 * max(abs(low), abs(high)), 1e-12)
    power = 10.0 ** math.floor(math.log10(span / count))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= 0.8 * span / count)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    last = max(last, first + 1)
    digits = max(0, -math.floor(math.log10(step)))
    return [round(index * step, digits) for index in range(first, last + 1)]


class _Placing:
    """Values to positions in the picture."""

    def __init__(self, xs: list[float], ys: list[float]) -> None:
        self.xs, self.ys = xs, ys

    def x(self, value: float) -> float:
        share = (value - self.xs[0]) / (self.xs[-1] - self.xs[0])
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        share = (value - self.ys[0]) / (self.ys[-1] - self.ys[0])
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def _axis(place: _Placing, xs: list[float], ys: list[float], x_label: str, y_label: str) -> str:
    parts = []
    floor, end = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    for value in xs:
        x = place.x(value)
        parts.append(f'<path class="grid" d="M{x:.1f} {_TOP}V{floor}"/>')
        parts.append(f'<text x="{x:.1f}" y="{floor + 18}" text-anchor="middle">{value:g}</text>')
    for value in ys:
        y = place.y(value)
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{end}"/>')
        parts.append(f'<text x="{_LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    x, y = (_LEFT + end) / 2, (_TOP + floor) / 2
    centred = 'class="label" text-anchor="middle"'
    parts.append(f'<text {centred} x="{x:g}" y="{_HEIGHT - 8}">{html.escape(x_label)}</text>')
    turned = f'transform="translate(14 {y:g}) rotate(-90)"'
    parts.append(f"<text {centred} {turned}>{html.escape(y_label)}</text>")
    return "".join(parts)


def _dot(x: float, y: float, kind: str, radius: float, label: str) -> str:
    dot = f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}"/>'
    if not label:
        return dot
    late = x > 0.8 * _WIDTH
    side = 'text-anchor="end"' if late else ""
    x += -9 if late else 9
    return f'{dot}<text {side} x="{x:.1f}" y="{y - 8:.1f}">{html.escape(label)}</text>'


def _legend(entries: list[tuple[str, str]]) -> str:
    parts = []
    for index, (name, kind) in enumerate(entries):
        y = _TOP + 14 + 19 * index
        x = _WIDTH - _RIGHT - 12
        parts.append(f'<circle class="{kind}" cx="{x}" cy="{y - 4}" r="4"/>')
        parts.append(
            f'<text class="label" text-anchor="end" x="{x - 9}" y="{y}">{html.escape(name)}</text>'
        )
    return "".join(parts)
