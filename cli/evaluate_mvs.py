"""`vizoo evaluate mvs`: how near a cloud is to true points."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from ._work import refuse

if TYPE_CHECKING:
    import numpy as np


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("cloud", metavar="CLOUD", help="PLY file")
    parser.add_argument(
        "truth",
        metavar="TRUTH",
        help="PLY file of true points, or a scene with true depth; for --scan DTU's folder",
    )
    parser.add_argument("--json", action="store_true", help="print the scores as JSON")
    tanks = parser.add_argument_group("F-score")
    tanks.add_argument("--distance", type=float, metavar="D", help="within which a point is right")
    tanks.add_argument(
        "--tanks", metavar="SCENE", help="the distance of a Tanks and Temples scene, such as barn"
    )
    tanks.add_argument(
        "--align",
        metavar="FILE",
        help="4x4 matrix in text: cloud to truth, both as their files have them (default: a cloud "
        "of a scene far from the origin is moved by the offset in its summary.json)",
    )
    tanks.add_argument("--crop", metavar="FILE", help="Open3D's JSON polygon, in the truth's frame")
    tanks.add_argument(
        "--voxel",
        type=float,
        metavar="SIDE",
        help="first thin both (default: half the distance with --tanks, else not)",
    )
    dtu = parser.add_argument_group("DTU")
    dtu.add_argument("--scan", type=int, metavar="N", help="accuracy and completeness of a scan")
    dtu.add_argument("--seed", type=int, help="of the thinning's order (default: 0)")


def run(args: argparse.Namespace) -> int:
    """Print the scores; return 0."""
    from ..common.extras import from_extra

    if (args.scan is None) == (args.distance is None and args.tanks is None):
        raise ValueError("give --scan N (DTU), or --distance D or --tanks SCENE (F-score)")
    if args.scan is not None:
        refuse(args, ("align", "crop", "voxel"), "is of the F-score: leave it out with --scan")
    else:
        refuse(args, ["seed"], "is of DTU's scores: leave it out without --scan")
    from_extra("scipy", "scipy.spatial", "vizoo evaluate mvs")
    scores = _dtu(args) if args.scan is not None else _f_score(args)
    if args.json:
        print(json.dumps({"cloud": args.cloud, "truth": args.truth, **scores}, indent=2))
        return 0
    width = max(map(len, scores))
    for name, value in scores.items():
        shown = f"{value:.4f}" if isinstance(value, float) else value
        print(f"{name:<{width}}  {shown}")
    return 0


def _dtu(args: argparse.Namespace) -> dict:
    from ..mvs.evaluation import dtu_score, read_cloud, read_dtu_truth

    points = read_cloud(args.cloud)
    score = dtu_score(points, read_dtu_truth(args.truth, args.scan), seed=args.seed or 0)
    return {
        "accuracy": score.accuracy,
        "completeness": score.completeness,
        "overall": score.overall,
        "accuracy_median": score.accuracy_median,
        "completeness_median": score.completeness_median,
        "points_thinned": score.thinned,
        "points_observed": score.observed,
        "cloud_far": score.far[0],
        "scan_far": score.far[1],
    }


def _f_score(args: argparse.Namespace) -> dict:
    import numpy as np

    from ..mvs.clouds import crop_to_polygon, voxel_thin
    from ..mvs.evaluation import TANKS_DISTANCES, f_score

    distance, voxel = args.distance, args.voxel
    if args.tanks is not None:
        if args.tanks.lower() not in TANKS_DISTANCES:
            raise ValueError(
                f"--tanks {args.tanks}: the truth of {', '.join(TANKS_DISTANCES)} is public"
            )
        distance = TANKS_DISTANCES[args.tanks.lower()] if distance is None else distance
        voxel = distance / 2 if voxel is None else voxel
    moved = args.align is None
    points, truth = _cloud(args.cloud, moved), _truth(args.truth, moved)
    if args.align is not None:
        matrix = _matrix(args.align)
        points = points @ matrix[:3, :3].T + matrix[:3, 3]
    if args.crop is not None:
        points, truth = (cloud[crop_to_polygon(cloud, args.crop)] for cloud in (points, truth))
        for cloud, name in ((points, args.cloud), (truth, args.truth)):
            if not len(cloud):
                raise ValueError(f"{name}: no point inside {args.crop}")
    if voxel is not None:
        points, truth = (voxel_thin(cloud, None, voxel)[0] for cloud in (points, truth))
    score = f_score(np.asarray(points), truth, distance)
    return {
        "precision": score.precision,
        "recall": score.recall,
        "f_score": score.f_score,
        "distance": score.distance,
        "points": score.points,
        "truth_points": score.truth_points,
    }


def _cloud(path: str, moved: bool) -> np.ndarray:
    """Of a PLY file; moved by its scene's offset, or as they are there."""
    from ..mvs.evaluation import read_cloud
    from ..vision.io.ply import read_ply

    return read_cloud(path) if moved else read_ply(path)[0]


def _truth(path: str, moved: bool) -> np.ndarray:
    """The same, or the true points of a scene."""
    if Path(path).suffix != ".json" and not Path(path).is_dir():
        return _cloud(path, moved)
    from ..datasets.mvs import open_scene, truth_points

    scene = open_scene(path)
    points = truth_points(scene)[0].double().numpy()
    return points + scene.offset if moved else points


def _matrix(path: str) -> np.ndarray:
    import numpy as np

    from ..common.files import existing

    try:
        matrix = np.loadtxt(existing(path))
    except ValueError as error:
        raise ValueError(f"{path}: not a matrix in text: {error}") from error
    if matrix.shape != (4, 4) or not np.isfinite(matrix).all():
        raise ValueError(f"{path}: a 4x4 matrix is asked for, got {matrix.shape}")
    return matrix
