"""`vizoo world`: write generated places to disk as stereo pairs, views or panoramas."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..common.progress import progress
from ._work import check_folder, check_least, parse_size, refuse, warn

if TYPE_CHECKING:
    from ..datasets.worlds.panorama import WorldPanoramas
    from ..datasets.worlds.stereo import WorldStereo
    from ..datasets.worlds.views import WorldViews

_SIZES = {"stereo": "320x640", "views": "512x640", "panorama": "512x1024"}
_PLACES = ("room", "street", "table", "home")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("out", metavar="OUT", help="folder of the data set")
    parser.add_argument("--camera", default="stereo", choices=tuple(_SIZES), help="default: stereo")
    parser.add_argument("--count", type=int, default=8, metavar="N", help="worlds (default: 8)")
    parser.add_argument(
        "--place", nargs="+", default=_PLACES, choices=_PLACES, metavar="PLACE",
        help=f"of {', '.join(_PLACES)}, which take turns (default: all)",
    )  # fmt: skip
    sizes = ", ".join(f"{size} {camera}" for camera, size in _SIZES.items())
    parser.add_argument("--size", metavar="HxW", help=f"of a picture (default: {sizes})")
    parser.add_argument("--seed", type=int, default=0, help="which worlds (default: 0)")
    parser.add_argument("--views", type=int, metavar="N", help="with --camera views (default: 5)")
    parser.add_argument(
        "--max-disparity", type=float, metavar="PX", help="with --camera stereo (default: 256)"
    )
    parser.add_argument("--floating", type=int, metavar="N", help="things that float in each world")
    parser.add_argument("--textures", metavar="DIR", help="photographs for surfaces")
    parser.add_argument("--meshes", metavar="DIR", help=".glb, .obj, .ply, .stl files of things")
    parser.add_argument("--panoramas", metavar="DIR", help="panoramas for surroundings")
    parser.add_argument("--perfect", action="store_true", help="without the faults of photographs")
    parser.add_argument(
        "--layout", metavar="NAME",
        help="of the files: dtu (default), colmap, ... for views; "
        "stanford2d3d (default), ... for panoramas",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Make the worlds, write them, say where; return 0."""
    from ..common.files import few
    from ..datasets.worlds.stereo import WorldStereo
    from ..datasets.worlds.writers import write_worlds
    from ..vision.io.pairing import images_in

    out = check_folder(args.out, "OUT")
    worlds = _worlds(args)
    with progress() as report:
        path = write_worlds(worlds, out, args.layout, report)
    if isinstance(worlds, WorldStereo):
        made = {worlds.name(index) for index in range(len(worlds))}
        others = {file.stem for file in images_in(path / "left")} - made
        if others:
            warn(f"{path}: pairs of other runs are there too: {few(sorted(others))}")
    print(f"{path}: {args.camera}, {len(worlds)} of {worlds.height}x{worlds.width} pixels")
    return 0


def _worlds(args: argparse.Namespace) -> WorldPanoramas | WorldStereo | WorldViews:
    from ..datasets.worlds.panorama import WorldPanoramas
    from ..datasets.worlds.stereo import WorldStereo
    from ..datasets.worlds.views import WorldViews

    height, width = parse_size(args.size or _SIZES[args.camera])
    check_least(args, count=1)
    common = {
        "seed": args.seed,
        "layouts": args.place,
        "textures": args.textures,
        "meshes": args.meshes,
        "panoramas": args.panoramas,
        "floating": args.floating,
        "photometric": not args.perfect,
    }
    for option, camera in (("views", "views"), ("max_disparity", "stereo")):
        if args.camera != camera:
            refuse(args, [option], f"goes with --camera {camera}")
    if args.camera == "panorama":
        if width != 2 * height:
            raise ValueError(f"--size {args.size}: a panorama is twice as wide as high")
        return WorldPanoramas(args.count, height, **common)
    if args.camera == "views":
        views = 5 if args.views is None else args.views
        return WorldViews(args.count, height, width, views, **common)
    bound = 256.0 if args.max_disparity is None else args.max_disparity
    return WorldStereo(args.count, height, width, max_disparity=bound, **common)
