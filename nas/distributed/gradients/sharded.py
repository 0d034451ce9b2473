"""PyTorch's FSDP2 for any task: parameters and optimiser states in shards, messages hidden.

With parameters gathered from the forward to the end of the backward pass the schedule is that of
DeAR (Zhang et al., ICDCS 2023, arXiv 2302.12445): what travels is as much, half of it in the next
forward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.torch_version import TorchVersion

from ....common.ranks import broadcast_first
from ...training.evaluation import Task
from ...training.task import SupernetTask, check_averages

__all__ = ["FSDP2Strategy"]


class FSDP2Strategy(ModelParallelStrategy):
    """Data parallel training by FSDP2 (`fully_shard`), for tasks that know nothing of it.

    Each child of a task's network `net` is a group of its own: its parameters are gathered before
    it runs, so other modules must not use its parts behind its back. Tasks may call `net`, and its
    methods `forward_...`, `losses` and `predict`. The result is that of `ddp`; checkpoints are
    single files as ever, to go on from where every parameter has been used. Gradients can be
    clipped, unlike with `DeARStrategy`.

    Args:
        reshard_after_forward: give gathered parameters up after the forward pass and gather them
            again in the backward pass: less memory, half as much again on the wire. Validation,
            test and prediction keep them all the same.
        process_group_backend: such as `gloo` or `nccl`; by default that of the device.

    Raises:
        ValueError: the task trains a supernet, weights are to be averaged, or gradients would
            travel by gloo with a PyTorch older than 2.15.
    """

    def __init__(
        self, reshard_after_forward: bool = False, process_group_backend: str | None = None
    ) -> None:
        super().__init__(
            tensor_parallel_size=1,
            save_distributed_checkpoint=False,
            process_group_backend=process_group_backend,
        )
        self.reshard_after_forward = reshard_after_forward

    def setup_environment(self) -> None:
        """Start the processes, and let the task's `configure_model` divide the network."""
        if isinstance(self.lightning_module, SupernetTask):
            raise ValueError(
                "FSDP2Strategy cannot train a supernet, whose modules change: take HookDDPStrategy"
            )
        divides = "copies a network that FSDP2Strategy divides"
        check_averages(self._task.trainer, divides, ", or take HookDDPStrategy")
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()
        version: Any = TorchVersion(torch.__version__)
        if dist.get_backend() == "gloo" and version < (2, 15):
            # Seen with 2.8.0: gradients are not those of `ddp`.
            raise ValueError(
                f"FSDP2Strategy needs PyTorch 2.15 to train by gloo, as on a CPU, and this is "
                f"{torch.__version__}: train on GPUs by nccl, or take DeARStrategy"
            )
        # Lightning wants the task to shard itself.
        vars(self._task)["configure_model"] = partial(
            _shard, self._task, self.root_device, self.device_mesh, self.reshard_after_forward
        )

    def on_validation_start(self) -> None:
        """Gather parameters with the first batch alone: some processes may have more of them."""
        broadcast_first(self._task.buffers())  # as DistributedDataParallel does
        self._reshard(False)

    def on_validation_end(self) -> None:
        """Divide parameters again, if they are to be."""
        self._reshard(self.reshard_after_forward)

    on_test_start = on_predict_start = on_validation_start
    on_test_end = on_predict_end = on_validation_end

    def _reshard(self, reshard: bool) -> None:
        net = self._task.net
        for module in net.modules():
            if isinstance(module, FSDPModule) and module is not net:
                module.set_reshard_after_forward(reshard, recurse=False)

    def teardown(self) -> None:
        """Give the task its own `configure_model` back."""
        vars(self._task).pop("configure_model", None)
        super().teardown()

    @property
    def _task(self) -> Task:
        return cast("Task", self.lightning_module)


def _shard(task: Task, device: torch.device, mesh: DeviceMesh, reshard: bool) -> None:
    net = task.net
    if isinstance(net, FSDPModule):
        return
    # On its device, for NCCL sends nothing else; and FSDP2 takes no other format.
    net.to(device).to(memory_format=torch.contiguous_format)
    broadcast_first(net.state_dict().values())
    mesh = mesh["data_parallel"]
    for block in _blocks(net):
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
    # Its own few stay, since one of its methods may call another and go on.
    fully_shard(net, mesh=mesh, reshard_after_forward=False)
    # Else their first call would make roots of the blocks, and the network could not be one.
    for name in dir(net):
        if name.startswith("forward_") or name in ("losses", "predict"):
            register_fsdp_forward_method(net, name)


def _blocks(net: nn.Module) -> Iterator[nn.Module]:
    for child in net.children():
        if type(child).forward is nn.Module.forward:  # a list of modules
            yield from _blocks(child)
        elif any(True for _ in child.parameters()):
            yield child
