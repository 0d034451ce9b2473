"""Subnets by what they reach with inherited weights, and supernets split by what they learnt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ...common.arguments import checked
from ...common.counts import count_parameters, on_meta
from ...common.devices import choose_device
from ...common.files import shortened
from ...common.layers import evaluating
from ...nas.distributed.search.executor import score_of
from ...nas.lid.leaves import Leaves
from ...nas.lid.splitting import Splitter, joined
from ...nas.lid.tree import SplitTree
from ...nas.space import Architecture, SearchSpace
from ...nas.supernet import as_before, extract
from ..configs.task import FitConfig
from .bench import space_of
from .evaluations import Evaluations

__all__ = ["Ranked", "rank", "split"]


@dataclass(frozen=True)
class Ranked:
    """One subnet of a ranking."""

    architecture: Architecture  #: which
    error: float  #: small is good; infinite where it was not finite
    leaf: str  #: whose weights it was judged by
    parameters: int  #: their number


@checked("architectures", "evaluations", "keep", "report")
def rank(
    leaves: Leaves | nn.Module,
    evaluate: Callable[[Architecture], float],
    architectures: Iterable[Architecture],
    *,
    evaluations: Evaluations | None = None,
    keep: Callable[[Evaluations], Any] = lambda evaluations: None,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> list[Ranked]:
    """Evaluate subnets, each on its leaf's weights, and order them, the best first.

    Args:
        leaves: of `open_supernet` or `open_tree`, or a supernet.
        evaluate: architecture to error, small is good; see `FitConfig.errors`.
        architectures: what to rank.
        evaluations: of an earlier run, which are not done again.
        keep: called after each evaluation with all of them.
        report: called as ``report(done, total)``.

    Raises:
        ValueError: no supernet, or an error is no number.

    Example:
        >>> leaves, net, space = vizoo.open_supernet("supernet.safetensors")
        >>> errors = vizoo.FitConfig.read("mine.yaml").errors(leaves, "val/epe")
        >>> best = vizoo.rank(leaves, errors, [space.smallest(), space.largest()])[0]
    """
    if isinstance(leaves, Leaves):
        net, tree, kept = leaves.net, leaves.tree, leaves.as_before()
    else:
        net, tree, kept = leaves, SplitTree(space_of(leaves)), as_before(leaves)
    if evaluations is None:
        evaluations = Evaluations(tree.space, "error", {})
    # Leaf by leaf, so that each is read once.
    by_leaf = sorted(dict.fromkeys(map(tree.space.validate, architectures)), key=tree.leaf_of)
    with kept:
        for done, architecture in enumerate(by_leaf, start=1):
            if architecture not in evaluations.errors:
                evaluations.errors[architecture] = score_of(evaluate, architecture)
                keep(evaluations)
            report(done, len(by_leaf))
    shapes = on_meta(net)
    ranking = [
        Ranked(
            architecture,
            evaluations.errors[architecture],
            tree.leaf_of(architecture),
            count_parameters(extract(shapes, architecture)),
        )
        for architecture in by_leaf
    ]
    return sorted(ranking, key=lambda row: row.error)


@checked("levels", "seen", "report")
def split(
    net: nn.Module,
    config: FitConfig,
    splitter: Splitter | None = None,
    *,
    space: SearchSpace | None = None,
    levels: int = 1,
    device: torch.device | str = "cpu",
    seen: Callable[[Any], None] = lambda batch: None,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> SplitTree:
    """Which choices of a supernet to split, and how (NAS-LID).

    Args:
        net: the supernet, with the weights by which it is split; ends on the device.
        config: its task and training data.
        splitter: chooses splits; by default by local intrinsic dimensions.
        space: its search space; by default the network's own.
        levels: of splits, all by the same weights.
        device: to run on.
        seen: called with each batch.
        report: called as ``report(done, total)`` with batches, anew for each part.

    Raises:
        ValueError: no supernet, something else than a config or a splitter, a device that is not
            here, or more levels than there are values to split.

    Example:
        >>> tree = vizoo.split(net, vizoo.FitConfig.read("search/nas_lid_nasbench201.yaml"))
        >>> tree.save("tree.json")
    """
    if not isinstance(config, FitConfig):
        raise ValueError(f"config {shortened(config)}: give vizoo.FitConfig.read(NAME)")
    splitter = Splitter() if splitter is None else splitter
    if not isinstance(splitter, Splitter):
        raise ValueError(f"splitter {shortened(splitter)}: give a vizoo.nas.lid.Splitter(…)")
    device = choose_device(str(device))
    tree = SplitTree(space_of(net) if space is None else space)
    if not 1 <= levels <= (most := splitter.levels(tree.space)):
        names = ", ".join(splitter.candidates(tree.space))
        raise ValueError(f"levels {levels}: 1 to {most}, by the values of {names}")

    def tried(batches: Iterator[Any]) -> Iterator[Any]:
        for index, batch in enumerate(batches):
            if index == 0:  # refuses a network of another task before many batches are waited for
                with torch.no_grad(), evaluating(net):
                    config.forward(net, batch)
            yield batch

    def told(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in joined(tried(batches), splitter.batch_size):
            seen(batch)
            yield batch

    for _ in range(levels):
        for leaf in tree.leaves:
            done = {split.choice for split in tree.path_splits(leaf)}
            with config.training_batches(net, device) as batches:
                part = splitter.split(
                    net,
                    tree.space_of(leaf),
                    told(batches),
                    forward=config.forward,
                    loss=config.loss,
                    done=done,
                    salt=leaf,
                    progress=report,
                )
            tree.split(leaf, part)
    return tree
