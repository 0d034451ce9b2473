"""Products of a row with a sliding window of another row, as blocks of matrix products.

Correlating every pixel x of a row with the ``count`` pixels from ``x + first`` on needs a band of
the (W, W) product of the two rows. The row is cut into blocks of about ``BLOCK`` columns; a block
of one row against the ``block + count - 1`` columns that it can meet in the other is a small
matrix product, and the band is read out of it through strides. Rows are worked off in chunks:
beside the result (and, backwards, one float32 copy of each gradient) the workspace stays within
about ``2 * WORKSPACE`` numbers on the CPU, or within what one row needs where that is more; it
grows with W, never with W squared.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 24  # columns: smaller makes tiny matrices, larger computes more outside the band
WORKSPACE = 1 << 20  # numbers: 4 MB, so that a chunk stays in the cache


def accumulation_type(tensor: Tensor) -> torch.dtype:
    """float64 for float64, else float32."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def correlate_band(left: Tensor, right: Tensor, out: Tensor, first: int, reverse: bool) -> None:
    """Writes ``mean over c of left[c, y, x] * right[c, y, x + first + j]`` to ``out[j, y, x]``.

    Args:
        left: (B, C, H, W).
        right: (B, C, H, W), read as 0 outside.
        out: (B, count, H, W), overwritten.
        first: offset of the first column that meets x, at most 0.
        reverse: True counts j from the other end: ``out[count - 1 - j]``.
    """
    channels, count, width = left.shape[1], out.shape[1], left.shape[3]
    if out.numel() == 0 or channels == 0:
        out.zero_()
        return
    blocks, block = _blocks(width)
    for rows in _chunks(left, count):
        a, b = _operands(left[:, :, rows], right[:, :, rows], count, first)
        product = torch.bmm(a.transpose(1, 2), b)
        band = _band(product, left.shape[0], count, blocks, block)
        band = (band.flip(1) if reverse else band).flatten(3)[..., :width]
        torch.mul(band, 1 / channels, out=out[:, :, rows])
    _clear_outside(out, first, reverse)


def correlate_band_backward(
    gradient: Tensor,
    left: Tensor,
    right: Tensor,
    grad_left: Tensor,
    grad_right: Tensor,
    first: int,
    reverse: bool,
) -> None:
    """Adds the gradients of :func:`correlate_band` to ``grad_left`` and ``grad_right``.

    Both are (B, C, H, W) of the accumulation type. A NaN or infinity in the features may spread
    to the gradients of the other columns of its block.
    """
    channels, count, width = left.shape[1], gradient.shape[1], left.shape[3]
    if gradient.numel() == 0 or channels == 0:
        return
    batch, (blocks, block) = left.shape[0], _blocks(width)
    window = block + count - 1
    overlap = -(-window // block)
    matrices = None  # each chunk overwrites the band; the rest stays 0
    for rows in _chunks(left, count):
        a, b = _operands(left[:, :, rows], right[:, :, rows], count, first)
        g = F.pad(gradient[:, :, rows].to(a.dtype), (0, blocks * block - width))
        if matrices is None:
            matrices = a.new_zeros(a.shape[0], block, window)
        matrix = matrices[: a.shape[0]]
        _band(matrix, batch, count, blocks, block).copy_(
            (g.flip(1) if reverse else g).unflatten(3, (blocks, block))
        )
        to_left = _multiply(b, matrix.transpose(1, 2), batch, blocks)
        grad_left[:, :, rows].add_(to_left.flatten(3)[..., :width], alpha=1 / channels)

        to_right = _multiply(a, matrix, batch, blocks)
        columns = to_right.new_zeros(*to_right.shape[:3], blocks + overlap - 1, block)
        for i in range(overlap):
            part = to_right[..., i * block : (i + 1) * block]
            columns[..., i : i + blocks, : part.shape[-1]].add_(part)
        columns = columns.flatten(3)[..., -first : width - first]
        grad_right[:, :, rows].add_(columns, alpha=1 / channels)


def _blocks(width: int) -> tuple[int, int]:
    """How many blocks, and how many columns each."""
    blocks = max(1, round(width / BLOCK))
    return blocks, -(-width // blocks)


def _chunks(left: Tensor, count: int) -> Iterator[slice]:
    batch, channels, height, width = left.shape
    blocks, block = _blocks(width)
    window = block + count - 1
    row = batch * blocks * (block * window + channels * (block + window))
    workspace = WORKSPACE if left.device.type == "cpu" else 64 * WORKSPACE
    step = max(1, workspace // row)
    return (slice(y, min(y + step, height)) for y in range(0, height, step))


def _operands(left: Tensor, right: Tensor, count: int, first: int) -> tuple[Tensor, Tensor]:
    """(B * H * blocks, C, block) and (B * H * blocks, C, block + count - 1)."""
    width, dtype = left.shape[3], accumulation_type(left)
    blocks, block = _blocks(width)
    rest = blocks * block - width
    a = F.pad(left.to(dtype), (0, rest)).unfold(3, block, block)
    b = F.pad(right.to(dtype), (-first, count - 1 + first + rest))
    b = b.unfold(3, block + count - 1, block)
    if left.stride(1) == 1:  # channels last: copy runs of channels, multiply transposed
        return tuple(x.permute(0, 2, 3, 4, 1).flatten(0, 2).transpose(1, 2) for x in (a, b))
    return tuple(x.permute(0, 2, 3, 1, 4).flatten(0, 2) for x in (a, b))


def _multiply(features: Tensor, matrix: Tensor, batch: int, blocks: int) -> Tensor:
    """``features @ matrix`` as (B, C, H, blocks, columns), laid out as the features are."""
    if features.stride(1) == 1:
        product = torch.bmm(matrix.transpose(1, 2), features.transpose(1, 2)).transpose(1, 2)
    else:
        product = torch.bmm(features, matrix)
    return product.unflatten(0, (batch, -1, blocks)).permute(0, 3, 1, 2, 4)


def _band(matrices: Tensor, batch: int, count: int, blocks: int, block: int) -> Tensor:
    """View (B, count, H, blocks, block) of the band in (B * H * blocks, block, window)."""
    height, size = matrices.shape[0] // (batch * blocks), matrices.shape[1] * matrices.shape[2]
    return matrices.as_strided(
        (batch, count, height, blocks, block),
        (height * blocks * size, 1, blocks * size, size, matrices.shape[2] + 1),
    )


def _clear_outside(out: Tensor, first: int, reverse: bool) -> None:
    """Makes the places that met the outside exactly 0, also where the left value is NaN."""
    count, width = out.shape[1], out.shape[3]
    j = torch.arange(count, device=out.device)
    j = (j.flip(0) if reverse else j)[:, None, None] + first
    for columns in (slice(0, min(width, -first)), slice(max(0, width - count + 1 - first), width)):
        x = torch.arange(columns.start, columns.stop, device=out.device)
        out[..., columns].masked_fill_((x + j < 0) | (x + j >= width), 0)
