"""How good a cloud is: the DTU benchmark's distances, the Tanks and Temples benchmark's F-score.

DTU (Jensen et al., CVPR 2014): the cloud is thinned to one spacing in random order; accuracy is
the mean distance from its points inside the observed space to the scan, completeness the mean
distance from the scan above the table to the cloud. Distances that are too large are left out.

Tanks and Temples (Knapitsch et al., 2017): precision is the share of the cloud within a distance
of the truth, recall the share of the truth within that distance of the cloud, F their harmonic
mean.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..common.extras import from_extra
from ..common.files import existing, read_json, shortened
from ..vision.io.ply import read_ply

if TYPE_CHECKING:
    from scipy.spatial import cKDTree

__all__ = [
    "TANKS_DISTANCES",
    "DTUScore",
    "DTUTruth",
    "FScore",
    "dtu_score",
    "f_score",
    "read_cloud",
    "read_dtu_truth",
    "thin",
]

TANKS_DISTANCES = {
    "barn": 0.01,
    "caterpillar": 0.005,
    "church": 0.025,
    "courthouse": 0.025,
    "ignatius": 0.003,
    "meetingroom": 0.01,
    "truck": 0.005,
}
"""Distance of the F-score, metres, of the scenes whose truth is public."""

_SPACING = 0.2  # mm that DTU's thinning leaves between points
_FARTHEST = 60.0  # mm within which it looks for nearest neighbours
_CUT = 20.0  # mm; it leaves out distances of this and more
_PAIRS = 1 << 24  # of neighbours looked at together while thinning
_QUERY = 1 << 20  # points looked up together


@dataclass(frozen=True)
class DTUTruth:
    """What a DTU scan is scored with."""

    points: np.ndarray  #: (N, 3), mm
    mask: np.ndarray  #: (X, Y, Z) bool: the observed space, in cells
    box: np.ndarray  #: (2, 3): its lowest and highest corner, mm
    resolution: float  #: side of a cell, mm
    plane: np.ndarray  #: (4,): a point is above the table where ``plane . (x, y, z, 1) > 0``.


@dataclass(frozen=True)
class DTUScore:
    """Distances in mm, smaller is better.

    Attributes:
        accuracy, completeness: means.
        accuracy_median, completeness_median: of the same distances.
        thinned: points of the cloud after thinning.
        observed: of these, inside the observed space.
        far: share of those that lie 20 mm or more from the scan, and of the scan's points above
            the table that lie so far from the cloud; both are left out of the means.
    """

    accuracy: float
    completeness: float
    accuracy_median: float
    completeness_median: float
    thinned: int
    observed: int
    far: tuple[float, float]

    @property
    def overall(self) -> float:
        """Mean of accuracy and completeness."""
        return (self.accuracy + self.completeness) / 2


@dataclass(frozen=True)
class FScore:
    """Shares from 0 to 1, larger is better."""

    precision: float
    recall: float
    distance: float
    points: int
    truth_points: int

    @property
    def f_score(self) -> float:
        """Harmonic mean of precision and recall."""
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / total if total else 0.0


def read_cloud(path: str | os.PathLike) -> np.ndarray:
    """Read the points of a PLY file, in the world of the scene that they are of.

    To a cloud of a scene that was moved to the origin its offset is added, which the
    `summary.json` of `reconstruct` beside it tells.

    Returns:
        (N, 3), float64 where there is an offset, else float32 or float64 as in the file.

    Raises:
        FileNotFoundError, ValueError: as `read_ply`; or the `summary.json` is damaged.

    Warns (``UserWarning``) of an offset.
    """
    points, _ = read_ply(path)
    summary = Path(path).with_name("summary.json")
    if not summary.is_file():
        return points
    offset = read_json(summary, "a summary", partial(_offset_of, Path(path).name))
    if not any(offset):
        return points
    shown = ", ".join(f"{value:.8g}" for value in offset)
    warnings.warn(f"{path}: moved by ({shown}), the `offset` in {summary}", stacklevel=2)
    return points + np.array(offset, np.float64)


def _offset_of(name: str, facts: Any) -> list[float]:
    """The offset of the cloud or mesh of this name, none of what a summary does not name."""
    of = [facts.get(key) for key in ("cloud", "mesh")] if isinstance(facts, dict) else []
    if name not in [Path(file).name for file in of if isinstance(file, str)]:
        return []
    offset = facts.get("offset", [])
    numbers = isinstance(offset, list) and all(isinstance(x, (int, float)) for x in offset)
    if not numbers or len(offset) not in (0, 3):
        raise ValueError(f"its offset is {shortened(offset)}, not three numbers")
    return offset


def dtu_score(points: np.ndarray, truth: DTUTruth, *, seed: int = 0) -> DTUScore:
    """Score a cloud as the DTU benchmark does.

    Args:
        points: (N, 3), mm, in the scan's frame.
        truth: of the scan, from `read_dtu_truth`.
        seed: of the random order in which points are thinned.

    Raises:
        ValueError: wrong shapes; or nothing is left to score: the cloud lies elsewhere or is of
            another scale.
    """
    points = _points(points, "the cloud")
    scan = _points(truth.points, "the scan")
    kept = points[thin(points, _SPACING, seed=seed)]
    observed = kept[_inside(kept, truth)]
    above = scan[scan @ truth.plane[:3] + truth.plane[3] > 0]
    for part, what in ((observed, "point of the cloud lies in the observed space"),
                       (above, "point of the scan lies above its table")):  # fmt: skip
        if len(part) == 0:
            raise ValueError(
                f"no {what}; the cloud spans {_span(points)}, the observed space "
                f"{_span(truth.box)} (mm)"
            )
    # The neighbours of observed points may be any of the scan's, and the other way round.
    to_scan = _distances(observed, scan, _FARTHEST)
    to_cloud = _distances(above, kept, _FARTHEST)
    near = [distances[distances < _CUT] for distances in (to_scan, to_cloud)]
    if not all(len(part) for part in near):
        raise ValueError(f"no point of the cloud lies within {_CUT:g} mm of the scan")
    return DTUScore(
        accuracy=float(near[0].mean()),
        completeness=float(near[1].mean()),
        accuracy_median=float(np.median(near[0])),
        completeness_median=float(np.median(near[1])),
        thinned=len(kept),
        observed=len(observed),
        far=(1 - len(near[0]) / len(to_scan), 1 - len(near[1]) / len(to_cloud)),
    )


def read_dtu_truth(folder: str | os.PathLike, scan: int) -> DTUTruth:
    """Read what the DTU benchmark publishes for a scan.

    Args:
        folder: holds ``ObsMask/ObsMaskN_10.mat``, ``ObsMask/PlaneN.mat`` and
            ``Points/stl/stlNNN_total.ply``, as SampleSet.zip and Points.zip unpack
            (``MVS Data`` beside them is found too).
        scan: number of the scan.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is damaged or not of that form.
        ImportError: SciPy is missing.
    """
    folder = Path(folder)
    if (folder / "MVS Data").is_dir():
        folder = folder / "MVS Data"
    mask_file = folder / "ObsMask" / f"ObsMask{scan}_10.mat"
    mask = _read_mat(mask_file, ("ObsMask", "BB", "Res"))
    plane_file = folder / "ObsMask" / f"Plane{scan}.mat"
    plane = _read_mat(plane_file, ("P",))["P"].ravel().astype(np.float64)
    box = mask["BB"].astype(np.float64)
    if mask["ObsMask"].ndim != 3 or box.shape != (2, 3) or mask["Res"].size != 1:
        raise ValueError(f"{mask_file}: ObsMask is (X, Y, Z), BB (2, 3) and Res one number")
    if plane.shape != (4,):
        raise ValueError(f"{plane_file}: P holds four numbers, got {plane.size}")
    points, _ = read_ply(folder / "Points" / "stl" / f"stl{scan:03d}_total.ply")
    return DTUTruth(points, mask["ObsMask"] != 0, box, float(mask["Res"].item()), plane)


def f_score(points: np.ndarray, truth: np.ndarray, distance: float) -> FScore:
    """Score a cloud against true points, both aligned and cropped (see ``vizoo.mvs.clouds``).

    Args:
        points: (N, 3).
        truth: (M, 3), in the same frame and unit.
        distance: within which a point counts as right.

    Raises:
        ValueError: wrong shapes, no point, or a distance that is not positive.

    Example:
        >>> f_score(points, points, 0.01).f_score
        1.0
    """
    if not distance > 0:
        raise ValueError(f"the distance must be positive, got {distance:g}")
    points, truth = _points(points, "the cloud"), _points(truth, "the truth")
    right = _distances(points, truth, distance) < distance
    covered = _distances(truth, points, distance) < distance
    return FScore(float(right.mean()), float(covered.mean()), distance, len(points), len(truth))


def thin(points: np.ndarray, spacing: float, *, seed: int = 0) -> np.ndarray:
    """Choose points so that no two are within a distance of each other, in random order.

    The points are gone through in random order; each is kept unless a point kept before it is
    too near. That is what the benchmark does; the result is that of going through them one by
    one, computed for many at a time in bounded memory.

    Args:
        points: (N, 3).
        spacing: the least distance.
        seed: of the order.

    Returns:
        Indices of the points kept, in the order in which they were chosen.
    """
    points = _points(points, "the cloud")
    order = np.random.default_rng(seed).permutation(len(points))
    kept = order[:0]
    start, size = 0, 4096
    while start < len(order):
        batch = order[start : start + size]
        if len(kept):
            batch = batch[_distances(points[batch], points[kept], spacing) == np.inf]
        if len(batch):
            inner = _tree(points[batch])
            if size > 4096 and inner.count_neighbors(inner, spacing) - len(batch) > 2 * _PAIRS:
                size //= 2
                continue
            kept = np.concatenate([kept, batch[_greedy(inner, len(batch), spacing)]])
        start += size
        size *= 2
    return kept


def _greedy(tree: cKDTree, count: int, spacing: float) -> np.ndarray:
    """Say which points stay when each, in order, removes those after it that are too near."""
    pairs = tree.query_pairs(spacing, output_type="ndarray")  # the lower index first
    alive = np.ones(count, bool)
    while len(pairs):
        waiting = np.zeros(count, bool)
        waiting[pairs[:, 1]] = True
        sure = ~waiting[pairs[:, 0]]  # no point before these can remove them any more
        alive[pairs[sure, 1]] = False
        pairs = pairs[alive[pairs].all(axis=1)]
    return alive


def _distances(points: np.ndarray, to: np.ndarray, limit: float) -> np.ndarray:
    """Return each point's distance to its nearest neighbour, infinite beyond ``limit``."""
    tree, limit = _tree(to), np.nextafter(limit, np.inf)
    distances = np.empty(len(points))
    for start in range(0, len(points), _QUERY):
        part = slice(start, start + _QUERY)
        distances[part] = tree.query(points[part], distance_upper_bound=limit, workers=-1)[0]
    return distances


def _tree(points: np.ndarray) -> cKDTree:
    tree = from_extra("scipy", "scipy.spatial", "the score of a cloud").cKDTree
    # Cutting at the middle of a cell instead of at the median builds three times as fast.
    return tree(points, balanced_tree=False, compact_nodes=False)


def _inside(points: np.ndarray, truth: DTUTruth) -> np.ndarray:
    """Say which points lie in observed cells; cells are centred on the box's lattice."""
    cells = np.floor((points - truth.box[0]) / truth.resolution + 0.5).astype(np.int64)
    valid = ((cells >= 0) & (cells < truth.mask.shape)).all(axis=1)
    valid[valid] = truth.mask[tuple(cells[valid].T)]
    return valid


def _points(points: np.ndarray, what: str) -> np.ndarray:
    points = np.asarray(points)
    if points.ndim != 2 or points.shape[1] != 3 or len(points) == 0:
        raise ValueError(f"{what} has shape (N, 3) with a point at least, got {points.shape}")
    if not np.isfinite(points).all():
        raise ValueError(f"{what} has a coordinate that is not finite")
    return points


def _read_mat(path: Path, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    loadmat = from_extra("scipy", "scipy.io", "the DTU benchmark").loadmat
    existing(path)
    try:
        content = loadmat(path, variable_names=names)
    except Exception as error:  # whatever a damaged file makes of the reader
        raise ValueError(f"{path}: not a MATLAB file of version 5 to 7.2 ({error})") from error
    lacking = [name for name in names if name not in content]
    if lacking:
        raise ValueError(f"{path}: holds no variable {lacking[0]}")
    return content


def _span(points: np.ndarray) -> str:
    pairs = zip(points.min(axis=0), points.max(axis=0), strict=True)
    return " by ".join(f"{low:.4g}..{high:.4g}" for low, high in pairs)
