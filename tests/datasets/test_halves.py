"""Training data in two disjoint halves, for a search by gradients."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import Dataset

from vizoo.datasets.datamodule import MixedDataModule
from vizoo.nas.differentiable import HalvedData


class Numbers(Dataset):
    """Samples that say which they are."""

    def __init__(self, first, count):
        self.first, self.count = first, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return {"left": torch.zeros(3, 2, 2), "number": self.first + index}


def _module(samples_per_epoch=None):
    train = [Numbers(0, 20), Numbers(100, 40)]
    length = {"samples_per_epoch": samples_per_epoch}
    return MixedDataModule(train=train, batch_size=3, workers=0, seed=5, **length)


def _numbers(loader):
    return [int(number) for batch in loader for number in batch["number"]]


def test_halves_are_disjoint_parts_of_every_set():
    halves = {name: _numbers(loader) for name, loader in _module().halves(0.25).items()}
    assert list(halves) == ["weights", "logits"]
    weights, logits = set(halves["weights"]), set(halves["logits"])
    assert len(weights) == 45 and len(logits) == 15 and not weights & logits
    assert sum(number < 100 for number in logits) == 5
    assert halves == {name: _numbers(loader) for name, loader in _module().halves(0.25).items()}
    other = {name: _numbers(loader) for name, loader in _module().halves(0.25, seed=6).items()}
    assert set(other["logits"]) != logits
    own, given = (HalvedData(_module(), 0.25, seed).train_dataloader() for seed in (None, 6))
    assert _numbers(own["logits"]) == halves["logits"]
    assert _numbers(given["logits"]) == other["logits"]


def test_an_epoch_of_given_length_is_divided():
    halves = _module(40).halves(0.25)
    assert [len(loader.dataset) for loader in halves.values()] == [30, 10]
    with pytest.raises(ValueError, match="cannot split.*a val_share of 0 holds none"):
        _module().halves(1.0)
