"""Training data in two halves: one for the weights of a network, one for its logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.loops.progress import _ProcessedTracker
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
)

__all__ = ["TRANSFER_HOOKS", "HalvedData", "each_half", "is_pair"]

TRANSFER_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
"""Hooks of Lightning that are given a batch, and shall be given each half of a pair."""
_OWN = ("prepare_data", "teardown", "val_dataloader", "test_dataloader", "predict_dataloader")
"""Hooks that stay the wrapped data module's."""
_KEPT = (
    *("num_workers", "collate_fn", "pin_memory", "drop_last", "timeout", "worker_init_fn"),
    *("multiprocessing_context", "prefetch_factor", "persistent_workers"),
)


class HalvedData(LightningDataModule):
    """Another data module whose training samples are halved for a differentiable search.

    Which sample is in which half depends on the seed alone; the order of each half, where it is
    shuffled, on a seed and the epoch. The rest of the data module stays as it is.

    Args:
        data: what to halve. If it has a method `halves(share, seed)`, this gives the two loaders
            by the names `weights` and `logits`; otherwise its training loader is divided.
        share: of the samples that the logits learn from.
        seed: of the division, and of the order where the training loader is divided; by default
            the data module's own seed, or 0.

    Raises:
        ValueError: the share leaves a half empty; in `train_dataloader` also where there are fewer
            than two samples, or the training loader draws them in a way of its own.
    """

    def __init__(
        self, data: LightningDataModule, share: float = 0.5, seed: int | None = None
    ) -> None:
        super().__init__()
        if not 0 < share < 1:
            raise ValueError(f"the logits' share of the samples is between 0 and 1, not {share}")
        self.data = data
        self.share = share
        self.seed = getattr(data, "seed", 0) if seed is None else seed
        self._first_epoch = 0
        for hook in _OWN:
            setattr(self, hook, getattr(data, hook))
        for hook in TRANSFER_HOOKS:
            if is_overridden(hook, data, LightningDataModule):
                setattr(self, hook, partial(each_half, getattr(data, hook)))

    def setup(self, stage: str) -> None:
        """Set the wrapped data module up, which sees this one's trainer."""
        self._first_epoch = 0
        self.data.trainer = self.trainer
        self.data.setup(stage)

    def sets(self, role: str) -> Sequence[Dataset]:
        """The data sets of a role (`train`, `val`, …), of a data module that has them."""
        return cast("Any", self.data).sets(role)

    def train_dataloader(self) -> dict[str, DataLoader]:
        """Loaders by the names `weights` and `logits`, in this order."""
        if hasattr(self.data, "halves"):
            return self.data.halves(self.share, self.seed)
        loader, who = self.data.train_dataloader(), type(self.data).__name__
        sampler = getattr(loader, "sampler", loader)
        kinds = (RandomSampler, SequentialSampler, DistributedSampler)
        if type(sampler) not in kinds or loader.batch_size is None:
            raise ValueError(
                f"{who} draws its training samples in its own way ({type(sampler).__name__}), so "
                "they cannot be halved from outside: give it a method halves(share, seed) that "
                "returns the loaders `weights` and `logits`"
            )
        if (size := len(loader.dataset)) < 2:
            raise ValueError(f"{who} has {size} training samples: a search takes two or more")
        held = min(max(1, round(size * self.share)), size - 1)
        order = torch.randperm(size, generator=torch.Generator().manual_seed(self.seed)).tolist()
        halves = {"weights": sorted(order[held:]), "logits": sorted(order[:held])}
        return {name: self._part(loader, indices) for name, indices in halves.items()}

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: the epoch that a resumed fit starts with, and the data's own."""
        loop = cast("Trainer", self.trainer).fit_loop
        epoch = cast("_ProcessedTracker", loop.epoch_progress.current)
        # Behind its last batch an epoch is over, though Lightning does not count it yet.
        over = loop.epoch_loop.batch_progress.is_last_batch
        done = epoch.started if over else epoch.processed
        return {"epoch": done, "data": self.data.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what a checkpoint kept."""
        self._first_epoch = state["epoch"]
        self.data.trainer = self.trainer
        self.data.load_state_dict(state["data"])

    def _part(self, loader: DataLoader, indices: list[int]) -> DataLoader:
        part = Subset(loader.dataset, indices)
        trainer = self.trainer
        world, rank = (1, 0) if trainer is None else (trainer.world_size, trainer.global_rank)
        shuffled = not isinstance(loader.sampler, SequentialSampler)
        # Its order depends on the epoch, which Lightning tells it, and not on what was drawn since.
        sampler: DistributedSampler = DistributedSampler(
            part, world, rank, shuffle=shuffled, seed=self.seed
        )
        # A resumed fit starts its first iterator before Lightning sets the epoch.
        sampler.set_epoch(self._first_epoch)
        settings: dict[str, Any] = {name: getattr(loader, name) for name in _KEPT}
        # Where a half has no whole batch nothing would be left, and no step taken in an epoch.
        settings["drop_last"] &= len(sampler) >= cast("int", loader.batch_size)
        return DataLoader(part, loader.batch_size, sampler=sampler, **settings)


def is_pair(batch: Any) -> bool:
    """Whether it is a batch of each half, by their names."""
    return isinstance(batch, Mapping) and set(batch) == {"weights", "logits"}


def each_half(method: Callable[..., Any], batch: Any, *args: Any) -> Any:
    """Call a method on each half of a pair, or on any other batch as it is."""
    if is_pair(batch):
        return {name: method(batch[name], *args) for name in batch}
    return method(batch, *args)
