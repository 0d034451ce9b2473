"""NASBench-201: the cells whose accuracies are all known, as a supernet or one network each.

Dong and Yang, "NAS-Bench-201", ICLR 2020, arXiv 2001.00326; as a supernet in NAS-LID (AAAI 2023,
arXiv 2211.12759). A cell has four nodes; each of its six edges carries one of five operations, and
all cells of a network are alike. Accuracies are read by `vizoo.nas.tabular.nasbench201`, whose
search space is this network's.

What differs from the published programs: images enter in [0, 1] and are normalised within.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from ...nas.space import Choice
from ...nas.tabular import CELL_EDGES, CELL_OPERATIONS, cell_architecture
from ...vision.hub.registry import register_model
from ...vision.layers import ConvNorm
from ._searched import SearchedClassifier, operations, searched_operation

__all__ = ["NASBench201", "convert_published", "nasbench201"]

_MOST_CELLS = 100  # a stage; a file that claims more would take minutes until it is refused
_PUBLISHED = ("none", "avg_pool_3x3", "nor_conv_3x3", "nor_conv_1x1", "skip_connect")


class Zero(nn.Module):
    """No edge."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 0


class _ReLUConvNorm(nn.Sequential):
    """ReLU, convolution without bias, batch norm."""

    def __init__(self, in_channels: int, channels: int, kernel: int, stride: int = 1) -> None:
        super().__init__(
            nn.ReLU(),
            nn.Conv2d(in_channels, channels, kernel, stride, kernel // 2, bias=False),
            nn.BatchNorm2d(channels),
        )


class Cell(nn.Module):
    """Four nodes; each sums what its edges make of the nodes before it.

    An edge has the choice of its operation, or an operation's name.
    """

    def __init__(self, channels: int, choices: Mapping[str, Choice | str]) -> None:
        super().__init__()
        self.edges = nn.ModuleDict()
        for edge, choice in choices.items():
            self.edges[edge] = searched_operation(choice, _operation, channels)

    def forward(self, x: Tensor) -> Tensor:
        edges = self.edges
        first = edges["0_1"](x)
        second = edges["0_2"](x) + edges["1_2"](first)
        return edges["0_3"](x) + edges["1_3"](first) + edges["2_3"](second)


class _Reduction(nn.Module):
    """Halves height and width: a residual block."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.first = _ReLUConvNorm(in_channels, channels, 3, 2)
        self.second = _ReLUConvNorm(channels, channels, 3)
        self.shortcut = nn.Conv2d(in_channels, channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        # As with `ceil_mode`, by which programs that Inductor compiles for any size read beyond x.
        pooled = F.avg_pool2d(F.pad(x, (0, 1, 0, 1), mode="replicate"), 2)
        return self.second(self.first(x)) + self.shortcut(pooled)


class NASBench201(SearchedClassifier):
    """The supernet of all cells, or the network of one.

    Args:
        classes: outputs.
        channels: of the first stage; each of the other two has twice as many as the one before.
        cells: of a stage, at most 100.
        subnet: of one cell's network; None for the supernet.

    Raises:
        ValueError: fewer than two classes, no channels, no or too many cells, or no subnet of this
            space.
    """

    def __init__(
        self,
        classes: int = 10,
        channels: int = 16,
        cells: int = 5,
        subnet: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(classes)
        if channels < 1 or not 1 <= cells <= _MOST_CELLS:
            raise ValueError(
                f"channels {channels}, cells {cells}: give 1 channel or more and 1 to "
                f"{_MOST_CELLS} cells"
            )
        known = (Choice(f"edges.{edge}", CELL_OPERATIONS) for edge in CELL_EDGES)
        choices = dict(zip(CELL_EDGES, operations(known, subnet).values(), strict=True))
        self.stem = ConvNorm(3, channels, 3)
        layers: list[nn.Module] = []
        for width in (channels, 2 * channels, 4 * channels):
            if layers:
                layers.append(_Reduction(width // 2, width))
            layers += [Cell(width, choices) for _ in range(cells)]
        self.cells = nn.Sequential(*layers)
        self.norm = nn.BatchNorm2d(4 * channels)
        self.classifier = nn.Linear(4 * channels, classes)

    def features(self, x: Tensor) -> Tensor:
        """What is averaged for the classifier, (B, 4 · channels, H/4, W/4), rounded up."""
        return F.relu(self.norm(self.cells(self.stem(x))))


def _operation(name: str, channels: int) -> nn.Module:
    if name == "avg_pool_3x3":
        return nn.AvgPool2d(3, 1, 1, count_include_pad=False)
    if name.startswith("nor_conv"):
        return _ReLUConvNorm(channels, channels, int(name[-1]))
    return Zero() if name == "none" else nn.Identity()


def convert_published(state: Mapping[str, Tensor]) -> tuple[str, dict[str, Any], dict[str, Tensor]]:
    """Read weights of the published supernet, tensors by their published names.

    Returns:
        The model's name, its architecture arguments and its state.

    Raises:
        ValueError: these are other weights.
    """
    for needed in ("lastact.0.weight", "stem.0.weight", "classifier.bias"):
        if needed not in state:
            raise ValueError(f"these are not the weights of NASBench-201: no {needed}")
    renamed, count = {}, 0
    for name, value in state.items():
        try:
            renamed[_renamed(name)] = value
            if name.startswith("cells."):
                count = max(count, 1 + int(name.split(".")[1]))
        except (IndexError, ValueError):
            raise ValueError(
                f"these are not the weights of NASBench-201: {name} is no tensor of its cells"
            ) from None
    if count < 5:
        raise ValueError(
            f"these are not the weights of NASBench-201: {count} of 5 cells or more, of which two "
            "halve"
        )
    shape = {"channels": len(state["stem.0.weight"]), "cells": (count - 2) // 3}
    return "nasbench201", {"classes": len(state["classifier.bias"]), **shape}, renamed


def _renamed(name: str) -> str:
    parts = name.split(".")
    if parts[0] == "lastact":
        return f"norm.{'.'.join(parts[2:])}"
    if parts[0] != "cells":
        return name
    if parts[2] == "layers":
        node, source, candidate = parts[3], parts[4], _PUBLISHED[int(parts[6])]
        return ".".join(["cells", parts[1], "edges", f"{source}_{node}", candidate, *parts[8:]])
    blocks = {"conv_a": "first", "conv_b": "second"}
    if parts[2] in blocks:
        return ".".join(["cells", parts[1], blocks[parts[2]], *parts[4:]])
    return ".".join(["cells", parts[1], "shortcut", parts[-1]])


@register_model(task="classification")
def nasbench201(
    *,
    classes: int = 10,
    channels: int = 16,
    cells: int = 5,
    cell: str | None = None,
    subnet: Mapping[str, Any] | None = None,
) -> NASBench201:
    """NASBench-201: the supernet, the network of a cell (`|none~0|+|none~0|…`), or a subnet."""
    if cell is not None and subnet is not None:
        raise ValueError("give either a cell or a subnet, not both")
    if cell is not None:
        subnet = cell_architecture(cell).to_json()
    return NASBench201(classes, channels, cells, subnet)
