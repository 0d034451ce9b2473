"""`vizoo convert`: a published checkpoint, or one of a training run, to safetensors."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from ..common.warned import collect_warnings
from ._work import check_file, warn

_OPTIONS = ("normalization", "max_disparity", "encoding")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("source", type=Path, help="published checkpoint, .ckpt of `vizoo fit`")
    parser.add_argument("target", type=Path, help="file to write, ending in .safetensors")
    parser.add_argument(
        "--normalization",
        choices=("imagenet", "instance"),
        help="how the network was fed in training, if the file does not say",
    )
    parser.add_argument(
        "--max-disparity",
        type=int,
        metavar="N",
        help="pixels that the network was trained for, if the file does not say",
    )
    parser.add_argument(
        "--encoding",
        type=_numbers,
        metavar="N,N,…",
        help="operations of CovidNet3D's cells, where tensors do not tell a skip from an identity",
    )
    parser.add_argument("--force", action="store_true", help="overwrite the target")


def run(args: argparse.Namespace) -> int:
    """Convert one file."""
    from ..vision.hub.published import recognise
    from ..vision.hub.registry import model_info
    from ..vision.hub.weights import (
        check_finite,
        check_stored,
        names_its_model,
        read_weights,
        write_weights,
    )

    if args.target.suffix.lower() != ".safetensors":
        raise ValueError(f"{args.target}: the target must end in .safetensors")
    if args.target.exists() and not args.force:
        raise FileExistsError(f"{args.target}: exists already; --force overwrites it")
    check_file(args.target, option="target")
    known = names_its_model(args.source)
    with collect_warnings() as notes:
        stored = read_weights(args.source) if known else recognise(args.source)
    given = {name: getattr(args, name) for name in _OPTIONS if getattr(args, name) is not None}
    for name in given:
        if name not in model_info(stored.name).arguments:
            raise ValueError(f"{stored.name} has no --{name.replace('_', '-')}; leave it out")
    if not known and "max_disparity" in model_info(stored.name).arguments:
        if "max_disparity" not in {**stored.architecture, **given}:
            taken = model_info(stored.name).defaults["max_disparity"]
            notes.append(
                f"{args.source} does not say its range: taken for disparities to {taken} px; "
                "--max-disparity N says otherwise"
            )
    stored = replace(stored, architecture={**stored.architecture, **given})
    check_stored(stored, args.source)
    check_finite(stored.state, str(args.source))
    write_weights(stored, args.target)
    for note in notes if args.encoding is None else ():  # those of reading are of the encoding
        warn(note)
    values = sum(tensor.numel() for tensor in stored.state.values())
    print(f"{args.target}: {stored.name}, {len(stored.state)} tensors, {values:,} values")
    return 0


def _numbers(text: str) -> list[int]:
    try:
        return [int(word) for word in text.strip("[]").split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} are not numbers with commas between") from None
