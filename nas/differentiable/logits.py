"""Logits of a search space, what is drawn from them, and a supernet that runs as drawn.

A search collapses where it fills the network with candidates that hold no parameters. Here are
their share of an architecture, by which a search can be watched and ended, and dropout on them.
`samplers.Sigmoid` is a further remedy, since by it they do not compete with the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..elastic.base import ElasticModule
from ..elastic.containers import ElasticOperation
from ..space import Architecture, Scalar, SearchSpace
from ..supernet import elastic_modules
from .samplers import MixtureSampler, Softmax, Weights

__all__ = ["Draw", "Logits", "check_weighable", "drop_free", "free_values", "share_of_free"]
__all__ += ["weighted"]


@dataclass(frozen=True)
class Draw:
    """One draw of every choice, which all layers of a forward pass share."""

    architecture: Architecture  #: of the strongest candidates
    #: choice's name → the weights of its values, for choices of more than one
    weights: Mapping[str, Weights]
    values: Mapping[str, tuple[Scalar, ...]]  #: choice's name → its values
    #: log probability of the architecture, where logits learn by that; else None
    score: Tensor | None = None


class Logits(nn.Module):
    """A vector of logits for each choice of a space that has more than one value.

    Args:
        space: whose choices; a restricted one keeps the search within it.
        scale: standard deviation of the initial values.
        seed: of the initial values.

    Example:
        >>> logits = Logits(search_space(net))
        >>> draw = logits.draw(GumbelSoftmax(), torch.Generator())
        >>> with weighted(net, draw):
        ...     loss = criterion(net(x), y)
    """

    def __init__(self, space: SearchSpace, scale: float = 1e-3, seed: int = 0) -> None:
        super().__init__()
        self.space = space
        self._choices = {choice.name: choice for choice in space if len(choice.values) > 1}
        generator = torch.Generator().manual_seed(seed)
        for choice in self._choices.values():
            values = scale * torch.randn(len(choice.values), generator=generator)
            self.register_parameter(_key(choice.name), nn.Parameter(values))

    @property
    def vectors(self) -> dict[str, nn.Parameter]:
        """Choice's name → logits of its values, in the space's order."""
        return {name: self.get_parameter(_key(name)) for name in self._choices}

    def draw(
        self,
        sampler: MixtureSampler,
        generator: torch.Generator,
        temperature: float = 1.0,
        learn: bool = True,
    ) -> Draw:
        """Draw weights for every choice, by a generator on the CPU.

        The temperature is softmax's and Gumbel-Softmax's. A draw from which the logits do not learn
        needs no gradient.
        """
        with torch.set_grad_enabled(learn):
            vectors = self._on_cpu()
            drawn = {
                name: sampler.draw(vector, generator, temperature, learn)
                for name, vector in vectors.items()
            }
            sizes = [len(vector) for vector in vectors.values()]
            together = torch.cat([weights.values for weights in drawn.values()])
            moved = together.to(next(self.parameters()).device).split(sizes)
        weights = {
            name: Weights(value, own.paths)
            for (name, own), value in zip(drawn.items(), moved, strict=True)
        }
        architecture = self.space.build(
            lambda choice: choice.values[drawn[choice.name].paths[0] if choice.name in drawn else 0]
        )
        score = None
        if sampler.by_score and learn:
            score = self.log_probability(architecture, temperature)
        values = {choice.name: choice.values for choice in self._choices.values()}
        return Draw(architecture, weights, values, score)

    def probabilities(
        self, sampler: MixtureSampler | None = None, temperature: float = 1.0
    ) -> dict[str, Tensor]:
        """How much each value of each choice is preferred: (K,) on the CPU, differentiable."""
        sampler = sampler or Softmax()
        return {
            name: sampler.probabilities(vector, temperature)
            for name, vector in self._on_cpu().items()
        }

    def log_probability(self, architecture: Architecture, temperature: float = 1.0) -> Tensor:
        """Of an architecture drawn from the softmax of the logits; choices that matter count."""
        terms = (
            torch.log_softmax(vector / temperature, -1)[self._choices[name].find(value)]
            for name, vector in self._on_cpu().items()
            if (value := architecture[name]) is not None
        )
        return cast("Tensor", sum(terms))

    def _on_cpu(self) -> dict[str, Tensor]:
        # Small vectors by the dozen: one transfer each way instead of a kernel for every line.
        vectors = self.vectors
        flat = torch.cat(list(vectors.values())).float().cpu()
        parts = flat.split([len(vector) for vector in vectors.values()])
        return dict(zip(vectors, parts, strict=True))


@contextmanager
def weighted(model: nn.Module | Sequence[ElasticModule], draw: Draw) -> Iterator[None]:
    """Let a supernet run with the weights of a draw within the block.

    Outputs of an `Operation`'s candidates are summed with their weights; candidates that are not
    among the paths do not run. Where the weights need no gradient and there is one path, this is
    the plain network of the draw's architecture. Instead of the whole supernet a list of its
    elastic modules may be given, as finding them takes a moment.
    """
    modules = list(elastic_modules(model)) if isinstance(model, nn.Module) else model
    mixed = []
    for module in modules:
        module.activate(draw.architecture)
        if isinstance(module, ElasticOperation):
            module.mixture = _mixture(draw, module.choice.name)
            mixed.append(module)
    try:
        yield
    finally:
        for module in mixed:
            module.mixture = None


def check_weighable(model: nn.Module, space: SearchSpace) -> None:
    """Check that every open choice of a space chooses between modules, whose outputs have weights.

    Raises:
        ValueError: one chooses a number; the message names it and what to do.
    """
    for module in elastic_modules(model):
        if isinstance(module, ElasticOperation):
            continue
        for choice in (choice for value in module.values() for choice in value.choices):
            if len(space.choices[choice.name].values) > 1:
                raise ValueError(
                    f"choice {choice.name!r} is a number of {type(module).__name__}, without "
                    "candidates to weigh: search it by the sampler Reinforce, or allow one value"
                )


def free_values(model: nn.Module) -> dict[str, set[Scalar]]:
    """For each choice between modules the candidates without parameters: skips, pooling, zero."""
    free: dict[str, set[Scalar]] = {}
    for module in elastic_modules(model):
        if isinstance(module, ElasticOperation):
            children = module.named_children()
            bare: set[Scalar] = {name for name, child in children if not list(child.parameters())}
            free[module.choice.name] = free.get(module.choice.name, bare) & bare
    return free


def share_of_free(architecture: Mapping[str, Any], free: Mapping[str, set[Scalar]]) -> float:
    """The share of an architecture's choices between modules that took one of `free_values`."""
    chosen = [
        architecture[n] in values for n, values in free.items() if architecture[n] is not None
    ]
    return sum(chosen) / max(1, len(chosen))


def drop_free(
    draw: Draw, free: Mapping[str, set[Scalar]], rate: float, generator: torch.Generator
) -> Draw:
    """Leave candidates without parameters out of a draw at random, so that the others learn.

    The weights of those that stay are divided by 1 - `rate`, as dropout does; the draw is of a
    sampler by which all candidates run. Source: Chen et al., "Progressive Differentiable
    Architecture Search", ICCV 2019, section 3.3, which drops parts of an output instead of the
    whole.
    """
    weights = dict(draw.weights)
    for name, drawn in draw.weights.items():
        values = draw.values[name]
        kept = torch.rand(len(values), generator=generator) >= rate
        bare = torch.tensor([value in free.get(name, ()) for value in values])
        factors = torch.where(bare, kept / (1 - rate), 1.0).to(drawn.values.device)
        weights[name] = drawn._replace(values=drawn.values * factors)
    return replace(draw, weights=weights)


def _mixture(draw: Draw, name: str) -> dict[str, Tensor] | None:
    weights = draw.weights.get(name)
    if weights is None or len(weights.paths) == 1 and not weights.values.requires_grad:
        return None
    return {str(draw.values[name][i]): weights.values[i] for i in weights.paths}


def _key(name: str) -> str:
    key = name.replace(".", "/")  # a parameter's name has no dots
    taken = hasattr(Logits, key) or key in ("space", "training")  # by a module, such as `type`
    return f"{key}/" if taken else key
