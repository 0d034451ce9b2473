"""Which thresholds published clouds were fused with, by data set and scene."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

__all__ = ["DEFAULT", "PRESETS", "Thresholds", "preset"]


@dataclass(frozen=True)
class Thresholds:
    """When a depth is believed.

    Attributes:
        views: other views that must agree.
        pixels: how far a pixel may come back from its place.
        relative: how much the depth may differ, as a share of it.

    Raises:
        ValueError: one of them is not positive.
    """

    views: int = 2
    pixels: float = 1.0
    relative: float = 0.01

    def __post_init__(self) -> None:
        for name in ("views", "pixels", "relative"):
            if not getattr(self, name) > 0:
                raise ValueError(f"threshold {name} must be positive, got {getattr(self, name):g}")


DEFAULT = Thresholds()

_DTU_PIXELS = {
    0.25: (9, 10, 12, 15, 23, 32, 34, 49, 75, 77, 110),
    0.5: (1, 4, 11, 24, 29, 33, 48, 62, 114),
    0.75: (13, 118),
}

PRESETS: dict[str, Thresholds] = {
    "default": DEFAULT,
    # One setting for all scans; the published figures were reached with one a scan.
    "dtu": Thresholds(3, 0.5, 0.01),
    **{
        f"dtu/scan{scan}": Thresholds(3, pixels, 0.01)
        for pixels, scans in _DTU_PIXELS.items()
        for scan in scans
    },
    "tanks/family": Thresholds(5, 2.0, 0.005),
    "tanks/francis": Thresholds(8, 2.0, 0.0025),
    "tanks/horse": Thresholds(4, 1.0, 0.01),
    "tanks/lighthouse": Thresholds(7, 3.0, 0.005),
    "tanks/m60": Thresholds(5, 2.0, 0.0025),
    "tanks/panther": Thresholds(6, 4.0, 0.005),
    "tanks/playground": Thresholds(7, 3.0, 0.005),
    "tanks/train": Thresholds(6, 2.5, 0.005),
    "tanks/auditorium": Thresholds(3, 1.0, 0.01),
    "tanks/ballroom": Thresholds(3, 2.5, 0.01),
    "tanks/courtroom": Thresholds(4, 1.0, 0.01),
    "tanks/museum": Thresholds(4, 1.0, 0.01),
    "tanks/palace": Thresholds(4, 2.5, 0.01),
    "tanks/temple": Thresholds(3, 1.0, 0.01),
}
"""Name to thresholds: ``dtu/scan9``, ``tanks/family``, ... (Yan et al., AAAI 2023)."""


def preset(name: str) -> Thresholds:
    """Return the thresholds of that name, in upper or lower case.

    Raises:
        ValueError: there are none; the message names the nearest.
    """
    key = name.lower()
    if key in PRESETS:
        return PRESETS[key]
    near = difflib.get_close_matches(key, PRESETS, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(PRESETS)}"
    raise ValueError(f"no thresholds are called {name!r}; {hint}")
