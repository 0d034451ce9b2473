"""`vizoo rooms`: write `vizoo world --camera panorama --place room` as three lists."""

from __future__ import annotations

import argparse
from itertools import accumulate

from ..common.progress import progress
from ._work import add_lists, add_size, check_folder, parse_size

_LAYOUTS = ("stanford2d3d", "matterport3d", "3d60")
_LISTS = ("train", "val", "test")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("out", metavar="OUT", help="folder of the data set")
    parser.add_argument(
        "--layout", default="stanford2d3d", choices=_LAYOUTS, help="default: stanford2d3d"
    )
    add_lists(parser, "rooms")
    add_size(parser, "128x256", "of a panorama")
    parser.add_argument("--seed", type=int, default=0, help="which rooms (default: 0)")


def run(args: argparse.Namespace) -> int:
    """Make the rooms, write them, say where; return 0."""
    from torch.utils.data import Subset

    from ..datasets.panorama.writers import write_panoramas
    from ..datasets.worlds.panorama import WorldPanoramas

    height, width = parse_size(args.size)
    if width != 2 * height:
        raise ValueError(f"--size {args.size}: a panorama is twice as wide as high")
    if min(args.rooms) < 1:
        raise ValueError(f"--rooms {' '.join(map(str, args.rooms))}: want 1 or more of each list")
    rooms = WorldPanoramas(sum(args.rooms), height, seed=args.seed)
    sets = {
        name: Subset(rooms, range(end - count, end))
        for name, count, end in zip(_LISTS, args.rooms, accumulate(args.rooms), strict=True)
    }
    with progress() as report:
        path = write_panoramas(sets, check_folder(args.out, "OUT"), args.layout, report)
    print(f"{path}: {sum(args.rooms)} rooms of {args.size} pixels; train.txt, val.txt, test.txt")
    return 0
