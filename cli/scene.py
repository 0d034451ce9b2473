"""`vizoo scene`: write a generated scene to disk, in any of the layouts."""

from __future__ import annotations

import argparse
from pathlib import Path

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
    parser.add_argument("--seed", type=int, default=0, help="which scene (default: 0)")
    parser.add_argument("--wide", action="store_true", help="depths that differ tenfold")
    parser.add_argument("--untextured", action="store_true", help="with a plate of one colour")
    parser.add_argument("--mesh", nargs="+", metavar="FILE", help="meshes instead of own shapes")
    parser.add_argument("--lossless", action="store_true", help="PNG where the layout has JPEG")
    parser.add_argument("--truth", metavar="FILE", help="also the true points, as a PLY file")


def run(args: argparse.Namespace) -> int:
    """Make the scene, write it, say where; return 0."""
    from ..datasets.mvs.generator import generate_scene
    from ..datasets.mvs.meshes import mesh_scene
    from ..datasets.mvs.sparse import truth_points
    from ..datasets.mvs.writers import write_scene
    from ..vision.io.ply import write_ply
    from ._sizes import parse_size

    fixed = args.layout == "dtu_training"
    size = args.size or (_DTU_SIZE if fixed else "256x320")
    height, width = parse_size(size)
    if fixed and size != _DTU_SIZE:
        raise ValueError(f"--size {size}: the layout dtu_training holds {_DTU_SIZE} alone")
    if args.mesh and (args.wide or args.untextured):
        raise ValueError("--mesh goes with neither --wide nor --untextured")
    if args.mesh:
        scene = mesh_scene(args.mesh, args.views, height, width, seed=args.seed)
    else:
        scene = generate_scene(
            args.views,
            height,
            width,
            seed=args.seed,
            wide_range=args.wide,
            untextured=args.untextured,
        )
    path = write_scene(scene, args.out, args.layout, lossless=args.lossless)
    least, greatest = scene.depth_range(0)[0]
    print(f"{path}: {len(scene)} views of {width}x{height} pixels, depth {least:g} to {greatest:g}")
    if args.truth:
        points, colours = truth_points(scene)
        with write_ply(Path(args.truth)) as ply:
            ply.write(points.numpy(), colours.numpy())
        print(f"{args.truth}: {len(points)} true points")
    return 0
