"""`vizoo scans`: write generated CT scans to disk, in a published layout or as DICOM series."""

from __future__ import annotations

import argparse

from ..common.progress import progress
from ._work import add_lists, add_size, check_folder, check_least, parse_size, warn

_LAYOUTS = ("cc-ccii", "mosmed", "covid-ctset", "dicom")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("out", metavar="OUT", help="folder of the data set")
    parser.add_argument(
        "--layout",
        default="mosmed",
        choices=_LAYOUTS,
        help="cc-ccii (PNG slices, three classes), mosmed (NIfTI, two), covid-ctset (16-bit TIFF "
        "slices, two) or dicom (series, three); default: mosmed",
    )
    add_lists(parser, "scans")
    add_size(parser, "128x128", "of a slice")
    parser.add_argument("--slices", type=int, default=40, help="of a scan (default: 40)")
    parser.add_argument("--seed", type=int, default=0, help="which scans (default: 0)")


def run(args: argparse.Namespace) -> int:
    """Make the scans, write them, say where; return 0."""
    from ..common.files import few
    from ..datasets.ct import write_scans

    check_least(args, slices=2)
    shape = (args.slices, *parse_size(args.size))
    out = check_folder(args.out, "OUT")
    with progress() as report:
        path = write_scans(out, args.layout, args.scans, shape, args.seed, report)
    made = {f"{args.seed}{number:04d}" for number in range(sum(args.scans))}
    there = {file.name.removesuffix("_lesion.nii.gz") for file in (path / "lesions").iterdir()}
    if others := there - made:
        warn(f"{path}: scans of other runs are there too: {few(sorted(others))}")
    print(
        f"{path}: {sum(args.scans)} scans of {args.slices} slices of {args.size} pixels; "
        "train.json, val.json, test.json; where lesions are: lesions"
    )
    return 0
