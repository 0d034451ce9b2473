"""`vizoo scene`: write one room of `vizoo world --camera views` to a folder of its own."""

from __future__ import annotations

import argparse
from pathlib import Path

from ._work import check_file, check_folder, parse_size

_LAYOUTS = "dtu dtu_training tanks blendedmvs eth3d colmap colmap_binary folder".split()
_DTU_SIZE = "512x640"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "out", metavar="OUT", help="folder of the scene (of the data set, for DTU's)"
    )
    parser.add_argument("--layout", default="dtu", choices=_LAYOUTS, help="default: dtu")
    parser.add_argument("--views", type=int, default=5, metavar="N", help="default: 5")
    parser.add_argument(
        "--size",
        metavar="HxW",
        help=f"of a photograph (default: 256x320; {_DTU_SIZE} in dtu_training)",
    )
    parser.add_argument("--seed", type=int, default=0, help="which room (default: 0)")
    parser.add_argument("--lossless", action="store_true", help="PNG where the layout has JPEG")
    parser.add_argument("--truth", metavar="FILE", help="also the true points, as a PLY file")


def run(args: argparse.Namespace) -> int:
    """Make the scene, write it, say where; return 0."""
    if args.truth is not None:
        check_file(Path(args.truth), ".ply", "true points are", "--truth")
    from ..datasets.mvs.scene import truth_points
    from ..datasets.mvs.writers import write_scene
    from ..datasets.worlds.views import WorldViews
    from ..vision.io.ply import write_ply

    fixed = args.layout == "dtu_training"
    size = args.size or (_DTU_SIZE if fixed else "256x320")
    height, width = parse_size(size)
    if fixed and size != _DTU_SIZE:
        raise ValueError(f"--size {size}: the layout dtu_training holds {_DTU_SIZE} alone")
    scene = WorldViews(1, height, width, args.views, seed=args.seed, layouts=["room"]).scene(0)
    scene.name = f"world-{args.seed}"  # DTU's data set counts scans by the number
    path = write_scene(scene, check_folder(args.out, "OUT"), args.layout, lossless=args.lossless)
    least, greatest = scene.depth_range(0)[0]
    print(f"{path}: {len(scene)} views of {height}x{width} pixels, depth {least:g} to {greatest:g}")
    if args.truth is not None:
        points, colours = truth_points(scene)
        with write_ply(Path(args.truth)) as ply:
            ply.write(points.numpy(), colours.numpy())
        print(f"{args.truth}: {len(points)} true points")
    return 0
