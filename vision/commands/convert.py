"""`vizoo convert`: a published checkpoint, or one of a training run, to safetensors."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("source", type=Path, help="published checkpoint, or a .ckpt of `vizoo fit`")
    parser.add_argument("target", type=Path, help="file to write, ending in .safetensors")
    parser.add_argument("--force", action="store_true", help="overwrite the target")


def run(args: argparse.Namespace) -> int:
    """Convert one file.

    Raises:
        FileNotFoundError: no source.
        FileExistsError: the target is there and ``--force`` was not given.
        ValueError: a file that no model recognises or that does not fit.
    """
    from ..hub.published import recognise
    from ..hub.weights import check_stored, is_lightning, read_weights, write_weights

    if args.target.suffix != ".safetensors":
        raise ValueError(f"{args.target}: the target must end in .safetensors")
    if args.target.exists() and not args.force:
        raise FileExistsError(f"{args.target}: exists already; --force overwrites it")
    if is_lightning(args.source):
        stored = read_weights(args.source)
        check_stored(stored, args.source)
    else:
        stored = recognise(args.source)
    write_weights(stored, args.target)
    values = sum(tensor.numel() for tensor in stored.state.values())
    print(f"{args.target}: {stored.name}, {len(stored.state)} tensors, {values:,} values")
    return 0
