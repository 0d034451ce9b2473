"""Few-shot training as Lightning: a supernet, its parts, the parts' parts, level by level.

Source: the schedule of NAS-LID (He et al., AAAI 2023, arXiv 2211.12759). All levels are one fit,
in which the nodes of the tree take consecutive epochs; one node is in memory, the others on disk.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor, nn

from ..space import Architecture, Scalar, SearchSpace
from ..training.evaluation import first_batches
from ..training.sampling import Sampler
from ..training.task import SupernetTask
from .profile import named_layers
from .splitting import Splitter, joined
from .tree import ROOT, Split, SplitTree, depth, nodes_of_level, parent_name

__all__ = ["FewShotTraining"]

_TREE = "tree.json"


class FewShotTraining(SupernetTask):
    """Trains a supernet, splits its space in two, trains the parts from its weights, and so on.

    A node ends as a checkpoint `FOLDER/01.ckpt` with its part of the space in it, which
    `vizoo subnet` and the other commands take like any supernet's; `FOLDER/tree.json` holds all
    splits and names the files, for `vizoo rank` and `vizoo search --tree`. The levels say how many
    epochs there are and what the learning rate is: one cosine from the root to a leaf, where
    weights are inherited, else one a level. A killed run resumes from `last.ckpt` in the node where
    it was.

    Several processes share the work where each has its `share` and all the same `folder`: each is
    a `vizoo fit` of its own, on its own device, and waits for parents that others train.

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
        share: `[i, n]`: this process trains the i-th of every n nodes of a level, counted from 0.
        sampler: as for `SupernetTask`.
        watched: as for `SupernetTask`, within the part being trained.
        recalibration_batches: as for `SupernetTask`.

    Raises:
        ValueError: settings do not fit together, or the space cannot be split so often.
    """

    def __init__(
        self,
        task: LightningModule,
        epochs: list[int],
        splitter: Splitter | None = None,
        tree: str | None = None,
        inherit: bool = True,
        final_lr: float = 0.1,
        folder: str | None = None,
        share: list[int] | None = None,
        sampler: Sampler | None = None,
        watched: dict[str, str | dict[str, list[Scalar]]] | None = None,
        recalibration_batches: int = 16,
    ) -> None:
        super().__init__(
            task, sampler, watched=watched, recalibration_batches=recalibration_batches
        )
        share = share or [0, 1]
        if not epochs or min(epochs) < 1 or not 0 <= final_lr <= 1:
            raise ValueError(
                f"epochs {epochs} need one positive number a level, and final_lr {final_lr} is a "
                "share from 0 to 1"
            )
        if len(share) != 2 or not 0 <= share[0] < share[1]:
            raise ValueError(f"share {share}: give [i, n], the i-th of n processes, from 0")
        if share[1] > 1 and folder is None:
            raise ValueError("processes that share the work need one folder: give `folder`")
        self.epochs = epochs
        self.splitter = splitter or Splitter()
        self.given = None if tree is None else SplitTree.load(tree, self.full_space)
        self._check_depth()
        self.inherit = inherit
        self.final_lr = final_lr
        self.folder = None if folder is None else Path(folder)
        self.share = share
        self.nodes = [
            name
            for level in range(len(epochs))
            for name in nodes_of_level(level)[share[0] :: share[1]]
        ]
        self.starts = [0, *accumulate(epochs[depth(name)] for name in self.nodes)]
        if not self.nodes:
            raise ValueError(f"share {share}: there are not so many nodes")
        self.tree = SplitTree(self.full_space)
        self.current = -1
        self._first_step = 0
        self._resumed = False

    @property
    def node(self) -> str:
        """The node that is being trained."""
        return self.nodes[max(0, self.current)]

    @property
    def space(self) -> SearchSpace:
        """What the present node holds."""
        return self.tree.space_of(self.node) if self.current >= 0 else self.full_space

    def subnets(self, step: int) -> list[Architecture]:
        """The subnets that a training step trains; the same whatever was trained before."""
        before = sum(self.epochs[: depth(self.node)]) * self._steps_per_epoch()
        return self.sampler.subnets(self.space, before + step - self._first_step)

    def setup(self, stage: str) -> None:
        super().setup(stage)
        loop = self.trainer.fit_loop
        if loop.max_epochs is None or not 0 <= loop.max_epochs <= self.starts[-1]:
            loop.max_epochs = self.starts[-1]
        if self.folder is None:
            self.folder = Path(self.trainer.log_dir or self.trainer.default_root_dir) / "leaves"
        # A checkpoint keeps it for a resumed run, which may be started elsewhere.
        self.folder = self.folder.absolute()

    def configure_optimizers(self) -> dict[str, Any]:
        """The task's optimiser, its learning rate falling by a cosine."""
        optimizer = super().configure_optimizers()["optimizer"]
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("initial_lr", group["lr"])
        if math.isinf(self.trainer.estimated_stepping_batches):
            raise ValueError("few-shot training needs epochs of a known length")
        per_epoch = self._steps_per_epoch()

        def factor(step: int) -> float:
            epoch = step / per_epoch
            index = min(bisect_right(self.starts, epoch), len(self.nodes)) - 1
            level = depth(self.nodes[index])
            done, whole = epoch - self.starts[index], self.epochs[level]
            if self.inherit:
                done, whole = done + sum(self.epochs[:level]), sum(self.epochs)
            share = 0.5 * (1 + math.cos(math.pi * min(1.0, done / whole)))
            return self.final_lr + (1 - self.final_lr) * share

        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }

    def on_fit_start(self) -> None:
        if not self._resumed and not self.trainer.fast_dev_run and self.trainer.is_global_zero:
            self._check_folder()
        self.task.on_fit_start()

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        # Not at the start of an epoch, which a resumed run may be past.
        index = min(bisect_right(self.starts, self.current_epoch), len(self.nodes)) - 1
        if index != self.current:
            self._begin(index)
        return self.task.on_train_batch_start(batch, batch_idx)

    def on_train_epoch_end(self) -> None:
        super().on_train_epoch_end()
        if self.current_epoch + 1 == self.starts[self.current + 1] and not (
            self.trainer.fast_dev_run
        ):
            self._finish()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.task.on_save_checkpoint(checkpoint)
        checkpoint["subspace"] = self.space.to_json()
        checkpoint["few_shot"] = {
            "current": self.current,
            "first_step": self._first_step,
            "folder": str(self.folder),
            "tree": self.tree.to_json(),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.task.on_load_checkpoint(checkpoint)
        state = checkpoint.get("few_shot")
        if state is None:
            raise ValueError("this checkpoint is not one of few-shot training")
        self.current, self._first_step = state["current"], state["first_step"]
        self.tree = SplitTree.from_json(state["tree"])
        self.folder = Path(state["folder"])
        self._resumed = True

    def _check_depth(self) -> None:
        """Raise a ValueError where the space cannot be split so often, or nothing is profiled."""
        wanted = len(self.epochs) - 1
        if self.given is not None:
            missing = [
                name
                for level in range(wanted)
                for name in nodes_of_level(level)
                if name not in self.given.splits or len(self.given.splits[name].groups) != 2
            ]
            if missing:
                raise ValueError(
                    f"epochs {self.epochs} ask for {wanted} levels of splits in two, but node "
                    f"{missing[0]!r} of the tree has none"
                )
        elif wanted:
            if self.splitter.criterion == "lid":  # refuses patterns before hours of training
                named_layers(self.task.net, self.splitter.layers)
            names = self.splitter.candidates(self.full_space)
            sizes = [len(self.full_space.choices[name].values) for name in names]
            # Groups of `min_group` cannot be counted on to be split again, halves can.
            uneven = self.splitter.min_group is not None
            possible = sum(1 if uneven else size.bit_length() - 1 for size in sizes)
            if possible < wanted:
                raise ValueError(
                    f"epochs {self.epochs} ask for {wanted} levels of splits, but "
                    f"{', '.join(names)} can be split {possible} times"
                )

    def _check_folder(self) -> None:
        """Refuse the folder of another training; an earlier tree of this one is made anew."""
        path, own = self.folder / _TREE, self._about()
        if path.exists():
            found = SplitTree.load(path, self.full_space)
            if found.about != own:
                raise ValueError(
                    f"{path}: a tree of another training; name another folder, or resume that "
                    "training by --ckpt_path"
                )
            if self.share[1] == 1:
                path.unlink()
        if not self.inherit:
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self.folder / ".lock"):
                if self.share[0] == 0 or not (self.folder / "start.pt").exists():
                    torch.save(self.task.net.state_dict(), self.folder / "start.pt")

    def _about(self) -> dict[str, Any]:
        about = {"epochs": self.epochs, "inherit": self.inherit, "final_lr": self.final_lr}
        return {**about, "splitter": vars(self.splitter)}

    def _steps_per_epoch(self) -> int:
        accumulated = self.trainer.accumulate_grad_batches
        return max(1, math.ceil(self.trainer.num_training_batches / accumulated))

    def _begin(self, index: int) -> None:
        name, self.current = self.nodes[index], index
        self._first_step = self.global_step
        if name != ROOT:
            self._wait_for(parent_name(name))
            self._start_from_parent(name)
        first, last = self.starts[index] + 1, self.starts[index + 1]
        rank_zero_info(
            f"node {name} ({index + 1} of {len(self.nodes)}, epochs {first} to {last}): "
            f"{self.space.count():.6g} subnets"
        )

    def _wait_for(self, parent: str) -> None:
        """Until the parent is on disk, which another process may train."""
        told = False
        while parent not in self.tree.splits:
            if (self.folder / _TREE).exists():
                with FileLock(self.folder / ".lock"):
                    self.tree = SplitTree.load(self.folder / _TREE, self.full_space)
            if parent not in self.tree.splits:
                if not told:
                    rank_zero_info(f"waiting for node {parent} in {self.folder}")
                told = True
                time.sleep(1)

    def _start_from_parent(self, name: str) -> None:
        optimizer = self.optimizers(use_pl_optimizer=False)
        if self.inherit:
            path = self.folder / self.tree.checkpoints[parent_name(name)]
            parent = torch.load(path, map_location="cpu", weights_only=True)
            self.load_state_dict(parent["state_dict"])
            optimizer.load_state_dict(parent["optimizer_states"][0])
        else:
            start = torch.load(self.folder / "start.pt", map_location="cpu", weights_only=True)
            self.task.net.load_state_dict(start)
            optimizer.state.clear()
        # The parent's rate is of where it ended, maybe long ago in this fit.
        for schedule in self.trainer.lr_scheduler_configs:
            rates = schedule.scheduler.get_last_lr()
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate

    def _finish(self) -> None:
        """Split the node, unless it is of the last level, and write it."""
        name = self.node
        # A process that shares the work may find its own split there, of before it was killed.
        if depth(name) < len(self.epochs) - 1 and name not in self.tree.splits:
            split = self.given.splits[name] if self.given is not None else self._find_split(name)
            self.tree.split(name, split)
            groups = " | ".join(", ".join(map(str, group)) for group in split.groups)
            rank_zero_info(f"node {name} is split by {split.choice}: {groups}")
            for choice, figures in split.scores.items():
                rank_zero_info(f"  {choice}: " + ", ".join(f"{k} {v}" for k, v in figures.items()))
        self.tree.checkpoints[name] = f"{name}.ckpt"
        self.trainer.save_checkpoint(self.folder / f"{name}.ckpt", weights_only=False)
        if self.trainer.is_global_zero:
            self._write_tree(name)

    def _find_split(self, name: str) -> Split:
        done = {split.choice for split in self.tree.path_splits(name)}
        with first_batches(self.trainer) as batches:
            split = self.splitter.split(
                self.task.net,
                self.space,
                joined(batches, self.splitter.batch_size),
                forward=self._run,
                loss=self._loss,
                done=done,
                salt=name,
            )
        # Each process has its own share of the data.
        return self.trainer.strategy.broadcast(split)

    def _loss(self, net: nn.Module, batch: Any) -> Tensor:
        with self._collecting():
            loss = self.task.training_step(batch, 0)
        return loss["loss"] if isinstance(loss, dict) else loss

    def _write_tree(self, name: str) -> None:
        path = self.folder / _TREE
        with FileLock(self.folder / ".lock"):
            if self.share[1] > 1 and path.exists():
                found = SplitTree.load(path, self.full_space)
                if name in self.tree.splits and name not in found.splits:
                    found.split(name, self.tree.splits[name])
                found.checkpoints[name] = self.tree.checkpoints[name]
                self.tree = found
            self.tree.about = self._about()
            self.tree.save(path)
