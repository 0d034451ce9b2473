"""The first batches of training, drawn beside it: the same each time, and training goes on."""

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import DataLoader, default_collate
from toy_regression import Data, Regression
from trainers import quiet_trainer

from vizoo.nas.training import ProgressiveShrinking, Stage, SupernetTask
from vizoo.nas.training.evaluation import first_batches


class Shuffled(Data):
    """The toy data in an order that a generator of their own draws."""

    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(7)

    def train_dataloader(self):
        return DataLoader(self.train, self.batch_size, shuffle=True, generator=self.generator)


class Look(Callback):
    """Draws the first batches within every epoch."""

    def __init__(self):
        self.seen = []

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        if index == 1:
            with first_batches(trainer) as batches:
                self.seen.append(torch.cat([batch[0] for batch in batches]))


def trained(module, callbacks=()):
    torch.manual_seed(0)
    task, data = Regression(), Shuffled()
    settings = {"max_epochs": 3, "limit_val_batches": 0, "enable_checkpointing": False}
    trainer = quiet_trainer(None, callbacks=list(callbacks), **settings)
    if module:
        trainer.fit(task, data)
    else:
        trainer.fit(task, data.train_dataloader())
    return torch.cat([p.detach().flatten() for p in task.parameters()])


@pytest.mark.parametrize("module", [True, False], ids=["data module", "loader"])
def test_looking_does_not_change_what_training_draws(module):
    look = Look()
    assert torch.equal(trained(module, [look]), trained(module))
    assert len(look.seen) == 3 and len(look.seen[0]) == 16
    assert all(torch.equal(look.seen[0], seen) for seen in look.seen)


@pytest.mark.parametrize("precision", ["64-true", "bf16-true"])
def test_batches_have_the_precision_of_training(precision):
    settings = {"max_epochs": 1, "enable_checkpointing": False}
    trainer = quiet_trainer(None, precision=precision, **settings)
    trainer.fit(SupernetTask(Regression(), recalibration_batches=1), Data())
    assert trainer.callback_metrics["val/largest/error"].isfinite()


@pytest.mark.parametrize("precision", ["64-true", "bf16-true"])
def test_samples_are_drawn_as_ever_where_channels_are_sorted(precision):
    drawn = []

    class Noting(Data):
        def train_dataloader(self):
            def collate(samples):
                drawn.append(torch.get_default_dtype())
                return default_collate(samples)

            return DataLoader(self.train, self.batch_size, collate_fn=collate)

    settings = {"max_epochs": 1, "enable_checkpointing": False, "limit_val_batches": 0}
    trainer = quiet_trainer(None, precision=precision, **settings)
    stages = [Stage("all", 1, ["*"], sort_channels="taylor")]
    trainer.fit(ProgressiveShrinking(Regression(), stages), Noting())
    assert set(drawn) == {torch.float32}


@pytest.mark.parametrize("combined", [False, True], ids=["loader", "combined"])
def test_the_check_before_training_takes_its_loaders_and_changes_nothing(combined):
    def weights(checked):
        torch.manual_seed(0)
        task, data = Regression(), Data(shuffle=True)
        loader = data.train_dataloader()
        loader = CombinedLoader(loader) if combined else loader
        settings = {"max_epochs": 1, "enable_checkpointing": False}
        trainer = quiet_trainer(None, num_sanity_val_steps=checked, **settings)
        trainer.fit(SupernetTask(task, recalibration_batches=1), loader, data.val_dataloader())
        return torch.cat([p.detach().flatten() for p in task.parameters()])

    assert torch.equal(weights(checked=1), weights(checked=0))
