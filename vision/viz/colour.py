"""Disparity, depth and error maps as pictures that say what their colours mean.

Matplotlib draws through its figure objects alone (no pyplot), so nothing global changes and no
display is needed.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, cast

import numpy as np
from torch import Tensor

from ..io.images import to_bytes

if TYPE_CHECKING:
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

__all__ = ["colour_range", "colourise", "comparison_picture", "disparity_picture", "draw_figure"]

_STRIP = 1 << 20  # pixels that are coloured at once
_ERROR_LIMIT = 4.0  # absolute error of the last colour, pixels


def colour_range(
    values: Tensor | np.ndarray, valid: np.ndarray | None = None, *, logarithmic: bool = False
) -> tuple[float, float]:
    """Return a (low, high) that shows a map well: its 1st and 99th percentile, a little widened.

    Args:
        values: (H, W) or (1, H, W); not finite or not positive where unknown.
        valid: (H, W) bool, where given.
        logarithmic: widened by a ratio, for a scale of ratios.

    Returns:
        Two floats, low < high; (0, 1) for a map without a known pixel.
    """
    values, known = _as_map(values, valid)
    if not known.any():
        return 0.0, 1.0
    low, high = (float(v) for v in np.percentile(values[known], (1, 99)))
    if logarithmic:
        ratio = max((high / low) ** 0.03, 1.001)
        return low / ratio, high * ratio
    margin = max(0.03 * (high - low), 1e-3 * abs(high), 1e-6)
    return max(low - margin, 0.0), high + margin


def colourise(
    values: Tensor | np.ndarray,
    valid: np.ndarray | None = None,
    *,
    low: float | None = None,
    high: float | None = None,
    palette: str = "turbo",
    logarithmic: bool = False,
) -> np.ndarray:
    """Colour a map; unknown pixels become black.

    Args:
        values: (H, W) or (1, H, W); not finite or not positive where unknown.
        valid: (H, W) bool; by default where ``values`` are finite and positive.
        low: the value of the first colour; by default that of ``colour_range``.
        high: the value of the last colour, likewise.
        palette: a name of Matplotlib's, with ``_r`` for its reverse.
        logarithmic: equal steps of colour are equal ratios, as suits depth.

    Returns:
        (H, W, 3) uint8 RGB.
    """
    import matplotlib

    values, known = _as_map(values, valid)
    scale = _scale(low, high, colour_range(values, known, logarithmic=logarithmic), logarithmic)
    table = (matplotlib.colormaps[palette](np.arange(256))[:, :3] * 255).round().astype(np.uint8)
    picture = np.empty((*values.shape, 3), np.uint8)
    rows = max(1, _STRIP // values.shape[1])
    for start in range(0, len(values), rows):
        strip = slice(start, start + rows)
        whole = np.where(known[strip], values[strip], cast("float", scale.vmax))
        scaled = np.asarray(scale(whole), dtype=np.float32) * 255
        picture[strip] = table[np.clip(np.rint(scaled), 0, 255).astype(np.uint8)]
        picture[strip][~known[strip]] = 0
    return picture


def disparity_picture(
    values: Tensor | np.ndarray,
    *,
    label: str = "disparity [px]",
    low: float | None = None,
    high: float | None = None,
    palette: str = "turbo",
    logarithmic: bool = False,
) -> np.ndarray:
    """Colour a map and put a legend beside it.

    The map keeps its own pixels (small ones are doubled until 240 rows are reached); the legend is
    a strip to its right. All but the label is as in ``colourise``; the label says what the numbers
    are, with their unit: ``"depth [m]"`` with the palette ``turbo_r``, logarithmic, shows near
    things in the colours they have as disparities.

    Returns:
        (H', W', 3) uint8 RGB, W' > W.
    """
    values, known = _as_map(values)
    scale = _scale(low, high, colour_range(values, known, logarithmic=logarithmic), logarithmic)
    span = {"low": scale.vmin, "high": scale.vmax}
    picture = colourise(values, known, palette=palette, logarithmic=logarithmic, **span)
    enlarge = 1
    while picture.shape[0] * enlarge < 240:
        enlarge *= 2
    picture = picture.repeat(enlarge, axis=0).repeat(enlarge, axis=1)
    ends = cast("tuple[float, float]", (scale.vmin, scale.vmax))
    return np.hstack([picture, _legend(picture.shape[0], *ends, logarithmic, label, palette)])


def comparison_picture(
    left: Tensor | np.ndarray,
    prediction: Tensor | np.ndarray,
    truth: Tensor | np.ndarray | None = None,
    valid: np.ndarray | None = None,
) -> np.ndarray:
    """Draw left image, ground truth, prediction and error as one figure.

    Args:
        left: (3, H, W) tensor in [0, 1], or (H, W, 3) uint8 array.
        prediction: (H, W) or (1, H, W) disparity, pixels.
        truth: the same for the ground truth; without it only image and prediction are drawn.
        valid: (H, W) bool, where the ground truth counts; by default where it is positive.

    Returns:
        (H', W', 3) uint8 RGB; the prediction's title states its mean error and bad-2.
    """
    if isinstance(left, Tensor):
        left = left.detach().float().cpu().clamp(0, 1).permute(1, 2, 0).numpy()
    predicted, _ = _as_map(prediction)
    height, width = predicted.shape
    panels: list[tuple] = [("left image", left, None)]
    if truth is None:
        panels.append(("prediction", predicted, (colour_range(predicted), "turbo")))
    else:
        wanted, known = _as_map(truth, valid)
        error = np.where(known, np.abs(predicted - wanted), np.nan)
        span = colour_range(wanted, known)
        summary = "no known pixel"
        if known.any():
            summary = (
                f"EPE {np.nanmean(error):.2f} px, bad-2 {100 * (error[known] > 2).mean():.1f} %"
            )
        panels.append(("ground truth", np.where(known, wanted, np.nan), (span, "turbo")))
        panels.append((f"prediction: {summary}", predicted, (span, "turbo")))
        panels.append(("absolute error", error, ((0.0, _ERROR_LIMIT), "inferno")))
    return _arrange(panels, width, height)


def depth_panels(
    image: Tensor, depth: Tensor, truth: Tensor, valid: Tensor | None, largest_error: float
) -> list[np.ndarray]:
    """Draw an image, true and predicted depth, near red and far blue, and the relative error.

    Args:
        image: (3, H, W), RGB in [0, 1].
        depth: predicted, (1, H, W).
        truth: the same shape.
        valid: where it is known, likewise; None: everywhere.
        largest_error: what has the last colour.

    Returns:
        Four pictures (H, W, 3) uint8.
    """
    true, known = _as_map(truth, valid)
    predicted, _ = _as_map(depth)
    low, high = colour_range(true, known, logarithmic=True)
    show = functools.partial(colourise, low=low, high=high, palette="turbo_r", logarithmic=True)
    error = np.maximum(np.abs(predicted - true) / np.where(known, true, 1), 1e-9)
    return [
        to_bytes(image),
        show(true, known),
        show(predicted, np.ones_like(known)),
        colourise(error, known, low=0.0, high=largest_error, palette="inferno"),
    ]


def _arrange(panels: list[tuple], width: int, height: int) -> np.ndarray:
    """Draw (name, content, scale) panels in two columns, every one with room for a colour bar."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    across, bar, gap, heading = 6.0, 0.16, 0.1, 0.32  # inches
    tall = across * height / width
    column, row = across + bar + 8 * gap, tall + heading
    rows = len(panels) // 2
    size = (2 * column, rows * row + gap)
    figure = Figure(size, dpi=100, facecolor="white")
    for index, (name, content, scale) in enumerate(panels):
        x = gap + index % 2 * column
        y = size[1] - (index // 2 + 1) * row
        axes = figure.add_axes((x / size[0], y / size[1], across / size[0], tall / size[1]))
        axes.set_title(name, fontsize=11)
        axes.set_axis_off()
        if scale is None:
            axes.imshow(content, aspect="auto")
            continue
        (low, high), palette = scale
        ground = "0.6" if palette == "inferno" else "black"  # inferno begins with black
        axes.add_patch(Rectangle((-0.5, -0.5), width, height, facecolor=ground, zorder=-1))
        shown = axes.imshow(content, cmap=palette, vmin=low, vmax=high, aspect="auto")
        place = ((x + across + gap) / size[0], y / size[1], bar / size[0], tall / size[1])
        legend = figure.colorbar(shown, cax=figure.add_axes(place), label="px")
        legend.outline.set_linewidth(0.5)
    return draw_figure(figure)


def _scale(
    low: float | None, high: float | None, automatic: tuple[float, float], logarithmic: bool
) -> Normalize:
    """Return Matplotlib's object that maps values to 0 to 1."""
    from matplotlib.colors import LogNorm, Normalize

    low, high = automatic[0] if low is None else low, automatic[1] if high is None else high
    high = max(high, low + 1e-6)
    return LogNorm(max(low, 1e-3 * high), high) if logarithmic else Normalize(low, high)


@functools.lru_cache(maxsize=16)  # drawing takes longer than colouring, and many have one scale
def _legend(
    height: int, low: float, high: float, logarithmic: bool, label: str, palette: str
) -> np.ndarray:
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, NullLocator

    size = float(np.clip(height / 45, 8, 22))  # type size in points, growing with the picture
    figure = Figure((size / 5, height / 100), dpi=100, facecolor="white")  # wide, and cut below
    axes = figure.add_axes((0.05, 0.04, 0.085, 0.92))
    scale = _scale(low, high, (low, high), logarithmic)
    bar = figure.colorbar(ScalarMappable(scale, palette), cax=axes)
    if logarithmic:
        bar.ax.yaxis.set_major_locator(FixedLocator(_ticks(low, high)))
        bar.ax.yaxis.set_major_formatter(lambda x, _: f"{x:.0f}" if x > 999 else f"{x:.3g}")
        bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.set_label(label, fontsize=size)
    bar.ax.tick_params(labelsize=size, width=0.6)
    bar.outline.set_linewidth(0.6)
    width = math.ceil(100 * figure.get_tightbbox().x1 + size / 2)  # its numbers are of any length
    return draw_figure(figure)[:height, :width]


def _ticks(low: float, high: float) -> list[float]:
    """Both ends of a logarithmic scale, and the round numbers between that stand clear of them."""
    span = math.log(high / low)
    steps = (1, 2, 5) if high > 7 * low else range(1, 10)
    tens = range(math.floor(math.log10(low)), math.ceil(math.log10(high)))
    round_ = (step * 10.0**ten for ten in tens for step in steps)
    clear = 0.06 * span
    inner = [v for v in round_ if clear < math.log(v / low) < span - clear]
    return [low, *inner, high]


def draw_figure(figure: Figure) -> np.ndarray:
    """Matplotlib's figure as (H, W, 3) uint8 RGB."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.array(canvas.buffer_rgba())[:, :, :3]


def _as_map(
    values: Tensor | np.ndarray, valid: Tensor | np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return an (H, W) float32 array and where it is known."""
    if isinstance(values, Tensor):
        values = values.detach().float().cpu().numpy()
    if isinstance(valid, Tensor):
        valid = valid.detach().cpu().numpy()
    values = np.asarray(values, dtype=np.float32)
    values = values[0] if values.ndim == 3 and values.shape[0] == 1 else values
    if values.ndim != 2:
        raise ValueError(f"a map has shape (H, W) or (1, H, W), got {values.shape}")
    known = np.isfinite(values) & (values > 0)
    return values, known if valid is None else known & np.asarray(valid).reshape(values.shape)
