"""Writing generated worlds to disk in layouts that the readers know."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from ...vision.io.images import read_image, write_image
from ...vision.io.pairing import CONTACT_SHEET
from ...vision.io.pfm import write_pfm
from ..files import check_choice, expand_path
from ..mvs.writers import WRITERS as VIEW_LAYOUTS
from ..mvs.writers import write_scene
from ..panorama.writers import LAYOUTS as PANORAMA_LAYOUTS
from ..panorama.writers import write_panoramas
from ..stereo.calibration import write_calibration
from .panorama import WorldPanoramas
from .stereo import WorldStereo
from .views import WorldViews

__all__ = ["LAYOUTS", "write_worlds"]

_SHOWN = 64
_THUMBNAIL = 160  # pixels

LAYOUTS: dict[type, tuple[str, ...]] = {
    WorldStereo: ("folders",),
    WorldViews: ("dtu", *(name for name in VIEW_LAYOUTS if name != "dtu")),
    WorldPanoramas: tuple(PANORAMA_LAYOUTS),
}
"""Of what is on disk, by data set; the first is the default."""


def write_worlds(
    worlds: WorldStereo | WorldViews | WorldPanoramas,
    folder: str | os.PathLike,
    layout: str | None = None,
    report: Callable[[str, int, int], None] | None = None,
) -> Path:
    """Write all samples of a data set.

    Pairs go to ``left/``, ``right/``, ``disparity/`` (PFM), ``occluded/`` and ``calib/`` under
    their names, as `StereoPairs` reads them; views to one folder a scene; panoramas with a list,
    ``train.txt``. ``contact_sheet.jpg`` shows the first of them small.

    Args:
        worlds: what to write.
        folder: where to; made if need be.
        layout: of `LAYOUTS`; None: the first.
        report: called as ``report(what, samples done, all)``.

    Returns:
        The folder.

    Raises:
        ValueError: there is no such layout, or it holds no pictures of this size.
    """
    known = LAYOUTS[type(worlds)]
    layout = layout or known[0]
    check_choice("layout", layout, known)
    size = (worlds.height, worlds.width)
    if layout == "dtu_training" and size != (512, 640):  # said before hours of rendering
        raise ValueError(
            f"layout dtu_training holds pictures of 512x640, not {size[0]}x{size[1]}: take another "
            f"layout ({', '.join(name for name in known if name != layout)})"
        )
    if layout == "matterport3d" and "street" in worlds.layouts:
        raise ValueError("layout matterport3d holds no depth beyond 16 m: leave the street out")
    root = expand_path(folder)
    small: list[Tensor] = []
    if isinstance(worlds, WorldPanoramas):
        write_panoramas({"train": worlds}, root, layout, report)
        for line in (root / "train.txt").read_text().splitlines()[:_SHOWN]:
            small.append(_thumbnail(read_image(root / line.split()[0])))
    else:
        for index in range(len(worlds)):
            picture = _write(worlds, index, root, layout)
            if index < _SHOWN:
                small.append(_thumbnail(picture))
            if report is not None:
                report("worlds", index + 1, len(worlds))
    columns = min(8, len(small))
    blank = [torch.ones_like(small[0])] * (-len(small) % columns)
    rows = torch.stack(small + blank).unflatten(0, (-1, columns))
    write_image(root / CONTACT_SHEET, rows.permute(2, 0, 3, 1, 4).flatten(1, 2).flatten(2))
    return root


def _thumbnail(picture: Tensor) -> Tensor:
    size = round(_THUMBNAIL * picture.shape[1] / picture.shape[2]), _THUMBNAIL
    return functional.interpolate(picture[None], size, mode="area")[0]


def _write(worlds: WorldStereo | WorldViews, index: int, root: Path, layout: str) -> Tensor:
    """One pair or scene; return its first picture."""
    if isinstance(worlds, WorldViews):
        scene = worlds.scene(index)
        write_scene(scene, root if layout == "dtu_training" else root / scene.name, layout)
        return scene.image(0)
    sample, rig = worlds.pair(index)
    name = worlds.name(index)
    write_calibration(root / "calib" / f"{name}.txt", rig)
    for side in ("left", "right"):
        write_image(root / side / f"{name}.png", sample[side])
    write_pfm(root / "disparity" / f"{name}.pfm", sample["disparity"][0].numpy())
    write_image(root / "occluded" / f"{name}.png", sample["occluded"].expand(3, -1, -1).float())
    return sample["left"]
