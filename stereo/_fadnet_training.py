"""FADNet's decoder in the form it trains fastest in on a CPU; the same functions, another order.

oneDNN is slow where channels fill no vector, as in up + 1 + skip of them joined: the convolution
of the join is taken as the sum of its parts' convolutions. At the finest level nothing but the
prediction reads `iconv0`, and no activation is between: the prediction's nine taps are multiplied
into its weight, which leaves nine output channels to shift and add. Zeros between the two layers
are kept, since the taps are shifted after the first.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..nas.elastic.conv import ElasticConv2d

__all__ = ["convolve_joined", "predict_finest"]


def convolve_joined(conv: nn.Conv2d, parts: Sequence[Tensor]) -> Tensor:
    """`conv(torch.cat(parts, 1))` for a 3x3 convolution with padding 1."""
    return _sum_of_parts(parts, *_parameters(conv))


def predict_finest(conv: nn.Conv2d, head: nn.Conv2d, parts: Sequence[Tensor]) -> Tensor:
    """`head(conv(torch.cat(parts, 1)))` for 3x3 convolutions with padding 1, one output channel."""
    weight, bias = _parameters(conv)
    taps = _parameters(head)[0][0].flatten(1)  # (C, 9)
    if len(taps) <= taps.shape[1]:
        return head(convolve_joined(conv, parts))
    with torch.autocast(weight.device.type, enabled=False):
        weight = torch.einsum("ot,oikl->tikl", taps, weight)
        bias = taps.T @ bias
    shifts = torch.eye(9, dtype=weight.dtype, device=weight.device).view(1, 9, 3, 3)
    return F.conv2d(_sum_of_parts(parts, weight, bias), shifts, padding=1)


def _sum_of_parts(parts: Sequence[Tensor], weight: Tensor, bias: Tensor) -> Tensor:
    weights = weight.split([part.shape[1] for part in parts], 1)
    total = F.conv2d(parts[0], weights[0], bias, padding=1)
    for part, own in zip(parts[1:], weights[1:], strict=True):
        total += F.conv2d(part, own, padding=1)
    return total


def _parameters(conv: nn.Conv2d) -> tuple[Tensor, Tensor | None]:
    if isinstance(conv, ElasticConv2d):
        return conv.weight_in_use(conv.active), conv.bias_in_use(conv.active)
    return conv.weight, conv.bias
