"""Int8 as typed: what it is calibrated by, and the error that it may add."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ._work import refuse

if TYPE_CHECKING:
    from torch import nn


def add_int8(parser: argparse.ArgumentParser) -> None:
    """Add --calibrate and --max-loss."""
    parser.add_argument(
        "--calibrate",
        metavar="CONFIG|FOLDER",
        help="pairs for int8: a config's validation, or a folder of pairs, with or without truth "
        "(default: generated scenes)",
    )
    parser.add_argument(
        "--max-loss",
        type=float,
        metavar="PX",
        help="mean error that int8 may add; the most sensitive parts stay in float until it is met "
        "(default 0.2)",
    )


def check_int8(args: argparse.Namespace, precision: str) -> None:
    """Refuse its options for another precision."""
    if precision != "int8":
        refuse(args, ("calibrate", "max_loss", "mixed", "float_parts"), "is for --precision int8")


def calibration(
    args: argparse.Namespace, model: str, net: nn.Module, size: tuple[int, int] | None
) -> dict[str, Any]:
    """Arguments of `export` for int8; generated scenes are of the size, or of a usual one."""
    from ..nas.supernet import architecture_of
    from ..stereo.samples import calibration_samples
    from ..vision.hub.registry import model_info

    name = architecture_of(net).get("name")
    if name is None or model_info(name).task != "stereo":
        raise ValueError(
            f"{model}: int8 is for stereo networks here; of others "
            "vizoo.export(net, …, precision='int8', calibrate=samples) takes samples of yours"
        )
    how: dict[str, Any] = {} if args.max_loss is None else {"max_loss": args.max_loss}
    return {"calibrate": calibration_samples(net, args.calibrate, size), **how}
