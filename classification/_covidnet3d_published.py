"""CovidNet3D as it was published: its sizes, its encodings and its checkpoints."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from ..nas.space import Architecture

__all__ = [
    "CONVOLUTIONS",
    "PLANS",
    "Plan",
    "choice_name",
    "convert_published",
    "published_architecture",
]


class Plan(NamedTuple):
    """The stages of a network."""

    widths: tuple[int, ...]  #: channels of each stage
    cells: tuple[int, ...]  #: their number in each
    strides: tuple[int, ...]  #: of the first cell of each

    @property
    def total(self) -> int:
        """All cells."""
        return sum(self.cells)

    def place(self, number: int) -> tuple[int, int]:
        """Stage and index of a cell by its number."""
        for stage, count in enumerate(self.cells):
            if number < count:
                return stage, number
            number -= count
        raise ValueError(f"there are {self.total} cells")


_SIX = {"cells": (4, 4, 4, 4, 4, 1), "strides": (2, 2, 2, 1, 2, 1)}
PLANS = {
    "covidnet3d_s": Plan((24, 40, 80, 96, 192, 320), **_SIX),
    "covidnet3d_l": Plan((32, 64, 128, 256, 512, 1024), **_SIX),
    "covidnet3d_tiny": Plan((16, 24, 32), (2, 2, 1), (2, 2, 1)),
}

CONVOLUTIONS = {
    f"mbconv{kernel}_{ratio}": (kernel, ratio)
    for kernel, ratio in ((3, 3), (3, 4), (3, 6), (5, 3), (5, 4), (7, 3), (7, 4))
}
"""Name of an inverted residual to its kernel and expansion, in the published order."""

_ENCODED = (*CONVOLUTIONS, "identity", "skip", "skip")


def choice_name(plan: Plan, number: int) -> str:
    """The name of a cell's choice."""
    return "stages.{}.blocks.{}".format(*plan.place(number))


def published_architecture(
    encoding: Sequence[int], plan: Plan = PLANS["covidnet3d_s"]
) -> Architecture:
    """The architecture that a published encoding stands for.

    Args:
        encoding: a number for each cell, 21 for S and L: 0 to 6 the inverted residuals 3/3, 3/4,
            3/6, 5/3, 5/4, 7/3, 7/4 (kernel/expansion), 7 the identity, 8 and 9 a skip; 9 not in
            the first cell of a stage.
        plan: of the network.

    Raises:
        ValueError: a wrong count, or a number that is not one of these.
    """
    if len(encoding) != plan.total:
        raise ValueError(f"an encoding of this network has {plan.total} numbers: {len(encoding)}")
    values = {}
    for number, code in enumerate(encoding):
        highest = 9 if plan.place(number)[1] else 8
        if isinstance(code, bool) or not isinstance(code, int) or not 0 <= code <= highest:
            raise ValueError(
                f"number {number} of the encoding is {code!r}: must be 0 to {highest} there"
            )
        values[choice_name(plan, number)] = _ENCODED[code]
    return Architecture(values)


_RENAMES = (
    (r"^first_conv\.", "stem."),
    (r"^feature_mix_layer\.", "head."),
    (r"^classifier\.linear\.", "classifier."),
    (r"^blocks\.0\.", "first."),
    (r"\.inverted_bottleneck\.", ".expand."),
    (r"^(.*)\bdepth_conv\.", r"\1depthwise."),
    (r"^(.*)\bpoint_linear\.", r"\1project."),
    (r"\.bn\.", ".norm."),
)
_CALIBRATION = re.compile(r"blocks\.(\d*[13579])\.conv\.(weight|bias)")
_CHOICE = re.compile(r"blocks\.(\d*[02468])\.mobile_inverted_conv\.choices\.(\d+)\.(.+)")


def convert_published(state: dict[str, Tensor]) -> tuple[str, dict[str, object], dict[str, Tensor]]:
    """Recognise a published checkpoint of the supernet or of a subnet and rename its tensors.

    Tensors do not tell a skip from the identity, which doubles its input where there is a
    residual: a warning says which cells were taken for skips, and the option `encoding` of
    `vizoo convert` says what they are.

    Args:
        state: tensors by published name, without a `module.` prefix.

    Returns:
        The model, its architecture arguments, and its state dict.

    Raises:
        ValueError: the tensors are not CovidNet3D's.
    """
    if "first_conv.conv.weight" not in state or "classifier.linear.weight" not in state:
        raise ValueError(
            "these are not the weights of CovidNet3D: no first_conv.conv or no classifier.linear"
        )
    name = _name_of(state)
    plan = PLANS[name]
    chosen: dict[int, set[int]] = {}
    for key in state:
        if match := _CHOICE.fullmatch(key):
            chosen.setdefault(int(match[1]) // 2 - 1, set()).add(int(match[2]))
    arguments: dict[str, object] = {"classes": len(state["classifier.linear.weight"])}
    supernet = any(len(codes) > 1 for codes in chosen.values())
    if supernet:
        arguments["identity"] = True
    else:
        encoding = [chosen.get(number, {8}).copy().pop() for number in range(plan.total)]
        arguments["encoding"] = encoding
        doubtful = [n for n, code in enumerate(encoding) if code == 8 and plan.place(n)[1]]
        if doubtful:
            warnings.warn(
                f"cells {', '.join(map(str, doubtful))} have no weights and were taken for skips "
                "(8); if the encoding has the identity (7) there, give it",
                stacklevel=2,
            )
    return name, arguments, {_renamed(key, plan, supernet): state[key] for key in state}


def _name_of(state: Mapping[str, Tensor]) -> str:
    widths = {}
    for key, tensor in state.items():
        match = _CALIBRATION.fullmatch(key)
        if match and match[2] == "weight":
            widths[int(match[1]) // 2] = len(tensor)
    for name, plan in PLANS.items():
        if widths == {n: plan.widths[plan.place(n)[0]] for n in range(plan.total)}:
            return name
    raise ValueError(
        f"CovidNet3D with {len(widths)} cells of widths {sorted(set(widths.values()))} is none of "
        f"{', '.join(PLANS)}"
    )


def _renamed(key: str, plan: Plan, supernet: bool) -> str:
    if match := _CALIBRATION.fullmatch(key):
        stage, index = plan.place(int(match[1]) // 2)
        return f"stages.{stage}.{index}.calibrate.{match[2]}"
    if match := _CHOICE.fullmatch(key):
        stage, index = plan.place(int(match[1]) // 2 - 1)
        code = int(match[2])
        operation = f".{_ENCODED[code]}" if supernet and code < len(_ENCODED) else ""
        key = f"stages.{stage}.{index}.operation{operation}.{match[3]}"
    for pattern, replacement in _RENAMES:
        key = re.sub(pattern, replacement, key)
    return key
