"""From depth maps to one cloud: the points that several views agree on.

A pixel is lifted with its depth, looked up in another view's depth map, and carried back. Two
views agree where it comes back to its place and to its depth; the depths of those that agree are
averaged. There is no other filter and no merging: this is the program behind the published
figures of DispMVS (Yan et al., AAAI 2023) and its relatives. (Programs built on OpenCV before
version 5 look depths up at multiples of 1/32 pixel and so keep slightly other points.) Published
clouds have thresholds of their own, by data set and scene.

Views stream from disk one after the other: memory does not grow with their number, beyond the
bytes set aside for depth maps.
"""

from __future__ import annotations

import difflib
import os
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from ..datasets.mvs.cameras import check_camera, invert_intrinsics, invert_pose, relative_pose
from ..vision.io.images import read_pixels
from ..vision.io.pfm import read_pfm
from ..vision.io.ply import write_ply

__all__ = [
    "DEFAULT",
    "DepthView",
    "FusedView",
    "FusionReport",
    "PRESETS",
    "Thresholds",
    "fuse",
    "fuse_to_file",
    "preset",
]


@dataclass(frozen=True)
class Thresholds:
    """When a depth is believed.

    Raises:
        ValueError: one of them is not positive.
    """

    views: int = 2  #: other views that must agree
    pixels: float = 1.0  #: how far a pixel may come back from its place
    relative: float = 0.01  #: how much the depth may differ, as a share of it

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


# Pixels at a time: on a CPU the two dozen maps of so many pixels stay in its cache.
_CHUNK = {"cpu": 1 << 16, "cuda": 1 << 22}
# Times the greatest depth: marks the unknown, so that no mean with a neighbour looks like a depth.
_UNKNOWN = -1e6
_CACHE_BYTES = 512 << 20  # of depth maps held in memory, so that they need not be read again

Map = np.ndarray | Tensor | str | os.PathLike | Callable[[], "np.ndarray | Tensor"]


@dataclass(frozen=True)
class DepthView:
    """One view as fusion takes it."""

    name: str  #: for messages
    intrinsics: Tensor  #: (3, 3), pixels of the depth map
    extrinsics: Tensor  #: (4, 4), world to camera
    #: (H, W), z in the camera's frame; 0 or not finite where unknown. A path (PFM) or a function is
    #: read when needed, perhaps more than once.
    depth: Map
    #: (H, W, 3) uint8 RGB of the depth map's size, or a path or a function; white without
    image: Map | None = None
    sources: Sequence[int] = ()  #: the views (their places in the list) that may confirm this one
    #: points nearer or farther are left out; None keeps all
    depth_range: tuple[float, float] | None = None


@dataclass(frozen=True)
class FusedView:
    """What one view adds to the cloud.

    Attributes:
        name: of the view.
        points: (N, 3) float32, world.
        colours: (N, 3) uint8 RGB.
        depth: (H, W) float32: the averaged depth, 0 where it was not kept.
        unknown, unconfirmed, out_of_range: pixels without a depth, without enough views that
            agree, and beyond the depth range; with ``kept`` they are all pixels.
    """

    name: str
    points: np.ndarray
    colours: np.ndarray
    depth: np.ndarray
    unknown: int
    unconfirmed: int
    out_of_range: int

    @property
    def kept(self) -> int:
        """Number of points."""
        return len(self.points)


@dataclass(frozen=True)
class FusionReport:
    """How many pixels of all views became points, and where the others were lost."""

    points: int
    unknown: int
    unconfirmed: int
    out_of_range: int
    kept_by_view: dict[str, int]

    @property
    def pixels(self) -> int:
        """Pixels of all views."""
        return self.points + self.unknown + self.unconfirmed + self.out_of_range


def fuse(
    views: Sequence[DepthView],
    thresholds: Thresholds = DEFAULT,
    *,
    device: torch.device | str = "cpu",
) -> Iterator[FusedView]:
    """Keep what several views agree on, one view after the other.

    Args:
        views: two or more.
        thresholds: how many other views must agree, and how well.
        device: to compute on.

    Yields:
        For each view, in order, its part of the cloud, perhaps empty.

    Raises:
        ValueError: fewer than two views, a wrong camera, sources that are not there or named
            twice, a map of a wrong form or size, or no view with as many sources as must agree.

    Warns (``UserWarning``) of a view whose depth map is empty.
    """
    views = list(views)
    _check(views, thresholds)
    return _fuse(views, thresholds, torch.device(device))


def fuse_to_file(
    views: Sequence[DepthView],
    path: str | os.PathLike,
    thresholds: Thresholds = DEFAULT,
    *,
    device: torch.device | str = "cpu",
    each: Callable[[FusedView], None] | None = None,
) -> FusionReport:
    """Fuse, as `fuse`, into a coloured binary PLY file, written while the views stream by.

    Every view's part also goes to ``each``, for whatever else is to be made of it.

    Raises:
        ValueError: as `fuse`; or no point is left: the message says which filter removed how many.
    """
    counts = {"unknown": 0, "unconfirmed": 0, "out_of_range": 0}
    kept = {}
    views = list(views)
    parts = fuse(views, thresholds, device=device)
    with write_ply(path) as ply:
        for part in parts:
            ply.write(part.points, part.colours)
            kept[part.name] = part.kept
            counts = {name: count + getattr(part, name) for name, count in counts.items()}
            if each is not None:
                each(part)
        report = FusionReport(ply.count, **counts, kept_by_view=kept)
        if not report.points:
            raise ValueError(_nothing(report, thresholds, views))
    return report


def _fuse(
    views: list[DepthView], thresholds: Thresholds, device: torch.device
) -> Iterator[FusedView]:
    maps = _Maps(views, device)
    for index, view in enumerate(views):
        depth = maps[index].clamp(min=0)
        total, count = depth.clone(), torch.zeros_like(depth, dtype=torch.int16)
        for other in view.sources:
            source = maps[other]
            pair = _Pair(view, views[other], depth)
            for rows in _rows(depth):
                agrees, carried = pair.compare(depth[rows], rows.start, source, thresholds)
                total[rows] += carried
                count[rows] += agrees
        yield _part(view, depth, total, count, thresholds)


def _part(
    view: DepthView, depth: Tensor, total: Tensor, count: Tensor, thresholds: Thresholds
) -> FusedView:
    known = depth > 0
    confirmed = known & (count >= thresholds.views)
    mean = total / (count + 1)
    kept = confirmed
    if view.depth_range is not None:
        least, greatest = view.depth_range
        kept = confirmed & (mean > least) & (mean < greatest)
    y, x = kept.nonzero(as_tuple=True)
    pose = invert_pose(view.extrinsics.double())
    turn = (pose[:3, :3] @ invert_intrinsics(view.intrinsics.double())).to(depth.device)
    pixels = torch.stack([x.double(), y.double(), torch.ones_like(x, dtype=torch.float64)])
    points = (turn @ pixels).mul_(mean[kept].double()).add_(pose[:3, 3:].to(depth.device))
    colours = _image(view, depth.shape)[kept.cpu().numpy()]
    sizes = [int(mask.sum()) for mask in (known, confirmed, kept)]
    return FusedView(
        name=view.name,
        points=points.T.float().cpu().numpy(),
        colours=colours,
        depth=torch.where(kept, mean, 0).cpu().numpy(),
        unknown=depth.numel() - sizes[0],
        unconfirmed=sizes[0] - sizes[1],
        out_of_range=sizes[1] - sizes[2],
    )


class _Pair:
    """The way from one view's pixels into another view and back, as two affine maps of depth."""

    def __init__(self, view: DepthView, source: DepthView, like: Tensor) -> None:
        there = relative_pose(view.extrinsics.double(), source.extrinsics.double())
        back = invert_pose(there)
        k, source_k = view.intrinsics.double(), source.intrinsics.double()
        there = torch.cat(
            [source_k @ there[:3, :3] @ invert_intrinsics(k), source_k @ there[:3, 3:]], dim=1
        )
        back = torch.cat([k @ back[:3, :3] @ invert_intrinsics(source_k), k @ back[:3, 3:]], dim=1)
        # Lists of Python floats: a scalar that lies on a GPU would cost a wait for each use.
        self.there, self.back = there.tolist(), back.tolist()
        self.x = torch.arange(like.shape[1], device=like.device, dtype=like.dtype)

    def compare(
        self, depth: Tensor, top: int, source: Tensor, thresholds: Thresholds
    ) -> tuple[Tensor, Tensor]:
        """Return where rows from ``top`` on agree, and the carried depth there, 0 elsewhere."""
        height, width = source.shape
        x = self.x
        y = torch.arange(top, top + len(depth), device=x.device, dtype=x.dtype)[:, None]
        px, py, pz = ((a * x + (b * y + c)).mul_(depth).add_(d) for a, b, c, d in self.there)
        scale = pz.clamp_(min=torch.finfo(depth.dtype).tiny).reciprocal_()
        u, v = px.mul_(scale), py.mul_(scale)
        # Half a thousandth of a pixel of slack: rounding must not cut off the outermost pixels.
        ok = (u >= -5e-4) & (u <= width - 0.9995) & (v >= -5e-4) & (v <= height - 0.9995)
        grid = torch.stack([u * (2 / max(width - 1, 1)) - 1, v * (2 / max(height - 1, 1)) - 1], -1)
        sampled = grid_sample(
            source[None, None], grid[None], mode="bilinear", padding_mode="border",
            align_corners=True,
        )[0, 0]  # fmt: skip
        qx, qy, qz = ((a * u + b * v).add_(c).mul_(sampled).add_(d) for a, b, c, d in self.back)
        ok &= (sampled > 0) & (depth > 0) & (qz > 0)
        scale = qz.clamp(min=torch.finfo(depth.dtype).tiny).reciprocal_()
        error = qx.mul_(scale).sub_(x).square_().add_(qy.mul_(scale).sub_(y).square_())
        ok &= error < thresholds.pixels**2
        ok &= (qz - depth).abs_() < depth * thresholds.relative
        return ok, torch.where(ok, qz, 0)


class _Maps:
    """Depth maps with the unknown marked, read on demand; the least recently used ones go."""

    def __init__(self, views: list[DepthView], device: torch.device) -> None:
        self.views, self.device = views, device
        self.held: OrderedDict[int, Tensor] = OrderedDict()
        self.told: set[int] = set()

    def __getitem__(self, index: int) -> Tensor:
        if index in self.held:
            self.held.move_to_end(index)
            return self.held[index]
        view = self.views[index]
        depth = _read(view.depth, read_pfm)
        if isinstance(depth, np.ndarray):
            depth = np.ascontiguousarray(depth)  # PyTorch takes no array that is reversed
        depth = torch.as_tensor(depth, dtype=torch.float32, device=self.device)
        if depth.ndim != 2 or depth.numel() == 0:
            raise ValueError(
                f"view {view.name}: a depth map has shape (H, W), got {tuple(depth.shape)}"
            )
        known = torch.isfinite(depth) & (depth > 0)
        highest = torch.where(known, depth, 0).max().clamp(min=1e-30)
        marked = torch.where(known, depth, highest * _UNKNOWN)
        if index not in self.told and not known.any():
            self.told.add(index)
            warnings.warn(
                f"view {view.name}: its depth map is empty, no pixel has a depth", stacklevel=4
            )
        size = 4 * marked.numel()
        while self.held and (len(self.held) + 1) * size > _CACHE_BYTES:
            self.held.popitem(last=False)
        self.held[index] = marked
        return marked


def _rows(depth: Tensor) -> Iterator[slice]:
    height, width = depth.shape
    step = max(1, _CHUNK.get(depth.device.type, 1 << 20) // width)
    return (slice(top, min(top + step, height)) for top in range(0, height, step))


def _read(given: Map, reader: Callable) -> np.ndarray | Tensor:
    if callable(given):
        return given()
    return reader(given) if isinstance(given, (str, os.PathLike)) else given


def _image(view: DepthView, size: torch.Size) -> np.ndarray:
    if view.image is None:
        return np.full((*size, 3), 255, np.uint8)
    image = _read(view.image, read_pixels)
    image = image.cpu().numpy() if isinstance(image, Tensor) else np.asarray(image)
    if image.dtype != np.uint8 or image.shape != (*size, 3):
        raise ValueError(
            f"view {view.name}: its image is {image.dtype} {image.shape}, but its depth map asks "
            f"for uint8 {(*size, 3)}"
        )
    return image


def _check(views: list[DepthView], thresholds: Thresholds) -> None:
    if len(views) < 2:
        raise ValueError(f"fusion needs two views or more, got {len(views)}")
    for index, view in enumerate(views):
        check_camera(view.intrinsics, view.extrinsics, f"view {view.name}")
        for other in view.sources:
            if not 0 <= other < len(views) or other == index:
                what = "itself" if other == index else f"view {other} of {len(views)} (0-based)"
                raise ValueError(f"view {view.name}: its sources name {what}")
            if view.sources.count(other) > 1:
                raise ValueError(f"view {view.name}: its sources name view {other} twice")
    check_agreement(thresholds, max(len(view.sources) for view in views))


def check_agreement(thresholds: Thresholds, most: int) -> None:
    """Raise ``ValueError`` where more views must agree than the most sources that a view has."""
    if most < thresholds.views:
        raise ValueError(
            f"{thresholds.views} other views must agree, but no view has more than {most} "
            f"source{'s' * (most != 1)}: ask for {max(most, 1)} or fewer, or give more views"
        )


def _nothing(report: FusionReport, thresholds: Thresholds, views: list[DepthView]) -> str:
    """Say where all points were lost, and what to do about the filter that took most."""
    remedies = {
        "unknown": "the depth maps are empty",
        "unconfirmed": (
            "check the cameras (world to camera, pixels of these images) and the depth range, or "
            "loosen the thresholds"
        ),
        "out_of_range": "the depths are right only if the range is wrong: widen it",
    }
    worst = max(remedies, key=lambda name: getattr(report, name))
    ranges = [view.depth_range for view in views if view.depth_range is not None]
    span = f" ({min(r[0] for r in ranges):g} to {max(r[1] for r in ranges):g})" if ranges else ""
    return (
        f"no point is left of {report.pixels} pixels in {len(report.kept_by_view)} views: "
        f"{report.unknown} had no depth, {report.unconfirmed} were not confirmed by "
        f"{thresholds.views} other view{'s' * (thresholds.views != 1)} (within "
        f"{thresholds.pixels:g} px and {100 * thresholds.relative:g} %), {report.out_of_range} lay "
        f"beyond the depth range{span}; {remedies[worst]}"
    )
