"""Layers whose channels are known by their class: convolutions, linear layers, normalisations."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from .labels import Channels, Ledger

__all__ = ["Layer", "is_computed", "known_layer"]

_ACROSS = "it mixes entries along other dimensions than its channels"


@dataclass
class Layer:
    """The labels of a layer's channels, and which entries of its tensors they are."""

    name: str
    module: nn.Module
    #: tensor's name and dimension → labels of the entries
    axes: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    #: attribute's name → the labels that it counts
    counts: dict[str, Tensor] = field(default_factory=dict)
    reads: Tensor | None = None  #: labels of the channels that it takes
    writes: Tensor | None = None  #: labels of the channels that it gives; not of what it keeps
    runs: int = 0  #: how often it ran

    def mapped(self, function: Callable[[Tensor], Tensor]) -> Layer:
        """The layer with other labels."""
        changed = copy.copy(self)
        changed.axes = {place: function(labels) for place, labels in self.axes.items()}
        changed.counts = {name: function(labels) for name, labels in self.counts.items()}
        for name in ("reads", "writes", "out"):
            if isinstance(labels := getattr(self, name, None), Tensor):
                setattr(changed, name, function(labels))
        changed.runs = 0
        return changed

    def fix(self, ledger: Ledger, why: str) -> None:
        """Say that all its channels have to stay."""
        for labels in (*self.axes.values(), *self.counts.values()):
            ledger.fix(labels, why)

    def apply(self, ledger: Ledger, given: Channels | None, y: Tensor) -> Channels | None:
        """The channels of the output `y` for an input with the channels `given`."""
        raise NotImplementedError

    def _add_axes(self, ledger: Ledger, labels: Tensor) -> None:
        """Give every tensor these labels along its first dimension; all stay if one has another."""
        for name, tensor in (*self.module._parameters.items(), *self.module._buffers.items()):
            if tensor is None or (name, 0) in self.axes or tensor.numel() == 1:
                continue
            if tensor.shape[0] != len(labels):
                self.fix(ledger, f"{self.name} has parameters of its own")
                return
            self.axes[name, 0] = labels


class _Reader(Layer):
    """A convolution or linear layer: all outputs read all inputs, in groups perhaps."""

    reads: Tensor

    def __init__(self, name: str, module: Any, ledger: Ledger) -> None:
        super().__init__(name, module)
        convolution = isinstance(module, _ConvNd)
        transposed = isinstance(module, _ConvTransposeNd)
        self.dims = module.weight.dim() - 2
        names = ("in_channels", "out_channels") if convolution else ("in_features", "out_features")
        n_in, n_out = (getattr(module, name) for name in names)
        groups = module.groups if convolution else 1
        self.reads, out = ledger.new(n_in), ledger.new(n_out)
        self.depthwise = groups > 1 and n_in == groups
        why = f"{name} has groups"
        if self.depthwise:
            ledger.unite(out, self.reads.repeat_interleave(n_out // groups), why)
            self.counts["groups"] = self.reads
        elif groups > 1:
            for labels in (self.reads, out):
                ledger.unite(labels.view(groups, -1), labels[: len(labels) // groups], why)
        self.out = out
        self.writes = None if self.depthwise else out
        self.counts |= {names[0]: self.reads, names[1]: out}
        first, second = (self.reads, out) if transposed else (out, self.reads)
        self.axes["weight", 0] = first
        if not self.depthwise:
            self.axes["weight", 1] = second[: module.weight.shape[1]]
        self._add_axes(ledger, out)

    def apply(self, ledger: Ledger, given: Channels | None, y: Tensor) -> Channels | None:
        dim = y.dim() - self.dims - 1
        if given is not None and given.dim != dim:
            self.fix(ledger, f"{self.name} is applied along another dimension than channels")
            if given.dim > dim:  # a convolution over channels
                ledger.fix(given.labels, f"{self.name}: {_ACROSS}")
                return None
            return given
        if given is None:
            ledger.fix(self.reads, f"the input of {self.name} has a fixed size")
        else:
            ledger.unite(self.reads, given.labels, f"read by {self.name}")
        return Channels(dim, self.out)


class _Keeper(Layer):
    """A normalisation or activation with parameters: channel by channel."""

    reads: Tensor

    def __init__(self, name: str, module: Any, ledger: Ledger, attribute: str) -> None:
        super().__init__(name, module)
        size = getattr(module, attribute)
        size = size[0] if isinstance(size, tuple) else size
        self.reads = ledger.new(size)
        self.counts[attribute] = self.reads
        self._add_axes(ledger, self.reads)
        if isinstance(module, nn.GroupNorm) and module.num_groups > 1:
            groups = self.reads.view(-1, size // module.num_groups)
            ledger.unite(groups, groups[:, :1], f"{name} normalises in groups")
            self.counts["num_groups"] = groups[:, 0]

    def apply(self, ledger: Ledger, given: Channels | None, y: Tensor) -> Channels | None:
        if given is None or given.dim != self._dim(given, y):
            ledger.fix(self.reads, f"the input of {self.name} has a fixed size")
            return given
        if len(given.labels) != len(self.reads):
            ledger.fix(given.labels, f"{self.name}: {_ACROSS}")
            ledger.fix(self.reads, f"{self.name}: {_ACROSS}")
            return None
        ledger.unite(self.reads, given.labels, f"kept by {self.name}")
        return given

    def _dim(self, given: Channels, y: Tensor) -> int:
        if not isinstance(self.module, nn.LayerNorm | nn.RMSNorm):
            return 1
        if type(self.module).forward in (nn.LayerNorm.forward, nn.RMSNorm.forward):
            return y.dim() - 1
        return given.dim if y.shape[given.dim] == len(self.reads) else y.dim() - 1


def known_layer(name: str, module: nn.Module, ledger: Ledger) -> Layer | None:
    """The labels of a layer of a class that is known, or of a class made of it."""
    lazy = isinstance(getattr(module, "weight", None), nn.parameter.UninitializedParameter)
    if lazy or isinstance(module, nn.MultiheadAttention):
        return None
    if isinstance(module, _ConvNd | nn.Linear):
        return None if is_computed(module) else _Reader(name, module, ledger)
    for kind, attribute in _KEEPERS.items():
        if isinstance(module, kind):
            size: Any = getattr(module, attribute)
            several = isinstance(size, tuple) and len(size) > 1
            return None if several or size == 1 else _Keeper(name, module, ledger, attribute)
    return None


def is_computed(module: nn.Module) -> bool:
    """Whether it is a convolution or linear layer whose weight is no parameter of its own."""
    return isinstance(module, _ConvNd | nn.Linear) and "weight" not in module._parameters


_KEEPERS: dict[type[nn.Module], str] = {
    _NormBase: "num_features",
    nn.GroupNorm: "num_channels",
    nn.LayerNorm: "normalized_shape",
    nn.RMSNorm: "normalized_shape",
    nn.PReLU: "num_parameters",
}
