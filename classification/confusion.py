"""A confusion matrix as a picture."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from ..vision.viz.colour import draw_figure

__all__ = ["confusion_picture"]

_NUMBERS = 20  # classes at most whose counts are written into the cells


def confusion_picture(confusion: Tensor, classes: Sequence[str]) -> np.ndarray:
    """Counts with the share of each row as the colour.

    Args:
        confusion: (C, C) counts: rows are true classes, columns predicted ones.
        classes: their names.

    Returns:
        (H, W, 3) uint8 RGB.
    """
    from matplotlib.figure import Figure

    counts = confusion.cpu().numpy()
    shares = counts / counts.sum(1, keepdims=True).clip(1)
    inches = min(12.0, 2.5 + 0.6 * len(classes))
    figure = Figure(figsize=(inches, inches), dpi=100, layout="constrained")
    axes = figure.subplots()
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    places = range(len(classes))
    axes.set_xticks(places, classes, rotation=90 if len(classes) > 3 else 0)
    axes.set_yticks(places, classes)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    for row, column in np.ndindex(*counts.shape) if len(classes) <= _NUMBERS else ():
        colour = "white" if shares[row, column] > 0.5 else "black"
        text = str(counts[row, column])
        axes.text(column, row, text, ha="center", va="center", color=colour)
    return draw_figure(figure)
