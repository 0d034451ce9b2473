"""What the processes of the tests of splits do; plain values come back."""

from __future__ import annotations

import torch
from distributed_training import Shares, trainer, weights
from toy_regression import Data, Regression

from vizoo.nas.distributed import HookDDPStrategy
from vizoo.nas.lid import FewShotTraining, Splitter


def find(rank, folder, criterion, shared):
    """Train the toy supernet and its parts, split by what each process sees.

    Args:
        rank: of this process.
        folder: of the tree.
        criterion: of splits.
        shared: whether each process has batches of its own.

    Returns:
        The tree, and the weights of the last part.
    """
    torch.manual_seed(rank)  # what DistributedDataParallel makes equal
    task = Regression()
    splitter = Splitter(criterion, k=4, batches=2, batch_size=8)
    module = FewShotTraining(task, [1, 1, 1], splitter, folder=folder, recalibration_batches=0)
    strategy = HookDDPStrategy("subnet", process_group_backend="gloo")
    data = Shares(32, batch_size=4) if shared else Data(16, batch_size=4)
    settings = {"max_epochs": -1, "sync_batchnorm": True, "use_distributed_sampler": False}
    trainer(strategy, 2, **settings).fit(module, data)
    return module.tree.to_json(), weights(task.net).tolist()
