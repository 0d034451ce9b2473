"""Weights of candidates from logits: what makes one differentiable search differ from another.

A sampler turns the logits of one choice into weights of its candidates. Everything random comes
from a generator that is handed in, so that a step's draw depends on a seed and the step alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

__all__ = [
    "BinaryGates",
    "Dirichlet",
    "GumbelSoftmax",
    "MixtureSampler",
    "Reinforce",
    "Sigmoid",
    "Softmax",
    "Uniform",
    "Weights",
    "gumbel_softmax",
]


class Weights(NamedTuple):
    """What a sampler draws for one choice."""

    values: Tensor  #: (K,), one for each candidate, differentiable in the logits
    #: indices of the candidates that run, the strongest first; the others count nothing
    paths: tuple[int, ...]


class MixtureSampler(ABC):
    """Draws weights of candidates."""

    learns = True  #: whether there is anything to learn: False where weights ignore the logits
    #: whether logits learn from how the loss of a drawn path compares with others' (any choice can
    #: be searched so), instead of through the outputs' weights (choices of `Operation` only)
    by_score = False
    one_path = False  #: whether the network's weights are trained on a single candidate a choice

    @abstractmethod
    def draw(
        self, logits: Tensor, generator: Generator, temperature: float, learn: bool
    ) -> Weights:
        """Weights of the candidates of one choice.

        Args:
            logits: (K,), on the CPU.
            generator: on the CPU.
            temperature: divides what a softmax sees; Dirichlet and uniform weights have none.
            learn: whether the logits learn from this draw, or the network's weights do.
        """

    def probabilities(self, logits: Tensor, temperature: float = 1.0) -> Tensor:
        """How much each candidate is preferred, (K,), sums to 1, differentiable."""
        return torch.softmax(logits / temperature, -1)

    def penalty(self, logits: Tensor) -> Tensor | None:
        """A term of the logits' loss; None for none."""
        return None

    def after_step(self, logits: Tensor, before: Tensor, paths: tuple[int, ...]) -> None:
        """Correct logits (K,) in place after an optimiser's step; nothing by default.

        They were `before` (K,) before it, and the candidates of `paths` ran.
        """
        return


class Softmax(MixtureSampler):
    """All candidates run, weighted by a softmax. Source: Liu et al., "DARTS", ICLR 2019."""

    def draw(
        self, logits: Tensor, generator: Generator, temperature: float, learn: bool
    ) -> Weights:
        """The softmax of the logits; all candidates run."""
        return _all(torch.softmax(logits / temperature, -1))


class Sigmoid(MixtureSampler):
    """All candidates run, each weighted by a sigmoid of its own, so that skips do not compete.

    Source: Chu et al., "FairDARTS", ECCV 2020.
    """

    def draw(
        self, logits: Tensor, generator: Generator, temperature: float, learn: bool
    ) -> Weights:
        """A sigmoid of each logit; all candidates run."""
        return _all(torch.sigmoid(logits / temperature))

    def probabilities(self, logits: Tensor, temperature: float = 1.0) -> Tensor:
        """The sigmoids over their sum, whatever the temperature."""
        gates = torch.sigmoid(logits / temperature)
        return gates / gates.sum()


class GumbelSoftmax(MixtureSampler):
    """Softmax of logits with Gumbel noise, soft or as one path with a straight-through gradient.

    Soft as in SNAS (Xie et al., ICLR 2019) and FBNet (Wu et al., CVPR 2019); hard as in GDAS (Dong
    and Yang, CVPR 2019) and CovidNet3D's search.

    Args:
        hard: run only the candidate with the largest weight.
    """

    def __init__(self, hard: bool = True) -> None:
        self.hard = self.one_path = hard

    def draw(
        self, logits: Tensor, generator: Generator, temperature: float, learn: bool
    ) -> Weights:
        """The softmax of noisy logits; the strongest candidate runs, or all of them."""
        noise = -torch.empty_like(logits).exponential_(generator=generator).log()
        weights = gumbel_softmax(logits, noise, temperature, hard=self.hard)
        return Weights(weights, (_strongest(logits + noise),)) if self.hard else _all(weights)


class BinaryGates(MixtureSampler):
    """Weights train on one path drawn from the softmax, logits on two paths that compete.

    The logits of the candidates that did not run keep their probabilities. Source: Cai et al.,
    "ProxylessNAS", ICLR 2019, section 3.2.
    """

    one_path = True

    def draw(
        self, logits: Tensor, generator: Generator, temperature: float, learn: bool
    ) -> Weights:
        """One path drawn from the softmax for the weights, two that compete for the logits."""
        chances = torch.softmax(logits.detach() / temperature, -1)
        count = min(2, len(logits)) if learn else 1
        pair = torch.multinomial(chances, count, generator=generator)
        among = torch.softmax(logits[pair] / temperature, -1)
        first = int(torch.multinomial(among.detach(), 1, generator=generator))
        weights = torch.zeros_like(logits).index_put((pair,), _straight_through(among, first))
        paths = [int(pair[first]), *(int(i) for place, i in enumerate(pair) if place != first)]
        return Weights(weights, tuple(paths))

    def after_step(self, logits: Tensor, before: Tensor, paths: tuple[int, ...]) -> None:
        """Keep the step of these logits alone, moved so that their sum of exponentials stays."""
        index = torch.tensor(paths, device=logits.device)
        # An optimiser's momentum and decay move those without a gradient too.
        moved = logits[index]
        logits.copy_(before)
        logits[index] = moved + (before[index].logsumexp(0) - moved.logsumexp(0))


class Dirichlet(MixtureSampler):
    """All candidates run, weighted by a sample of a Dirichlet distribution.

    Its concentration is elu(logit) + 1. Source: Chen et al., "DrNAS", ICLR 2021.

    Args:
        distance: weight of the penalty, the squared distance of the concentration from 1.
    """

    def __init__(self, distance: float = 1e-3) -> None:
        self.distance = distance

    def draw(
        self, logits: Tensor, generator: Generator, temperature: float, learn: bool
    ) -> Weights:
        """A draw from the Dirichlet distribution, differentiable; all candidates run."""
        seed = int(torch.randint(1 << 62, (), generator=generator))
        with torch.random.fork_rng(devices=[]):  # the distribution takes no generator
            torch.default_generator.manual_seed(seed)  # `torch.manual_seed` seeds GPUs as well
            return _all(torch.distributions.Dirichlet(F.elu(logits) + 1).rsample())

    def probabilities(self, logits: Tensor, temperature: float = 1.0) -> Tensor:
        """The distribution's mean."""
        concentration = F.elu(logits) + 1
        return concentration / concentration.sum()

    def penalty(self, logits: Tensor) -> Tensor:
        """The squared distance of the concentrations from 1, times `distance`; scalar."""
        return self.distance * F.elu(logits).square().sum()


class Uniform(MixtureSampler):
    """One path, all alike: nothing is learnt but the weights, by which subnets are ranked later.

    Source: Guo et al., "Single Path One-Shot", ECCV 2020.
    """

    learns = False
    one_path = True

    def draw(
        self, logits: Tensor, generator: Generator, temperature: float, learn: bool
    ) -> Weights:
        """One candidate, each with the same chance."""
        chosen = int(torch.randint(len(logits), (), generator=generator))
        return Weights(_one_hot(logits, chosen), (chosen,))

    def probabilities(self, logits: Tensor, temperature: float = 1.0) -> Tensor:
        """The same for every candidate, (K,)."""
        return torch.full_like(logits, 1 / len(logits))


class Reinforce(MixtureSampler):
    """One path drawn from the softmax; logits learn from its loss, compared with earlier ones'.

    The only sampler for choices of numbers, such as widths, whose alternatives have no outputs
    that could be weighed. Source: Williams, "REINFORCE", 1992; Cai et al., "ProxylessNAS", ICLR
    2019, section 3.3.
    """

    by_score = True
    one_path = True

    def draw(
        self, logits: Tensor, generator: Generator, temperature: float, learn: bool
    ) -> Weights:
        """One candidate drawn from the softmax; its weight needs no gradient."""
        chances = torch.softmax(logits.detach() / temperature, -1)
        chosen = int(torch.multinomial(chances, 1, generator=generator))
        return Weights(_one_hot(logits, chosen), (chosen,))


def gumbel_softmax(logits: Tensor, noise: Tensor, temperature: float, hard: bool = False) -> Tensor:
    """softmax((logits + noise) / temperature), or its largest entry as one-hot.

    Args:
        logits: (K,).
        noise: (K,), of a standard Gumbel distribution.
        temperature: above 0.
        hard: one-hot, with the gradient of the soft weights.

    Source: Jang et al., "Categorical Reparameterization with Gumbel-Softmax", ICLR 2017.
    """
    soft = torch.softmax((logits + noise) / temperature, -1)
    return _straight_through(soft, _strongest(logits + noise)) if hard else soft


def _straight_through(weights: Tensor, chosen: int) -> Tensor:
    """One-hot at `chosen`, exactly, with the gradient of `weights`."""
    return _one_hot(weights, chosen) + (weights - weights.detach())


def _one_hot(like: Tensor, chosen: int) -> Tensor:
    return F.one_hot(torch.tensor(chosen), len(like)).to(like)


def _strongest(weights: Tensor) -> int:
    return int(weights.detach().argmax())


def _all(weights: Tensor) -> Weights:
    return Weights(weights, tuple(weights.detach().argsort(descending=True).tolist()))
