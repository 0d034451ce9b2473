"""A scene: photographs of one thing with their cameras, whatever the layout on disk.

Cameras are of the pixels as they are stored, as COLMAP takes them: an orientation that a
photograph's EXIF data name is not applied.

A sample, made of a reference view and its sources, is a dictionary:

===============  ==========================================================================
``images``       (V, 3, H, W) float32 in [0, 1], RGB; view 0 is the reference
``intrinsics``   (V, 3, 3) float32, pixels of these images
``extrinsics``   (V, 4, 4) float32, world to camera
``depth_range``  (2,) float32: least and greatest depth of the reference
``depth``        (1, H, W) float32, z in the reference's frame; 0 where unknown
``valid``        (1, H, W) bool: where the depth is known (nowhere, without ground truth)
``name``         ``scene/view``
===============  ==========================================================================
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...common.files import few
from ...vision.io.images import image_size, read_pixels, to_bytes, to_float, used_bits
from ...vision.io.pfm import read_pfm
from ..cache import Kept, SampleCache, source_name
from .cameras import (
    camera_centre,
    check_camera,
    lift,
    project,
    range_from_cameras,
    range_from_points,
    resize_intrinsics,
    rounding_note,
    upright,
)
from .matching import Features, depths_in_common, find_features, range_from_features

__all__ = [
    "Scene",
    "View",
    "check_range",
    "derive_range",
    "known_depth",
    "near_origin",
    "read_depth",
    "read_mask",
    "readable",
    "sparse_points",
    "truth_points",
]

_MATCHED = 6  # sources that features are compared with


@dataclass(frozen=True)
class View:
    """One photograph, its camera and what is known of its depth. Files are opened when read.

    The world is the scene's: where that has an ``offset``, a point of it plus the offset is one of
    the files' world.
    """

    name: str  #: unique within the scene, such as ``00000012``
    image: str | Tensor  #: path of the photograph, or (3, H, W) float32 in [0, 1]
    intrinsics: Tensor  #: (3, 3) float32, pixels of the photograph
    extrinsics: Tensor  #: (4, 4) float32, world to camera
    #: least and greatest depth in the world's unit; None where nobody said
    depth_range: tuple[float, float] | None = None
    #: called to read the true depth: (1, H, W) float32, 0 where unknown, and the bool mask of where
    #: it is known, both of the photograph's size; None without ground truth
    truth: Callable[[], tuple[Tensor, Tensor]] | None = None
    camera_file: str = ""  #: what to name in a complaint about the camera
    #: (height, width) where the cameras' file tells it; the photograph is checked by it
    size: tuple[int, int] | None = None

    def describe(self) -> str:
        """What a complaint about the photograph names: its path, or the view's name."""
        return self.image if isinstance(self.image, str) else f"view {self.name}"


@dataclass(eq=False, repr=False)
class Scene(Kept):
    """Views of one thing, and for each the other views worth matching with it.

    Raises:
        ValueError: fewer than two views, a wrong camera or range, a pair of views that are not
            there, a source listed twice; the message names the file.
    """

    name: str  #: of the scene, such as ``scan1``
    views: list[View]  #: two or more
    #: for each view its sources, best first, as (index of the view, score)
    pairs: list[list[tuple[int, float]]]
    #: how it lies on disk (a key of ``vizoo.datasets.mvs.layouts.LAYOUTS``), or ``generated``
    layout: str
    pair_file: str = ""  #: what to name in a complaint about the pairs
    #: (N, 3) float32 sparse points in the world, where the layout has them
    points: Tensor | None = None
    #: for each view the indices of the points that it sees, with ``points``
    tracks: Sequence[Tensor] | None = None
    #: (x, y, z) of its world's origin in that of its files, see `near_origin`
    offset: tuple[float, float, float] = (0.0, 0.0, 0.0)
    _used: dict[str, int] = field(default_factory=dict)  # bits by path; replaced scenes share it
    _features: dict[int, Features] = field(default_factory=dict, init=False)
    _ranges: dict[int, tuple[tuple[float, float], str]] = field(default_factory=dict, init=False)
    cache: SampleCache = field(init=False)  #: of its photographs

    def __post_init__(self) -> None:
        self.views = list(self.views)
        self.pairs = [list(sources) for sources in self.pairs]
        self.cache = SampleCache(None, self._source, ["image"])
        self._check()

    def __len__(self) -> int:
        return len(self.views)

    def __repr__(self) -> str:
        return f"Scene({self.name}, {len(self)} views, {self.layout})"

    def index(self, name: str) -> int:
        """Return the number of the view of that name.

        Raises:
            ValueError: there is none; the message names some that are.
        """
        names = [view.name for view in self.views]
        if name not in names:
            raise ValueError(f"scene {self.name} has no view {name!r}; its views are {few(names)}")
        return names.index(name)

    def sources(self, index: int, count: int | None = None) -> list[int]:
        """Return the sources of a view, best first, ``count`` of them at most."""
        return [source for source, _ in self.pairs[index]][:count]

    def size(self, index: int) -> tuple[int, int]:
        """Return (height, width) of a view's photograph, by its header alone."""
        image = self.views[index].image
        if not isinstance(image, Tensor):
            try:
                return image_size(image)
            except ValueError:  # not of a common kind, or there is none
                image = self._read(index)["image"]
        return image.shape[1], image.shape[2]

    def image(self, index: int) -> Tensor:
        """Read a photograph: (3, H, W) float32 in [0, 1], RGB.

        Of 16-bit ones the bits that no photograph of the scene uses are left out, as by
        `as_views`.

        Raises:
            FileNotFoundError: the file has gone since the scene was opened.
            ValueError: it is no image, or not of the size that its camera was given for.
        """
        view = self.views[index]
        image = view.image
        if not isinstance(image, Tensor):
            kept = self._recall(index)
            image = kept["image"] * 2 ** (16 - self._bits) if kept["bits"] > 8 else kept["image"]
        if view.size is not None and tuple(image.shape[1:]) != view.size:
            raise ValueError(
                f"{view.describe()}: {image.shape[1]}x{image.shape[2]} pixels, but its camera in "
                f"{view.camera_file} is of {view.size[0]}x{view.size[1]} (height x width): give "
                "the photographs that the cameras were found from"
            )
        return image

    def _recall(self, index: int) -> dict[str, Tensor]:
        kept = self.cache.recall(index, self._read)
        self._used[cast("str", self.views[index].image)] = int(kept["bits"])
        return kept

    def _source(self, index: int) -> str:
        return source_name([cast("str", self.views[index].image)], "image and bits", "as stored")

    def _read(self, index: int) -> dict[str, Tensor]:
        pixels = read_pixels(cast("str", self.views[index].image), upright=False)
        return {"image": to_float(pixels), "bits": torch.tensor(used_bits(pixels))}

    @cached_property
    def _bits(self) -> int:
        """The most that any photograph uses."""
        paths = {v.image: i for i, v in enumerate(self.views) if not isinstance(v.image, Tensor)}
        for path in paths.keys() - self._used.keys():
            with suppress(ValueError, OSError):  # a damaged one is told where it is asked for
                self._recall(paths[path])
        return max(self._used.get(path, 8) for path in paths)

    @property
    def has_truth(self) -> bool:
        """Whether any view has a true depth map."""
        return any(view.truth is not None for view in self.views)

    def depth(self, index: int) -> tuple[Tensor, Tensor] | None:
        """Read the true depth (1, H, W) and where it is known (1, H, W) bool; None without truth.

        Raises:
            ValueError: the map is damaged or of another size than the photograph.
        """
        view = self.views[index]
        if view.truth is None:
            return None
        depth, valid = view.truth()
        height, width = self.size(index)
        if tuple(depth.shape[1:]) != (height, width):
            raise ValueError(
                f"{_file(view.truth)}: {depth.shape[1]}x{depth.shape[2]} pixels, but its image "
                f"{view.describe()} has {height}x{width}"
            )
        return depth, valid

    def sample(
        self,
        reference: int,
        sources: Sequence[int],
        size: tuple[int, int] | None = None,
        empty_truth: bool = False,
    ) -> dict[str, Any]:
        """Read a reference view with its sources (see above).

        Args:
            reference: number of the reference view.
            sources: numbers of the others, one at least.
            size: (height, width) to resize all photographs to; needed where theirs differ.
            empty_truth: whether a true depth map without a known pixel is fine.

        Raises:
            ValueError: there is no source, the sizes differ, or the true depth map is empty.
        """
        if not sources:
            raise ValueError(
                f"{self.pair_file or self.name}: view {self.views[reference].name} has no source; "
                "multi-view stereo needs two views at least"
            )
        chosen = [reference, *sources]
        images: list[Tensor] = []
        intrinsics = []
        for number in chosen:
            image, matrix = self.image(number), self.views[number].intrinsics
            if size is not None:
                height, width = image.shape[1:]
                image = resize(image, size)
                matrix = resize_intrinsics(matrix, size[1] / width, size[0] / height)
            if images and image.shape != images[0].shape:
                raise ValueError(
                    f"{self.views[number].describe()}: {image.shape[1]}x{image.shape[2]} pixels, "
                    f"but {self.views[reference].describe()} has {images[0].shape[1]}x"
                    f"{images[0].shape[2]}; give one size to resize them to"
                )
            images.append(image)
            intrinsics.append(matrix)
        depth, valid = self._truth(reference, images[0].shape[1:], empty_truth)
        views = upright(
            torch.stack(images),
            torch.stack(intrinsics).float(),
            torch.stack([self.views[i].extrinsics for i in chosen]).float(),
        )
        return {
            **dict(zip(("images", "intrinsics", "extrinsics"), views, strict=True)),
            "depth_range": torch.tensor(self.depth_range(reference)[0], dtype=torch.float32),
            "depth": depth,
            "valid": valid,
            "name": f"{self.name}/{self.views[reference].name}",
        }

    def features(self, index: int) -> Features:
        """Features of a photograph, found once."""
        if index not in self._features:
            intrinsics = self.views[index].intrinsics
            self._features[index] = find_features(self.image(index), intrinsics)
        return self._features[index]

    def depth_range(self, index: int) -> tuple[tuple[float, float], str]:
        """Return a view's (least, greatest) depth, and in words where it comes from.

        Where the layout gives none, it is derived (see `derive_range`).
        """
        view = self.views[index]
        if view.depth_range is not None:
            return view.depth_range, view.camera_file or "given"
        if index not in self._ranges:
            self._ranges[index] = derive_range(self, index)
        return self._ranges[index]

    def with_range(self, least: float, greatest: float) -> Scene:
        """Return the scene with one depth range for all views.

        Raises:
            ValueError: it is none.

        Warns (``UserWarning``) where the sparse points that views see lie outside of it.
        """
        limits = float(least), float(greatest)
        if not 0 < least < greatest < float("inf"):
            raise ValueError(f"depth range {least:g} to {greatest:g}: want 0 < least < greatest")
        seen = [span for index in range(len(self)) if (span := _span_of_points(self, index))]
        if seen and all(high < least or low > greatest for low, high in seen):
            low, high = min(span[0] for span in seen), max(span[1] for span in seen)
            warnings.warn(
                f"depth range {least:g} to {greatest:g}: the scene's sparse points lie at "
                f"{low:.4g} to {high:.4g}; is it in the cameras' unit?",
                stacklevel=2,
            )
        return replace(self, views=[replace(view, depth_range=limits) for view in self.views])

    def _truth(self, index: int, size: torch.Size, empty: bool) -> tuple[Tensor, Tensor]:
        known = self.depth(index)
        if known is None:
            return torch.zeros(1, *size), torch.zeros(1, *size, dtype=torch.bool)
        depth, valid = known
        if not valid.any() and not empty:
            raise ValueError(
                f"{_file(self.views[index].truth)}: empty depth map, no pixel of view "
                f"{self.views[index].name} has a known depth"
            )
        if tuple(depth.shape[1:]) != tuple(size):
            # Nearest, because a mean of foreground and background lies on neither.
            depth = F.interpolate(depth[None], size, mode="nearest-exact")[0]
            valid = F.interpolate(valid[None].float(), size, mode="nearest-exact")[0] > 0
        return torch.where(valid, depth, torch.zeros_like(depth)), valid

    def _check(self) -> None:
        count = len(self.views)
        if count < 2:
            raise ValueError(
                f"scene {self.name}: {count} view{'s' * (count != 1)}; multi-view stereo needs two "
                "at least"
            )
        names = [view.name for view in self.views]
        if len(set(names)) < count:
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"scene {self.name}: two views are called {twice!r}")
        where = [view.camera_file or f"scene {self.name}, view {view.name}" for view in self.views]
        check_camera(
            torch.stack([view.intrinsics for view in self.views]),
            torch.stack([view.extrinsics for view in self.views]),
            where,
        )
        for view, file in zip(self.views, where, strict=True):
            if view.depth_range is not None:
                check_range(view.depth_range, file)
        file = self.pair_file or f"scene {self.name}"
        if len(self.pairs) != count:
            raise ValueError(f"{file}: pairs of {len(self.pairs)} views, but there are {count}")
        for view, sources in zip(self.views, self.pairs, strict=True):
            for source, _ in sources:
                if not 0 <= source < count:
                    raise ValueError(
                        f"{file}: view {view.name} lists source {source}, but there are only "
                        f"views 0 to {count - 1}"
                    )
                if self.views[source] is view:
                    raise ValueError(f"{file}: view {view.name} lists itself as a source")
            listed = [source for source, _ in sources]
            if len(set(listed)) < len(listed):
                again = next(source for source in listed if listed.count(source) > 1)
                raise ValueError(
                    f"{file}: view {view.name} lists source {self.views[again].name} twice"
                )


def near_origin(scene: Scene) -> Scene:
    """Return a scene, whose cameras and points may be float64, with all in float32.

    Where cameras stand so far from the origin that this would move them apart, as in metres of a
    map or of the globe, the first one becomes the origin; the scene's ``offset`` is where it was.

    Warns (``UserWarning``) of that.
    """
    extrinsics = torch.stack([view.extrinsics for view in scene.views]).double()
    moved = torch.zeros(3, dtype=torch.float64)
    if rounding_note(extrinsics) is not None:
        moved = camera_centre(extrinsics[0])
        extrinsics[:, :3, 3] += extrinsics[:, :3, :3] @ moved
        warnings.warn(
            f"{scene.views[0].camera_file or scene.name}: the cameras stand so far from the origin "
            "that float32 would move them apart: depth and clouds are of a world whose origin is "
            f"at ({', '.join(f'{value:.8g}' for value in moved.tolist())}), the scene's `offset`",
            stacklevel=2,
        )
    x, y, z = (torch.tensor(scene.offset, dtype=torch.float64) + moved).tolist()
    views = [replace(v, extrinsics=e) for v, e in zip(scene.views, extrinsics.float(), strict=True)]
    points = None if scene.points is None else (scene.points.double() - moved).float()
    return replace(scene, views=views, points=points, offset=(x, y, z))


def readable(scene: Scene, report: Callable[[int, int], None]) -> tuple[Scene, dict[str, str]]:
    """Return the scene of the photographs that can be read, and by name why others cannot.

    Progress is reported as ``report(done, total)``.

    Raises:
        ValueError: fewer than two can.

    Warns (``UserWarning``) of each that cannot.
    """
    place: dict[int, int] = {}
    errors = {}
    for index, view in enumerate(scene.views):
        report(index, len(scene))
        try:
            scene.image(index)
            place[index] = len(place)
        except (ValueError, OSError) as error:
            errors[view.name] = str(error)
    report(len(scene), len(scene))
    told = list(errors.values())
    if len(place) < 2:
        raise ValueError(f"{told[0]} ({len(told)} of {len(scene)} photographs cannot be read)")
    for reason in told:
        warnings.warn(f"{reason}; the view is left out", stacklevel=3)
    pairs = [[(place[s], score) for s, score in scene.pairs[i] if s in place] for i in place]
    tracks = None if scene.tracks is None else [scene.tracks[i] for i in place]
    views = [scene.views[i] for i in place]
    return replace(scene, views=views, pairs=pairs, tracks=tracks) if told else scene, errors


def derive_range(scene: Scene, index: int) -> tuple[tuple[float, float], str]:
    """Return a view's (least, greatest) depth, and in words where it comes from.

    The 1st and 99th percentile of the depths of the sparse points that the view sees; without at
    least ten of them, of features that it has in common with its sources; without enough of these
    what the cameras tell.

    Raises:
        ValueError: neither tells anything: all cameras stand at one place.
    """
    views = scene.views
    view = views[index]
    if (limits := _span_of_points(scene, index)) is not None:
        return limits, "1st and 99th percentile of its sparse points' depths"
    measured = [
        depths_in_common(
            scene.features(index), scene.features(other), view.extrinsics, views[other].extrinsics
        )
        for other in scene.sources(index, _MATCHED)
    ]
    if measured:
        depths, bounds = (torch.cat(parts) for parts in zip(*measured, strict=True))
        limits = range_from_features(depths, bounds)
        if limits is not None:
            return limits, "from features in common with its sources"
    extrinsics = torch.stack([other.extrinsics for other in views])
    try:
        return range_from_cameras(extrinsics, index)
    except ValueError as error:
        raise ValueError(f"scene {scene.name}: {error}") from None


def _span_of_points(scene: Scene, index: int) -> tuple[float, float] | None:
    """The range of the sparse points that a view sees; None where they are too few."""
    if scene.points is None or scene.tracks is None:
        return None
    points, pose = scene.points[scene.tracks[index]].double(), scene.views[index].extrinsics
    return range_from_points(points @ pose[2, :3].double() + pose[2, 3].double())


def check_range(depth_range: tuple[float, float], where: str) -> None:
    """Raise ``ValueError``, naming ``where``, unless 0 < least < greatest, both finite."""
    least, greatest = depth_range
    if not (0 < least < greatest < float("inf")):
        raise ValueError(
            f"{where}: depth range {least:g} to {greatest:g}: want 0 < least < greatest; if the "
            "camera file's last line is 'min interval', or 'min max', say which with range_form: "
            "'interval' or 'max'"
        )


def read_depth(path: str) -> np.ndarray:
    """Read a depth map, (H, W) float32.

    Raises:
        ValueError: the file is damaged or has several channels.
    """
    depth = read_pfm(path)
    if depth.ndim != 2:
        raise ValueError(f"{path}: a depth map has one channel, this has {depth.shape[2]}")
    return depth


def read_mask(path: str) -> np.ndarray:
    """Read where a mask is not black, (H, W) bool."""
    mask = read_pixels(path, upright=False)
    return (mask if mask.ndim == 2 else mask.max(axis=2)) > 0


def known_depth(depth: np.ndarray, kept: np.ndarray | bool) -> tuple[Tensor, Tensor]:
    """Return a depth map (H, W) as a view's ``truth`` does, without what is not to be kept."""
    valid = kept & np.isfinite(depth) & (depth > 0)
    depth = np.where(valid, depth, np.float32(0))
    return torch.from_numpy(depth)[None], torch.from_numpy(valid)[None]


def resize(image: Tensor, size: tuple[int, int]) -> Tensor:
    """(3, H, W) of another height and width."""
    if tuple(image.shape[1:]) == tuple(size):
        return image
    resized = F.interpolate(image[None], size, mode="bilinear", antialias=True)
    return resized[0].clamp(0, 1)


def _file(truth: Callable | None) -> str:
    # A reader made by functools.partial has the depth map's path for its first argument.
    arguments = getattr(truth, "args", ())
    return os.fspath(arguments[0]) if arguments and isinstance(arguments[0], str) else "true depth"


_PER_VIEW = 200  # about how many sparse points begin in each view
_AGREE = 0.01  # relative difference of depth up to which a view sees a point


def truth_points(scene: Scene) -> tuple[Tensor, Tensor]:
    """Return the true points of all views, (N, 3) float32, and their colours (N, 3) uint8.

    Raises:
        ValueError: no view has true depth, or all of it is empty.
    """
    points, colours = [], []
    for index, view in enumerate(scene.views):
        known = scene.depth(index)
        if known is None:
            continue
        depth, valid = (each[0] for each in known)
        points.append(lift(depth, view.intrinsics, view.extrinsics)[valid])
        colours.append(torch.from_numpy(to_bytes(scene.image(index)))[valid])
    if not points:
        raise ValueError(f"scene {scene.name}: no view has true depth")
    if not any(len(part) for part in points):
        raise ValueError(f"scene {scene.name}: its true depth maps are empty, no pixel is known")
    return torch.cat(points), torch.cat(colours)


def sparse_points(scene: Scene) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return points that two views or more see, as structure from motion would find them.

    Returns:
        Points (N, 3) float32, their colours (N, 3) uint8, and for each view the indices of those
        that it sees, in order.

    Raises:
        ValueError: no view has true depth.
    """
    views = [(view, scene.depth(index)) for index, view in enumerate(scene.views)]
    kept_points, colours, seen = [], [], []
    for index, (view, known) in enumerate(views):
        if known is None:
            continue
        height, width = known[0].shape[1:]
        step = max(1, int((height * width / _PER_VIEW) ** 0.5))
        grid = torch.zeros(height, width, dtype=torch.bool)
        grid[step // 2 :: step, step // 2 :: step] = True
        grid &= known[1][0]
        points = lift(known[0][0], view.intrinsics, view.extrinsics)[grid]
        sees = torch.stack([_sees(*other, points) for other in views])
        sees[index] = True
        kept = sees.sum(0) >= 2
        kept_points.append(points[kept])
        seen.append(sees[:, kept])
        colours.append(torch.from_numpy(to_bytes(scene.image(index)))[grid][kept])
    if not kept_points:
        raise ValueError(f"scene {scene.name}: no view has true depth")
    tracks = [row.nonzero()[:, 0] for row in torch.cat(seen, dim=1)]
    return torch.cat(kept_points), torch.cat(colours), tracks


def _sees(view: View, known: tuple | None, points: Tensor) -> Tensor:
    if known is None:
        return torch.zeros(len(points), dtype=torch.bool)
    pixels, depth = project(points, view.intrinsics, view.extrinsics)
    height, width = known[0].shape[1:]
    x, y = pixels.round().long().unbind(-1)
    inside = (depth > 0) & (x >= 0) & (x < width) & (y >= 0) & (y < height)
    there = known[0][0][y.clamp(0, height - 1), x.clamp(0, width - 1)]
    return inside & ((there - depth).abs() < _AGREE * depth)
