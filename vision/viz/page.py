"""Pages that hold all they show: their pictures, and the templates that they are written by."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Legend", "Picture", "render"]

_STOPS = 24  # of a legend's gradient
_MOST = 1280  # wider pictures are reduced to this width, pixels


@dataclass(frozen=True)
class Legend:
    """Which colour is which value, as `vision.viz.colour.colourise` has it."""

    low: float  #: value of the first colour
    high: float  #: value of the last colour
    palette: str = "turbo"  #: a name of Matplotlib's

    @property
    def stops(self) -> list[str]:
        """Colours from low to high, as style sheets write them."""
        import matplotlib

        colours = matplotlib.colormaps[self.palette](np.linspace(0, 1, _STOPS))[:, :3]
        return ["#" + bytes((c * 255).round().astype(np.uint8)).hex() for c in colours]

    @property
    def ticks(self) -> list[str]:
        """Five values from low to high, in pixels."""
        span = self.high - self.low
        digits = 0 if span >= 20 else 1 if span >= 2 else 2
        return [f"{v:.{digits}f} px" for v in np.linspace(self.low, self.high, 5)]


@dataclass(frozen=True)
class Picture:
    """A picture with its caption."""

    image: np.ndarray  #: (H, W, 3) uint8 RGB
    caption: str  #: text; it also describes the picture to those who do not see it
    photo: bool = False  #: kept as JPEG, smaller; otherwise as PNG, exact
    legend: Legend | None = None  #: of its colours

    @property
    def height(self) -> int:
        """Pixels."""
        return self.image.shape[0]

    @property
    def width(self) -> int:
        """Pixels."""
        return self.image.shape[1]

    @property
    def uri(self) -> str:
        """The picture as an address that holds the picture.

        Raises:
            ValueError: no such array.
        """
        from PIL import Image

        image = self.image
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            raise ValueError(f"a picture is (H, W, 3) uint8, got {image.shape} {image.dtype}")
        drawn = Image.fromarray(np.ascontiguousarray(image))
        if drawn.width > _MOST:
            height = max(1, round(drawn.height * _MOST / drawn.width))
            drawn = drawn.resize((_MOST, height), Image.Resampling.BOX)
        buffer, kind = io.BytesIO(), "jpeg" if self.photo else "png"
        drawn.save(buffer, kind, **({"quality": 90} if self.photo else {"optimize": True}))
        return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def render(template: Path, context: dict[str, Any]) -> str:
    """The page of a template for a context; all text in it is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(template.parent, encoding="utf-8"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    return environment.get_template(template.name).render(context)
