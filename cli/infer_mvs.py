"""`vizoo infer mvs`: depth maps and a fused cloud of a scene."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ..common.progress import progress
from ..mvs import DEFAULT_MODEL
from ._items import add_model, add_run_arguments, end_run
from ._work import check_apart, check_folder, check_least, parse_size, positive, say_warnings

if TYPE_CHECKING:
    from ..mvs.fusion import Thresholds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("scene", metavar="SCENE", help="folder of a scene, in any known layout")
    parser.add_argument("--layout", metavar="NAME", help="of the scene (default: recognised)")
    parser.add_argument(
        "--range-form",
        default="auto",
        metavar="FORM",
        help="of camera files' last lines: max, interval or auto (default)",
    )
    add_model(parser, told=f" (default: {DEFAULT_MODEL})")
    parser.add_argument(
        "--guided",
        action=argparse.BooleanOptionalAction,
        help="start the network from a plane sweep and fuse what both find (default: "
        f"only {DEFAULT_MODEL}, by that very name, is guided)",
    )
    parser.add_argument(
        "--classical",
        action="store_true",
        help="also by a plane sweep, to compare with; without --model or --guided by that alone",
    )
    parser.add_argument("--out", metavar="DIR", required=True, help="folder of the results")
    parser.add_argument(
        "--views", type=int, default=5, metavar="N", help="matched at once (default: 5)"
    )
    parser.add_argument(
        "--size", metavar="HxW", help="of the images (default: theirs, at most 1920 px long)"
    )
    parser.add_argument(
        "--range",
        nargs=2,
        type=float,
        metavar=("MIN", "MAX"),
        help="of the depth, in the cameras' unit (default: what the scene says, else a guess)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random start (default: 0)")
    parser.add_argument(
        "--restart", action="store_true", help="compute views anew that an earlier run finished"
    )
    fusion = parser.add_argument_group("fusion")
    fusion.add_argument(
        "--thresholds",
        metavar="NAME",
        help="published ones, such as dtu/scan9 or tanks/family (default: by scene, else 2 views, "
        "1 px, 1 %%)",
    )
    fusion.add_argument("--agree", type=int, metavar="N", help="other views that must agree")
    fusion.add_argument("--pixels", type=float, metavar="PX", help="within so many pixels")
    fusion.add_argument("--relative", type=float, metavar="SHARE", help="and this share of depth")
    fusion.add_argument(
        "--voxel", type=positive, metavar="SIDE", help="one point a cube of this side"
    )
    fusion.add_argument("--normals", action="store_true", help="write the points' normals")
    fusion.add_argument("--mesh", type=positive, metavar="SIDE", help="also a mesh, of such cells")
    add_run_arguments(parser, runtime=False)


def run(args: argparse.Namespace) -> int:
    """Reconstruct the scene; return 0, or 1 if a photograph could not be read."""
    out = check_folder(args.out)
    size = None if args.size is None else parse_size(args.size)
    check_least(args, views=2)
    thresholds = _thresholds(args)

    from ..datasets.files import expand_path
    from ..datasets.mvs import open_scene

    with say_warnings() as notes:
        scene = open_scene(args.scene, args.layout, range_form=args.range_form)
        check_apart([expand_path(args.scene).resolve()], out)
        scene = scene if args.range is None else scene.with_range(*args.range)
    from ..mvs.classical import PlaneSweep
    from ..mvs.infer import MVSPredictor
    from ..mvs.reconstruction import reconstruct

    alone = args.classical and args.model is None and not args.guided
    model = DEFAULT_MODEL if args.model is None else args.model
    how = {"device": args.device, "dtype": args.dtype, "guided": args.guided}
    predictor = MVSPredictor(PlaneSweep() if alone else model, **how)
    with say_warnings() as said, progress() as report:
        summary = reconstruct(
            predictor,
            scene,
            out,
            views=args.views,
            size=size,
            thresholds=thresholds,
            seed=args.seed,
            restart=args.restart,
            voxel=args.voxel,
            normals=args.normals,
            mesh=args.mesh,
            classical=args.classical and not alone,
            report=report,
        )
    if not args.json:
        _show(summary)
    return end_run({**summary, "warnings": notes + said}, out, args.json)


def _thresholds(args: argparse.Namespace) -> Thresholds | dict[str, float]:
    """The published ones asked for; without a name those that are to replace the scene's own."""
    from dataclasses import replace

    from ..mvs.fusion import DEFAULT, preset

    given = {"views": args.agree, "pixels": args.pixels, "relative": args.relative}
    given = {name: value for name, value in given.items() if value is not None}
    chosen = replace(DEFAULT if args.thresholds is None else preset(args.thresholds), **given)
    return given if args.thresholds is None else chosen


def _show(summary: dict) -> None:
    height, width = summary["size"]
    views = _computed(summary)
    old = sum(view.get("resumed", False) for view in views)
    kept = f" ({old} of an earlier run)" if old else ""
    print(f"{summary['scene']}: {len(views)} views of {height}x{width}{kept}")
    _show_depth(summary)
    if "classical" in summary:
        other = summary["classical"]
        print("By a plane sweep:")
        _show_depth(other)
        agreed = other["agreed"].values()
        print(f"  within 5 % of the network's in {sum(agreed) / len(agreed):.0%} of the pixels")


def _computed(summary: dict) -> list[dict]:
    return [view for view in summary["views"] if "error" not in view]


def _show_depth(summary: dict) -> None:
    views, fusion = _computed(summary), summary["fusion"]
    low = min(view["depth"]["min"] for view in views)
    high = max(view["depth"]["max"] for view in views)
    sure = sum(view["confidence"] for view in views) / len(views)
    fresh = [view["seconds"] for view in views if not view.get("resumed", False)]
    each = f", {sum(fresh) / len(fresh):.2f} s a view" if fresh else ""
    folder = Path(views[0]["files"][0]).parent
    print(f"  depth {low:.4g} to {high:.4g}, confidence {sure:.2f}{each}: {folder}")
    if fusion is None:
        return
    others = f"{fusion['views']} other view{'s' * (fusion['views'] != 1)}"
    print(
        f"  {summary['points']} points of {fusion['pixels_of_all_views']} pixels, agreed on by "
        f"{others} within {fusion['pixels']:g} px and {100 * fusion['relative']:g} %: "
        f"{summary['cloud']}"
    )
    for name in ("picture", "mesh"):
        if name in summary:
            print(f"  {name}: {summary[name]}")
