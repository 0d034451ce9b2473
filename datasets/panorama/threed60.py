"""3D60, also called 360D (Zioulis et al., ECCV 2018 and 3DV 2019).

As published::

    <source>/[area1/]<i>_<id>_color_0_Left_Down_0.0.png
    <source>/[area1/]<i>_<id>_depth_0_Left_Down_0.0.exr

Depth in metres, 32-bit floats; infinite where unknown, where the colour is (64, 64, 64). A list may
name 90.0, 180.0 or 270.0 instead of 0.0: the file is the same, turned by so many degrees. Size
256x512. The light of its renders stands at the camera, so that brightness tells depth: what is
learnt here alone does not carry over to photographs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ...vision.io.exr import read_exr
from .base import ListedPanoramas, PanoramaRecord

__all__ = ["ThreeD60"]

_ANGLE = re.compile(r"_(-?\d+(?:\.\d+)?)(\.\w+)$")


class ThreeD60(ListedPanoramas):
    """3D60 by its lists; arguments as of `ListedPanoramas`."""

    title = "3D60"

    def __init__(
        self,
        root: str | os.PathLike,
        list_file: str = "train.txt",
        size: tuple[int, int] | None = (256, 512),
        max_depth: float = 10.0,
        transform: Callable[[dict], dict] | None = None,
    ) -> None:
        super().__init__(root, list_file, size, max_depth, transform)

    @classmethod
    def _record(cls, root: Path, words: list[str], where: str) -> PanoramaRecord:
        matches = [_ANGLE.search(word) for word in words]
        angles = {float(match[1]) for match in matches if match}
        if len(angles) != 1 or None in matches:
            raise ValueError(
                f"{where}: colour and depth of 3D60 end in one angle, such as _90.0.png and "
                f"_90.0.exr, not {' and '.join(words)}"
            )
        stored = [_ANGLE.sub(r"_0.0\2", word) for word in words]
        record = super()._record(root, stored, where)
        name = os.path.splitext(os.path.normpath(words[0]))[0]
        return record._replace(name=name, yaw=angles.pop())

    def _read_depth(self, path: str) -> np.ndarray:
        return read_exr(path)
