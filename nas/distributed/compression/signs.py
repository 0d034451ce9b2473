"""Gradients as signs: a bit an entry and a scale a parameter, with error feedback.

Source: EF-SignSGD (Karimireddy et al., ICML 2019), as a baseline of arXiv 2306.08881. All
processes' bits are gathered, so that beyond about 64 of them more travels than without.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .base import Compressor, Item

__all__ = ["EFSign"]


class EFSign(Compressor):
    """The mean of all processes' signs, each times the mean size of that process's entries.

    Args:
        start_step: steps at the start whose gradients travel whole.
        error_feedback: whether what is left out is kept.
        forget_after: see `Compressor`.
    """

    def average(self, items: list[Item]) -> None:
        """Average the signs of gradients, each process's scaled by its mean magnitude."""
        corrected = [self.corrected(name, gradient) for name, gradient in items]
        sizes = [u.numel() for u in corrected]
        flat = torch.cat([u.flatten() for u in corrected])
        scales = torch.stack([u.abs().mean() for u in corrected])
        message = torch.cat([_pack_signs(flat), scales.view(torch.uint8)])
        mean, finite = torch.zeros_like(flat), True
        for row in self.all_gathered(message):
            bits, own = row[: -4 * len(items)], row[-4 * len(items) :].clone().view(torch.float32)
            finite = finite and bool(torch.isfinite(own).all())
            mean += _unpack_signs(bits, len(flat)) * _spread(own, sizes)
        signs = torch.where(flat < 0, -1.0, 1.0)
        left = flat - signs * _spread(scales, sizes)
        self.finish(items, mean.div_(self.world_size), left, finite)


def _pack_signs(values: Tensor) -> Tensor:
    """Signs of a flat tensor, eight a byte (ceil(n / 8),); zero counts as positive."""
    bits = (values >= 0).to(torch.uint8)
    padded = torch.nn.functional.pad(bits, (0, -len(bits) % 8)).view(-1, 8)
    return (padded << _shifts(values)).sum(1, dtype=torch.uint8)


def _unpack_signs(packed: Tensor, count: int) -> Tensor:
    """The signs as 1 and -1 (count,), float32."""
    bits = (packed[:, None] >> _shifts(packed)) & 1
    return bits.flatten()[:count].float() * 2 - 1


def _shifts(like: Tensor) -> Tensor:
    return torch.arange(8, device=like.device, dtype=torch.uint8)


def _spread(scales: Tensor, sizes: list[int]) -> Tensor:
    return torch.repeat_interleave(scales, torch.tensor(sizes, device=scales.device))
