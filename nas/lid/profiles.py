"""What a batch says of the architecture that a supernet runs: dimensions of layers, or gradients.

Both leave the network as it is: hooks live as long as the call, normalisation layers use the
batch's own statistics and keep theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ...common.layers import evaluating
from ..architecture import near
from ..elastic.base import ElasticModule
from ..recalibration import batch_statistics, run_batch
from .estimators import Estimator, sample_dimensions, two_nn

__all__ = ["gradients", "named_layers", "profile"]

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict, ElasticModule)


def named_layers(model: nn.Module, patterns: Sequence[str] | None = None) -> dict[str, nn.Module]:
    """The layers to profile, in the network's order.

    Args:
        model: a network.
        patterns: of names, part by part, such as `cells.*` for the members of `cells`. By default
            the blocks: what has elastic layers as its own, or in its containers.

    Raises:
        ValueError: a pattern meets no layer, or there is nothing elastic.
    """
    modules = {name: module for name, module in model.named_modules() if name}
    if patterns is None:
        elastic = {name: m for name, m in modules.items() if isinstance(m, ElasticModule)}
        if not elastic:
            raise ValueError("the network has nothing elastic: name the layers to profile")
        blocks = {
            name: module
            for name, module in modules.items()
            if not isinstance(module, _CONTAINERS) and _holds_elastic(module)
        }
        return blocks or dict(elastic)
    for pattern in patterns:
        if not any(_meets(name, pattern) for name in modules):
            raise ValueError(f"no layer is called {pattern!r}{near(pattern, modules)}")
    return {n: module for n, module in modules.items() if any(_meets(n, p) for p in patterns)}


def profile(
    model: nn.Module,
    batch: Any,
    layers: Mapping[str, nn.Module] | None = None,
    *,
    k: int = 20,
    estimator: Estimator = "paper",
    running_statistics: bool = False,
    forward: Callable[[nn.Module, Any], object] | None = None,
) -> Tensor:
    """The local intrinsic dimension of each layer's output for a batch.

    No gradients, and no more than one layer's output is held beyond the forward pass.

    Args:
        model: a supernet with its architecture active, or any other network.
        batch: arguments of `model`, a tuple or list, or one tensor.
        layers: as `named_layers` gives them, which is the default.
        k: neighbours, see `lid`; `two_nn` has its two.
        estimator: see `lid` and `two_nn`.
        running_statistics: normalise by the layers' own statistics instead of the batch's.
        forward: called as ``forward(model, batch)`` instead, for batches of any other kind.

    Returns:
        (layers,), float64: the mean over samples, and over the calls of a layer that runs several
        times; NaN for one that does not run. Samples whose neighbours are all equally far, as where
        nearly all of a layer's outputs are 0, have no dimension and are left out.

    Raises:
        ValueError: a layer's output is not (samples, …), or has too few samples, values that are
            not finite, or no sample with a dimension.
    """
    layers = named_layers(model) if layers is None else layers
    dimensions: dict[str, list[Tensor]] = {name: [] for name in layers}

    def measure(name: str, layer: nn.Module, inputs: Any, output: Any) -> None:
        tensors = [t for t in tree_leaves(output) if isinstance(t, Tensor)]
        if not tensors:
            raise ValueError(f"layer {name!r} returns no tensor, so it has no dimension")
        if bare := [tuple(t.shape) for t in tensors if t.dim() < 2]:
            raise ValueError(
                f"layer {name!r}: its output has the shape {bare[0]}, not (samples, …): name other "
                "layers to profile"
            )
        if len(counts := {len(t) for t in tensors}) > 1:
            numbers = " and ".join(map(str, sorted(counts)))
            raise ValueError(
                f"layer {name!r}: its outputs have {numbers} samples: name other layers to profile"
            )
        flat = [t.flatten(1) for t in tensors]
        features = flat[0] if len(flat) == 1 else torch.cat(flat, 1)
        try:
            if estimator == "two_nn":
                values = two_nn(features)
            else:
                values = sample_dimensions(features, k, estimator)
            if values.isnan().all():
                raise ValueError(
                    f"the {k} nearest neighbours of every sample are all equally far, which fits "
                    "any dimension"
                )
        except ValueError as error:
            raise ValueError(f"layer {name!r}: {error}") from error
        dimensions[name].append(values.nanmean())

    mode = evaluating if running_statistics else batch_statistics
    with ExitStack() as hooks, torch.no_grad(), mode(model):
        for name, layer in layers.items():
            hooks.enter_context(layer.register_forward_hook(partial(measure, name)))
        run_batch(model, batch, forward)
    missing = torch.tensor(torch.nan, dtype=torch.float64)
    means = (torch.stack(calls).mean().cpu() if calls else missing for calls in dimensions.values())
    return torch.stack(list(means))


def gradients(
    model: nn.Module, batch: Any, loss: Callable[[nn.Module, Any], Tensor]
) -> dict[str, Tensor]:
    """The gradient of a loss for every parameter that the active architecture uses, by name, flat.

    Gradient matching compares these (Hu et al., "Generalizing Few-Shot NAS with Gradient
    Matching", ICLR 2022). What the parameters hold in `grad` stays. The loss is called as
    ``loss(model, batch)``, and scalar.
    """
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    with batch_statistics(model), torch.enable_grad():
        value = loss(model, batch)
        slopes = torch.autograd.grad(value, list(parameters.values()), allow_unused=True)
    named = zip(parameters, slopes, strict=True)
    return {name: slope.flatten() for name, slope in named if slope is not None}


def _holds_elastic(module: nn.Module) -> bool:
    """Whether an elastic module is reached through containers alone."""
    return any(
        isinstance(child, ElasticModule)
        or (isinstance(child, _CONTAINERS) and _holds_elastic(child))
        for child in module.children()
    )


def _meets(name: str, pattern: str) -> bool:
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))
