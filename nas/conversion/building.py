"""What becomes elastic of a traced network: channels, kernels, depths; and making it so."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from ..elastic.containers import ElasticModuleList, ElasticSequential
from ..elastic.sliced import Sliced, restored, sliced
from ..values import Central, Choice, Place, Placed, Selection, Value
from .labels import Ties
from .layers import Layer
from .tracing import HEADS, Block

__all__ = ["Candidate", "Group", "Plan", "build", "candidates", "counts_of", "depth_choices"]
__all__ += ["group", "kernel_choice"]

_SEQUENCES: dict[type[nn.Module], Any] = {
    nn.Sequential: ElasticSequential,
    nn.ModuleList: ElasticModuleList,
}


@dataclass
class Group:
    """Channels of one width: what can be left out one by one, the most important ones last."""

    choice: Choice
    classes: Tensor  #: the classes of channels, the most important one first
    counts: dict[Any, int]  #: value of the choice → how many classes it keeps


@dataclass
class Plan:
    """All that is elastic."""

    groups: dict[str, Group] = field(default_factory=dict)  #: by the choice's name
    kernels: dict[str, Choice] = field(default_factory=dict)  #: layer's name → its choice
    depths: dict[str, Choice] = field(default_factory=dict)  #: sequence's name → its choice

    @property
    def choices(self) -> dict[str, Choice]:
        """By name."""
        choices = [group.choice for group in self.groups.values()]
        return {c.name: c for c in (*choices, *self.kernels.values(), *self.depths.values())}

    def without(self, names: Iterable[str]) -> Plan:
        """What is left without some choices."""
        names = set(names)
        return Plan(
            {name: group for name, group in self.groups.items() if name not in names},
            {name: choice for name, choice in self.kernels.items() if choice.name not in names},
            {name: choice for name, choice in self.depths.items() if choice.name not in names},
        )

    def places(self, kinds: Tensor) -> list[Place]:
        """When each class is active."""
        places = [Place()] * len(kinds)
        for group in self.groups.values():
            for rank, index in enumerate(group.classes.tolist()):
                least = next(value for value in group.choice.values if rank < group.counts[value])
                places[index] = Place(group.choice, least, index + 1, int(kinds[index]))
        return places


class Candidate(NamedTuple):
    """Channels that could have a choice of width."""

    layer: str  #: the first that writes them
    classes: Tensor  #: ascending
    each: int  #: how many channels of the layer a class is, in the choice's numbers
    heads: bool  #: whether a class is a head of attention


def candidates(
    layers: Mapping[str, Layer], classes: Tensor, fixed: Iterable[int]
) -> dict[str, Candidate]:
    """Channels of one width, by the names of their choices.

    Args:
        layers: by name, in the network's order.
        classes: (labels,) the class of each label.
        fixed: classes that stay.
    """
    together = Ties()
    together.new(len(classes))
    writers = {name: layer for name, layer in layers.items() if layer.writes is not None}
    free = torch.ones(len(classes), dtype=torch.bool)
    free[list(fixed)] = False
    for layer in writers.values():
        mine = classes[layer.writes].unique()
        mine = mine[free[mine]]
        together.unite(mine[:1], mine, layer.name)
    roots, _ = together.classes()
    heads = {
        int(classes[labels[0]]): f"{layer.name}.{name}"
        for layer in layers.values()
        for name, labels in layer.counts.items()
        if HEADS.fullmatch(name) and len(classes[labels].unique()) == len(labels) > 1
    }
    titled: dict[str, Candidate] = {}
    done: set[int] = set()
    for name, layer in writers.items():
        for root in roots[classes[layer.writes]].unique().tolist():
            if root in done or not free[root]:
                continue
            done.add(root)
            members = (roots == root).nonzero().flatten()
            members = members[classes[members] == members]  # one label for each class
            title = next((heads[m] for m in members.tolist() if m in heads), "")
            mine = int((roots[classes[layer.writes]] == root).sum())
            each = 1 if title or mine % len(members) else mine // len(members)
            of_heads, title = bool(title), title or f"{name}.width"
            while title in titled:
                title += "_"
            titled[title] = Candidate(name, members, each, of_heads)
    return titled


def group(name: str, candidate: Candidate, counts: Sequence[int], order: Tensor) -> Group:
    """A choice between numbers of classes, in an order of importance."""
    choice = Choice(name, tuple(count * candidate.each for count in counts))
    return Group(choice, candidate.classes[order], dict(zip(choice.values, counts, strict=True)))


def counts_of(candidate: Candidate, shares: Sequence[float]) -> list[int]:
    """Shares of the classes, in steps that divide them: of eight, if that makes four of them."""
    count = len(candidate.classes)
    steps = (1,) if candidate.heads else (8, 4, 2, 1)
    step = next(s for s in steps if s == 1 or count % s == 0 and count >= 4 * s)
    rounded = {max(step, int(share * count / step + 0.5) * step) for share in shares}
    return sorted({min(count, number) for number in rounded} | {count})


def kernel_choice(layer: Layer) -> Choice | None:
    """Of a convolution larger than 3 that keeps the size: 3, 5, … up to its own."""
    module = layer.module
    if not isinstance(module, _ConvNd) or isinstance(module, _ConvTransposeNd) or not layer.runs:
        return None
    size, sizes = module.kernel_size[0], set(module.kernel_size)
    half = tuple(size // 2 * gap for gap in module.dilation)
    padded = module.padding in ("same", half) or type(module).__name__ == "Conv2dSame"
    if len(sizes) > 1 or size % 2 == 0 or size <= 3 or not padded or module.padding_mode != "zeros":
        return None
    return Choice(f"{layer.name}.kernel", tuple(range(3, size + 1, 2)))


def depth_choices(
    net: nn.Module, blocks: Mapping[str, list[Block]], ties: Ties
) -> dict[str, Choice]:
    """Of sequences that end in blocks which give what they take; half of them run, rounded down."""
    choices = {}
    for name, module in net.named_modules():
        if type(module) not in _SEQUENCES:
            continue
        prefix, count = f"{name}." if name else "", len(module)
        children, ran = list(module), [blocks.get(prefix + child, []) for child in module._modules]
        first = count
        for index, runs in reversed(list(enumerate(ran))):
            if not runs or not all(map(_fits, runs)):
                break
            chained = index == 0 or type(module) is nn.Sequential
            chained = chained or runs[0].source is children[index - 1]
            alike = type(children[index]) is type(children[-1])
            if not alike or not chained or runs[0].shape != ran[-1][0].shape:
                break
            first = index
        least = max(first, count // 2, 1)
        if least < count:
            for run in itertools.chain.from_iterable(ran[least:]):
                _join(run, ties, f"{name} may be shorter")
            choices[name] = Choice(f"{prefix}depth", range(least, count + 1))
    return choices


def _fits(run: Block) -> bool:
    pairs = zip(run.before, run.after, strict=True)
    return run.shape is not None and all(b is None or a is None or b.dim == a.dim for b, a in pairs)


def _join(run: Block, ties: Ties, why: str) -> None:
    for before, after in zip(run.before, run.after, strict=True):
        if before is not None and after is not None:
            ties.unite(before.labels, after.labels, why)
        elif (one := before or after) is not None:
            ties.fix(one.labels, why)


def build(
    net: nn.Module, layers: Iterable[Layer], classes: Tensor, kinds: Tensor, plan: Plan
) -> None:
    """Make the layers of a network elastic in place, as a plan says and nothing else."""
    places = plan.places(kinds)
    shared: dict[tuple[int, ...], Selection | None] = {}

    def selection(labels: Tensor) -> Selection | None:
        key = tuple(classes[labels].tolist())
        if key not in shared:
            selected = tuple(places[index] for index in key)
            shared[key] = Selection(selected) if any(p.choice for p in selected) else None
        return shared[key]

    for layer in layers:
        module: Any = layer.module
        if isinstance(module, Sliced):
            restored(module)
        cuts: dict[str, dict[int, Placed]] = {}
        attributes: dict[str, Value] = {}
        for (name, dim), labels in layer.axes.items():
            if (chosen := selection(labels)) is not None:
                cuts.setdefault(name, {})[dim] = chosen
        for name, labels in layer.counts.items():
            if (chosen := selection(labels)) is not None:
                attributes[name] = chosen
                if isinstance(getattr(module, name), tuple):
                    attributes[name] = chosen.map(functools.partial(_times, (1,)))
        if (kernel := plan.kernels.get(layer.name)) is not None:
            dims, gaps = module.weight.dim() - 2, module.dilation
            cuts.setdefault("weight", {}).update(dict.fromkeys(range(2, 2 + dims), Central(kernel)))
            attributes["kernel_size"] = kernel.map(functools.partial(_times, (1,) * dims))
            if isinstance(module.padding, tuple) and any(module.padding):
                attributes["padding"] = kernel.map(functools.partial(_half, gaps))
        if cuts or attributes:
            sliced(module, cuts, attributes)
    for name, part in net.named_modules():
        if isinstance(part, ElasticModuleList | ElasticSequential):
            restored(part)
        if name in plan.depths:
            part.__class__ = _SEQUENCES[type(part)]
            part.set_length(plan.depths[name])


def _times(ones: tuple[int, ...], number: int) -> tuple[int, ...]:
    return tuple(number * one for one in ones)


def _half(gaps: tuple[int, ...], kernel: int) -> tuple[int, ...]:
    return tuple(kernel // 2 * gap for gap in gaps)
