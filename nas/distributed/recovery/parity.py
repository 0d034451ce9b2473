"""Parity over processes on different machines: what one of a group has lost, the others rebuild.

As in RAID 5, each payload is cut into one chunk fewer than the group has members; every other
member keeps the exclusive or of the chunks that the rest sent it. That takes 1/(n - 1) of a
payload more memory, and one loss in each group can be made good.
"""

from __future__ import annotations

import functools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

__all__ = ["Parity", "parity_groups"]

_WORD = 8


def parity_groups(processes: int, machines: int, size: int) -> list[list[int]]:
    """Ranks that share parity, in groups of at least `size` where there are so many.

    Members are on different machines where there are several, and have the same place there. The
    ranks of a machine are one after the other, equally many on each.
    """
    each = processes // machines if machines > 1 else 1  # of one machine all are in one lane
    lanes = [list(range(place, processes, each)) for place in range(each)]
    groups = []
    for lane in lanes:
        count = max(1, len(lane) // size)
        ends = [len(lane) * number // count for number in range(count + 1)]
        groups += [lane[low:high] for low, high in zip(ends, ends[1:], strict=False)]
    return groups


class Parity:
    """Parity of one group of processes, two or more, this one among them.

    `group` is of exactly these processes, with a backend for the CPU.
    """

    def __init__(self, ranks: list[int], rank: int, group: dist.ProcessGroup) -> None:
        self.ranks = ranks
        self.group = group
        self.index = ranks.index(rank)
        self._others = [index for index in range(len(ranks)) if index != self.index]

    def size(self, longest: int) -> int:
        """Bytes of parity for payloads of which the longest has that many bytes."""
        chunk = -(-longest // len(self._others))
        return -(-chunk // _WORD) * _WORD

    def encode(self, payload: Tensor, chunk: int) -> Tensor:
        """The parity (chunk,), by `size`, of a payload (N,) of bytes; every member has to ask."""
        sent = self._padded(payload, chunk)
        got = torch.empty_like(sent)
        sizes = [0 if index == self.index else chunk for index in range(len(self.ranks))]
        dist.all_to_all_single(got, sent, sizes, sizes, group=self.group)
        words = got.view(torch.int64).view(len(self._others), -1)
        return functools.reduce(torch.bitwise_xor, words).view(torch.uint8)

    def rebuild(self, lost: int, payload: Tensor, parity: Tensor, chunk: int) -> Tensor | None:
        """The payload of a member that has lost it, by its index; every member has to ask.

        Payload (N,) and parity (chunk,) are this process's, empty if it is the one.

        Returns:
            The payload and bytes of zero behind it, in the process that lost it; else None.
        """
        gathered = torch.zeros(len(self.ranks), chunk, dtype=torch.uint8)
        if self.index != lost:
            gathered[self._others] = self._padded(payload, chunk).view(-1, chunk)
            gathered[self.index] = parity
            gathered[lost] = 0
        dist.reduce(gathered, self.ranks[lost], op=dist.ReduceOp.BXOR, group=self.group)
        return gathered[self._others].flatten() if self.index == lost else None

    def _padded(self, payload: Tensor, chunk: int) -> Tensor:
        return F.pad(payload, (0, chunk * len(self._others) - len(payload)))
