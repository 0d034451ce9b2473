"""Writing generated worlds to disk in layouts that the readers know."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ...vision.io.images import write_image
from ...vision.io.pfm import write_pfm
from ..files import check_choice, expand_path
from ..mvs.writers import WRITERS as VIEW_LAYOUTS
from ..mvs.writers import write_scene
from ..panorama.writers import LAYOUTS as PANORAMA_LAYOUTS
from ..panorama.writers import write_panoramas
from .panorama import WorldPanoramas
from .stereo import WorldStereo
from .views import WorldViews

__all__ = ["LAYOUTS", "write_worlds"]

LAYOUTS: dict[type, tuple[str, ...]] = {
    WorldStereo: ("folders",),
    WorldViews: tuple(VIEW_LAYOUTS),
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

    Pairs go to ``left/``, ``right/``, ``disparity/`` (PFM) and ``occluded/`` under their names, as
    `StereoPairs` reads them; views to one folder a scene; panoramas with a list, ``train.txt``.

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
    root = expand_path(folder)
    if isinstance(worlds, WorldPanoramas):
        return write_panoramas({"train": worlds}, root, layout, report)
    for index in range(len(worlds)):
        if isinstance(worlds, WorldViews):
            scene = worlds.scene(index)
            write_scene(scene, root if layout == "dtu_training" else root / scene.name, layout)
        else:
            _write_pair(worlds[index], root)
        if report is not None:
            report("worlds", index + 1, len(worlds))
    return root


def _write_pair(sample: dict, root: Path) -> None:
    name = sample["name"]
    for side in ("left", "right"):
        write_image(root / side / f"{name}.png", sample[side])
    write_pfm(root / "disparity" / f"{name}.pfm", sample["disparity"][0].numpy())
    write_image(root / "occluded" / f"{name}.png", sample["occluded"].expand(3, -1, -1).float())
