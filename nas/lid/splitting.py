"""Which choice of a space to split, and how: by dimensions of layers, gradients, or at random."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from ..architecture import near
from ..space import Architecture, Scalar, SearchSpace
from ..supernet import activate, active, elastic_modules, search_space
from .estimators import Estimator
from .partition import Method, Partition, Rule, choose_edge, partition
from .profile import gradients, named_layers, profile
from .similarity import Measure, similarity
from .tree import Split, splittable

__all__ = ["CRITERIA", "Splitter", "joined"]


Criterion = Literal["lid", "gradient", "random"]
CRITERIA = get_args(Criterion)


class Splitter:
    """How splits are found.

    For each batch a path is drawn from the space; every value of a choice then takes its turn on
    that path, and the similarities of the values are averaged over batches.

    Args:
        criterion: `lid`: values are alike whose layers have like dimensions; `gradient`: whose
            gradients of the shared weights are (always by their cosine); `random`: a choice and
            groups are drawn, for comparison.
        measure: of similarity, see `similarity`.
        method: of partition, see `partition`.
        rule: by which of several choices one is split, see `choose_edge`.
        min_group: values of a group at least, see `partition`; choices with fewer than two such
            groups are not split.
        choices: patterns of the choices that may be split.
        layers: patterns of the layers whose dimensions count, see `named_layers`.
        k: neighbours, see `lid`; a batch needs k + 2 samples.
        estimator: see `lid`.
        batches: at most; as many as an epoch has, if that is fewer.
        batch_size: samples a batch, joined from training batches where those are smaller.
        seed: of paths and random splits.

    Raises:
        ValueError: a number is out of range, or the criterion unknown.
    """

    def __init__(
        self,
        criterion: Criterion = "lid",
        measure: Measure = "euclidean",
        method: Method = "best",
        rule: Rule = "largest_mean_gap",
        min_group: int | None = None,
        choices: Sequence[str] = ("*",),
        layers: Sequence[str] | None = None,
        k: int = 20,
        estimator: Estimator = "paper",
        batches: int = 50,
        batch_size: int = 128,
        seed: int = 0,
    ) -> None:
        if criterion not in CRITERIA:
            raise ValueError(f"criterion {criterion!r} is unknown: choose {', '.join(CRITERIA)}")
        if batches < 1 or k < 1:
            raise ValueError(f"batches {batches} and k {k} must be at least 1")
        if min_group is not None and min_group < 1:
            raise ValueError(f"min_group {min_group}: must be at least 1")
        if criterion == "lid" and batch_size < k + 2:
            raise ValueError(
                f"batch_size {batch_size}: {k} neighbours need batches of {k + 2} samples or more"
            )
        self.criterion = criterion
        self.measure = measure
        self.method = method
        self.rule = rule
        self.min_group = min_group
        self.choices = list(choices)
        self.layers = None if layers is None else list(layers)
        self.k = k
        self.estimator = estimator
        self.batches = batches
        self.batch_size = batch_size
        self.seed = seed

    def candidates(self, space: SearchSpace, done: Iterable[str] = ()) -> tuple[str, ...]:
        """The choices that may be split: those of `done` only where no other is left.

        Raises:
            ValueError: a pattern meets no choice, or none that parts the space.
        """
        for pattern in self.choices:
            if not any(fnmatchcase(name, pattern) for name in space.names):
                raise ValueError(f"no choice is called {pattern!r}{near(pattern, space.names)}")
        least = 2 * (self.min_group or 1)
        found = [
            name
            for name in splittable(space)
            if any(fnmatchcase(name, pattern) for pattern in self.choices)
            and len(space.choices[name].values) >= least
        ]
        if not found:
            raise ValueError(
                f"nothing to split: no choice of {', '.join(self.choices)} has {least} values or "
                "more and matters in every architecture of this part of the space"
            )
        return tuple(name for name in found if name not in set(done)) or tuple(found)

    def split(
        self,
        net: nn.Module,
        space: SearchSpace,
        batches: Iterable[Any],
        *,
        forward: Callable[[nn.Module, Any], object] | None = None,
        loss: Callable[[nn.Module, Any], Tensor] | None = None,
        done: Iterable[str] = (),
        salt: str = "",
        progress: Callable[[int, int], None] | None = None,
    ) -> Split:
        """Find the split of a part of a supernet's space.

        Args:
            net: the supernet; it stays as it is.
            space: the part, as `SearchSpace.restrict` gives it.
            batches: of training, on the network's device; see `recalibrate`.
            forward: runs the network on a batch, see `recalibrate`.
            loss: ``loss(net, batch)``, a scalar, for the criterion `gradient`.
            done: choices that are split already on the way to this part.
            salt: tells draws for one part from those for another.
            progress: told how many batches of how many are done.

        Raises:
            ValueError: nothing can be split, there is no batch or too small ones, or a loss is
                missing.
        """
        names = self.candidates(space, done)
        rng = random.Random(f"{self.seed}:{salt}")
        if self.criterion == "random":
            name = rng.choice(names)
            values = space.choices[name].values
            groups = partition(torch.eye(len(values)), "random", rng=rng).groups
            return Split(name, _values(values, groups))
        if self.criterion == "gradient" and loss is None:
            raise ValueError("the criterion `gradient` needs a loss")
        means = self._similarities(net, space, names, batches, forward, loss, rng, progress)
        found = {
            name: partition(mean, self.method, min_group=self.min_group, rng=rng)
            for name, mean in means.items()
        }
        name = choose_edge(found, self.rule)
        scores = {n: _figures(space.choices[n].values, p) for n, p in found.items()}
        return Split(name, _values(space.choices[name].values, found[name].groups), scores)

    def _similarities(
        self,
        net: nn.Module,
        space: SearchSpace,
        names: Sequence[str],
        batches: Iterable[Any],
        forward: Callable[[nn.Module, Any], object] | None,
        loss: Callable[[nn.Module, Any], Tensor] | None,
        rng: random.Random,
        progress: Callable[[int, int], None] | None,
    ) -> dict[str, Tensor]:
        layers = named_layers(net, self.layers) if self.criterion == "lid" else {}
        modules, before = list(elastic_modules(net)), active(net)
        full = search_space(net)

        def describe(architecture: Architecture, batch: Any) -> Any:
            architecture = full.validate(architecture)
            for module in modules:
                module.activate(architecture)
            if self.criterion == "gradient":
                return gradients(net, batch, loss)
            options = {"k": self.k, "estimator": self.estimator, "forward": forward}
            return profile(net, batch, layers, **options)

        sums: dict[str, Tensor] = {}
        count = 0
        try:
            for count, batch in enumerate(islice(batches, self.batches), start=1):  # noqa: B007
                drawn = {choice.name: rng.choice(choice.values) for choice in space}
                for name in names:
                    values = space.choices[name].values
                    paths = [space.canonical({**drawn, name: value}) for value in values]
                    alike = self._alike([describe(path, batch) for path in paths])
                    sums[name] = alike if name not in sums else sums[name] + alike
                if progress is not None:
                    progress(count, self.batches)
        finally:
            activate(net, before)
        if not count:
            raise ValueError(
                f"no batch to find a split on: the training data have fewer than {self.batch_size} "
                "samples, so give a smaller batch size"
            )
        return {name: total / count for name, total in sums.items()}

    def _alike(self, described: Sequence[Any]) -> Tensor:
        if self.criterion == "gradient":
            shared = [n for n in described[0] if all(n in other for other in described)]
            if not shared:
                raise ValueError("no parameter is used by all values, so gradients cannot compare")
            vectors = [torch.cat([found[name] for name in shared]) for found in described]
            return similarity(torch.stack(vectors), "cosine").cpu()
        vectors = torch.stack(list(described))
        ran = ~vectors.isnan().any(0)  # layers that only some values run do not compare
        if not ran.any():
            raise ValueError("no profiled layer runs with all values: name other layers")
        return similarity(vectors[:, ran], self.measure)


def joined(batches: Iterable[Any], size: int) -> Iterator[Any]:
    """Batches of `size` samples or more, of consecutive ones; what is left at the end is dropped.

    Args:
        batches: tensors, or mappings, lists and tuples of them; other lists have an entry for each
            sample.
        size: samples.
    """
    waiting: list[Any] = []
    for batch in batches:
        waiting.append(batch)
        if sum(map(_size, waiting)) >= size:
            yield _join(waiting)
            waiting = []


def _join(batches: list[Any]) -> Any:
    first = batches[0]
    if len(batches) == 1:
        return first
    if isinstance(first, Tensor):
        return torch.cat(batches)
    if isinstance(first, Mapping):
        return {key: _join([batch[key] for batch in batches]) for key in first}
    if isinstance(first, (list, tuple)) and all(
        isinstance(item, (Tensor, Mapping, list, tuple)) for item in first
    ):
        parts = [_join(list(items)) for items in zip(*batches, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    return [item for batch in batches for item in batch] if isinstance(first, list) else first


def _size(batch: Any) -> int:
    """Samples: the first dimension of the first tensor."""
    if isinstance(batch, Tensor):
        return len(batch)
    values = batch.values() if isinstance(batch, Mapping) else batch
    sizes = (_size(v) for v in values if isinstance(v, (Tensor, Mapping, list, tuple)))
    return next((size for size in sizes if size), 0)


def _values(
    values: Sequence[Scalar], groups: Sequence[Sequence[int]]
) -> tuple[tuple[Scalar, ...], ...]:
    return tuple(tuple(values[index] for index in group) for group in groups)


def _figures(values: Sequence[Scalar], found: Partition) -> dict[str, Any]:
    groups = [list(group) for group in _values(values, found.groups)]
    return {"groups": groups, "intra": found.intra, "inter": found.inter, "gap": found.gap}
