"""From a cost volume to a disparity map; by kernels of ``kernels/regression.cu``."""

import torch
from torch import Tensor

from ._kernels import KERNELS, TYPES, Arguments, launch
from ._registration import exporting, register_composite

__all__ = ["soft_argmin"]

KERNELS["regression"] = ("soft_argmin_forward<{}>", "soft_argmin_backward<{}>")


def soft_argmin(cost: Tensor, *, start: float = 0.0, step: float = 1.0) -> Tensor:
    """Expected disparity under softmax(-cost) (GC-Net, Kendall et al., ICCV 2017).

    Computed in float32 (float64 for float64 costs), also under autocast. A NaN in a pixel's
    costs gives NaN there. Needs two volumes of workspace. Second derivatives work.

    Args:
        cost: (B, D, H, W), floating, low where the match is good; negate a similarity.
        start: disparity of the first candidate, pixels.
        step: pixels between candidates.

    Returns:
        (B, 1, H, W), float32 (float64 for float64 costs), within the candidates' range.

    Raises:
        ValueError: ``cost`` is not (B, D, H, W) with D at least 1, or not floating.
    """
    if cost.dim() != 4 or cost.shape[1] < 1:
        raise ValueError(f"cost must be (B, D, H, W) with D at least 1, got {tuple(cost.shape)}")
    if not cost.is_floating_point():
        raise ValueError(f"cost must be floating, got {cost.dtype}")
    if exporting():
        return _soft_argmin(cost, start, step)
    return torch.ops.vizoo.soft_argmin(cost, start, step)


def _soft_argmin(cost: Tensor, start: float, step: float) -> Tensor:
    cost = cost.to(torch.promote_types(cost.dtype, torch.float32))
    candidates = torch.arange(cost.shape[1], device=cost.device, dtype=cost.dtype)
    candidates = (start + step * candidates)[:, None, None]
    # A matrix product would be lowered to half precision by autocast; a sum is not.
    return (torch.softmax(-cost, dim=1) * candidates).sum(1, keepdim=True)


def _backward(gradient: Tensor, cost: Tensor, start: float, step: float) -> Tensor:
    exact = cost.to(torch.promote_types(cost.dtype, torch.float32))
    index = torch.arange(cost.shape[1], device=cost.device, dtype=exact.dtype)[:, None, None]
    share = torch.softmax(-exact, dim=1)
    mean = (share * index).sum(1, keepdim=True)
    return torch.empty_like(cost).copy_(gradient * step * share * (mean - index))


def _fake(cost: Tensor, start: float, step: float) -> Tensor:
    batch, _, height, width = cost.shape
    return cost.new_empty(batch, 1, height, width, dtype=torch.float32)


def _forward_cuda(cost: Tensor, start: float, step: float) -> Tensor:
    """(B, D, H, W) to the expected value (B, 1, H, W) of `start`, `start + step`, …, float32."""
    batch, count, height, width = cost.shape
    out = _fake(cost, start, step)
    maps: Arguments = cost, *cost.stride(), out
    launch(
        "regression",
        f"soft_argmin_forward<{TYPES[cost.dtype]}>",
        (-(-height * width // 128), 1, batch),
        128,
        *maps,
        *(batch, count, height, width, float(start), float(step)),
    )
    return out


def _backward_cuda(gradient: Tensor, cost: Tensor, start: float, step: float) -> Tensor:
    """The gradient of the costs (B, D, H, W)."""
    batch, count, height, width = cost.shape
    to_cost = torch.empty_like(cost)
    maps: Arguments = cost, *cost.stride(), to_cost, *to_cost.stride()
    launch(
        "regression",
        f"soft_argmin_backward<{TYPES[cost.dtype]}>",
        (-(-height * width // 128), 1, batch),
        128,
        gradient.float().contiguous(),
        *maps,
        *(batch, count, height, width, float(step)),
    )
    return to_cost


register_composite(
    "soft_argmin",
    "Tensor cost, float start, float step",
    _soft_argmin,
    _forward_cuda,
    {"cost": (_backward, _backward_cuda)},
    _fake,
)
