"""Which entries of a supernet's parameters some subnets use."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...elastic.base import ElasticModule, Part, parts
from ...space import Architecture, Scalar, SearchSpace
from ...supernet import search_space

__all__ = ["Region", "active_regions", "grid", "views"]

Region = tuple[int, tuple[Part, ...]]  #: a dimension and the parts of it that are in use


def active_regions(
    net: nn.Module, architectures: Sequence[Architecture]
) -> dict[int, list[Region]]:
    """By its `id`, of each parameter that channels are chosen of, the channels that subnets use.

    Where several subnets use different ones, all of them. Left out are parameters that are used
    whole, and those of converted layers, whose channels lie scattered. Gradients are zero outside.
    """
    space = search_space(net)
    chosen = [space.validate(architecture) for architecture in architectures]
    used: dict[int, list[Region] | None] = {}
    for module in net.modules():
        axes = module.axes() if isinstance(module, ElasticModule) else ()
        for name, parameter in module.named_parameters(recurse=False):
            regions = []
            for axis in (axis for axis in axes if axis.tensor == name):
                size = parameter.shape[axis.dim]
                union = _union([parts(axis.number, _known(a, space)) for a in chosen], size)
                if union != ((0, size),):
                    regions.append((axis.dim, union))
            # A parameter that a second layer shares may be used elsewhere.
            used[id(parameter)] = None if id(parameter) in used else regions
    return {key: regions for key, regions in used.items() if regions}


def views(tensor: Tensor, regions: Sequence[Region] | None) -> list[Tensor]:
    """The blocks of a tensor that the regions leave, as views."""
    blocks = []
    for choice in itertools.product(*(where for _, where in regions or ())):
        block = tensor
        for (dim, _), (start, length) in zip(regions or (), choice, strict=True):
            block = block.narrow(dim, start, length)
        blocks.append(block)
    return [block for block in blocks if block.numel()]


def grid(shape: Sequence[int], regions: Sequence[Region]) -> tuple[Tensor, ...]:
    """Indices, one for each dimension, that pick of a tensor what the regions leave."""
    used, indices = dict(regions), []
    for dim, size in enumerate(shape):
        ranges = [torch.arange(start, start + n) for start, n in used.get(dim, ((0, size),))]
        across = [-1 if axis == dim else 1 for axis in range(len(shape))]
        indices.append(torch.cat([torch.arange(0), *ranges]).view(across))
    return tuple(indices)


def _known(architecture: Architecture, space: SearchSpace) -> dict[str, Scalar]:
    # A layer whose choice has no value does not run, so any value does.
    given = {name: value for name, value in architecture.items() if value is not None}
    return {choice.name: given.get(choice.name, choice.smallest) for choice in space}


def _union(choices: Sequence[tuple[Part, ...]], size: int) -> tuple[Part, ...]:
    used = torch.zeros(size, dtype=torch.bool)
    for start, length in itertools.chain.from_iterable(choices):
        used[start : start + length] = True
    ends = nn.functional.pad(used.int(), (1, 1)).diff().nonzero().flatten().tolist()
    return tuple((start, stop - start) for start, stop in zip(ends[::2], ends[1::2], strict=True))
