"""Cost volumes that keep the features; by kernels of ``kernels/volume.cu``."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ._banded import accumulation_type
from ._kernels import KERNELS, TYPES, Arguments, launch
from ._registration import check_at_least, check_pair, exporting, register_pair_operator

__all__ = ["concat_volume"]

KERNELS["volume"] = ("concat_forward<{}, 4>", "concat_forward<{}, 1>", "concat_backward<{}>")
_PART = 32  # displacements of a GPU's thread


def concat_volume(left: Tensor, right: Tensor, displacements: int) -> Tensor:
    """Stacks left features on right features shifted by each displacement (GC-Net, PSMNet).

    Beside the result it needs a copy of the right features, padded to W + D; backwards, one
    float32 copy of each gradient for float16 and bfloat16. Second derivatives work. What it takes
    and raises is what `correlation` does.

    Returns:
        (B, 2C, D, H, W): ``left[x]`` in the first C channels, ``right[x - d]`` in the others,
        both 0 where x < d.
    """
    check_pair(left, right)
    check_at_least("displacements", displacements, 1)
    if exporting():
        return _plain(left, right, displacements)
    return torch.ops.vizoo.concat_volume(left, right, displacements)


def _plain(left: Tensor, right: Tensor, displacements: int) -> Tensor:
    width = left.shape[3]
    x = torch.arange(width, device=left.device)
    d = torch.arange(displacements, device=left.device)[:, None]
    columns = (x - d + displacements - 1).flatten()  # of the padded right row; (D * W,)
    shifted = F.pad(right, (displacements - 1, 0)).index_select(3, columns)
    shifted = shifted.unflatten(3, (displacements, width)).permute(0, 1, 3, 2, 4)
    kept = torch.where((x >= d)[:, None], left[:, :, None], 0.0)
    return torch.cat((kept, shifted), 1)


def _shape(left: Tensor, right: Tensor, displacements: int) -> tuple[int, ...]:
    batch, channels, height, width = left.shape
    return batch, 2 * channels, displacements, height, width


def _forward(left: Tensor, right: Tensor, displacements: int) -> Tensor:
    out = left.new_empty(_shape(left, right, displacements))
    if out.numel() == 0:
        return out
    channels, width = left.shape[1], left.shape[3]
    reach = min(displacements, width)
    lefts, rights = out[:, :, :reach].split(channels, 1)
    lefts.copy_(left[:, :, None])
    right = F.pad(right, (reach - 1, 0))
    for d in range(reach):  # whole rows copy faster than what lies inside
        lefts[:, :, d, :, :d] = 0
        rights[:, :, d] = right[..., reach - 1 - d : reach - 1 - d + width]
    out[:, :, width:] = 0
    return out


def _backward(
    gradient: Tensor, left: Tensor, right: Tensor, displacements: int
) -> tuple[Tensor, Tensor]:
    channels, width, dtype = left.shape[1], left.shape[3], accumulation_type(left)
    grad_left, grad_right = (torch.zeros_like(x, dtype=dtype) for x in (left, right))
    for d in range(min(displacements, width)):
        grad_left[..., d:] += gradient[:, :channels, d, :, d:]
        grad_right[..., : width - d] += gradient[:, channels:, d, :, d:]
    return grad_left.to(left.dtype), grad_right.to(right.dtype)


def _forward_cuda(left: Tensor, right: Tensor, displacements: int) -> Tensor:
    """(B, C, H, W) twice to (B, 2 C, displacements, H, W)."""
    batch, channels, height, width = left.shape
    out = left.new_empty(_shape(left, right, displacements))
    if out.numel() == 0:
        return out
    wide = 4 if width % 4 == 0 else 1
    grid = -(-height * width // (128 * wide)), -(-displacements // _PART), batch * channels
    features: Arguments = left, *left.stride(), right, *right.stride(), out
    launch(
        "volume",
        f"concat_forward<{TYPES[left.dtype]}, {wide}>",
        grid,
        128,
        *features,
        *(batch, channels, height, width, displacements, _PART),
    )
    return out


def _backward_cuda(
    gradient: Tensor, left: Tensor, right: Tensor, displacements: int
) -> tuple[Tensor, Tensor]:
    """Gradients of both images, from (B, 2 C, displacements, H, W)."""
    batch, channels, height, width = left.shape
    to_left, to_right = torch.empty_like(left), torch.empty_like(right)
    results: Arguments = to_left, *to_left.stride(), to_right, *to_right.stride()
    launch(
        "volume",
        f"concat_backward<{TYPES[left.dtype]}>",
        (-(-height * width // 128), 1, 2 * batch * channels),
        128,
        gradient.to(left.dtype).contiguous(),
        *results,
        *(batch, channels, height, width, displacements),
    )
    return to_left, to_right


register_pair_operator(
    "concat_volume",
    "displacements",
    _forward,
    _backward,
    _shape,
    _forward_cuda,
    _backward_cuda,
    bilinear=False,
)
