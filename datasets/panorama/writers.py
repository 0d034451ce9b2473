"""Writing panoramas to disk in the layouts that the readers know, with lists."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch

from ...common.files import write_text
from ...vision.io.exr import write_exr
from ...vision.io.images import write_image
from ..files import check_choice, expand_path
from ..mixture import Samples
from .base import ListedPanoramas, Matterport3D, Stanford2D3D

__all__ = ["LAYOUTS", "write_panoramas"]


def write_panoramas(
    sets: Mapping[str, Samples],
    folder: str | os.PathLike,
    layout: str,
    report: Callable[[str, int, int], None] | None = None,
) -> Path:
    """Write samples, and for each set a list of them.

    Args:
        sets: samples (see ``vizoo.datasets.panorama.base``) by the name of their list, such as
            ``train`` for ``train.txt``.
        folder: where to; made if need be.
        layout: one of ``LAYOUTS``.
        report: called as ``report(list's name, samples done, all)``.

    Returns:
        The folder.

    Raises:
        ValueError: the layout is unknown, or cannot hold a depth.
    """
    check_choice("layout", layout, tuple(LAYOUTS))
    root = expand_path(folder)
    files, write_depth = LAYOUTS[layout]
    for name, samples in sets.items():
        lines = []
        for number in range(len(samples)):
            sample = samples[number]
            key = hashlib.blake2b(f"{name}/{number}".encode(), digest_size=16).hexdigest()
            depth = torch.where(sample["valid"], sample["depth"], torch.inf)[0].numpy()
            image, truth = files(key, number)
            write_image(root / image, sample["image"])
            write_depth(root / truth, depth)
            lines.append(f"{image} {truth}")
            if report is not None:
                report(name, number + 1, len(samples))
        write_text(root / f"{name}.txt", "".join(f"{line}\n" for line in lines))
    return root


def _stanford(key: str, number: int) -> tuple[str, str]:
    name = f"camera_{key}_office_{number}_frame_equirectangular_domain"
    area = f"area_{1 + number % 4}/pano"
    return f"{area}/rgb/{name}_rgb.png", f"{area}/depth/{name}_depth.png"


def _matterport(key: str, number: int) -> tuple[str, str]:
    house = ("17DRP5sb8fy", "1LXtFkjw3qL")[number % 2]
    return f"{house}/pano_skybox_color/{key}.jpg", f"{house}/pano_depth/{key}.png"


def _3d60(key: str, number: int) -> tuple[str, str]:
    stem = f"Stanford2D3D/area1/{number}_{key}"
    return f"{stem}_color_0_Left_Down_0.0.png", f"{stem}_depth_0_Left_Down_0.0.exr"


def _write_png(reader: type[ListedPanoramas], path: Path, depth: np.ndarray) -> None:
    unit, unknown = reader.unit, reader.unknown
    known = np.isfinite(depth)
    steps = np.rint(np.where(known, depth, 1).astype(np.float64) * unit)
    highest = 65535 if unknown == 0 else unknown - 1
    if steps.max(initial=0) > highest:
        raise ValueError(
            f"{path}: a depth of {depth[known].max():.2f} m does not fit: this layout ends at "
            f"{highest / unit:.2f} m"
        )
    write_image(path, np.where(known, np.maximum(steps, 1), unknown).astype(np.uint16))


#: Of a layout: the files of a sample by 32 hexadecimal digits and its number; and what writes a
#: depth (H, W), infinite where unknown.
LAYOUTS: dict[str, tuple[Callable[[str, int], tuple[str, str]], Callable[..., None]]] = {
    "stanford2d3d": (_stanford, partial(_write_png, Stanford2D3D)),
    "matterport3d": (_matterport, partial(_write_png, Matterport3D)),
    "3d60": (_3d60, write_exr),
}
