"""What the processes of the tests of checks do; plain values come back."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import torch
from distributed_dear import TOY
from torch import nn

from vizoo.__main__ import main
from vizoo.nas.distributed import ReplicaDriftCheck
from vizoo.nas.distributed.gradients.norm import SyncedBatchNorm


def configured(rank, folder):
    """After `vizoo fit` with the config: settings of the check, megabytes logged."""
    os.chdir(folder)
    seen = set()
    check = ReplicaDriftCheck.on_train_batch_end

    def noted(self, *arguments):
        seen.add((self.every_n_steps, self.on_drift))
        check(self, *arguments)

    ReplicaDriftCheck.on_train_batch_end = noted
    words = [word for word in TOY if "logger" not in word]
    words += ["--config", "distributed/fp16.yaml", "--config", "distributed/checks.yaml"]
    words += ["--trainer.devices=2", "--trainer.log_every_n_steps=1", "--trainer.logger=CSVLogger"]
    words += ["--trainer.logger.save_dir=logs"]
    if main(["fit", *words, "--trainer.strategy.init_args.process_group_backend=gloo"]):
        return None
    if rank:
        return sorted(seen), []
    (path,) = Path("logs").rglob("metrics.csv")
    rows = list(csv.DictReader(path.open()))
    return sorted(seen), [float(row["comm/megabytes"]) for row in rows if row["comm/megabytes"]]


def single_values(rank, sizes):
    """What synchronised batch normalisation says of so many values on each process."""
    net = SyncedBatchNorm().apply(nn.BatchNorm1d(3)).train()
    try:
        net(torch.randn(sizes[rank], 3))
    except ValueError as error:
        return str(error)
    return net.running_var.isfinite().all().item()
