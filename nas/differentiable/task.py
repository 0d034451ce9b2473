"""Differentiable search as Lightning: another task's training, and logits that learn beside it.

`DifferentiableSearch` wraps a task as `vizoo.nas.training.SupernetTask` does. In each step the
logits take a step on a batch of their own, then the weights on theirs, each with a fresh draw. What
is drawn depends on the seed and the number of the step alone, so a resumed run draws what the
interrupted one would have drawn, and all processes draw alike.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn
from lightning.pytorch.utilities.types import OptimizerConfig, OptimizerLRScheduler
from torch import Tensor

from ...common.files import write_json
from ..search.constraints import Limits
from ..space import Architecture, Scalar, SearchSpace
from ..supernet import elastic_modules
from ..training.task import SupernetTask, inserted
from .costs import Cost
from .data import TRANSFER_HOOKS, each_half, is_pair
from .derivation import draw_architectures, most_likely
from .logits import Draw, Logits, check_weighable, drop_free, free_values, share_of_free, weighted
from .samplers import GumbelSoftmax, MixtureSampler
from .schedules import Constant, Schedule

__all__ = ["DifferentiableSearch"]


class DifferentiableSearch(SupernetTask):
    """Searches an architecture of a task's network by gradients of its logits.

    The training data give two loaders by the names `weights` and `logits`, such as those of
    `HalvedData`. The derived architecture, the most likely one within the cost's target, is
    extracted, recalibrated and validated like the subnets that are watched; what the task logs as
    `val/loss` is logged as `val/derived/loss`. At the end of a fit it is written to
    `architecture.json`, for `vizoo subnet --architecture`, and all probabilities to
    `probabilities.json`.

    Clipping, accumulation and precision are the trainer's; only the weights' gradients are
    clipped, and only the weights' steps counted, as for `max_steps`. On several processes the
    strategy has to allow unused parameters (`ddp_find_unused_parameters_true`).

    Args:
        task: what trains and measures the network, see `SupernetTask`.
        sampler: draws the weights of candidates; the hard Gumbel-Softmax by default.
        temperature: of the sampler; 1 throughout by default.
        logits_lr: learning rate of the logits' Adam (betas 0.5 and 0.999).
        logits_weight_decay: of the logits' Adam.
        warmup_epochs: epochs at the beginning in which only weights learn.
        joint: logits and weights learn together from the one training loader (SNAS).
        cost: what large or slow networks cost the logits.
        only: patterns of choices and the values to search among, as `SearchSpace.restrict` takes.
        max_skips: end the search when this share of the derived architecture's choices, or more,
            took a candidate without parameters, since such searches have collapsed; None never.
        skip_dropout: probability to leave a candidate without parameters out of a step's mixture,
            falling to zero in the last epoch, against such a collapse; see `drop_free`.
        samples: architectures drawn from the probabilities at the end and validated as well; the
            best of them and the most likely one is the result. 0 for none.
        metric: by which it is the best, such as `val/loss`.
        mode: whether the metric is to be small or large.
        watched: further subnets to validate, as for `SupernetTask`.
        recalibration_batches: as for `SupernetTask`.
        seed: of the logits' initial values and of all draws.

    Raises:
        ValueError: settings do not fit together, the task cannot be wrapped, or the sampler
            cannot search one of the network's choices.
    """

    def __init__(
        self,
        task: LightningModule,
        sampler: MixtureSampler | None = None,
        temperature: Schedule | None = None,
        logits_lr: float = 3e-4,
        logits_weight_decay: float = 1e-3,
        warmup_epochs: int = 0,
        joint: bool = False,
        cost: Cost | None = None,
        only: dict[str, list[Scalar]] | None = None,
        max_skips: float | None = None,
        skip_dropout: float = 0.0,
        samples: int = 0,
        metric: str | None = None,
        mode: Literal["min", "max"] = "min",
        watched: dict[str, str | dict[str, list[Scalar]]] | None = None,
        recalibration_batches: int = 16,
        seed: int = 0,
    ) -> None:
        super().__init__(task, watched=watched, recalibration_batches=recalibration_batches)
        for name, value, fits, wanted in (
            ("logits_lr", logits_lr, logits_lr > 0, "above 0"),
            ("logits_weight_decay", logits_weight_decay, logits_weight_decay >= 0, "0 or more"),
            ("warmup_epochs", warmup_epochs, warmup_epochs >= 0, "0 or more"),
            ("max_skips", max_skips, max_skips is None or 0 < max_skips <= 1, "a share up to 1"),
            ("skip_dropout", skip_dropout, 0 <= skip_dropout < 1, "from 0 to below 1"),
            ("samples", samples, samples >= 0, "0 or more"),
            ("mode", mode, mode in ("min", "max"), "min or max"),
        ):
            if not fits:
                raise ValueError(f"{name} has to be {wanted}, not {value!r}")
        self.watched = watched or {}
        self.mixing = sampler or GumbelSoftmax()
        if skip_dropout and self.mixing.one_path:
            raise ValueError("skip_dropout needs a sampler that runs all candidates of a choice")
        self._space = self.full_space.restrict(only or {})
        if not any(len(choice.values) > 1 for choice in self._space):
            raise ValueError("nothing to search: no choice is left with more than one value")
        if not self.mixing.by_score:
            check_weighable(self.task.net, self._space)
        if samples and metric is None:
            raise ValueError(f"to rank {samples} samples takes a metric, such as val/loss")
        if joint and self.mixing.by_score:
            raise ValueError("Reinforce runs no backward pass for logits: it cannot be joint")
        if cost is not None and self.mixing.by_score and cost.form not in ("hinge", "linear"):
            raise ValueError(f"Reinforce adds a cost to its loss: hinge or linear, not {cost.form}")
        self.temperature = temperature or Constant()
        self.logits = Logits(self._space, seed=seed)
        self.logits_lr = logits_lr
        self.logits_weight_decay = logits_weight_decay
        self.warmup_epochs = warmup_epochs
        self.joint = joint
        self.cost = cost
        self.max_skips = max_skips
        self.skip_dropout = skip_dropout
        self.samples = samples
        self.metric, self.mode = metric, mode
        self.seed = seed
        self.steps = 0
        self.result: Architecture | None = None
        self._baseline = math.nan
        self._ranked: dict[str, Architecture] = {}
        self._drawn = False  # what is ranked, which may be nothing
        self._ran: dict[str, set[int]] = {}
        # In a tuple: no child of this module.
        self._elastic = (list(elastic_modules(self.task.net)),)
        self._free = free_values(self.task.net)
        for hook in TRANSFER_HOOKS:
            if hook in vars(self):  # the task's own
                setattr(self, hook, partial(each_half, getattr(task, hook)))

    @property
    def space(self) -> SearchSpace:
        """What is searched."""
        return self._space

    @property
    def derived(self) -> Architecture:
        """The most likely architecture, within the cost's target if there is one."""
        limits = [self.cost.constraint] if self.cost and self.cost.table else []
        return most_likely(self.space, self.probabilities(), limits)

    def probabilities(self) -> dict[str, list[float]]:
        """Choice's name → how much each of its values is preferred."""
        with torch.no_grad():
            preferred = self.logits.probabilities(self.mixing)
        return {name: shares.tolist() for name, shares in preferred.items()}

    def setup(self, stage: str) -> None:
        """Set the task up, and count or read the costs of the searched space."""
        super().setup(stage)
        if self.cost is not None and self.cost.table is None:
            inputs = self.task.example_input_array
            inputs = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs or ())
            self.cost.prepare(self.task.net, inputs, self.space)
            # Refuses a target out of reach before the search.
            Limits(self.space, [self.cost.constraint]).refuge()

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """The task's optimiser and schedule, and the logits' Adam."""
        weights = self.task_optimisation()
        logits = torch.optim.Adam(
            self.logits.parameters(),
            lr=self.logits_lr,
            betas=(0.5, 0.999),
            weight_decay=self.logits_weight_decay,
        )
        return cast("Sequence[OptimizerConfig]", (weights, {"optimizer": logits}))

    def on_train_start(self) -> None:
        """Warn where the run ends within the warm-up."""
        epochs = self._epochs
        if self.mixing.learns and epochs is not None and epochs <= self.warmup_epochs:
            rank_zero_warn(
                f"no architecture is learned: warmup_epochs {self.warmup_epochs} of {epochs} "
                "epochs train weights alone; set model.warmup_epochs lower, or train longer"
            )
        self.task.on_train_start()

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """A step of the logits, then one of the weights; or one of both."""
        if self.joint == is_pair(batch):
            wanted = "one loader" if self.joint else "two, named weights and logits (HalvedData)"
            raise ValueError(f"this search takes training data of {wanted}")
        learning = self.mixing.learns and self.current_epoch >= self.warmup_epochs
        weights, logits = cast("list[LightningOptimizer]", self.optimizers())
        accumulate = self.trainer.accumulate_grad_batches
        stepping = (batch_idx + 1) % accumulate == 0 or self.trainer.is_last_batch
        if self.joint:
            self._backward(self._loss(batch, batch_idx, learn=learning), stepping)
        else:
            if learning:
                self.toggle_optimizer(logits)
                try:
                    loss = self._loss(batch["logits"], batch_idx, learn=True, who="logits")
                    self._backward(loss, stepping)
                finally:
                    self.untoggle_optimizer(logits)
                if stepping:
                    self._step_logits(logits)
            self._backward(self._loss(batch["weights"], batch_idx, learn=False), stepping)
        if stepping:
            if self.joint and learning:
                self._step_logits(logits)
            weights.step()
            weights.zero_grad()
            self.steps += 1
            self._step_schedules("step", self.steps)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Clip the gradients of the weights; those of the logits stay."""
        weights, _ = cast("list[torch.optim.Optimizer]", self.optimizers(use_pl_optimizer=False))
        if optimizer is weights:
            super().on_before_optimizer_step(optimizer)

    def on_train_epoch_end(self) -> None:
        """Log how undecided the search is (`search/entropy`, from 0 to 1) and the temperature."""
        super().on_train_epoch_end()
        shares = [torch.tensor(row) for row in self.probabilities().values()]
        entropies = [torch.special.entr(row).sum() / math.log(len(row)) for row in shares]
        self.log("search/entropy", torch.stack(entropies).mean())
        self.log("search/temperature", self._temperature())
        self._watch_skips()

    def on_validation_epoch_end(self) -> None:
        """Check that the metric by which samples are ranked has been logged."""
        super().on_validation_epoch_end()
        if self.trainer.state.fn != "fit" or self.trainer.sanity_checking or not self.samples:
            return
        logged = self.trainer.callback_metrics
        if inserted(cast("str", self.metric), "derived") not in logged:
            derived = (name for name in sorted(logged) if "derived" in name.split("/"))
            known = [name.replace("derived/", "", 1) for name in derived]
            raise ValueError(
                f"metric {self.metric} is not logged in validation, so it cannot rank samples; "
                f"there are {', '.join(known) or 'none'}"
            )

    def on_validation_epoch_start(self) -> None:
        """Extract the subnets to watch, and end a search that has collapsed into skips."""
        if self.trainer.state.fn == "fit" and not self.trainer.sanity_checking:
            self._watch_skips()
        super().on_validation_epoch_start()

    def on_fit_end(self) -> None:
        """Choose the result, and write it and the probabilities into the run's folder."""
        super().on_fit_end()
        self.result = self._best()
        # All processes ask for the folder, because it is the first one's answer that counts.
        folder = Path(self.trainer.log_dir or self.trainer.default_root_dir)
        if self.trainer.is_global_zero and not self._brief:
            self.result.save(folder / "architecture.json")
            write_json(folder / "probabilities.json", self.probabilities())
            rank_zero_info(f"derived architecture: {folder / 'architecture.json'}")

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the number of steps and the baseline of the scores."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["search"] = {"steps": self.steps, "baseline": self._baseline}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on with the number of steps and the baseline of the scores."""
        super().on_load_checkpoint(checkpoint)
        state = checkpoint.get("search", {})
        self.steps = state.get("steps", 0)
        self._baseline = state.get("baseline", math.nan)

    def watched_subnets(self, first: bool = False) -> dict[str, Architecture]:
        """The derived architecture, those watched besides, and at the end the samples."""
        subnets = {"derived": self.derived}
        if not first:
            subnets |= super().watched_subnets()
            if self.samples and self._is_last_validation():
                self._ranked, self._drawn = self._drawn_samples(), True
                subnets |= self._ranked
        return subnets

    def _loss(self, batch: Any, batch_idx: int, learn: bool, who: str = "") -> Tensor:
        """The loss of one draw, from which the logits learn or the weights."""
        draw = self._draw(batch_idx, learn)
        with self._collecting() as logged, weighted(self._elastic[0], draw):
            with torch.set_grad_enabled(draw.score is None):
                loss: Any = self.task.training_step(batch, batch_idx)
        loss = loss["loss"] if isinstance(loss, Mapping) else loss
        self._log_collected(logged, who)
        if not learn:
            return loss
        for name, weights in draw.weights.items():
            self._ran.setdefault(name, set()).update(weights.paths)
        if draw.score is not None:
            loss = self._advantage(loss) * draw.score.to(loss.device)
        if self.cost is not None:
            shares = self.logits.probabilities(self.mixing, self._temperature())
            expected = self.cost.expected(shares)
            self.log(f"search/{self.cost.quantity}", expected.detach())
            loss = self.cost(loss, expected)
        penalties = [self.mixing.penalty(vector) for vector in self.logits.vectors.values()]
        return loss + sum(penalty for penalty in penalties if penalty is not None)

    def _backward(self, loss: Tensor, stepping: bool) -> None:
        if stepping and not loss.requires_grad:
            # What was gathered for this step has yet to travel, by a gradient of zero.
            for parameter in self.parameters():
                if parameter.requires_grad and parameter.grad is not None:
                    loss = loss + 0 * parameter.flatten()[0]
                    break
        if loss.requires_grad:  # a drawn path may have nothing that learns
            with self._gradients_travel(stepping):
                self.manual_backward(loss / self.trainer.accumulate_grad_batches)

    def _draw(self, batch_idx: int, learn: bool) -> Draw:
        # Text seeds are hashed whole; numbers would have to be combined without collisions.
        place = f"{self.seed}:{self.current_epoch}:{batch_idx}:{learn}"
        generator = torch.Generator().manual_seed(random.Random(place).getrandbits(63))
        draw = self.logits.draw(self.mixing, generator, self._temperature(), learn)
        if not self.skip_dropout:
            return draw
        left = 1 - (self.current_epoch + 1) / self._epochs if self._epochs else 1.0
        left = max(left, 0.0)  # resumed on fewer processes, max_steps may be fewer epochs
        return drop_free(draw, self._free, self.skip_dropout * left, generator)

    def _advantage(self, loss: Tensor) -> Tensor:
        """By how much a loss is above the average of those before."""
        loss = self.trainer.strategy.reduce(loss.detach(), reduce_op="mean")
        value = float(loss)
        before = value if math.isnan(self._baseline) else self._baseline
        self._baseline = 0.9 * before + 0.1 * value
        return loss - before

    def _step_logits(self, optimizer: LightningOptimizer) -> None:
        vectors = self.logits.vectors
        before = {name: vector.detach().clone() for name, vector in vectors.items()}
        # By the optimizer's own `step` Lightning would count, and end at half of the schedule.
        self.trainer.strategy.optimizer_step(optimizer.optimizer, lambda: None)
        optimizer.zero_grad()
        with torch.no_grad():
            for name, paths in self._ran.items():
                self.mixing.after_step(vectors[name], before[name], tuple(sorted(paths)))
        self._ran = {}

    def _temperature(self) -> float:
        return self.temperature.at(self.current_epoch, self._epochs)

    @property
    def _epochs(self) -> int | None:
        epochs, steps = self.trainer.max_epochs or -1, self.trainer.max_steps
        ends = [epochs] if epochs > 0 else []
        if steps > 0 and math.isfinite(self.trainer.num_training_batches):
            ends.append(math.ceil(steps / self._steps_per_epoch()))
        return min(ends, default=None)

    def _watch_skips(self) -> None:
        share = share_of_free(self.derived, self._free)
        if self._free:
            self.log("search/skips", share)
        if self.max_skips is None or self.current_epoch < self.warmup_epochs:
            return
        if share >= self.max_skips and not self.trainer.should_stop:
            self.trainer.should_stop = True
            rank_zero_warn(
                f"the search ends: {share:.0%} of the derived architecture's choices took a "
                f"candidate without parameters (max_skips {self.max_skips:.0%})"
            )

    def _is_last_validation(self) -> bool:
        trainer = self.trainer
        if trainer.state.fn != "fit" or trainer.sanity_checking or not trainer.is_last_batch:
            return False
        epochs, steps = trainer.max_epochs, trainer.max_steps
        ends = epochs is not None and 0 < epochs <= self.current_epoch + 1
        return trainer.should_stop or ends or 0 <= steps <= self.global_step

    def _drawn_samples(self) -> dict[str, Architecture]:
        limits = [self.cost.constraint] if self.cost is not None else []
        drawn = draw_architectures(
            self.space, self.probabilities(), self.samples + 1, random.Random(self.seed), limits
        )
        return {f"drawn{number:02d}": subnet for number, subnet in enumerate(drawn[1:], start=1)}

    def _best(self) -> Architecture:
        """The best by the metric of what was ranked, or else the derived architecture."""
        known = {"derived": self.derived, **self._ranked}
        if not self._ranked:
            if self.samples and not self._drawn:
                rank_zero_warn("the last epoch was not validated, so no samples were ranked")
            return known["derived"]
        metric, logged = cast("str", self.metric), self.trainer.callback_metrics
        values = {name: float(logged[inserted(metric, name)]) for name in known}
        numbers = [name for name in known if not math.isnan(values[name])] or list(known)
        best = (min if self.mode == "min" else max)(numbers, key=values.__getitem__)
        rank_zero_info(
            f"best of {len(known)} by {self.metric}: {best} with {values[best]:.4g} "
            f"(the most likely one has {values['derived']:.4g})"
        )
        return known[best]
