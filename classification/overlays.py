"""Heat maps drawn over the pictures that they are about, images and slices of volumes alike."""

from __future__ import annotations

import functools
import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
from torch import Tensor

from ..vision.viz.colour import draw_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["overlay_picture"]

_GROUND, _TEXT, _FAINT = "#0b0d10", "#f2f2f2", "#a8adb5"
_PALETTE = "turbo"
_DPI = 100
_GAP = 8  # pixels between panels, and round them
_BAR = 14  # pixels, width of the colour bar

_Words = tuple[tuple[float, float], str, dict[str, str]]
"""What stands on a picture: a pixel (x, y), the text, its style."""


def overlay_picture(
    images: Sequence[np.ndarray | Tensor],
    heats: Sequence[np.ndarray | Tensor],
    *,
    captions: Sequence[str] = (),
    title: str = "",
    note: str = "",
    label: str = "where the network looked",
    marks: str = "",
    side: int = 512,
) -> np.ndarray:
    """Draw heat maps over pictures, side by side, with a colour bar.

    A picture shows through where its heat is low.

    Args:
        images: (H, W) grey, (3, H, W) RGB or (1, H, W), float in [0, 1].
        heats: as many (H', W') in [0, 1], each resized to its picture.
        captions: what stands in the upper left corner of each, if anything.
        title: stands above all pictures.
        note: stands below all pictures.
        label: of the colour bar.
        marks: four letters at the left, right, upper and lower edge of each picture, such as
            ``RLAP`` of an axial slice.
        side: pixels that the longer side of a picture gets.

    Returns:
        (H'', W'', 3) uint8 RGB.

    Raises:
        ValueError: the numbers differ, or a shape is another one.
    """
    if not len(images) == len(heats) or not len(images) or len(captions) not in (0, len(images)):
        raise ValueError(
            f"{len(images)} pictures, {len(heats)} heat maps and {len(captions)} captions: want "
            "as many of each, at least one"
        )
    panels = [_blended(image, heat, side) for image, heat in zip(images, heats, strict=True)]
    return _arranged(panels, captions, title, note, label, marks)


def _blended(image: np.ndarray | Tensor, heat: np.ndarray | Tensor, side: int) -> np.ndarray:
    """A heat map over a picture, (H, W, 3) float RGB in [0, 1], the longer side of given length."""
    import matplotlib

    picture, heat = _rgb(image), _array(heat)
    if heat.ndim != 2:
        raise ValueError(f"a heat map is (H, W), got {heat.shape}")
    zoom = side / max(picture.shape[:2])
    size = tuple(max(1, round(zoom * length)) for length in picture.shape[1::-1])
    picture = cv2.resize(
        picture, size, interpolation=cv2.INTER_AREA if zoom < 1 else cv2.INTER_CUBIC
    )
    heat = cv2.resize(heat, size, interpolation=cv2.INTER_LINEAR).clip(0, 1)
    colours = matplotlib.colormaps[_PALETTE](heat)[:, :, :3]
    opacity = _opacity(heat)[:, :, None]
    return ((1 - opacity) * picture.clip(0, 1) + opacity * colours).astype(np.float32)


def _opacity(heat: np.ndarray) -> np.ndarray:
    """How much of the picture a heat covers."""
    return 0.7 * heat * heat * (3 - 2 * heat)


def _arranged(
    panels: list[np.ndarray], captions: Sequence[str], title: str, note: str, label: str, marks: str
) -> np.ndarray:
    """Panels in rows on a dark ground, words on and around them."""
    high, wide = (max(panel.shape[axis] for panel in panels) for axis in (0, 1))
    # As many in a row as make a landscape format.
    columns = min(len(panels), math.ceil(math.sqrt(1.5 * len(panels) * high / wide)))
    rows = math.ceil(len(panels) / columns)
    type_size = min(15.0, max(7.0, wide / 40))  # points
    inside = columns * (wide + _GAP) - _GAP, rows * (high + _GAP) - _GAP
    frame, top = _frame(*inside, min(high, 512), title, note, label, type_size)
    whole = frame.copy()
    words: list[_Words] = []
    inset = round(0.5 * type_size)
    for number, panel in enumerate(panels):
        x = _GAP + number % columns * (wide + _GAP)
        y = top + number // columns * (high + _GAP)
        tall, across = panel.shape[:2]
        whole[y : y + tall, x : x + across] = 255 * panel
        if captions:
            words.append(((x + inset, y + inset), captions[number], {}))
        places = (
            (x + inset, y + tall / 2, "left", "center"),
            (x + across - inset, y + tall / 2, "right", "center"),
            (x + across / 2, y + inset, "center", "top"),
            (x + across / 2, y + tall - inset, "center", "bottom"),
        )
        for mark, (left, low, ha, va) in zip(marks, places, strict=False):
            words.append(((left, low), mark, {"color": _FAINT, "ha": ha, "va": va}))
    return _written(whole, words, type_size) if words else whole


def _written(picture: np.ndarray, words: list[_Words], size: float) -> np.ndarray:
    """A picture with words on it, outlined."""
    from matplotlib.patheffects import withStroke

    figure = _figure(*picture.shape[1::-1])
    figure.figimage(picture, 0, 0, origin="upper")
    outline = [withStroke(linewidth=2, foreground="black")]  # legible on bright pixels
    for place, text, style in words:
        _write(figure, place, text, size, path_effects=outline, **style)
    return _drawn(figure)


@functools.lru_cache(maxsize=1)  # drawing it is much of the work, and slices of a scan share it
def _frame(
    wide: int, high: int, tall: int, title: str, note: str, label: str, size: float
) -> tuple[np.ndarray, int]:
    """What is round panels that take so many pixels together, and the row where they begin.

    The colour bar beside them is `tall` pixels.
    """
    legend = 2 * _BAR + round(7 * size)
    width = wide + 2 * _GAP + legend
    title, note = _wrapped(title, 1.1 * size, width), _wrapped(note, 0.8 * size, width)
    top = _GAP + (round(2.1 * size * (title.count("\n") + 1)) + _GAP if title else 0)
    bottom = _GAP + (round(1.6 * size * (note.count("\n") + 1)) if note else 0)
    height = top + high + bottom
    figure = _figure(width, height)
    if title:
        _write(figure, (_GAP, _GAP), title, 1.1 * size, linespacing=1.25)
    if note:
        place = _GAP, height - _GAP / 2
        _write(figure, place, note, 0.8 * size, color=_FAINT, va="bottom")
    _colour_bar(figure, (width - legend + 2, top, _BAR, tall), label, size)
    return _drawn(figure), top


def _figure(width: int, height: int) -> Figure:
    from matplotlib.figure import Figure

    return Figure((width / _DPI, height / _DPI), dpi=_DPI, facecolor=_GROUND)


def _size(figure: Figure) -> tuple[int, int]:
    """Width and height that it was made with, pixels."""
    width, height = (round(side * _DPI) for side in figure.get_size_inches())
    return width, height


def _write(
    figure: Figure, place: tuple[float, float], words: str, size: float, **style: Any
) -> None:
    """Words at a pixel (x, y) of a figure, by default the upper left corner of them."""
    width, height = _size(figure)
    style = {"color": _TEXT, "ha": "left", "va": "top", "parse_math": False, **style}
    figure.text(place[0] / width, 1 - place[1] / height, words, fontsize=size, **style)


def _drawn(figure: Figure) -> np.ndarray:
    """A figure's pixels, (H, W, 3) uint8 RGB, no more of them than it was made with."""
    width, height = _size(figure)
    return draw_figure(figure)[:height, :width]


def _colour_bar(figure: Figure, box: tuple[int, int, int, int], label: str, size: float) -> None:
    """The palette as it looks over grey, 0 to 1; `box` is left, top, width, height in pixels."""
    import matplotlib

    width, height = _size(figure)
    x, y, wide, tall = box
    axes = figure.add_axes(
        (x / width, 1 - (y + tall) / height, wide / width, tall / height), zorder=1
    )
    heat = np.linspace(1, 0, 256)[:, None]
    opacity = _opacity(heat)[:, :, None]
    ramp = opacity * matplotlib.colormaps[_PALETTE](heat)[:, :, :3] + (1 - opacity) * 0.35
    axes.imshow(ramp, aspect="auto", extent=(0, 1, 0, 1))
    axes.set_xticks([])
    axes.yaxis.tick_right()
    axes.set_yticks([0, 0.5, 1], ["low", "", "high"])
    axes.yaxis.set_label_position("right")
    axes.set_ylabel(label, color=_TEXT, fontsize=size, parse_math=False)
    axes.tick_params(colors=_TEXT, labelsize=0.9 * size, width=0.6)
    for spine in axes.spines.values():
        spine.set(color=_FAINT, linewidth=0.6)


def _wrapped(words: str, size: float, width: int) -> str:
    """Words broken into lines that fit a width in pixels, by the mean width of a letter."""
    letters = max(16, int((width - 2 * _GAP) / (0.62 * size * _DPI / 72)))
    return "\n".join("\n".join(textwrap.wrap(line, letters)) for line in words.splitlines())


def _rgb(image: np.ndarray | Tensor) -> np.ndarray:
    """A picture as (H, W, 3) float32."""
    array = _array(image)
    if array.ndim == 2:
        array = array[None]
    if array.ndim != 3 or array.shape[0] not in (1, 3):
        raise ValueError(f"a picture is (H, W), (1, H, W) or (3, H, W), got {array.shape}")
    return np.ascontiguousarray(np.broadcast_to(array, (3, *array.shape[1:])).transpose(1, 2, 0))


def _array(values: np.ndarray | Tensor) -> np.ndarray:
    if isinstance(values, Tensor):
        values = values.detach().float().cpu().numpy()
    return np.asarray(values, np.float32)
