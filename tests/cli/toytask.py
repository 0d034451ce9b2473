"""A task and data small enough to fit in a blink; copied into the folder where a test runs."""

import os
import signal

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.callbacks import Callback
from torch.utils.data import DataLoader, TensorDataset


class Toy(LightningModule):
    def __init__(
        self,
        width: int = 2,
        lr: float = 0.1,
        interrupt_at: int = -1,
        model_args: dict | None = None,
        init_weights: str | None = None,
        model: str | None = None,
    ):
        super().__init__()
        if width < 1:
            raise ValueError("width must be positive")
        self.save_hyperparameters()
        self.net = torch.nn.Linear(4, width)
        if init_weights is not None:
            state = torch.load(init_weights, weights_only=True)["state_dict"]
            self.load_state_dict(state)

    def training_step(self, batch, index):
        if self.global_step == self.hparams.interrupt_at and "RESUMED" not in os.environ:
            raise KeyboardInterrupt
        if self.global_step == int(os.environ.get("SIGINT_AT", -1)):
            os.kill(os.getpid(), signal.SIGINT)
        return self.net(batch[0]).square().mean()

    def validation_step(self, batch, index):
        self.log("val", self.net(batch[0]).square().mean())

    test_step = validation_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.hparams.lr)


class ToyData(LightningDataModule):
    def __init__(self, length: int = 4, root: str = "."):
        super().__init__()
        self.length = length
        self.root = root

    def setup(self, stage):
        if not os.path.isdir(self.root):
            raise FileNotFoundError(f"{self.root}: no such data folder")

    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.ones(self.length, 4)), 2)

    val_dataloader = test_dataloader = predict_dataloader = train_dataloader


class Witness(Callback):
    """Writes down who else is there."""

    def __init__(self, name: str = "a"):
        self.name = name

    def on_fit_start(self, trainer, pl_module):
        with open("witness.txt", "a") as file:
            file.write(f"{self.name}: {[type(c).__name__ for c in trainer.callbacks]}\n")
