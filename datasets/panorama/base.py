"""Panoramas from files: samples, lists, and the published sets.

A sample is a dictionary:

============  ==============================================================================
``image``     (3, H, W) float32 in [0, 1], RGB, equirectangular: the whole sphere, W = 2 H
``depth``     (1, H, W) float32, metres from the camera's centre; 0 where unknown
``valid``     (1, H, W) bool: where the depth is known (nowhere, without ground truth)
``name``      what the panorama is called within its data set
``rotation``  (3, 3) float32 orthogonal, from augmentation only: the network looks along R d where
              it would look along d, so that nothing is resampled twice
============  ==============================================================================

The data sets are driven by lists, as published programs are: a text file whose lines ``colour
depth`` name files relative to the root.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...vision.io.exr import read_exr
from ...vision.io.images import as_views, read_pixels
from ...vision.io.pairing import read_columns
from ..cache import FileDataset, SampleCache, source_name
from ..files import check_files, data_folder, expand_path

__all__ = [
    "ListedPanoramas",
    "Matterport3D",
    "PanoramaDataset",
    "PanoramaRecord",
    "Stanford2D3D",
    "ThreeD60",
    "is_whole_sphere",
]

_OFF = 0.005  # of the width, by which a panorama may miss 2:1
_PROBES = 4  # samples read when a set is made, so that a wrong one is known before training


class PanoramaRecord(NamedTuple):
    """The files of one panorama."""

    name: str  #: what it is called within its data set
    image: str  #: path of the colours
    depth: str | None = None  #: path of the depth; None without ground truth
    #: degrees by which colours and depth are turned after they are read: columns move right by
    #: width * yaw / 360
    yaw: float = 0.0


class PanoramaDataset(FileDataset):
    """Panoramas from files.

    Args:
        records: the panoramas, in order.
        read_depth: what reads a depth file to (H, W) metres, not finite or not positive where
            unknown.
        size: (height, width) to resize to: colours bicubic, depth to the nearest; None leaves it.
        max_depth: depth beyond, in metres, counts as unknown.
        transform: called with each sample, returns the sample to use.

    Raises:
        ValueError: `size` is not twice as wide as high; or, as ``__getitem__``, a file is damaged,
            not twice as wide as high, of the wrong channels, or all its depth is beyond
            `max_depth`, as in a wrong unit: of the first samples tried.
    """

    def __init__(
        self,
        records: Sequence[PanoramaRecord],
        read_depth: Callable[[str], np.ndarray],
        size: tuple[int, int] | None = (512, 1024),
        max_depth: float = 10.0,
        transform: Callable[[dict], dict] | None = None,
    ) -> None:
        if size is not None and not size[1] == 2 * size[0] > 0:
            raise ValueError(f"size {tuple(size)}: (height, width) of a panorama are 1 to 2")
        self.records = list(records)
        self.read_depth, self.size = read_depth, None if size is None else tuple(size)
        self.max_depth, self.transform = max_depth, transform
        self.cache = SampleCache(None, None, ["image"])  # nobody knows what `read_depth` does
        for index in range(0, len(self.records), max(1, -(-len(self.records) // _PROBES))):
            self._read(index)

    @property
    def has_truth(self) -> bool:
        """Whether any panorama has ground truth."""
        return any(record.depth is not None for record in self.records)

    @property
    def groups(self) -> list[tuple[str, str]]:
        """Where every panorama stands, and its file: what a split keeps together."""
        return [(self._place(record), record.image) for record in self.records]

    @staticmethod
    def _place(record: PanoramaRecord) -> str:
        """Where it stands; unless a set knows better, it is the only one there, turned or not."""
        return record.image

    def _read(self, index: int) -> dict[str, Tensor]:
        record = self.records[index]
        image = _read_colours(record.image)
        if self.size is not None and image.shape[1:] != self.size:
            image = _resized(image, *self.size)
        depth = torch.zeros(1, *image.shape[1:])
        if record.depth is not None:
            depth = self._known_depth(record.depth)
            if self.size is not None and depth.shape[1:] != self.size:
                depth = F.interpolate(depth[None], self.size, mode="nearest-exact")[0]
            if depth.shape != (1, *image.shape[1:]):
                raise ValueError(
                    f"{record.depth}: {depth.shape[1]}x{depth.shape[2]} pixels, but its colours "
                    f"{record.image} have {image.shape[1]}x{image.shape[2]}; give a size"
                )
        if record.yaw:
            columns = round(image.shape[2] * record.yaw / 360)
            image, depth = image.roll(columns, 2), depth.roll(columns, 2)
        return {"image": image, "depth": depth, "valid": depth > 0}

    def _known_depth(self, path: str) -> Tensor:
        """(1, H, W) float32, 0 where unknown."""
        values = np.asarray(self.read_depth(path), np.float32)
        _check_shape(path, values.shape)
        known = np.isfinite(values) & (values > 0)
        near = known & (values <= self.max_depth)
        if known.any() and not near.any():
            raise ValueError(
                f"{path}: all depth is above {self.max_depth:g} m, from {values[known].min():.4g} "
                "m on: its unit is not that of this data set (or raise max_depth)"
            )
        return torch.from_numpy(np.where(near, values, np.float32(0)))[None]


class ListedPanoramas(PanoramaDataset):
    """Panoramas that a list names; the readers of the published sets say how depth is stored.

    As a rule it is 16-bit PNG of ``unit`` steps a metre, in which ``unknown`` is no depth.

    Args:
        root: what the list's paths are relative to.
        list_file: the list, relative to `root` or absolute; lines without depth have no truth.
            Other arguments as of `PanoramaDataset`.

    Raises:
        FileNotFoundError: the list or files in it are missing; the message counts and names them.
        ValueError: a line names neither one file nor two, or see `PanoramaDataset`.
    """

    title: str
    unit: int
    unknown: int

    def __init__(
        self,
        root: str | os.PathLike,
        list_file: str = "train.txt",
        size: tuple[int, int] | None = (512, 1024),
        max_depth: float = 10.0,
        transform: Callable[[dict], dict] | None = None,
    ) -> None:
        base = data_folder(self.title, root)
        path = base / expand_path(list_file)
        lines = read_columns(path, 1, 2, "colour [depth]")
        records = [self._record(base, words, f"{path}, line {n}") for n, words in lines]
        check_files(
            f"{self.title} by {path}",
            base,
            {
                "panoramas": [record.image for record in records],
                "depth maps": [record.depth for record in records if record.depth],
            },
            expected="lines 'colour depth'",
            what="panoramas",
        )
        super().__init__(records, self._read_depth, size, max_depth, transform)
        self.cache = SampleCache(None, self._source, ["image"])

    def _source(self, index: int) -> str:
        record = self.records[index]
        files = [record.image, *filter(None, [record.depth])]
        how = (self.title, self.size, self.max_depth, record.yaw, record.depth is None)
        return source_name(files, "panorama by its bits", *how)

    @classmethod
    def _record(cls, root: Path, words: list[str], where: str) -> PanoramaRecord:
        image, *depth = (str(root / word) for word in words)
        name = os.path.splitext(os.path.normpath(words[0]))[0]
        return PanoramaRecord(name, image, depth[0] if depth else None)

    def _read_depth(self, path: str) -> np.ndarray:
        """(H, W) float32, metres; 0 where unknown."""
        values = read_pixels(path)
        if values.ndim != 2 or values.dtype != np.uint16:
            kind = f"{8 * values.dtype.itemsize} bits, {'colour' if values.ndim == 3 else 'grey'}"
            raise ValueError(f"{path}: {kind}; a depth map has 16 bits and one channel")
        metres = values / np.float32(self.unit)
        return np.where(values == self.unknown, 0, metres).astype(np.float32)


def _read_colours(path: str) -> Tensor:
    pixels = read_pixels(path)
    if pixels.ndim != 3:
        raise ValueError(f"{path}: one channel; the colours of a panorama have three")
    _check_shape(path, pixels.shape)
    (colours,) = as_views([pixels], [path])
    return colours


def _resized(image: Tensor, height: int, width: int) -> Tensor:
    """Colours (3, H, W) at another size, bicubic; beyond the seam they go on."""
    parts = math.gcd(image.shape[2], width)
    whole, made = image.shape[2] // parts, width // parts  # columns that take each other's place
    reach = 2 * max(1.0, image.shape[2] / width) + 1  # of the filter
    times = math.ceil(reach / whole)
    wide = F.pad(image[None], (times * whole, times * whole, 0, 0), mode="circular")
    size = height, width + 2 * times * made
    resized = F.interpolate(wide, size, mode="bicubic", antialias=True)[0]
    return resized[..., times * made : -times * made].clamp(0, 1)


def is_whole_sphere(height: int, width: int) -> bool:
    """Whether a picture of this size is twice as wide as high, to half a per cent.

    That is as exact as software that stitches or resizes panoramas leaves them.
    """
    return abs(width - 2 * height) <= max(1, _OFF * width)


def _check_shape(path: str, shape: tuple[int, ...]) -> None:
    height, width = shape[:2]
    if not is_whole_sphere(height, width):
        raise ValueError(
            f"{path}: {height}x{width} pixels; an equirectangular panorama of the whole sphere is "
            "twice as wide as high"
        )


class Stanford2D3D(ListedPanoramas):
    """Stanford2D3D, equirectangular part (Armeni et al., arXiv 1702.01105), by its lists.

    As published::

        area_1/pano/rgb/camera_<32 hex>_<room>_<n>_frame_equirectangular_domain_rgb.png
        area_1/pano/depth/camera_<32 hex>_<room>_<n>_frame_equirectangular_domain_depth.png

    Depth is the distance from the camera's centre, 16 bits, 512 to a metre; 65535 is unknown. Both
    poles are black. Size 2048x4096; programs use 512x1024, areas 1, 2, 3, 4 and 6 to train and 5a
    and 5b to test. The lists say where files are; no folder is assumed. Arguments as of
    `ListedPanoramas`.
    """

    title = "Stanford2D3D"
    unit, unknown = 512, 65535

    @staticmethod
    def _place(record: PanoramaRecord) -> str:
        return re.sub(r"camera_[0-9a-f]+_(.+)_frame_\w+$", r"\1", record.name)


class Matterport3D(ListedPanoramas):
    """Matterport3D, stitched skyboxes (Chang et al., 3DV 2017; Jiang et al., RA-L 2021), by lists.

    As the stitching program leaves it::

        <house>/pano_skybox_color/<32 hex>.jpg
        <house>/pano_depth/<32 hex>.png

    Depth is the distance from the camera's centre, 16 bits, 4000 to a metre (16.38 m at most); 0 is
    unknown, as it is near the poles. The stitching scales depth by the image's size instead of the
    focal length, a small bias that is in all published scores. Size 1024x2048; programs use
    512x1024. Arguments as of `ListedPanoramas`.
    """

    title = "Matterport3D"
    unit, unknown = 4000, 0

    @staticmethod
    def _place(record: PanoramaRecord) -> str:
        return Path(record.name).parts[0]


_ANGLE = re.compile(r"_(-?\d+(?:\.\d+)?)(\.\w+)$")


class ThreeD60(ListedPanoramas):
    """3D60, also called 360D (Zioulis et al., ECCV 2018 and 3DV 2019), by its lists.

    As published::

        <source>/[area1/]<i>_<id>_color_0_Left_Down_0.0.png
        <source>/[area1/]<i>_<id>_depth_0_Left_Down_0.0.exr

    The ``id`` is that of a house or an area, in which ``i`` counts. Depth in metres, 32-bit floats;
    infinite where unknown, where the colour is (64, 64, 64). A list may name 90.0, 180.0 or 270.0
    instead of 0.0: the file is the same, turned by so many degrees. Size 256x512. The light of its
    renders stands at the camera, so that brightness tells depth: what is learnt here alone does not
    carry over to photographs. Arguments as of `ListedPanoramas`.
    """

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

    @staticmethod
    def _place(record: PanoramaRecord) -> str:
        place = re.match(r"\d+_(.+)_color_", Path(record.image).name)
        return place[1] if place else record.image

    def _read_depth(self, path: str) -> np.ndarray:
        return read_exr(path)
