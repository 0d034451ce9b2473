"""Few-shot training as Lightning: a supernet, its parts, the parts' parts, level by level.

Source: the schedule of NAS-LID (He et al., AAAI 2023, arXiv 2211.12759). All levels are one fit,
in which the nodes of the tree have consecutive epochs; one node is in memory, the others on disk.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.loops.fetchers import _DataFetcher
from lightning.pytorch.loops.progress import _ProcessedTracker
from lightning.pytorch.utilities.exceptions import SIGTERMException
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils import _pytree

from ...common.ranks import digest, tensor_digest
from ..space import Architecture, Scalar, SearchSpace
from ..training.evaluation import first_batches
from ..training.sampling import Sampler
from ..training.task import SupernetTask, check_averages, check_strategy
from .folder import TreeFolder
from .helpers import HelperProcesses, leader_is_gone
from .profiles import named_layers
from .schedule import LevelSchedule, set_step
from .splitting import Splitter, joined
from .tree import ROOT, Split, SplitTree, depth, parent_name

__all__ = ["FewShotTraining"]


class FewShotTraining(SupernetTask):
    """Trains a supernet, splits its space in two, trains the parts from its weights, and so on.

    A node ends as a checkpoint `FOLDER/01.ckpt` with its part of the space in it, which
    `vizoo subnet` and the other commands take like any supernet's; `FOLDER/tree.json` holds all
    splits and names the files, for `vizoo rank` and `vizoo search --tree`. The levels say how many
    epochs there are and what the learning rate is: one cosine from the root to a leaf, where
    weights are inherited, else one a level. Nodes that are in the folder are not trained again; a
    killed run resumes from `last.ckpt` in the node where it was, after its last whole epoch.

    Processes with the same `folder` share the nodes: `processes` of `vizoo fit`, or those that are
    started by hand, also on other machines. What is random in a node depends on the seed and the
    node alone, so that all find the same tree and weights as one process does. A trainer with
    several devices trains each node on all of them, by `ddp_find_unused_parameters_true`.

    Args:
        task: what trains and measures the network, see `SupernetTask`.
        epochs: of the root, then of each node of the levels below; one more than there are splits
            between the root and a leaf.
        splitter: finds the splits.
        tree: file of a tree whose splits are taken instead, such as one of `vizoo split`.
        inherit: whether a part starts from its parent's weights and optimiser, else from the
            weights that the root started from.
        final_lr: the share of the learning rate that is left at the end.
        folder: of the nodes' checkpoints and the tree; `leaves` of the run's folder by default.
        processes: that `vizoo fit` runs, each with the trainer's one device; GPUs in turn.
        patience: seconds to wait for a node that another process trains without a sign of life.
        sampler: as for `SupernetTask`.
        watched: as for `SupernetTask`, within the part being trained.
        recalibration_batches: as for `SupernetTask`.

    Raises:
        ValueError: settings do not fit together, or the space cannot be split so often; in `setup`
            also callbacks that average weights.
    """

    resumes_within_epochs = False  # for `KeepLast`: what is random within one cannot be restored

    def __init__(
        self,
        task: LightningModule,
        epochs: list[int],
        splitter: Splitter | None = None,
        tree: str | None = None,
        inherit: bool = True,
        final_lr: float = 0.1,
        folder: str | None = None,
        processes: int = 1,
        patience: float = 1800.0,
        sampler: Sampler | None = None,
        watched: dict[str, str | dict[str, list[Scalar]]] | None = None,
        recalibration_batches: int = 16,
    ) -> None:
        super().__init__(
            task, sampler, watched=watched, recalibration_batches=recalibration_batches
        )
        # A resumed run may change these; the folder compares the last two, once there is a split.
        for free in ("processes", "patience", "splitter", "tree"):
            self.hparams.pop(free, None)
        if processes < 1 or patience <= 0:
            raise ValueError(f"processes {processes} and patience {patience} must be positive")
        self.schedule = LevelSchedule(epochs, inherit, final_lr)
        self.splitter = splitter or Splitter()
        self.given = None if tree is None else SplitTree.load(tree, self.full_space)
        self._check_depth()
        self.folder = None if folder is None else Path(folder)
        self.patience = patience
        self.tree = SplitTree(self.full_space)
        self.node = ROOT
        self._files: Any = None  # a `TreeFolder`, once a fit has begun that is not brief
        self._helpers = HelperProcesses(processes - 1)
        self._claimed: str | None = None
        self._first_step = 0
        self._max_epochs = self.schedule.total
        self._origin: dict[str, Any] = {}

    @property
    def space(self) -> SearchSpace:
        """What the present node holds."""
        return self.tree.space_of(self.node)

    def subnets(self, step: int) -> list[Architecture]:
        """The subnets that a training step trains; the same whatever was trained before."""
        before = self.schedule.before(self.node) * self._steps_per_epoch()
        return self.sampler.subnets(self.space, before + step - self._first_step)

    def setup(self, stage: str) -> None:
        """Let the levels say when training ends, and choose the folder."""
        super().setup(stage)
        if stage == "fit":
            check_averages(self.trainer, "averages weights over the nodes of the tree")
        loop, total = self.trainer.fit_loop, self.schedule.total
        if loop.max_steps >= 0 and not self._brief:
            raise ValueError(f"max_steps {loop.max_steps}: limit few-shot training by max_epochs")
        if (loop.max_epochs or 0) > total:
            rank_zero_info(f"max_epochs {loop.max_epochs}: the levels have {total}, which is all")
        if loop.max_epochs is None or not 0 <= loop.max_epochs <= total:
            loop.max_epochs = total
        self._max_epochs = loop.max_epochs
        if self.folder is None:
            self.folder = Path(self.trainer.log_dir or self.trainer.default_root_dir) / "leaves"
        # A checkpoint keeps it for a resumed run, which may be started elsewhere.
        self.folder = self.folder.absolute()
        if self._helpers.count and self.trainer.world_size > 1:
            raise ValueError(
                f"processes {self._helpers.count + 1} train nodes on one device each: set the "
                "trainer's devices to 1"
            )

    def configure_callbacks(self) -> list[Callback]:
        """The task's, and the one that runs helping processes."""
        return [*self.task_callbacks(), self._helpers]

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """The task's optimiser, its learning rate falling by a cosine."""
        return self.optimisation_by_epochs(
            "few-shot training", lambda epoch, _: self.schedule.rate(epoch)
        )

    def on_fit_start(self) -> None:
        """Refuse a strategy that wants all gradients, and leave room for the last node."""
        self.task.on_fit_start()
        check_strategy(
            self.trainer.strategy,
            ", or let every device train nodes of its own by trainer.devices 1 and "
            f"processes {self.trainer.world_size}",
        )
        if not self._brief:
            # What was stopped behind its last epoch may have a node to finish, or others to train.
            self.trainer.fit_loop.max_epochs = self._max_epochs + 1

    def on_train_start(self) -> None:
        """Open the folder, and go on with a resumed node or take the first free one."""
        if self.trainer.fit_loop.restarted_mid_epoch and self.trainer.ckpt_path:
            raise ValueError(
                f"{self.trainer.ckpt_path} was written within an epoch: resume from one of an "
                f"epoch's end, or leave ckpt_path out to go on with what {self.folder} lacks"
            )
        resumed = bool(self._origin)
        if not resumed:
            self._origin["seed"] = torch.initial_seed()
            self._origin["weights"] = f"{tensor_digest(self.state_dict().values()):x}"
        if not self._brief:
            self._open_folder(resumed)
            self._set_max_epochs()
        self.task.on_train_start()

    def on_train_epoch_start(self) -> None:
        """Begin the next node where one was taken; what is random depends on the epoch alone."""
        if self._claimed is not None:
            self._start_node(self._claimed)
        self._seed(self.current_epoch, "data")
        loop = self.trainer.fit_loop
        if self.current_epoch == 0 or loop.is_resuming or loop.epoch_loop.restarting:
            # Where Lightning begins to draw batches earlier, before it is known of which epoch.
            iter(cast("_DataFetcher", loop._data_fetcher))
        self.task.on_train_epoch_start()

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        """Tell waiting processes of progress; what is random depends on the batch alone."""
        self._heartbeat()
        self._seed(self.current_epoch, batch_idx)
        return self.task.on_train_batch_start(batch, batch_idx)

    def on_train_epoch_end(self) -> None:
        """Finish a node behind its last epoch."""
        super().on_train_epoch_end()
        if self._files is not None:
            self._end_epoch()

    def on_validation_batch_start(self, *_: Any) -> None:
        """Tell waiting processes that training goes on."""
        self._heartbeat()

    def on_train_end(self) -> None:
        """Refuse to end while a node of this tree has not been trained."""
        self.task.on_train_end()
        self.trainer.fit_loop.max_epochs = self._max_epochs
        if self._files is not None and self._max_epochs == self.schedule.total:
            if left := self._on_rank_zero(self._files.left, self.schedule.nodes):
                raise ValueError(
                    f"{self.folder}: the fit was stopped before node {', '.join(left)} was "
                    "trained; start it again to go on"
                )

    def on_fit_end(self) -> None:
        """Let go of the node that is held."""
        super().on_fit_end()
        self.let_go()

    def let_go(self) -> None:
        """Leave the node in training to other processes."""
        if self._files is not None:
            self._files.release()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the node, its part of the space and the tree."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["subspace"] = self.space.to_json()
        checkpoint["few_shot"] = {
            "node": self.node,
            "first_step": self._first_step,
            "begun": self._origin,
            "folder": str(self.folder),
            "tree": self.tree.to_json(),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on with a node and its tree."""
        super().on_load_checkpoint(checkpoint)
        state = checkpoint.get("few_shot")
        if state is None:
            raise ValueError("this checkpoint is not one of few-shot training")
        self.node, self._first_step = state["node"], state["first_step"]
        self.tree = SplitTree.from_json(state["tree"])
        self.folder = Path(state["folder"])
        self._origin = state["begun"]

    def _check_depth(self) -> None:
        """Raise a ValueError where the space cannot be split so often, or nothing is profiled."""
        epochs = self.schedule.epochs
        wanted = len(epochs) - 1
        if self.given is not None:
            self.schedule.check(self.given)
        elif wanted:
            if self.splitter.criterion == "lid":  # refuses patterns before hours of training
                named_layers(self.task.net, self.splitter.layers)
            possible = self.splitter.levels(self.full_space)
            if possible < wanted:
                names = ", ".join(self.splitter.candidates(self.full_space))
                raise ValueError(
                    f"epochs {epochs} ask for {wanted} levels of splits, but {names} can be split "
                    f"{possible} times"
                )

    def _open_folder(self, resumed: bool) -> None:
        """Go on with the node of a checkpoint or take another; let the helpers begin."""
        folder = cast("Path", self.folder)
        self._files = TreeFolder(folder, self.full_space, self.patience)
        if self.trainer.is_global_zero:
            self._files.open(self._about(), resumed)
            if not (resumed or self.schedule.inherit):
                self._files.start(self.state_dict())
        goes_on = resumed and self._on_rank_zero(self._files.take, self.node)
        if self._helpers.count:
            self._helpers.start(self.trainer, folder)
        if goes_on:
            self._end_epoch()  # what was stopped in a split still has to find it
        else:
            self._claim_node()

    def _about(self) -> dict[str, Any]:
        """All that weights and splits depend on."""
        trainer, given = self.trainer, self.given
        about = {
            "epochs": self.schedule.epochs,
            "inherit": self.schedule.inherit,
            "final_lr": self.schedule.final_lr,
            "tree": given and {name: split.groups for name, split in given.splits.items()},
            "sampler": {type(self.sampler).__name__: vars(self.sampler)},
            **{f"splitter.{key}": value for key, value in vars(self.splitter).items()},
            **{f"task.{key}": value for key, value in self.task.hparams.items()},
            "precision": trainer.precision,
            "gradient_clip_val": trainer.gradient_clip_val,
            "accumulate_grad_batches": trainer.accumulate_grad_batches,
            "steps_per_epoch": self._steps_per_epoch(),
            **self._origin,
        }
        about.pop("task.init_weights", None)  # the weights themselves say it
        if trainer.datamodule is not None:  # type: ignore[attr-defined]
            with first_batches(trainer, 1) as batches:
                tensors = [x for x in _pytree.tree_leaves(next(batches)) if torch.is_tensor(x)]
            about["data"] = f"{tensor_digest(tensors):x}"
        return about

    def _seed(self, *where: Any) -> None:
        """Let what is random depend on the seed and the place in the tree's epochs alone."""
        number = digest(f"{self._origin['seed']}:{where}") % 2**32
        random.seed(number)
        np.random.seed(number)
        torch.manual_seed(number)

    def _on_rank_zero(self, function: Callable[..., Any], *args: Any) -> Any:
        """What a function returns in the first process, which alone runs it."""
        result = function(*args) if self.trainer.is_global_zero else None
        return self.trainer.strategy.broadcast(result)

    def _heartbeat(self) -> None:
        """Tell processes that wait for the node that it makes progress."""
        if leader_is_gone():
            raise SystemExit("the process that started this one has ended")
        if self._files is not None:
            self._files.sign()

    def _check_alive(self, *_: Any) -> None:
        """End where the process was told to, between the places where Lightning looks."""
        self._heartbeat()
        if self.trainer.received_sigterm:
            raise SIGTERMException

    def _end_epoch(self) -> None:
        """Behind a node's last epoch finish it and take the next; stop at the limit."""
        if self._epochs_done == self.schedule.of(self.node).stop:
            self._finish_node()
            self._claim_node()
        elif self._epochs_done >= self._max_epochs:
            self.trainer.should_stop = True
        self._set_max_epochs()

    def _set_max_epochs(self) -> None:
        """Let the loop end with the last epoch, or begin one more that goes back to a node."""
        goes_back = self._claimed is not None and self._epochs_done >= self._max_epochs
        self.trainer.fit_loop.max_epochs = self._max_epochs + goes_back

    @property
    def _epochs_done(self) -> int:
        """How many epochs have trained on all their batches."""
        return cast("_ProcessedTracker", self.trainer.fit_loop.epoch_progress.current).processed

    def _claim_node(self) -> None:
        """Take the next node, which the next epoch begins; stop where none is left."""
        names = [n for n in self.schedule.nodes if self.schedule.of(n)[0] < self._max_epochs]
        self._claimed = self._on_rank_zero(self._files.claim, names, self._check_alive)
        if self._claimed is None:
            self.trainer.should_stop = True
            rank_zero_info(f"{self.folder}: all {len(names)} nodes are trained")

    def _start_node(self, name: str) -> None:
        self.node, self._claimed = name, None
        self.tree = self._files.read()
        self._first_step = self.global_step
        epochs, nodes = self.schedule.of(name), self.schedule.nodes
        self._go_to(epochs[0])
        if name != ROOT:
            self._start_from_parent(name)
            for config in self.trainer.lr_scheduler_configs:
                set_step(cast("LambdaLR", config.scheduler), epochs[0] * self._steps_per_epoch())
        rank_zero_info(
            f"node {name} ({nodes.index(name) + 1} of {len(nodes)}, epochs {epochs[0] + 1} to "
            f"{epochs[-1] + 1}): {self.space.count():.6g} subnets"
        )

    def _go_to(self, epoch: int) -> None:
        """Let the loop and the samplers be in an epoch: other processes train those between."""
        progress = self.trainer.fit_loop.epoch_progress.current
        skipped = epoch - self.current_epoch
        for count in ("ready", "started", "processed", "completed"):
            setattr(progress, count, getattr(progress, count) + skipped)
        for loader in _pytree.tree_leaves(self.trainer.train_dataloader):
            set_epoch = getattr(getattr(loader, "sampler", None), "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)

    def _start_from_parent(self, name: str) -> None:
        self._forget_steps()
        parent = self._files.weights(parent_name(name))
        if self.schedule.inherit:
            self.load_state_dict(parent["state_dict"])
            optimizer = cast("Optimizer", self.optimizers(use_pl_optimizer=False))
            optimizer.load_state_dict(parent["optimizer_states"][0])
        else:
            self.load_state_dict(self._files.start())
        precision = self.trainer.precision_plugin
        if state := parent.get(type(precision).__qualname__):
            precision.load_state_dict(state)

    def _finish_node(self) -> None:
        """Write the node and split it, unless it is of the last level."""
        name, split, file = self.node, None, self._files.checkpoint(self.node)
        self.tree.checkpoints[name] = file.name
        self.trainer.save_checkpoint(file, weights_only=False)
        if depth(name) < len(self.schedule.epochs) - 1:
            split = self.given.splits[name] if self.given is not None else self._find_split(name)
            self.tree.split(name, split)
            rank_zero_info(f"node {name} is split by {split}")
            for line in () if self.given is not None else _scores(split):
                rank_zero_info(line)
        if self.trainer.is_global_zero:
            self._files.finish(name, split)

    def _find_split(self, name: str) -> Split:
        def forward(net: nn.Module, batch: Any) -> None:
            with self._exactly():
                self._run(net, batch)

        with first_batches(self.trainer, shown_as="Best split") as batches:
            split = self.splitter.split(
                self.task.net,
                self.space,
                joined(batches, self.splitter.batch_size),
                forward=forward,
                loss=self._exact_loss,
                done={split.choice for split in self.tree.path_splits(name)},
                salt=name,
                progress=self._check_alive,
            )
        # Each has its own share of the data, and synchronised batch norms wait for all.
        return self.trainer.strategy.broadcast(split)


def _scores(split: Split) -> Iterator[str]:
    """What decided, choice by choice, the best gap first: mean similarities of pairs of values."""
    for choice, scores in sorted(split.scores.items(), key=lambda item: -item[1]["gap"]):
        named = ("gap", "inside", "across")  # of a choice of two values no pair is inside
        means = (f"{name} {scores[name]:.4f}" for name in named if scores[name] is not None)
        yield f"  {Split(choice, scores['groups'])}: mean {', '.join(means)}"
