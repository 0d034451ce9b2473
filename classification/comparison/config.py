"""What is compared with what, and how all of it is trained: the config of `vizoo compare`."""

from __future__ import annotations

import copy
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from jsonargparse import ArgumentParser
from jsonargparse.typing import PositiveInt
from lightning.pytorch import LightningDataModule
from lightning.pytorch.cli import LightningArgumentParser

from ...nas.architecture import json_digest, near
from ...vision.configs.builtin import read_config
from ...vision.configs.task import make
from ...vision.subnets.best import checked_limits
from ..task import ClassificationTask

__all__ = ["CompareConfig", "Pick", "Row", "Search", "share_of"]


@dataclass(frozen=True)
class Search:
    """What learns about a space before an architecture of it is picked.

    Attributes:
        method: `one_shot` trains a supernet on one uniform subnet a step, `sandwich` on largest,
            smallest and one between, which learn from the largest; `nas_lid` splits it as
            `FewShotTraining` does; `dnas` is `DifferentiableSearch`, which picks by itself; `alone`
            trains each candidate for itself, which `evolution` is for.
        epochs: of the supernet; for `nas_lid` of each level; for `alone` of each candidate.
        splitter: arguments of `Splitter` for `nas_lid`.
        logits_lr: learning rate of the logits in `dnas`.
        warmup_epochs: of `dnas`, in which only weights learn.
        lr: learning rate; by default that of the recipe.
        recalibration_batches: before a subnet is measured.
        val_batches: to measure it by; 0 for all.
    """

    method: Literal["one_shot", "sandwich", "nas_lid", "dnas", "alone"]
    epochs: int | list[int]
    splitter: dict[str, Any] = field(default_factory=dict)
    logits_lr: float = 3e-3
    warmup_epochs: int = 0
    lr: float | None = None
    recalibration_batches: int = 8
    val_batches: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.epochs, list) != (self.method == "nas_lid"):
            wanted = "of each level, a list" if self.method == "nas_lid" else "a number"
            raise ValueError(f"search {self.method}: epochs are {wanted}, not {self.epochs}")
        epochs = self.epochs if isinstance(self.epochs, list) else [self.epochs]
        if min(epochs, default=0) < 1:
            raise ValueError(f"search {self.method}: epochs are 1 or more, not {self.epochs}")


@dataclass(frozen=True)
class Pick:
    """Which architecture of a space within the limits is taken.

    Attributes:
        by: `random` is one drawn; `parameters` of `samples` drawn the one with most parameters;
            `uniform` the widest of those whose widths all have one share; `largest` what
            `best_subnet` takes, most multiply-adds; `ranking` of `samples` drawn the best by the
            search; `evolution` the best that `evolve` finds by it.
        samples: number of architectures drawn for `ranking`.
        population: of the evolution.
        generations: of the evolution.
        measured: subnets of which a latency is measured to predict that of others.
    """

    by: Literal["random", "parameters", "uniform", "largest", "ranking", "evolution"]
    samples: int = 30
    population: int = 8
    generations: int = 4
    measured: int = 30

    def __post_init__(self) -> None:
        for name in ("samples", "population", "generations", "measured"):
            if getattr(self, name) < 1:
                raise ValueError(f"pick: {name} is 1 or more, not {getattr(self, name)}")


@dataclass(frozen=True)
class Row:
    """One row of the comparison: a network, or how one is found for each seed.

    Attributes:
        model: name of a classifier, see `vizoo models`; with `pick` or `search` a supernet's.
        model_args: its architecture arguments; `classes` are the data's.
        group: `made by hand`, `searched`, `baseline` or any other word, for the tables.
        note: what else is to be known of it, for the tables.
        pretrain: epochs in which a network is trained before it is converted (`convert`).
        importance: of a channel when the network is converted, by which the least important ones
            go first: the `magnitude` of its weights, or what the loss of some training batches
            says of them (`taylor`, see `taylor_scores`).
        search: what learns about the space.
        pick: which architecture is taken; None for all of the model, or what the search picks.
        limits: of `latency`, `parameters`, `macs` and `memory`, as for `best_subnet`, or shares of
            what the largest has, such as `50%`.
        weights: `fresh` trains the architecture from the start; `inherited` goes on from the
            supernet's weights, batch norms estimated anew.
        epochs: of the training that follows; by default the recipe's; 0 for none.
        lr: its learning rate; by default the recipe's.
    """

    model: str
    model_args: dict[str, Any] = field(default_factory=dict)
    group: str = "made by hand"
    note: str = ""
    pretrain: int = 0
    importance: Literal["magnitude", "taylor"] = "magnitude"
    search: Search | None = None
    pick: Pick | None = None
    limits: dict[str, float | str] = field(default_factory=dict)
    weights: Literal["fresh", "inherited"] = "fresh"
    epochs: int | None = None
    lr: float | None = None

    def __post_init__(self) -> None:
        method = self.search and self.search.method
        by = self.pick and self.pick.by
        informed = by in ("ranking", "evolution")
        wrong = {
            "epochs and pretrain are 0 or more": min(self.pretrain, self.epochs or 0) < 0,
            "pretrain is for networks that are converted (model_args.convert)": self.pretrain
            and "convert" not in self.model_args,
            "importance taylor is for networks that are trained first (pretrain)": not self.pretrain
            and self.importance == "taylor",
            "search: dnas picks by itself, so leave pick out": method == "dnas" and by,
            f"search {method} needs a pick": method not in (None, "dnas") and not by,
            f"pick {by} needs a search": informed and not method,
            "pick evolution is what search alone is for": method == "alone" and by != "evolution",
            "limits need a pick or dnas": self.limits and not by and method != "dnas",
            "inherited weights need a supernet that was trained": self.weights == "inherited"
            and (method in ("alone", "dnas") or not (method or self.pretrain)),
        }
        for what, is_wrong in wrong.items():
            if is_wrong:
                raise ValueError(what)
        if self.limits:
            checked_limits({kind: share_of(v) or v for kind, v in self.limits.items()})


def share_of(bound: float | str) -> float | None:
    """The percents of a limit that is a share of the largest's.

    Raises:
        ValueError: no number, or none above 0.
    """
    if not (isinstance(bound, str) and bound.endswith("%")):
        return None
    try:
        share = float(bound[:-1])
    except ValueError:
        share = math.nan
    if not 0 < share < math.inf:
        raise ValueError(f"limit {bound}: a share is a number above 0 and %, such as 50%")
    return share


def _rows(config: str, said: Mapping[str, Any]) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    parser = LightningArgumentParser(exit_on_error=False)
    parser.add_argument("--rows", type=dict[str, Row])
    for name, row in said.items():
        try:
            rows |= make(f"{config}: row {name}", parser, {"rows": {name: row}}).rows
        except ValueError as error:
            # Of classes the user writes nothing.
            text = re.sub(r"Problem with given class_path '\S+': ", "", str(error))
            text = re.sub(r'Parser key "(\w+)"', r"\1", text.replace('Parser key "rows": ', "", 1))
            raise ValueError(text) from error
    return rows


@dataclass(frozen=True)
class CompareConfig:
    """A comparison, ready to run."""

    name: str  #: as typed
    data: LightningDataModule  #: training, validation and test images
    rows: Mapping[str, Row]  #: by name, in order
    training: Mapping[str, Any]  #: the recipe: `epochs`, and arguments of `ClassificationTask`
    seeds: Sequence[int]  #: each row is found and trained anew for each
    size: tuple[int, int]  #: (height, width) of images whose costs are counted and measured
    batch: int  #: so many of them at once, 1 by default
    made_of: Mapping[str, Any]  #: the config as it was read

    @classmethod
    def read(cls, name: str | os.PathLike[str]) -> CompareConfig:
        """Make what a config says.

        Args:
            name: a file, or the name of a built-in config.

        Raises:
            FileNotFoundError: no such config.
            ValueError: it is no config of `vizoo compare`; what is wrong with it.
        """
        content, name = read_config(name), os.fspath(name)
        wanted = ("data", "rows", "training", "seeds", "size")
        missing = [key for key in wanted if key not in content]
        if missing:
            raise ValueError(f"{name}: no config of `vizoo compare`: it has no `{missing[0]}`")
        parser = LightningArgumentParser(exit_on_error=False)
        parser.add_lightning_class_args(LightningDataModule, "data", subclass_mode=True)
        parser.add_argument("--rows", type=dict[str, Any])
        parser.add_argument("--training", type=dict[str, Any])
        parser.add_argument("--seeds", type=list[int])
        parser.add_argument("--size", type=tuple[int, int])
        parser.add_argument("--batch", type=PositiveInt, default=1)
        given = {key: value for key, value in copy.deepcopy(content).items() if str(key)[:1] != "_"}
        made = make(name, parser, given)
        if not made.rows or not made.seeds or not made.training:
            raise ValueError(f"{name}: a comparison needs rows, seeds and training")
        rows = _rows(name, made.rows)
        arguments = ArgumentParser().add_class_arguments
        skipped = {"model", "model_args"}  # of rows
        recipe = ["epochs", *arguments(ClassificationTask, fail_untyped=False, skip=skipped)]
        for key in made.training:
            if key not in recipe:
                raise ValueError(f"{name}: training: there is no {key!r}{near(key, recipe)}")
        epochs = made.training.get("epochs")
        if not isinstance(epochs, int) or epochs < 1:
            raise ValueError(f"{name}: training: epochs are needed, at least 1")
        sizes = made.size, made.batch
        return cls(name, made.data, rows, made.training, made.seeds, *sizes, content)

    def digest(self, row: str) -> str:
        """Names all that the runs of a row depend on."""
        shared = {key: self.made_of[key] for key in ("data", "training", "size")}
        shared |= {} if self.batch == 1 else {"batch": self.batch}
        said = self.made_of["rows"][row]
        told = {key: value for key, value in said.items() if key not in ("note", "group")}
        # Where images lie may be said by variables.
        return json_digest(os.path.expandvars(json.dumps({"row": told, **shared})))[:16]
