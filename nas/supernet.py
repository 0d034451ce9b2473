"""A supernet is any module with elastic layers in it: its space, activation and extraction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from torch import Tensor, nn

from .elastic.base import Condition, ElasticModule, extract_module
from .space import Architecture, Choice, SearchSpace
from .values import Value

__all__ = [
    "activate",
    "activate_part",
    "active",
    "architecture_of",
    "as_before",
    "elastic_modules",
    "extract",
    "search_space",
    "subnet_of",
]

_Network = TypeVar("_Network", bound=nn.Module)


def search_space(model: nn.Module) -> SearchSpace:
    """The choices of a network, in the order in which its modules meet them.

    A choice matters where any layer that uses it can run.

    Raises:
        ValueError: two different choices have one name.
    """
    choices: dict[str, Choice] = {}
    uses: dict[str, list[Condition]] = {}
    for choice, condition in _uses(model, {}):
        if choices.setdefault(choice.name, choice) != choice:
            raise ValueError(
                f"two choices are named {choice.name!r}: {list(choices[choice.name].values)} "
                f"and {list(choice.values)}"
            )
        cases = uses.setdefault(choice.name, [])
        if condition not in cases:
            cases.append(condition)
    conditions = {name: cases for name, cases in uses.items() if {} not in cases}
    return SearchSpace(choices.values(), conditions)


def activate(model: nn.Module, architecture: Mapping[str, Any]) -> Architecture:
    """Let a supernet run as `architecture` says, until the next call; returns its canonical form.

    Raises:
        ValueError: it is not an architecture of this network.
    """
    architecture = search_space(model).validate(architecture)
    for module in elastic_modules(model):
        module.activate(architecture)
    return architecture


def activate_part(model: nn.Module, part: Mapping[str, Any]) -> SearchSpace:
    """Let a supernet run as the largest of a part of its space, which `SearchSpace.to_json` gave.

    Raises:
        ValueError: it is no part of the network's search space.
    """
    space = SearchSpace.from_json(part)
    if not search_space(model).holds(space):
        raise ValueError("weights for a part of another search space")
    activate(model, space.largest())
    return space


def active(model: nn.Module) -> Architecture:
    """The architecture that a supernet runs now: at first the largest."""
    space = search_space(model)
    values = dict(space.largest())
    for module in elastic_modules(model):
        values.update(module.active_values)
    return space.validate(values)


@contextmanager
def as_before(model: nn.Module) -> Iterator[None]:
    """Let a supernet run at the end what it runs now, whatever is activated meanwhile."""
    before = active(model)
    try:
        yield
    finally:
        activate(model, before)


def extract(model: _Network, architecture: Mapping[str, Any], *, inherit: bool = True) -> _Network:
    """The network that `architecture` stands for, with nothing elastic in it.

    It has the supernet's own classes, flags, devices and dtypes, weights of its own, and no hooks.
    Where the supernet has an `architecture` (`create_model` gives it one), the network's says
    which subnet it is. The supernet stays as it is.

    Args:
        model: the supernet.
        architecture: a value for each choice that matters.
        inherit: whether it has the supernet's weights. Otherwise every layer draws its own anew
            (`reset_parameters`), to be trained alone.

    Raises:
        ValueError: it is not an architecture of this network, a module keeps a choice or an
            inactive layer as an attribute, or one has parameters and cannot draw them anew.
    """
    architecture = search_space(model).validate(architecture)
    network = extract_module(model, architecture)
    for name, module in network.named_modules():
        for attribute, value in vars(module).items():
            if _is_elastic(value):
                raise ValueError(
                    f"{name or 'the network'} ({type(module).__name__}) keeps something elastic "
                    f"as {attribute!r}: leave choices and values to the layers"
                )
    if named := architecture_of(network):
        cast("Any", network).architecture = {**named, "subnet": architecture.to_json()}
    vars(network).pop("subspace", None)  # there is nothing to choose in it
    if not inherit:
        network.apply(_reset)
    return cast(_Network, network)


def architecture_of(network: nn.Module) -> dict[str, Any]:
    """What `create_model` made a network of, its `name` among it; of any other network nothing."""
    known = getattr(network, "architecture", None)
    return dict(known) if isinstance(known, dict) else {}


def subnet_of(model: _Network, subnet: Mapping[str, Any] | None) -> _Network:
    """The supernet where `subnet` is None, else what is extracted by `Architecture.to_json`'s."""
    return model if subnet is None else extract(model, Architecture.from_json(subnet))


def elastic_modules(model: nn.Module) -> Iterator[ElasticModule]:
    """The elastic modules of a network, parents first."""
    return (module for module in model.modules() if isinstance(module, ElasticModule))


def _reset(module: nn.Module) -> None:
    reset = getattr(module, "reset_parameters", None)
    if reset is not None:
        reset()
    elif any(True for _ in module.parameters(recurse=False)):
        raise ValueError(
            f"{type(module).__name__} has parameters and no method reset_parameters, so its "
            "weights cannot be drawn anew: build the network anew instead"
        )


def _uses(module: nn.Module, condition: Condition) -> Iterator[tuple[Choice, Condition]]:
    """Each choice that a module or one within it uses, and when that one can run."""
    conditions: Mapping[str, Condition] = {}
    if isinstance(module, ElasticModule):
        conditions = module.conditions()
        for value in module.values():
            yield from ((choice, condition) for choice in value.choices)
    for name, child in module._modules.items():
        both = _both(condition, conditions[name]) if name in conditions else condition
        if child is not None and both is not None:
            yield from _uses(child, both)


def _both(one: Condition, other: Condition) -> Condition | None:
    """The condition under which both hold; None if they never do."""
    merged = dict(one)
    for name, values in other.items():
        merged[name] = tuple(v for v in merged.get(name, values) if v in values)
        if not merged[name]:
            return None
    return merged


def _is_elastic(value: Any) -> bool:
    # The usual ones first: abstract classes take long to say no.
    if isinstance(value, _PLAIN):
        return False
    if isinstance(value, nn.Module):
        return isinstance(value, ElasticModule)
    if isinstance(value, dict):
        return any(map(_is_elastic, (*value, *value.values())))
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(map(_is_elastic, value))
    if isinstance(value, (Value, Architecture, SearchSpace)):
        return True
    return isinstance(value, Mapping) and _is_elastic((*value.keys(), *value.values()))


_PLAIN = (str, bool, int, float, Tensor, type(None))
