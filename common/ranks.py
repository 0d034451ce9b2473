"""What processes of one run agree on: how many they are, and that they do the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = [
    "broadcast_first",
    "check_same_subnets",
    "digest",
    "gathered",
    "rank_and_size",
    "same_everywhere",
    "tensor_digest",
]


def rank_and_size() -> tuple[int, int]:
    """This process's rank and the number of processes; 0 and 1 where there is one."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def broadcast_first(tensors: Iterable[Tensor]) -> None:
    """Give all processes the first one's tensors; every one of them has to ask."""
    for tensor in tensors:
        dist.broadcast(tensor.detach(), 0)


def gathered(value: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
    """The values of all processes, or of a group, in their order.

    All of them have to call it, and none goes on before all have.
    """
    if rank_and_size()[1] == 1:
        return [value]
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values


def digest(text: str) -> int:
    """A number of 63 bits that tells texts apart, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def tensor_digest(tensors: Iterable[Tensor]) -> int:
    """A number of 63 bits that tells tensors apart by every bit of them."""
    content = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        plain = tensor.detach().cpu().contiguous().reshape(-1)
        content.update(plain.view(torch.uint8).numpy().data)
    return int.from_bytes(content.digest(), "big") >> 1


def same_everywhere(number: int, device: torch.device | str = "cpu") -> bool:
    """Whether all processes hold the same number of 63 bits, not negative; all have to ask.

    The device is that of the tensor that travels, as the process group's backend wants it.
    """
    if rank_and_size()[1] == 1:
        return True
    ends = torch.tensor([number, -number], device=device)  # one collective for both ends
    dist.all_reduce(ends, op=dist.ReduceOp.MAX)
    largest, smallest = ends.tolist()
    return largest == -smallest


def check_same_subnets(
    architectures: Sequence[Mapping[str, Any]], device: torch.device | str = "cpu"
) -> None:
    """Prove that all processes train the same subnets in this step.

    Raises:
        RuntimeError: they do not; their gradients would be mixed without a word.
    """
    text = repr([list(architecture.items()) for architecture in architectures])
    if not same_everywhere(digest(text), device):
        raise RuntimeError(
            "the processes drew different subnets for one step: give all of them the same sampler "
            "and seed, and a sampler that depends on nothing but the space and the step"
        )
