"""What the processes of tests of tasks and searches on several devices do."""

from __future__ import annotations

import torch
from lightning.pytorch import Trainer
from toy_mixture import Filtered, Fit
from toy_regression import Data, Regression
from trainers import quiet_trainer

from vizoo.classification.task import ClassificationTask
from vizoo.datasets.ct import CTDataModule, CTPreset, GeneratedCT
from vizoo.nas.differentiable import DifferentiableSearch, GumbelSoftmax, HalvedData, Uniform
from vizoo.nas.distributed import HookDDPStrategy, TopK
from vizoo.vision.callbacks import KeepLast


def score(rank, folder, processes):
    """Test a classifier on five scans, which processes share unevenly."""
    torch.manual_seed(0)
    task = ClassificationTask("covidnet3d_tiny", {"classes": 3, "encoding": [8, 0, 8, 8, 0]})
    scans = GeneratedCT(5, 3, CTPreset((16, 16), 8), depth=8)
    trainer = _trainer(folder, processes, "ddp" if processes > 1 else "auto")
    trainer.test(task, CTDataModule(test=[scans], workers=0), verbose=False)


def differentiable_search(rank, folder):
    """Search with half of every batch; the state of the search."""
    torch.manual_seed(0)
    search = DifferentiableSearch(Fit(), GumbelSoftmax(), only={"*.kind": ["small", "large"]})
    return _searched(search, folder, 2)


def search_of_noise(rank, folder):
    """Train paths of which some have no weights; the state of the search."""
    torch.manual_seed(0)
    return _searched(DifferentiableSearch(Fit("two"), Uniform()), folder, 4)


class Noted(TopK):
    def average(self, items):
        self.passes = [*getattr(self, "passes", []), sorted({name[:4] for name, _ in items})]
        super().average(items)


def search_by_hook(rank, folder):
    """Search with a hook; of whom gradients travelled in each pass."""
    hook = Noted(0.5)
    _searched(DifferentiableSearch(Fit()), folder, 1, HookDDPStrategy(hook))
    return hook.passes


class Overflowing(Regression):
    """What is normalised in the second epoch's last batch of one process is too large."""

    def on_train_epoch_end(self):
        if self.current_epoch == self.global_rank == 1:
            self.net.blocks[0].norm.running_var.fill_(torch.inf)


def overflow(rank, folder):
    """Fit until statistics are no numbers in one process; why it ended."""
    how = {"devices": 2, "strategy": "ddp", "max_epochs": 4, "callbacks": [KeepLast()]}
    try:
        quiet_trainer(folder, **how).fit(Overflowing(), Data())
    except ValueError as error:
        return str(error)


def _searched(search, folder, epochs, strategy="ddp_find_unused_parameters_true"):
    settings = {"max_epochs": epochs, "accumulate_grad_batches": 2}
    trainer = _trainer(folder, 2, strategy, **settings)
    trainer.fit(search, HalvedData(Filtered(64, batch_size=4)))
    return {name: value.tolist() for name, value in search.state_dict().items()}


def _trainer(folder, processes, strategy, **settings):
    return Trainer(
        accelerator="cpu",
        devices=processes,
        strategy=strategy,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        limit_val_batches=0,
        default_root_dir=folder,
        **settings,
    )
