"""Writing panoramas to disk in the layouts that the readers know, with lists."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from ...common.files import atomic_write
from ...vision.io.exr import write_exr
from ...vision.io.images import to_bytes, write_image
from ..draws import Draws
from ..files import check_choice, expand_path
from ..mixture import Samples
from . import matterport3d, stanford2d3d
from .generated import GeneratedRooms

__all__ = ["LAYOUTS", "write_panoramas", "write_rooms"]

_JPEG_QUALITY = 95
_CAP = 10.0  # degrees around the poles without depth
_GREY = 64 / 255  # the colour of unknown depth in 3D60


def write_panoramas(
    sets: Mapping[str, Samples],
    folder: str | os.PathLike,
    layout: str,
    report: Callable[[str, int, int], None] | None = None,
) -> Path:
    """Write samples, and for each set a list of them.

    A sample's ``yaw`` in degrees, if it has one, goes into the list of the layout ``3d60``, whose
    reader turns what it reads by it.

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
    for name, samples in sets.items():
        lines = []
        for number in range(len(samples)):
            sample = samples[number]
            key = hashlib.blake2b(f"{name}/{number}".encode(), digest_size=16).hexdigest()
            depth = torch.where(sample["valid"], sample["depth"], torch.inf)[0].numpy()
            lines.append(LAYOUTS[layout](root, key, number, sample, depth))
            if report is not None:
                report(name, number + 1, len(samples))
        with atomic_write(root / f"{name}.txt") as temporary:
            temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return root


def write_rooms(
    folder: str | os.PathLike,
    layout: str,
    counts: Sequence[int] = (8, 2, 2),
    height: int = 128,
    seed: int = 0,
    report: Callable[[str, int, int], None] | None = None,
) -> Path:
    """Write generated rooms as `train`, `val` and `test`, with the gaps that the layout has.

    Holes of random place and size have no depth, nor have the poles except in ``3d60``, and are
    coloured as in the published files; the last training room of ``3d60`` is listed turned by 90
    degrees.

    Args:
        folder: where to.
        layout: one of ``LAYOUTS``.
        counts: rooms of each of the three.
        height: of the panoramas, pixels.
        seed: names the rooms.
        report: see `write_panoramas`.

    Returns:
        The folder.

    Raises:
        ValueError: an unknown layout, or not three counts of at least one.
    """
    check_choice("layout", layout, tuple(LAYOUTS))
    if len(counts) != 3 or min(counts) < 1:
        raise ValueError(f"rooms {list(counts)}: want three numbers, for train, val and test")
    rooms = GeneratedRooms(sum(counts), height, seed)
    train, val, _ = counts
    sets = {
        "train": _Gappy(rooms, range(train), layout, turned=train - 1),
        "val": _Gappy(rooms, range(train, train + val), layout),
        "test": _Gappy(rooms, range(train + val, len(rooms)), layout),
    }
    return write_panoramas(sets, folder, layout, report)


class _Gappy:
    """Some rooms with a layout's gaps, made when they are asked for."""

    def __init__(
        self, rooms: GeneratedRooms, places: range, layout: str, turned: int | None = None
    ) -> None:
        self.rooms, self.places, self.layout, self.turned = rooms, places, layout, turned

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, number: int) -> dict:
        place = self.places[number]
        sample = _with_gaps(self.rooms[place], self.layout, self.rooms.seed, place)
        return {**sample, "yaw": 90.0 if number == self.turned else 0.0}


def _with_gaps(sample: dict, layout: str, seed: int, place: int) -> dict:
    draws = Draws("gaps", seed, place)
    _, height, width = sample["depth"].shape
    latitude = 90 - 180 * (torch.arange(height) + 0.5) / height
    caps = (latitude.abs() > 90 - _CAP)[:, None].expand(height, width)
    holes = torch.zeros(height, width, dtype=torch.bool)
    for _ in range(4):
        y, x = int(draws.uniform(0, 0.9 * height)), int(draws.uniform(0, 0.9 * width))
        holes[y : y + max(1, height // 16), x : x + max(1, width // 16)] = True
    image = sample["image"]
    if layout == "3d60":
        image = torch.where(holes, torch.tensor(_GREY), image)
    elif layout == "stanford2d3d":
        image = torch.where(caps, torch.tensor(0.0), image)
    unknown = holes if layout == "3d60" else holes | caps
    return {**sample, "image": image, "valid": sample["valid"] & ~unknown}


def _write_stanford(root: Path, key: str, number: int, sample: dict, depth: np.ndarray) -> str:
    name = f"camera_{key}_office_{number}_frame_equirectangular_domain"
    area = f"area_{1 + number % 4}/pano"
    files = f"{area}/rgb/{name}_rgb.png", f"{area}/depth/{name}_depth.png"
    write_image(root / files[0], sample["image"])
    _write_depth_png(root / files[1], depth, stanford2d3d.UNIT, stanford2d3d.UNKNOWN)
    return " ".join(files)


def _write_matterport(root: Path, key: str, number: int, sample: dict, depth: np.ndarray) -> str:
    house = ("17DRP5sb8fy", "1LXtFkjw3qL")[number % 2]
    files = f"{house}/pano_skybox_color/{key}.jpg", f"{house}/pano_depth/{key}.png"
    with atomic_write(root / files[0]) as temporary:
        Image.fromarray(to_bytes(sample["image"])).save(
            temporary, quality=_JPEG_QUALITY, subsampling=0
        )
    _write_depth_png(root / files[1], depth, matterport3d.UNIT, matterport3d.UNKNOWN)
    return " ".join(files)


def _write_3d60(root: Path, key: str, number: int, sample: dict, depth: np.ndarray) -> str:
    stem = f"Stanford2D3D/area1/{number}_{key}"
    write_image(root / f"{stem}_color_0_Left_Down_0.0.png", sample["image"])
    write_exr(root / f"{stem}_depth_0_Left_Down_0.0.exr", depth)
    angle = float(sample.get("yaw", 0.0))
    return f"{stem}_color_0_Left_Down_{angle}.png {stem}_depth_0_Left_Down_{angle}.exr"


#: What writes a sample in a layout and returns its line: called with the root, 32 hexadecimal
#: digits, the sample's number, the sample, and its depth (H, W), infinite where unknown.
LAYOUTS: dict[str, Callable[[Path, str, int, dict, np.ndarray], str]] = {
    "stanford2d3d": _write_stanford,
    "matterport3d": _write_matterport,
    "3d60": _write_3d60,
}


def _write_depth_png(path: Path, depth: np.ndarray, unit: int, unknown: int) -> None:
    known = np.isfinite(depth)
    steps = np.rint(np.where(known, depth, 1).astype(np.float64) * unit)
    highest = 65535 if unknown == 0 else unknown - 1
    if steps.max(initial=0) > highest:
        raise ValueError(
            f"{path}: a depth of {depth[known].max():.2f} m does not fit: this layout ends at "
            f"{highest / unit:.2f} m"
        )
    stored = np.where(known, np.maximum(steps, 1), unknown).astype(np.uint16)
    with atomic_write(path) as temporary:
        Image.fromarray(stored).save(temporary)
