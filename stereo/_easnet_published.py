"""EASNet as it was published: its sizes, its settings and its checkpoints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from ..nas.space import Architecture

WIDTHS = (24, 32, 64, 128)
BLOCKS = 4


def expanded(in_channels: int, ratio: float) -> int:
    """The multiple of 8 nearest to that many times the channels, at most a tenth below it."""
    channels = in_channels * ratio
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


def published_architecture(setting: Mapping[str, Any]) -> Architecture:
    """The architecture of `easnet` that a published setting names.

    Args:
        setting: `ks` and `e`, 16 values each, `d`, 4 values, and `s`; one number stands for the
            same everywhere.

    Raises:
        ValueError: an entry is missing or has a wrong length.
    """
    lengths = {"ks": 16, "e": 16, "d": 4, "s": 1}
    if set(setting) != set(lengths):
        raise ValueError(f"a published setting has ks, e, d and s, not {', '.join(setting)}")
    lists = {}
    for key, length in lengths.items():
        value = setting[key]
        lists[key] = [value] * length if isinstance(value, int) else list(value)
        if len(lists[key]) != length:
            raise ValueError(f"{key} must have {length} values, not {len(lists[key])}")
    values = {"scale": lists["s"][0]}
    for stage in range(len(WIDTHS)):
        values[f"stages.{stage}.depth"] = lists["d"][stage]
        for block in range(BLOCKS):
            name, index = f"stages.{stage}.blocks.{block}", BLOCKS * stage + block
            values[f"{name}.kernel"] = lists["ks"][index]
            values[f"{name}.expand"] = lists["e"][index]
    return Architecture(values)


_RENAMES = (
    (r"\.mobile_inverted_conv\.", ".conv."),
    (r"\.(conv|bn)\.\1\.", r".\1."),
    (r"\.conv\.inverted_bottleneck\.conv\.", ".expand."),
    (r"\.conv\.inverted_bottleneck\.bn\.", ".expand_norm."),
    (r"\.conv\.depth_conv\.conv\.(\d)to(\d)_matrix$", r".depthwise.matrix_\1to\2"),
    (r"\.conv\.depth_conv\.conv\.", ".depthwise."),
    (r"\.conv\.depth_conv\.bn\.", ".depthwise_norm."),
    (r"\.conv\.depth_conv\.se\.fc\.reduce\.", ".squeeze.fc1."),
    (r"\.conv\.depth_conv\.se\.fc\.expand\.", ".squeeze.fc2."),
    (r"\.conv\.point_linear\.conv\.", ".project."),
    (r"\.conv\.point_linear\.bn\.", ".project_norm."),
    (r"^aggregation\.final_conv\.", "heads."),
    (r"^aggregation\.fusions\.(\d+)\.branches\.(\d+)\.0\.", r"aggregation.\1.branches.\2."),
    (r"^aggregation\.fusions\.(\d+)\.fuse_layers\.", r"aggregation.\1.exchanges."),
    (r"\.conv2\.deform_conv\.weight$", ".conv2.weight"),
    (r"\.conv2\.offset_conv\.", ".conv2.offsets."),
)


def convert_published(state: dict[str, Tensor]) -> tuple[str, dict[str, object], dict[str, Tensor]]:
    """Recognise a published checkpoint of the supernet or of a subnet and rename its tensors.

    The supernet is known by the doubled parts in its keys. Kernel matrices that a file trained
    without elastic kernels lacks are the identity. Output heads that a published subnet keeps
    beyond its levels are dropped.

    Args:
        state: tensors by published name, without a `module.` prefix.

    Returns:
        `easnet`, its architecture arguments (with the subnet, if it is one), and its state dict.

    Raises:
        ValueError: the tensors are not EASNet's.
    """
    if "refinement.0.conv1.0.weight" not in state or not any(
        key.startswith("feature_extractor.0.") for key in state
    ):
        raise ValueError(
            "these are not the weights of EASNet: no feature_extractor.0 or no refinement.0"
        )
    is_supernet = any(key.endswith(".conv.conv.weight") for key in state)
    renamed = {}
    for key, tensor in state.items():
        for pattern, replacement in _RENAMES:
            key = re.sub(pattern, replacement, key)
        renamed[key] = tensor
    state = _number_blocks(renamed)
    arguments: dict[str, object] = {"published_warp": True}
    if not is_supernet:
        architecture = _architecture_of(state)
        scale = cast(int, architecture["scale"])
        idle = tuple(f"heads.{level}." for level in range(scale, len(WIDTHS)))
        state = {key: tensor for key, tensor in state.items() if not key.startswith(idle)}
        return "easnet", {**arguments, "subnet": architecture.to_json()}, state
    for key in [key for key in state if key.endswith(".depthwise.weight")]:
        for size, name in ((5, "matrix_7to5"), (3, "matrix_5to3")):
            state.setdefault(key.replace("weight", name), torch.eye(size * size))
    return "easnet", arguments, state


def _number_blocks(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Blocks numbered throughout become blocks of stages, which differ in their width."""
    places, width, stage, block = {}, None, 0, 0
    prefix = "feature_extractor."
    for number in sorted({int(key.split(".")[1]) for key in state if key.startswith(prefix)}):
        weight = state.get(f"{prefix}{number}.project.weight")
        if weight is None:
            raise ValueError(f"EASNet's {prefix}{number} has no projection")
        if width not in (None, len(weight)):
            stage, block = stage + 1, 0
        width = len(weight)
        places[str(number)] = f"features.stages.{stage}.{block}"
        block += 1
    return {
        re.sub(r"^feature_extractor\.(\d+)", lambda match: places[match[1]], key): tensor
        for key, tensor in state.items()
    }


def _architecture_of(state: Mapping[str, Tensor]) -> Architecture:
    values: dict[str, int] = {}
    stages: dict[int, int] = {}
    for key, weight in state.items():
        if key.startswith("features.") and key.endswith(".depthwise.weight"):
            stage, block = (int(word) for word in key.split(".")[2:4])
            stages[stage] = max(stages.get(stage, 0), block + 1)
            in_channels = state[key.replace("depthwise", "expand")].shape[1]
            name = f"stages.{stage}.blocks.{block}"
            values[f"{name}.kernel"] = weight.shape[-1]
            ratios = (r for r in (8, 6, 4, 2) if expanded(in_channels, r) == len(weight))
            values[f"{name}.expand"] = next(ratios, 0)
    values |= {f"stages.{stage}.depth": depth for stage, depth in stages.items()}
    values["scale"] = len(stages)
    return Architecture({**dict.fromkeys(_LARGEST), **values})


_LARGEST = published_architecture({"ks": 7, "e": 8, "d": 4, "s": 4})
