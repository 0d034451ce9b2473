"""Progressive shrinking: the largest network first, then choice after choice is opened.

Source: Cai et al., "Once-for-All", ICLR 2020. All stages are one fit: consecutive epochs, each
stage with an optimiser and a learning rate that start anew, from the weights of the stage before.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, cast

import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, Checkpoint, ModelCheckpoint
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn

from ...common.arguments import check_arguments
from ...common.files import shortened
from ...common.layers import evaluating
from ...common.ranks import rank_and_size
from ..architecture import near
from ..conversion.importance import taylor_scores
from ..sorting import sort_channels
from ..space import Architecture, Scalar, SearchSpace
from ..supernet import activate, extract
from .evaluation import first_batches
from .sampling import Sampler, UniformSampler
from .task import SupernetTask, check_averages, checked_task

__all__ = ["ProgressiveShrinking", "Stage"]

_SCORED = 16  # training batches that importance is measured on


@dataclass(frozen=True)
class Stage:
    """Some epochs in which more choices are open than before.

    Args:
        name: for the log and the checkpoint.
        epochs: its length, warm-up included.
        opens: patterns of choices that are open from here on; before, they are at their largest.
        only: patterns of open choices and the values allowed in this stage alone.
        lr: learning rate after warm-up, of the layers that learn fastest; it falls to zero by a
            cosine. The task's by default.
        warmup_epochs: epochs in which the rate rises linearly to `lr`.
        warmup_start: the share of `lr` at which it begins to rise; 1 for a constant rate.
        sampler: draws the subnets of a step; one uniform subnet by default.
        sort_channels: sort channels by importance first, before widths are opened: by the
            `magnitude` of weights (or true), or by `taylor`, how much the loss of 16 training
            batches changes without them, see `taylor_scores`.

    Raises:
        ValueError: a length or rate is out of range, or a word unknown.
    """

    name: str
    epochs: int
    opens: list[str] = field(default_factory=list)
    only: dict[str, list[Scalar]] = field(default_factory=dict)
    lr: float | None = None
    warmup_epochs: float = 0.0
    warmup_start: float = 0.0
    sampler: Sampler | None = None
    sort_channels: bool | Literal["magnitude", "taylor"] = False

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if name != "sort_channels"}
        check_arguments(f"stage {self.name!r}", Stage, given)
        if self.epochs < 1 or not 0 <= self.warmup_epochs < self.epochs:
            raise ValueError(
                f"stage {self.name!r}: {self.epochs} epochs with {self.warmup_epochs} of warm-up; "
                "it needs at least one, and more than the warm-up"
            )
        if (self.lr is not None and self.lr <= 0) or not 0 <= self.warmup_start <= 1:
            raise ValueError(
                f"stage {self.name!r}: lr {self.lr} has to be positive and warmup_start "
                f"{self.warmup_start} between 0 and 1"
            )
        if self.sort_channels not in (False, True, "magnitude", "taylor"):
            raise ValueError(
                f"stage {self.name!r}: sort_channels {self.sort_channels!r}: choose true, false, "
                "magnitude or taylor"
            )

    def rate(self, progress: float) -> float:
        """The share of `lr` after `progress` epochs of this stage."""
        if progress < self.warmup_epochs:
            return self.warmup_start + (1 - self.warmup_start) * progress / self.warmup_epochs
        done = (progress - self.warmup_epochs) / (self.epochs - self.warmup_epochs)
        return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


class ProgressiveShrinking(SupernetTask):
    """Trains a supernet in stages, all in one fit.

    The stages say how many epochs there are and what the learning rate is; the task's schedule is
    not used. At the end of each stage a checkpoint `stage2_depth.ckpt` is written beside
    `last.ckpt`, from which a killed run resumes in the stage where it was.

    Args:
        task: what trains and measures the network, see `SupernetTask`.
        stages: in order. What none of them opens stays at its largest.
        distillation: as for `SupernetTask`; the `largest` network, as the first stage left it,
            can be the teacher of the others.
        distillation_weight: factor of the distance to the teacher's outputs.
        watched: as for `SupernetTask`, within what the stage has open.
        recalibration_batches: as for `SupernetTask`.

    Raises:
        ValueError: one is no `Stage`, stages name no choice of the network, or do not fit together;
            in `setup` also callbacks that average weights where a stage behind the first sorts
            channels.
    """

    def __init__(
        self,
        task: LightningModule,
        stages: list[Stage],
        distillation: Literal["none", "in_place", "largest"] = "none",
        distillation_weight: float = 1.0,
        watched: dict[str, str | dict[str, list[Scalar]]] | None = None,
        recalibration_batches: int = 16,
    ) -> None:
        super().__init__(
            task,
            distillation="none" if distillation == "largest" else distillation,
            distillation_weight=distillation_weight,
            watched=watched,
            recalibration_batches=recalibration_batches,
        )
        checked_task(task, distillation)
        self._from_largest = distillation == "largest"
        if others := [stage for stage in stages if not isinstance(stage, Stage)]:
            told = "give a vizoo.nas.training.Stage(name, epochs, …)"
            raise ValueError(f"stage {shortened(others[0])}: {told}")
        names = [stage.name for stage in stages]
        if not stages or len(set(names)) < len(names):
            raise ValueError(f"progressive shrinking needs stages of different names, not {names}")
        self.stages = stages
        self.starts = [0, *accumulate(stage.epochs for stage in stages)]
        self.spaces = _stage_spaces(self.full_space, stages)
        self.stage = -1

    @property
    def space(self) -> SearchSpace:
        """What the present stage has open."""
        return self.spaces[max(0, self.stage)]

    def subnets(self, step: int) -> list[Architecture]:
        """The subnets that a training step trains."""
        sampler = self.stages[max(0, self.stage)].sampler or UniformSampler()
        return sampler.subnets(self.space, step)

    def stage_at(self, epoch: float) -> int:
        """The stage that an epoch belongs to."""
        return min(bisect_right(self.starts, epoch), len(self.stages)) - 1

    def configure_callbacks(self) -> list[Callback]:
        """The task's, and one that writes stages where files are written at all."""
        own = self.task_callbacks()
        return [*own, _StageCheckpoints()] if self.trainer.checkpoint_callbacks else own

    def setup(self, stage: str) -> None:
        """Let the stages say how many epochs there are."""
        super().setup(stage)
        if stage == "fit" and any(later.sort_channels for later in self.stages[1:]):
            check_averages(self.trainer, "averages channels that a later stage sorts anew")
        loop = self.trainer.fit_loop
        if loop.max_epochs is None or not 0 <= loop.max_epochs <= self.starts[-1]:
            loop.max_epochs = self.starts[-1]

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """The task's optimiser, under the stages' learning rates."""

        def rate(epoch: float, base: float) -> float:
            index = self.stage_at(epoch)
            stage = self.stages[index]
            share = stage.rate(epoch - self.starts[index])
            return share * (1 if stage.lr is None else stage.lr / base)

        return self.optimisation_by_epochs("progressive shrinking", rate)

    def on_train_start(self) -> None:
        """Say in which stage a resumed run goes on."""
        if self.stage >= 0:
            rank_zero_info(f"resuming in {self._called(self.stage)}")
        self.task.on_train_start()

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        """Begin a stage with the first batch of its first epoch."""
        # Not at the start of an epoch, which a resumed run may be past.
        if self.stage_at(self.current_epoch) != self.stage:
            self._begin(self.stage_at(self.current_epoch))
        return self.task.on_train_batch_start(batch, batch_idx)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the stage, its teacher, and which part of the space has been trained by then."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["shrinking_stage"] = self.stage
        trained = self._trained()
        if 1 < trained.count() < self.full_space.count():
            checkpoint["subspace"] = trained.to_json()
        if self._teacher:
            checkpoint["shrinking_teacher"] = self._teacher[0].state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on in the stage of a checkpoint, with its teacher."""
        super().on_load_checkpoint(checkpoint)
        self.stage = min(checkpoint.get("shrinking_stage", -1), len(self.stages) - 1)
        if "shrinking_teacher" in checkpoint:
            self._teach_by_largest()
            self._teacher[0].load_state_dict(checkpoint["shrinking_teacher"])

    def _trained(self) -> SearchSpace:
        """The part of the space that the stages up to the present one have open."""
        parts = self.spaces[: self.stage + 1] or self.spaces[:1]
        allowed = {
            choice.name: [
                value
                for value in choice.values
                if any(part.choices[choice.name].find(value) >= 0 for part in parts)
            ]
            for choice in self.full_space
        }
        return self.full_space.restrict(allowed)

    def _begin(self, index: int) -> None:
        stage, self.stage = self.stages[index], index
        open_choices = sum(len(choice.values) > 1 for choice in self.space)
        rank_zero_info(
            f"{self._called(index)}: {open_choices} choices open, {self.space.count():.3g} subnets"
        )
        if index and self._from_largest and not self._teacher:
            self._teach_by_largest()
        if stage.sort_channels:
            scores = self._scores() if stage.sort_channels == "taylor" else None
            sort_channels(self.task.net, scores)
        if index:
            self._forget_steps()

    def _scores(self) -> dict[str, Tensor]:
        """How important weights are to the largest network's loss; the same on all processes."""
        net, (rank, processes) = self.task.net, rank_and_size()
        activate(net, self.full_space.largest())
        given = first_batches(self.trainer, _SCORED, rank, processes, shown_as="Scores of weights")
        with given as batches, evaluating(net):
            scores = taylor_scores(net, batches, self._exact_loss)
        for score in scores.values() if processes > 1 else ():
            dist.all_reduce(score)
        return scores

    def _called(self, index: int) -> str:
        first, last = self.starts[index] + 1, self.starts[index + 1]
        name = self.stages[index].name
        return f"stage {index + 1} of {len(self.stages)}, {name} (epochs {first} to {last})"

    def _teach_by_largest(self) -> None:
        teacher: nn.Module = extract(self.task.net, self.full_space.largest())
        self._teacher = (teacher.requires_grad_(False),)
        self.distillation = "teacher"


class _StageCheckpoints(Checkpoint):
    """Writes `stage2_depth.ckpt` when a stage ends, beside the files of a `ModelCheckpoint`."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        task, epoch = cast("ProgressiveShrinking", pl_module), trainer.current_epoch + 1
        if epoch not in task.starts or task._brief:
            return
        number = task.starts.index(epoch)
        default = Path(trainer.log_dir or trainer.default_root_dir) / "checkpoints"
        own = (c for c in trainer.checkpoint_callbacks if isinstance(c, ModelCheckpoint))
        folder = next((Path(c.dirpath) for c in own if c.dirpath), default)
        name = f"stage{number}_{task.stages[number - 1].name}.ckpt"
        trainer.save_checkpoint(folder / name, weights_only=False)


def _stage_spaces(space: SearchSpace, stages: Sequence[Stage]) -> list[SearchSpace]:
    """For each stage the part of the space that is open in it."""
    spaces, opened = [], set()
    for stage in stages:
        for pattern in stage.opens:
            matches = {n for n in space.names if n == pattern or fnmatchcase(n, pattern)}
            if not matches:
                raise ValueError(
                    f"stage {stage.name!r} opens {pattern!r}, but no choice is called so"
                    f"{near(pattern, space.names)}"
                )
            opened |= matches
        closed = {c.name: [c.largest] for c in space if c.name not in opened}
        try:
            spaces.append(space.restrict(closed).restrict(stage.only))
        except ValueError as error:
            raise ValueError(f"stage {stage.name!r}: {error}") from error
    return spaces
