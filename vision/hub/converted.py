"""Networks that are built and then converted to supernets: the argument `convert` of any model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from ...common.arguments import check_arguments
from ...nas.conversion.convert import convert
from ...nas.supernet import architecture_of, subnet_of
from ..inputs import example_inputs

__all__ = ["as_supernet", "built"]

_SIZE = (64, 64)


def as_supernet(
    net: nn.Module,
    settings: Mapping[str, Any],
    subnet: Mapping[str, Any] | None = None,
    *,
    scores: Mapping[str, torch.Tensor] | None = None,
) -> nn.Module:
    """Convert a network as a config or a weight file says, see `nas.convert`.

    Args:
        net: of `create_model`, with the weights that say which channels are important.
        settings: `size`, (height, width) of the images to trace it with, 64 by 64 unless given,
            and arguments of `nas.convert`.
        subnet: of the supernet, as JSON, which is extracted then.
        scores: of weights, as for `nas.convert`.

    Returns:
        The network, whose `architecture` says how it was converted, plan and all.

    Raises:
        ValueError: wrong settings, or the network cannot be converted.
    """
    check_arguments("convert", _settings, settings)
    given = dict(settings)
    height, width = given.pop("size", _SIZE)
    made = convert(net, example_inputs(net, height, width), scores=scores, **given)
    supernet: Any = made.net
    asked = {**settings, "plan": dict(made.plan)}
    supernet.architecture = {**architecture_of(net), "convert": asked}
    return subnet_of(supernet, subnet)


def built(
    make: Callable[[], nn.Module],
    settings: Mapping[str, Any],
    subnet: Mapping[str, Any] | None,
    load: Callable[[nn.Module], object],
) -> nn.Module:
    """Make a network, load its weights and convert it; with a plan, which knows, in any order."""
    if not isinstance(settings, Mapping):
        raise ValueError(
            f"convert must be a mapping such as {{'size': [64, 64]}}, not {settings!r}"
        )
    elsewhere = torch.get_default_device().type != "cpu"
    # Tracing needs values of buffers, which "meta" has not. The context slows every operator.
    with torch.device("cpu") if elsewhere else nullcontext():
        net = make()
        if settings.get("plan") is None:
            load(net)
            return as_supernet(net, settings, subnet)
        net = as_supernet(net, settings, subnet)
    load(net)
    return net


def _settings(
    size: Sequence[int] = _SIZE,
    widths: Sequence[float] = (),
    depths: bool = True,
    kernels: bool = True,
    keep: Sequence[str] = (),
    plan: Mapping[str, Any] | None = None,
) -> None:
    """What `settings` may be."""
