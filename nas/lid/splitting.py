"""Which choice of a space to split, and how: by dimensions of layers, gradients, or at random."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from itertools import islice
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn

from ..architecture import near
from ..recalibration import samples
from ..space import Architecture, Scalar, SearchSpace
from ..supernet import activate, as_before
from .estimators import Estimator, check_neighbours
from .partitions import (
    EXACT,
    Measure,
    Method,
    Rule,
    choose_edge,
    mean_gaps,
    method_for,
    partition,
    similarity,
)
from .profiles import gradients, named_layers, profile
from .tree import Split, splittable

__all__ = ["Splitter", "joined"]

_Criterion = Literal["lid", "gradient", "random"]
_Loss = Callable[[nn.Module, Any], Tensor]


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
        k: neighbours, see `lid`; a batch needs k + 2 samples. `two_nn` has its two.
        estimator: see `lid` and `two_nn`.
        batches: at most; as many as an epoch has, if that is fewer.
        batch_size: samples a batch, joined from training batches where those are smaller; all that
            there are where an epoch has fewer.
        seed: of paths and random splits.

    Raises:
        ValueError: a number is out of range, or a word unknown.
    """

    def __init__(
        self,
        criterion: _Criterion = "lid",
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
        words = {
            "criterion": (criterion, _Criterion),
            "measure": (measure, Measure),
            "method": (method, Method),
            "rule": (rule, Rule),
            "estimator": (estimator, Estimator),
        }
        for name, (word, kind) in words.items():
            if word not in get_args(kind):
                known = ", ".join(get_args(kind))
                raise ValueError(f"{name} {word!r} is unknown: choose {known}")
        if batches < 1 or batch_size < 1:
            raise ValueError(f"batches {batches} and batch_size {batch_size} must be at least 1")
        if min_group is not None and min_group < 1:
            raise ValueError(f"min_group {min_group}: must be at least 1")
        if criterion == "lid" and estimator != "two_nn":
            check_neighbours(k, estimator)  # before a supernet is trained to be split
        neighbours, least = (2, 3) if estimator == "two_nn" else (k, k + 2)
        if criterion == "lid" and batch_size < least:
            raise ValueError(
                f"batch_size {batch_size}: {neighbours} neighbours need batches of {least} samples "
                "or more"
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
            ValueError: a pattern meets no choice, or none that parts the space, or one has too many
                values for the method.
        """
        for pattern in self.choices:
            if not any(name == pattern or fnmatchcase(name, pattern) for name in space.names):
                raise ValueError(f"no choice is called {pattern!r}{near(pattern, space.names)}")
        least = 2 * (self.min_group or 1)
        names = [
            name
            for name in splittable(space)
            if any(name == pattern or fnmatchcase(name, pattern) for pattern in self.choices)
            and len(space.choices[name].values) >= least
        ]
        if not names:
            raise ValueError(
                f"nothing to split: no choice of {', '.join(self.choices)} has {least} values or "
                "more and matters in every architecture of this part of the space"
            )
        if self.method == "exact":
            for name in names:
                if (count := len(space.choices[name].values)) > EXACT:
                    raise ValueError(
                        f"choice {name!r} has {count} values, too many bipartitions to try: the "
                        f"method `exact` is for {EXACT} at most; take `best` or `spectral`"
                    )
        return tuple(name for name in names if name not in set(done)) or tuple(names)

    def levels(self, space: SearchSpace) -> int:
        """How many levels of splits a space allows for certain, whichever choices they take.

        Raises:
            ValueError: as `candidates` says.
        """
        sizes = [len(space.choices[name].values) for name in self.candidates(space)]
        method = "random" if self.criterion == "random" else self.method

        def halved(size: int) -> bool:
            return self.min_group is None and method_for(size, method) != "spectral"

        # Halves can be split again; clusters and groups of `min_group` cannot be counted on to be.
        return sum(size.bit_length() - 1 if halved(size) else 1 for size in sizes)

    def split(
        self,
        net: nn.Module,
        space: SearchSpace,
        batches: Iterable[Any],
        *,
        forward: Callable[[nn.Module, Any], object] | None = None,
        loss: _Loss | None = None,
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
        sums: dict[str, Tensor] = {}
        count = 0
        for count, batch in enumerate(islice(batches, self.batches), start=1):  # noqa: B007
            drawn = {choice.name: rng.choice(choice.values) for choice in space}
            for name in names:
                paths = [
                    space.validate({**drawn, name: value}) for value in space.choices[name].values
                ]
                alike = self.compare(net, paths, batch, forward=forward, loss=loss)
                sums[name] = alike if name not in sums else sums[name] + alike
            if progress is not None:
                progress(count, self.batches)
        if not count:
            raise ValueError("no batch to find a split on: there are no training data")
        partitions = {
            name: partition(total / count, self.method, min_group=self.min_group, rng=rng)
            for name, total in sums.items()
        }
        parts = {n: _values(space.choices[n].values, p.groups) for n, p in partitions.items()}
        gaps = mean_gaps(partitions)
        scores = {
            name: {
                "groups": [list(group) for group in parts[name]],
                "intra": p.intra,
                "inter": p.inter,
                "inside": p.inside,
                "across": p.across,
                "gap": gaps[name],
            }
            for name, p in partitions.items()
        }
        name = choose_edge(partitions, self.rule)
        return Split(name, parts[name], scores)

    def compare(
        self,
        net: nn.Module,
        paths: Sequence[Architecture],
        batch: Any,
        *,
        forward: Callable[[nn.Module, Any], object] | None = None,
        loss: _Loss | None = None,
    ) -> Tensor:
        """How alike architectures are on a batch: by dimensions, or by gradients of what all use.

        Args as of `split`, but for:
            paths: architectures of the network.
            batch: on the network's device.

        Returns:
            (n, n), float64, see `similarity`.

        Raises:
            ValueError: the architectures have no layer, or no parameter, in common.
        """
        describe: Callable[[], Any]
        if self.criterion == "gradient":
            describe = partial(gradients, net, batch, cast("_Loss", loss))
        else:
            layers, k = named_layers(net, self.layers), self.k
            describe = partial(
                profile, net, batch, layers, k=k, estimator=self.estimator, forward=forward
            )
        described: list[Any] = []
        with as_before(net):
            for path in paths:
                activate(net, path)
                described.append(describe())
        if self.criterion == "gradient":
            shared = [n for n in described[0] if all(n in other for other in described)]
            if not shared:
                raise ValueError("no parameter is used by all values, so gradients cannot compare")
            rows = [torch.cat([slopes[name] for name in shared]) for slopes in described]
            return similarity(torch.stack(rows), "cosine").cpu()
        vectors = torch.stack(described)
        ran = ~vectors.isnan().any(0)  # layers that only some values run do not compare
        if not ran.any():
            raise ValueError("no profiled layer runs with all values: name other layers")
        return similarity(vectors[:, ran], self.measure)


def joined(batches: Iterable[Any], size: int) -> Iterator[Any]:
    """Batches of `size` samples or more, of consecutive ones.

    What is left at the end is dropped, unless it is all that there is. Batches are tensors, or
    mappings, lists and tuples of them; other lists have an entry for each sample.
    """
    waiting: list[Any] = []
    full = False
    for batch in batches:
        waiting.append(batch)
        if sum(map(samples, waiting)) >= size:
            full = True
            yield _join(waiting)
            waiting = []
    if waiting and not full:
        yield _join(waiting)


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


def _values(
    values: Sequence[Scalar], groups: Sequence[Sequence[int]]
) -> tuple[tuple[Scalar, ...], ...]:
    return tuple(tuple(values[index] for index in group) for group in groups)
