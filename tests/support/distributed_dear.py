"""What the processes of the tests of DeAR and FSDP2 do; plain values come back."""

from __future__ import annotations

import torch
from distributed_training import trainer, weights
from lightning.pytorch.callbacks import Callback, EMAWeightAveraging
from torch import nn
from torch.utils.data import DataLoader, Subset
from toy_volumes import Net, Task, Volumes

from vizoo.__main__ import main
from vizoo.nas.distributed import DeARStrategy, FSDP2Strategy, HookDDPStrategy

TOY = (
    *("--model", "toy_volumes.Task", "--model.spare=false", "--data", "toy_volumes.Volumes"),
    *("--trainer.accelerator=cpu", "--trainer.logger=false", "--trainer.max_epochs=2"),
)
"""Words for `vizoo fit`."""

SHARDS = torch.torch_version.TorchVersion(torch.__version__) >= (2, 15)
"""Whether FSDP2 works by gloo."""

OPTIMIZERS = ("sgd", "adamw")


class Read(Callback):
    """Keeps the weights after each step, as callbacks read them, and the validation's losses."""

    def __init__(self):
        self.seen = []
        self.losses = []

    def on_train_batch_end(self, trainer, module, *_):
        self.seen.append(weights(module.net).tolist())

    def on_validation_end(self, trainer, module):
        self.losses.append(trainer.callback_metrics["val/loss"].item())


def fit(strategy, processes, kind=Task, checkpoint=None, callback=None, **settings):
    torch.manual_seed(0)
    task = kind(spare=False, lr=0.01, scheduled=True, **settings.pop("task", {}))
    settings = {"max_epochs": 3, **settings}
    callbacks = [callback] if callback else []
    found = trainer(strategy, processes, callbacks=callbacks, **settings)
    found.fit(task, Volumes(batch_size=12 // processes), ckpt_path=checkpoint)
    return found, task


def ddp():
    return HookDDPStrategy()


def dear():
    return DeARStrategy(group_mb=0.001)


def ways():
    """Strategies by name."""
    found = {"ddp": ddp, "dear": dear}
    if SHARDS:
        found["fsdp2"] = FSDP2Strategy
        found["fsdp2, resharding"] = lambda: FSDP2Strategy(reshard_after_forward=True)
    return found


def parity(rank, processes, folder):
    """By optimiser and way: weights after training, and after each step."""
    found = {}
    for optimizer in OPTIMIZERS:
        task = {"task": {"optimizer": optimizer}}
        for name, make in {"ddp": ddp, "dear": dear}.items():
            read = Read()
            _, trained = fit(make(), processes, callback=read, limit_val_batches=1.0, **task)
            found[optimizer, name] = weights(trained.net).tolist(), read.seen, read.losses
        if not SHARDS:
            continue
        _, trained = fit(FSDP2Strategy(), processes, **task)
        found[optimizer, "fsdp2"] = (weights(trained.net).tolist(),)
    parts = {}
    for name, make in {"ddp": ddp, "dear": dear}.items():
        _, trained = fit(make(), processes, accumulate_grad_batches=2)
        parts[name] = weights(trained.net).tolist()
        # Files of one can be read by the other.
        fit_trainer, _ = fit(make(), processes, max_epochs=1)
        fit_trainer.save_checkpoint(f"{folder}/{name}.ckpt")
    found["micro-batches"] = parts
    again = {
        name: weights(fit(make(), processes, checkpoint=f"{folder}/{other}.ckpt")[1].net).tolist()
        for name, make, other in (("ddp", ddp, "dear"), ("dear", dear, "ddp"))
    }
    if not SHARDS:
        return {**found, "resumed": again}
    sharded, _ = fit(FSDP2Strategy(), processes, max_epochs=1)
    sharded.save_checkpoint(f"{folder}/fsdp2.ckpt")
    again["fsdp2"] = weights(fit(ddp(), processes, checkpoint=f"{folder}/fsdp2.ckpt")[1].net)
    again["fsdp2"] = again["fsdp2"].tolist()
    return {**found, "resumed": again}


def staged(rank):
    """By way: weights after training by another method than `forward`, and validation's losses."""
    found = {}
    for name, make in ways().items():
        read = Read()
        settings = {"max_epochs": 2, "limit_val_batches": 1.0, "num_sanity_val_steps": 1}
        _, trained = fit(make(), 2, Staged, callback=read, **settings)
        found[name] = weights(trained.net).tolist(), read.losses
    return found


def configured(rank, folder):
    """Weights after `vizoo fit` with the configs, behind one that clips nothing."""
    found = []
    for name in ("dear", "fsdp2")[: 1 + SHARDS]:
        words = ["--config", f"distributed/{name}.yaml", "--trainer.devices", "2"]
        code = main(["fit", *TOY, f"--trainer.default_root_dir={folder}/{name}", *words])
        path = f"{folder}/{name}/checkpoints/last.ckpt"
        found.append((code, torch.load(path, weights_only=True)["state_dict"]["net.head.bias"]))
    return [(code, bias.tolist()) for code, bias in found]


def refusals(rank):
    """What is said where DeAR does not work."""
    from lightning.pytorch.plugins import MixedPrecision

    from vizoo.nas.distributed import Eva

    said = []
    for settings in (
        {"gradient_clip_val": 0.1},
        {"plugins": [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))]},
        {"callback": Eva()},
        {"callback": EMAWeightAveraging()},
        {"kind": Unused},
        {"kind": Other},
    ):
        try:
            fit(dear(), 2, **settings)
        except ValueError as error:
            said.append(str(error))
    if SHARDS:
        try:
            fit(FSDP2Strategy(), 2, callback=EMAWeightAveraging())
        except ValueError as error:
            said.append(str(error))
    return said


class Uneven(Volumes):
    """Three batches to validate and to predict, of which the first process has two."""

    def val_dataloader(self):
        first, last = ((0, 16), (16, 24))[self.trainer.global_rank]
        return DataLoader(Subset(self.train, range(first, last)), batch_size=8)

    predict_dataloader = val_dataloader


class Predicting(Task):
    def predict_step(self, batch, batch_idx):
        return self.net(batch[0])


def uneven(rank):
    """By way: weights after training, validation's losses, and what is predicted."""
    found = {}
    for name, make in ways().items():
        torch.manual_seed(0)
        read, task = Read(), Predicting(spare=False, lr=0.01)
        settings = {"callbacks": [read], "limit_val_batches": 1.0, "use_distributed_sampler": False}
        trained = trainer(make(), 2, **settings)
        trained.fit(task, Uneven(batch_size=6))
        said = trained.predict(task, Uneven())
        found[name] = weights(task.net).tolist(), read.losses, torch.cat(said).tolist()
    return found


class StagedNet(Net):
    """Normalises by statistics, which are other ones in each process."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(6)
        self.scale = nn.Parameter(torch.full((3,), 0.5))

    def forward(self, x):
        return self.forward_stages(x)[-1]

    def forward_stages(self, x):
        return (self.forward_features(x) * self.scale,)

    def forward_features(self, x):
        return super().forward(x)


class Staged(Task):
    """Trains by a method of its network, and validates by its forward pass."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.net = StagedNet()
        del self.net.spare

    def training_step(self, batch, batch_idx):
        return nn.functional.mse_loss(self.net.forward_stages(batch[0])[-1], batch[1])


class Unused(Task):
    def __init__(self, spare, **settings):
        super().__init__(**settings)


class Other(Task):
    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters())
