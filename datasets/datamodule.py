"""What the Lightning data modules of all tasks share: sets by role, mixing, seeds, processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Literal, cast

import torch
from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn
from torch.utils.data import ConcatDataset, DataLoader, Dataset

from ..common.quantities import parse_quantity
from .mixture import (
    EpochSampler,
    Mixture,
    Samples,
    ShareSampler,
    TrainingLoader,
    check_disjoint,
    check_listed,
    collate,
    split_by_seed,
)
from .shelf import Shelf, open_shelf

__all__ = ["MixedDataModule"]

_ROLES = {
    "fit": ("train", "val"),
    "validate": ("val",),
    "test": ("test",),
    "predict": ("predict",),
}


_SMALLEST_BATCH = 8
"""Below it the statistics of batch norms are too noisy."""


class MixedDataModule(LightningDataModule):
    """Sets for training, validation, test and prediction.

    Training sets are mixed by weights and augmented. Validation, test and prediction take the
    samples whole, several sets one after the other. The same seed gives the same training samples
    whatever the number of workers; on several GPUs each takes its share of every epoch, and of
    validation and test, where every sample counts once.

    A set is given as a data set, or as a function that makes it, which is what a YAML file comes
    to: the sets are then made, and their files checked, when ``fit``, ``test``, ... begins, and
    only those that it uses.

    Args:
        augment: called on training samples as ``augment(sample, generator)``; None for nothing.
        train: training sets.
        val: validation sets; without any, ``val_share`` of every training set is held out.
        test: test sets.
        predict: sets to predict; they need no ground truth.
        weights: shares of the training sets in an epoch; by default in proportion to their sizes.
        samples_per_epoch: length of an epoch; by default the number of training samples.
        val_share: share of the training samples held out for validation where ``val`` is empty,
            chosen by the seed; what shows one thing, such as a sequence or a scan, goes as a
            whole, so that the share is met as nearly as that lets it. 0 for no validation.
        batch_size: training samples a process and step.
        min_batches: of an epoch: a set too small for so many is trained in smaller batches, down
            to 8 samples.
        eval_batch_size: samples a step elsewhere; more than 1 needs samples of one size.
        workers: processes that load data, for each loader.
        seed: of the mixture, the augmentation and the held-out share.
        cache: keeps samples as they are read, before augmentation, in ``memory`` or on ``disk``,
            for all workers and processes (see `open_shelf`); sets with a folder of their own for
            that go on with it.
        cache_size: bytes that it may hold, such as ``8GB``; by default a quarter of the memory
            that is available, or 20 GB of disk.

    Raises:
        ValueError: the settings do not fit together; in ``setup`` also where a set to learn or
            measure on has no ground truth.
    """

    kept_apart: str | None = None
    """What no two of training, validation and test may share, where a fit compares their groups."""
    collate = staticmethod(collate)
    """What stacks samples into a batch."""

    def __init__(
        self,
        *,
        augment: Callable | None = None,
        train: Sequence[Callable[[], Dataset]] = (),
        val: Sequence[Callable[[], Dataset]] = (),
        test: Sequence[Callable[[], Dataset]] = (),
        predict: Sequence[Callable[[], Dataset]] = (),
        weights: list[float] | None = None,
        samples_per_epoch: int | None = None,
        val_share: float = 0.0,
        batch_size: int = 4,
        min_batches: int = 1,
        eval_batch_size: int = 1,
        workers: int = 4,
        seed: int = 0,
        cache: Literal["memory", "disk"] | None = None,
        cache_size: str | None = None,
    ) -> None:
        super().__init__()
        if cache not in (None, "memory", "disk") or (cache_size is not None and cache is None):
            raise ValueError(f"cache {cache!r}, cache_size {cache_size}: choose memory or disk")
        self.cache, self.cache_size = cache, None
        if cache_size is not None:
            self.cache_size = parse_quantity("memory", cache_size, "cache_size")
        if min(batch_size, min_batches, eval_batch_size) < 1 or workers < 0:
            raise ValueError(
                f"batch_size {batch_size}, min_batches {min_batches}, eval_batch_size "
                f"{eval_batch_size} and workers {workers} must be at least 1, 1, 1 and 0"
            )
        if not 0 <= val_share < 1:
            raise ValueError(f"val_share {val_share} must be at least 0 and less than 1")
        self.sources = {"train": train, "val": val, "test": test, "predict": predict}
        for role, sets in self.sources.items():
            check_listed(role, sets)
        self.augment = augment
        self.weights = weights
        self.samples_per_epoch = samples_per_epoch
        self.val_share = val_share
        self.batch_size = batch_size
        self.min_batches = min_batches
        self.eval_batch_size = eval_batch_size
        self.workers = workers
        self.seed = seed
        self._made: dict[str, list[Samples]] = {}
        self._first_epoch = self._first_batch = 0

    def setup(self, stage: str) -> None:
        """Make the sets of a stage, which checks their files.

        Where a trainer validates, tests or predicts, say which they are.

        Raises:
            FileNotFoundError: files are missing; the message counts and names them.
            ValueError: a set to learn or measure on has no ground truth, there is none, or two of
                a fit share what is `kept_apart`.
        """
        self._first_epoch = self._first_batch = 0
        runs = stage != "fit" and self.trainer is not None and self.trainer.state.stage is not None
        for role in _ROLES[stage]:
            made = self.sets(role)
            if made and runs:  # of several configs another one may have named them
                kinds = [(len(one), type(getattr(one, "dataset", one)).__name__) for one in made]
                told = ", ".join(f"{kind} ({count})" for count, kind in kinds)
                rank_zero_info(f"{role} data: {told}")
        if stage == "fit" and self.kept_apart:
            roles = {role: self.sets(role) for role in ("train", "val", "test")}
            check_disjoint(roles, self.kept_apart)

    def state_dict(self) -> dict[str, int]:
        """What a checkpoint keeps: where a resumed fit starts."""
        epoch, batch = self._fit_loop.epoch_progress, self._fit_loop.epoch_loop.batch_progress
        started, processed = epoch.current.started, epoch.current.processed
        # Behind its last batch an epoch is over, though Lightning does not count it yet; one that
        # `max_steps` broke off counts as over.
        over = batch.is_last_batch or processed == started
        batches = 0 if over else self._trained()
        return {
            "epoch": started if over else processed,
            "batches": batches,
            "batch_size": self.batch_size,
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Take the place of a checkpoint."""
        self._first_epoch = state["epoch"]
        size = state.get("batch_size", self.batch_size)
        self._first_batch = state.get("batches", 0) * size // self.batch_size

    def sets(self, role: str) -> list[Samples]:
        """Return the sets of ``train``, ``val``, ``test`` or ``predict``, made on first use."""
        if role in self._made:
            return self._made[role]
        if role in ("train", "val") and self.val_share and not self.sources["val"]:
            parts = [split_by_seed(s, self.val_share, self.seed) for s in self._make("train")]
            self._made["train"] = [train for train, _ in parts]
            self._made["val"] = [val for _, val in parts]
        else:
            self._made[role] = self._make(role)
        return self._made[role]

    def train_dataloader(self) -> DataLoader:
        """Batches of ``batch_size`` samples; the last, smaller one of an epoch is left out."""
        return self._training(self._some("train"), self.samples_per_epoch)

    def halves(self, share: float = 0.5, seed: int | None = None) -> dict[str, DataLoader]:
        """Training batches of two disjoint parts of every training set, chosen by a seed.

        Args:
            share: of the samples in ``logits``, which an architecture's logits learn from; the
                rest is ``weights``.
            seed: of the division; by default the data module's, which the order always has.
        """
        seed = self.seed if seed is None else seed
        parts = [split_by_seed(whole, share, seed) for whole in self._some("train")]
        loaders = {}
        for name, half, part in (("weights", 0, 1 - share), ("logits", 1, share)):
            length = self.samples_per_epoch and max(1, round(part * self.samples_per_epoch))
            loaders[name] = self._training([pair[half] for pair in parts], length)
        return loaders

    def val_dataloader(self) -> DataLoader | list:
        """Whole samples of the validation sets, one set after the other."""
        return self._whole("val") if self.sets("val") else []

    def test_dataloader(self) -> DataLoader:
        """Whole samples of the test sets, one set after the other."""
        return self._whole("test")

    def predict_dataloader(self) -> DataLoader:
        """Whole samples of the sets to predict, one set after the other."""
        return self._whole("predict")

    def mixture(self, sets: Sequence[Samples], length: int | None) -> Mixture:
        """The training samples of an epoch; a task may mix in another way."""
        return Mixture(sets, self.weights, length, self.augment, self.seed)

    def _training(self, sets: Sequence[Samples], length: int | None) -> DataLoader:
        mixture = self.mixture(sets, length)
        sampler = EpochSampler(mixture, *self._place(), seed=self.seed)
        # A resumed fit starts its first iterator before Lightning sets the epoch.
        sampler.set_epoch(self._first_epoch)
        size = min(self.batch_size, max(_SMALLEST_BATCH, len(sampler) // self.min_batches))
        arguments = {"sampler": sampler, "drop_last": len(sampler) >= size}
        # Without a trainer nobody says how far the fit is that the loader is handed to.
        kind = DataLoader if self.trainer is None else TrainingLoader
        loader = self._loader(mixture, size, kind, **arguments)
        if (fitting := min(size, len(sampler))) < self.batch_size:
            rank_zero_info(
                f"{len(sampler)} training samples an epoch, in batches of {fitting} instead of "
                f"{self.batch_size}"
            )
        if self.trainer is not None:
            loader.trained = self._trained
            if self.trainer.train_dataloader is None:
                # The fit's own. Lightning tells it too late, if schedules asked for its length.
                sampler.skipped = self._first_batch % len(loader) * size
        return loader

    @property
    def _fit_loop(self) -> Any:  # Lightning's types do not say what its trackers count
        return cast(Trainer, self.trainer).fit_loop

    def _trained(self) -> int:
        """Return the batches of this epoch that the fit is through with; 0 behind its last."""
        progress = self._fit_loop.epoch_loop.batch_progress
        return 0 if progress.is_last_batch else progress.current.processed

    def _make(self, role: str) -> list[Samples]:
        made: list[Samples] = []
        for number, source in enumerate(self.sources[role], start=1):
            dataset = source if isinstance(source, Dataset) else source()
            if role != "predict" and not getattr(dataset, "has_truth", True):
                raise ValueError(
                    f"{role} set {number} ({type(dataset).__name__}) has no ground truth; it can "
                    "only be predicted"
                )
            if self.cache is not None and hasattr(dataset, "keep_on"):
                dataset.keep_on(self._shelf)
            elif self.cache is not None:
                what = f"cache {self.cache}: {type(dataset).__name__}"
                rank_zero_warn(f"{what} has no way to keep samples; it reads anew")
            made.append(cast(Samples, dataset))
        return made

    @cached_property
    def _shelf(self) -> Shelf:
        return open_shelf(cast('Literal["memory", "disk"]', self.cache), self.cache_size)

    def _some(self, role: str) -> list[Samples]:
        if not self.sets(role):
            raise ValueError(f"no {role} data: give the data module `{role}`, a list of data sets")
        return self.sets(role)

    def _whole(self, role: str) -> DataLoader:
        whole: ConcatDataset = ConcatDataset(cast("list[Dataset]", self._some(role)))
        processes, rank = self._place()
        if processes == 1:
            return self._loader(whole, self.eval_batch_size)
        sampler = ShareSampler(whole, processes, rank)
        return self._loader(whole, self.eval_batch_size, sampler=sampler)

    def _place(self) -> tuple[int, int]:
        """Return the number of processes and which of them this is."""
        if self.trainer is None:
            return 1, 0
        return self.trainer.world_size, self.trainer.global_rank

    def _loader(
        self,
        dataset: Dataset,
        batch_size: int,
        kind: type[DataLoader] = DataLoader,
        **arguments: Any,
    ) -> DataLoader:
        return kind(
            dataset,
            batch_size=batch_size,
            # Its own, so that a fit that resumes, and makes loaders anew, draws as if it had not.
            generator=torch.Generator().manual_seed(self.seed),
            num_workers=self.workers,
            persistent_workers=self.workers > 0,
            pin_memory=torch.cuda.is_available(),
            collate_fn=self.collate,
            **arguments,
        )
