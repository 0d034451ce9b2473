"""A network's channels, followed while it runs once on example inputs.

The operators are seen as they run, below modules and autograd, so that a network is traced whatever
its code looks like; only code that asks for the values of tensors is not.
"""

from __future__ import annotations

import re
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten
from torch.utils.weak import WeakTensorKeyDictionary

from ..elastic.base import ElasticModule
from .labels import Channels, Ledger
from .layers import Layer, known_layer
from .rules import propagate, tensors

__all__ = ["HEADS", "Block", "Trace", "trace"]

_TAKEN = {name for name in vars(ElasticModule) if not name.startswith("_")} - {"forward"}
#: names of attributes that are numbers of heads
HEADS = re.compile(r"(n|num)?_?heads?|nhead")


@dataclass
class Block:
    """A child of a sequence as it ran, which may be left out if it gives what it takes.

    It takes and gives a tensor, or several ones in the same order.
    """

    before: list[Channels | None]
    after: list[Channels | None]
    shape: list[torch.Size] | None  #: of inputs and outputs, where they are the same
    source: nn.Module | None  #: the block that gave the input


@dataclass
class Trace:
    """What is known of a network once it has run."""

    layers: dict[str, Layer] = field(default_factory=dict)  #: by name
    blocks: dict[str, list[Block]] = field(default_factory=dict)  #: name → each run
    #: module's name and how many there were before in it → which part of divided channels counts
    divisions: dict[tuple[str, int], int] = field(default_factory=dict)
    output: list[torch.Size] = field(default_factory=list)  #: shapes of what the network gives


def trace(
    net: nn.Module, inputs: Sequence[Any], ledger: Ledger, known: Trace | None = None
) -> Trace:
    """Run a network and tell the ledger what ties its channels.

    Args:
        net: in evaluation mode.
        inputs: its arguments.
        ledger: gets the ties.
        known: of an earlier run, whose layers have the labels of this one.

    Raises:
        ValueError: what the network does depends on the values of tensors.
    """
    tracer = _Tracer(net, ledger, known)
    with torch.no_grad(), tracer.watching(net), tracer:
        output = net(*inputs)
    for tensor in tensors(output):
        if (channels := tracer.channels(tensor)) is not None:
            ledger.fix(channels.labels, "output of the network")
    tracer.trace.output = [tensor.shape for tensor in tensors(output)]
    for layer in tracer.trace.layers.values() if known is None else ():
        if not layer.runs:
            layer.fix(ledger, f"{layer.name} does not run on the example inputs")
    return tracer.trace


class _Owner(Layer):
    """A module with parameters that its own forward pass reads, or a number of heads."""


class _Tracer(TorchDispatchMode):
    def __init__(self, net: nn.Module, ledger: Ledger, known: Trace | None) -> None:
        super().__init__()
        self.ledger = ledger
        self.trace = Trace() if known is None else known
        self._first = known is None
        self._names = {module: name for name, module in net.named_modules()}
        self._stack: list[nn.Module] = []
        self._inside = 0  # known layers, whose operators are theirs
        self._channels = WeakTensorKeyDictionary()
        # Of known layers. That values of inputs are looked at, to refuse wrong ones, is no matter.
        self._computed = WeakTensorKeyDictionary()
        self._made_by = WeakTensorKeyDictionary()
        self._divided: Counter[str] = Counter()
        self._layers = {layer.module: layer for layer in self.trace.layers.values()}
        if self._first:
            for name, module in net.named_modules():
                if (layer := known_layer(name, module, ledger)) is not None:
                    self._layers[module] = self.trace.layers[name] = layer
            for name, module in net.named_modules():
                for part in module.modules() if _is_one_operator(module) else ():
                    if (layer := self._layers.get(part)) is not None:
                        layer.fix(ledger, f"one operator computes all of {name or 'the network'}")
        self._held: dict[int, tuple[nn.Module, str]] = {}
        for module in net.modules():
            for name, tensor in (*module._parameters.items(), *module._buffers.items()):
                if tensor is not None:
                    self._hold(module, name, tensor)

    def _hold(self, module: nn.Module, name: str, tensor: Tensor) -> None:
        other, _ = self._held.setdefault(id(tensor), (module, name))
        for owner in (module, other) if other is not module else ():
            if (layer := self._layers.get(owner)) is not None:
                layer.fix(self.ledger, f"{layer.name} shares its {name} with another layer")

    def channels(self, tensor: Tensor) -> Channels | None:
        """Of a tensor, also of a parameter that is met outside of a known layer."""
        if self._stack and isinstance(own := self._layers.get(self._stack[-1]), _Owner):
            for (name, dim), labels in own.axes.items():
                if vars(own.module).get(name) is tensor:  # a slice of its parameter
                    return Channels(dim, labels)
        if tensor not in self._channels and id(tensor) in self._held:
            self._channels[tensor] = self._met(tensor, *self._held[id(tensor)])
        return self._channels.get(tensor)

    def _met(self, tensor: Tensor, module: nn.Module, name: str) -> Channels | None:
        layer = self._layers.get(module)
        if layer is not None and not isinstance(layer, _Owner):
            layer.fix(self.ledger, f"{name} of {layer.name} is used outside of the layer")
            return None
        dims = [dim for dim, size in enumerate(tensor.shape) if size > 1]
        if len(dims) > 1 and tensor.dim() in (3, 4) and tensor.shape[0] == 1:
            dims = [2 if tensor.dim() == 3 else 1]  # positions' embeddings
        elif tensor.dim() == 2 and any(
            HEADS.fullmatch(held) and type(number) is int and number == tensor.shape[1]
            for held, number in vars(module).items()
        ):
            dims = [1]  # positions' biases, one for each head
        if len(dims) != 1 or not tensor.is_floating_point():
            return None
        place = name, dims[0]
        if self._first:
            if not self._may_own(module):
                return None
            layer = self._owner(module)
            if place not in layer.axes:
                layer.axes[place] = self.ledger.new(tensor.shape[dims[0]])
        labels = None if layer is None else layer.axes.get(place)
        if labels is None or len(labels) != tensor.shape[dims[0]]:
            return None
        return Channels(dims[0], labels)

    def _owner(self, module: nn.Module) -> Layer:
        if module not in self._layers:
            layer = self._layers[module] = _Owner(self._names[module], module, runs=1)
            self.trace.layers[layer.name] = layer
        return self._layers[module]

    def divided(self, labels: Tensor) -> int:
        # It is that of heads where the module counts them, else the largest that is not written
        # down in the module, from the last one on.
        name = self._names[self._stack[-1]]
        place = name, self._divided[name]
        self._divided[name] += 1
        if self._first:
            self.trace.divisions[place] = self._division(self._stack[-1], labels)
        return self.trace.divisions.get(place, 0)

    def _division(self, module: nn.Module, labels: Tensor) -> int:
        sizes = {dim: size for dim, size in enumerate(labels.shape) if size > 1}
        numbers = {name: n for name, n in vars(module).items() if type(n) is int}
        for name, number in numbers.items():
            heads = HEADS.fullmatch(name) and number in sizes.values()
            if heads and self._may_own(module):
                dim = max(dim for dim, size in sizes.items() if size == number)
                self._owner(module).counts[name] = labels.movedim(dim, 0).flatten(1)[:, 0]
                return dim
        free = {dim: n for dim, n in sizes.items() if n not in numbers.values()} or sizes
        return max(free, key=lambda dim: (free[dim], dim))

    def _is_free(self, module: nn.Module) -> bool:
        return isinstance(self._layers.get(module), _Owner | None)

    def _may_own(self, module: nn.Module) -> bool:
        """Whether it can become elastic for what it holds itself."""
        return self._is_free(module) and not any(hasattr(module, name) for name in _TAKEN)

    def joined(self, labels: Tensor) -> None:
        # A module with heads may have its size written down: that of all heads side by side.
        module = self._stack[-1]
        if not bool((labels[1:] == labels[:-1]).any()):
            return  # heads one after the other, of each image
        if isinstance(layer := self._layers.get(module), _Owner) and layer.counts:
            self.counted(labels)

    def counted(self, labels: Tensor) -> None:
        module = self._stack[-1]
        if not self._first or not self._may_own(module):
            return
        for name, number in vars(module).items():
            if type(number) is int and number == len(labels):
                self._owner(module).counts.setdefault(name, labels)

    def here(self, name: str) -> str:
        where = self._names[self._stack[-1]] if self._stack else ""
        return f"{name} in {where}" if where else name

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        computed = self._inside or any(t in self._computed for t in tensors((args, kwargs)))
        if computed and torch.Tag.data_dependent_output in func.tags:
            raise ValueError(f"what it does depends on the values of a tensor{_line()}")
        out = func(*args, **kwargs)
        for tensor in tensors(out) if computed else ():
            self._computed[tensor] = True
        if not self._inside:
            channels = propagate(self, func, args, kwargs, out)
            for tensor in tensors(out):
                self._channels[tensor] = channels.get(id(tensor))
        return out

    @contextmanager
    def watching(self, net: nn.Module) -> Iterator[None]:
        """Follow which module runs; known layers say themselves what they do to channels."""
        blocks = {
            child
            for module in net.modules()
            if isinstance(module, nn.Sequential | nn.ModuleList)
            for child in module
            if any(True for _ in child.children())
        }
        befores: list[list[Channels | None]] = []

        def taken(args: Any, kwargs: Any) -> tuple[list[Tensor], Any]:
            """The tensors of the first argument that has some, and how they are held."""
            for value in (*args, *kwargs.values()):
                leaves, form = tree_flatten(value)
                if leaves and all(isinstance(leaf, Tensor) for leaf in leaves):
                    return leaves, form
            return [], None

        def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
            x, _ = taken(args, kwargs)
            befores.append([None if self._inside else self.channels(tensor) for tensor in x])
            self._stack.append(module)
            self._inside += not self._is_free(module)

        def leave(module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
            before = befores.pop()
            self._stack.pop()
            self._inside -= not self._is_free(module)
            if self._inside:
                return
            x, form = taken(args, kwargs)
            if not self._is_free(module):
                layer = self._layers[module]
                if x and isinstance(out, Tensor):
                    layer.runs += 1
                    with _disable_current_modes():  # labels are no tensors of the network
                        self._channels[out] = layer.apply(self.ledger, before[0], out)
                else:
                    layer.fix(self.ledger, f"{layer.name} gives no tensor")
            elif module in blocks and x:
                given, given_form = tree_flatten(out)
                kind = [(t.shape, t.device) for t in x]
                same = form == given_form and kind == [(t.shape, t.device) for t in given]
                after = [self.channels(t) for t in given] if same else []
                shape = [t.shape for t in x] if same else None
                block = Block(before, after, shape, self._made_by.get(x[0]))
                self.trace.blocks.setdefault(self._names[module], []).append(block)
                for tensor in tensors(given):
                    self._made_by[tensor] = module

        with ExitStack() as hooks:
            for module in net.modules():
                hooks.enter_context(module.register_forward_pre_hook(enter, with_kwargs=True))
                # The first, so that those of others see what it gives.
                after = module.register_forward_hook(leave, prepend=True, with_kwargs=True)
                hooks.enter_context(after)
            yield


def _is_one_operator(module: nn.Module) -> bool:
    """Whether PyTorch reads the layers' weights behind their backs where none has a hook."""
    if not isinstance(module, nn.TransformerEncoderLayer):
        return False
    return module.self_attn.batch_first and bool(module.activation_relu_or_gelu)


def _line() -> str:
    """Where the network's own code runs now."""
    for frame in reversed(traceback.extract_stack()):
        if "/torch/" not in frame.filename and frame.filename != __file__:
            return f" ({frame.filename}:{frame.lineno}: {frame.line})"
    return ""
