"""Make a trained network fast where it only predicts."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torch.utils._pytree import tree_map_only

from ..common.layers import channels_last, evaluating
from ..nas.supernet import active, extract, search_space

__all__ = ["check_prediction", "convert", "evaluating", "folded", "optimize", "standalone"]

_FOLDS: dict[type, type] = {
    nn.Conv1d: nn.BatchNorm1d,
    nn.Conv2d: nn.BatchNorm2d,
    nn.Conv3d: nn.BatchNorm3d,
    nn.ConvTranspose1d: nn.BatchNorm1d,
    nn.ConvTranspose2d: nn.BatchNorm2d,
    nn.ConvTranspose3d: nn.BatchNorm3d,
}


def optimize(net: nn.Module, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Return a frozen copy of a network that predicts the same, faster.

    Call it when the network is on the device it will run on. The copy has the same call; it takes
    and returns float32 whatever `dtype` is, needs no gradients and stays in evaluation mode.

    Any `nn.Module` will do; of a supernet it is the active subnet. A module that defines
    `fused(dtype) -> nn.Module` is replaced by what that returns; elsewhere a batch norm that
    follows a convolution is folded into it. Weights lie in channels-last memory.

    Args:
        net: stays as it is.
        dtype: of the convolutions: float32, bfloat16 or float16.

    Raises:
        ValueError: `dtype` is no floating type of 16 or 32 bits.
    """
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"dtype must be float32, bfloat16 or float16, not {dtype}")
    net = standalone(net)
    if (fused := getattr(net, "fused", None)) is not None:
        fast = _Frozen(fused(dtype), None)
    else:
        fast = _Frozen(convert(copy.deepcopy(net).eval(), dtype), dtype)
    return channels_last(fast.eval().requires_grad_(False))


def standalone(net: nn.Module) -> nn.Module:
    """Of a supernet the active subnet, extracted; any other network itself."""
    return extract(net, active(net)) if len(search_space(net)) else net


def check_prediction(*outputs: Tensor, dtype: torch.dtype) -> None:
    """Refuse what a network predicted in `dtype` where a value is not finite.

    Raises:
        ValueError: one is not.
    """
    if not all(torch.isfinite(output).all() for output in outputs):
        raise ValueError(
            "the network's output is not finite: the weights are damaged or untrained, or "
            f"{str(dtype).removeprefix('torch.')} is too narrow for them (try float32)"
        )


class _Frozen(nn.Module):
    """Runs a network without gradients; where `dtype` is given, casts to it and back to float32."""

    def __init__(self, net: nn.Module, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.net = net
        self.dtype = dtype

    def __deepcopy__(self, memo: dict) -> nn.Module:
        raise TypeError("an optimised network cannot be copied: optimize the network itself again")

    @torch.no_grad()
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(self.net, args, kwargs)

    @torch.no_grad()
    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """The network's method of this name, where it has one."""
        predict: Any = self.net.predict
        return self._run(predict, args, kwargs)

    def _run(self, call: Callable, args: tuple, kwargs: dict) -> Any:
        if self.dtype is None:
            return call(*args, **kwargs)
        args, kwargs = _cast((args, kwargs), self.dtype)
        return _cast(call(*args, **kwargs), torch.float32)


def _cast(values: Any, dtype: torch.dtype) -> Any:
    return tree_map_only(Tensor, lambda x: x.to(dtype) if x.is_floating_point() else x, values)


def folded(net: nn.Module) -> nn.Module:
    """A copy in evaluation mode with batch norms folded into the convolutions before them."""
    net = copy.deepcopy(net).eval()
    for module in net.modules():
        _fold_batch_norms(module)
    return net


def convert(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Change a network in place: its parts' faster forms, batch norms folded, tensors of `dtype`.

    What `optimize` does with a network that defines no `fused` of its own.
    """
    for name, child in module.named_children():
        fused = getattr(child, "fused", None)
        setattr(module, name, convert(child, dtype) if fused is None else fused(dtype))
    _fold_batch_norms(module)
    for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
        tensor.data = _cast(tensor.data, dtype)
    return module


def _fold_batch_norms(module: nn.Module) -> None:
    """Fold each convolution that is followed by a batch norm, and by it alone.

    Only direct children are changed: `forward` stays the module's own, on an identity in place
    of the batch norm.
    """
    children = dict(module.named_children())
    kinds = {type(child) for child in children.values()}
    if not any(_FOLDS.get(kind) in kinds for kind in kinds):
        return
    for first, second in _pairs(module):
        conv, norm = cast("tuple[Any, Any]", (children.get(first), children.get(second)))
        fits = _FOLDS.get(type(conv)) is type(norm)
        if fits and norm.track_running_stats:
            setattr(module, first, fuse_conv_bn_eval(conv, norm, conv.transposed))
            setattr(module, second, nn.Identity())


def _pairs(module: nn.Module) -> list[tuple[str, str]]:
    """Names of children, each run once, of which the second alone takes what the first gives.

    A sequence's are known. Of others tracing shows them, which takes a hundred times as long.
    """
    kind: Any = type(module)
    if kind.forward is nn.Sequential.forward and kind.__iter__ is nn.Sequential.__iter__:
        runs = Counter(map(id, module._modules.values()))
        named = [(name, runs[id(child)]) for name, child in module._modules.items()]
        return [
            (first, second)
            for (first, one), (second, other) in itertools.pairwise(named)
            if one == other == 1
        ]
    try:
        graph = _Tracer().trace(module)
    except Exception:
        return []  # control flow that depends on data: runs as it is
    calls = Counter(node.target for node in graph.nodes if node.op == "call_module")
    pairs = []
    for node in graph.nodes:
        before = node.args[0] if node.args else None
        if node.op != "call_module" or not isinstance(before, fx.Node):
            continue
        if before.op != "call_module" or len(before.users) != 1:
            continue
        if calls[node.target] == calls[before.target] == 1:
            pairs.append((str(before.target), str(node.target)))
    return pairs


class _Tracer(fx.Tracer):
    def is_leaf_module(self, module: nn.Module, qualified_name: str) -> bool:
        return True
