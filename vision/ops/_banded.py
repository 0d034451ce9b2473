"""Products of a row with a sliding window of another row, as blocks of matrix products.

Correlating every pixel x of a row with the ``count`` pixels from ``x + first`` on needs a band of
the (W, W) product of the two rows. The row is cut into blocks of about ``_BLOCK`` columns; a block
of one row against the ``block + count - 1`` columns that it can meet in the other is a small matrix
product that reads the features where they lie, and the band is read out of it through strides.
Images and rows are worked off in chunks: beside the result (and, backwards, one float32 copy of
each gradient) the workspace stays within about ``2 * WORKSPACE`` numbers on the CPU, or within what
one row needs where that is more; it grows with W, never with W squared.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

_BLOCK = 32  # columns: smaller makes tiny matrices, larger computes more outside the band
_PRODUCT = 1 << 17  # numbers in a block's product: 512 KB, so that it stays in the cache
WORKSPACE = 1 << 20  # numbers: 4 MB


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
    channels, count = left.shape[1], out.shape[1]
    if out.numel() == 0 or channels == 0:
        out.zero_()
        return
    product = left.new_empty(0, 0, 0)
    for chunk in _chunks(left, count):
        a, b = _operands(left[chunk], right[chunk], count, first, reverse)
        part = out[chunk]
        for columns, window in _tiles(left.shape[3], count, reverse):
            tile, other = a[:, columns], b[..., window]
            if product.shape[:2] != tile.shape[:2]:
                product = a.new_empty(*tile.shape[:2], other.shape[2])
            torch.baddbmm(product, tile, other, beta=0, alpha=1 / channels, out=product)
            part[..., columns] = _band(product, part.shape, reverse)
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
    matrix = left.new_empty(0, 0, 0)
    for chunk in _chunks(left, count):
        a, b = _operands(left[chunk], right[chunk], count, first, reverse)
        part = gradient[chunk]
        to_left, to_right = torch.empty_like(a), torch.zeros_like(b)
        for columns, window in _tiles(width, count, reverse):
            tile, other = a[:, columns], b[..., window]
            if matrix.shape[:2] != tile.shape[:2]:  # outside the band it stays 0
                matrix = a.new_zeros(*tile.shape[:2], other.shape[2])
            _band(matrix, part.shape, reverse).copy_(part[..., columns])
            to_left[:, columns].baddbmm_(matrix, other.mT, beta=0, alpha=1 / channels)
            to_right[..., window].baddbmm_(tile.mT, matrix, alpha=1 / channels)
        shape = part.shape[::2]
        grad_left[chunk] += to_left.unflatten(0, shape).permute(0, 3, 1, 2)
        start = first + count - 1 if reverse else -first
        to_right = to_right.unflatten(0, shape).transpose(1, 2)[..., start : start + width]
        grad_right[chunk] += to_right.flip(3) if reverse else to_right


def _block(width: int) -> int:
    """Columns of a block: all alike, so that they can share memory, but for a shorter last one."""
    return -(-width // max(1, round(width / _BLOCK)))


def _chunks(left: Tensor, count: int) -> Iterator[tuple[slice, slice, slice]]:
    """Indices of images, channels (all) and rows.

    On the CPU one image at a time: its features are then multiplied where they lie.
    """
    batch, channels, height, width = left.shape
    block, columns = _block(width), width + count - 1
    product, features = block * (block + count - 1), channels * columns
    if left.device.type == "cpu":
        images = 1
        step = min(WORKSPACE // max(product, features), _PRODUCT // max(product, block * channels))
    else:
        images = batch
        step = 64 * WORKSPACE // (batch * max(product, features))
    step = max(1, step)
    for image in range(0, batch, images):
        for y in range(0, height, step):
            yield slice(image, image + images), slice(None), slice(y, min(y + step, height))


def _operands(
    left: Tensor, right: Tensor, count: int, first: int, reverse: bool
) -> tuple[Tensor, Tensor]:
    """(B * H, W, C) of the left and (B * H, C, W + count - 1) of the right, padded on both sides.

    With ``reverse`` the columns of the right run backwards, so that j runs forwards in the band.
    """
    dtype, before, after = accumulation_type(left), -first, count - 1 + first
    left, right = left.to(dtype), right.to(dtype)
    padded = F.pad(right.flip(3), (after, before)) if reverse else F.pad(right, (before, after))
    return left.permute(0, 2, 3, 1).flatten(0, 1), padded.transpose(1, 2).flatten(0, 1)


def _tiles(width: int, count: int, reverse: bool) -> Iterator[tuple[slice, slice]]:
    """Columns of the left, and the columns of the padded right that they meet."""
    block = _block(width)
    for start in range(0, width, block):
        stop = min(start + block, width)
        window = width - stop if reverse else start
        yield slice(start, stop), slice(window, window + stop - start + count - 1)


def _band(product: Tensor, shape: tuple[int, ...], reverse: bool) -> Tensor:
    """View (B, count, H, block) of the band in (B * H, block, block + count - 1).

    Args:
        product: contiguous.
        shape: begins with B, count and H.
        reverse: see :func:`_operands`.
    """
    (batch, count, height), (_, block, window) = shape[:3], product.shape
    size, row = block * window, window - 1 if reverse else window + 1
    return product.as_strided(
        (batch, count, height, block), (height * size, 1, size, row), block - 1 if reverse else 0
    )


def _clear_outside(out: Tensor, first: int, reverse: bool) -> None:
    """Makes the places that met the outside exactly 0, also where the left value is NaN."""
    count, width = out.shape[1], out.shape[3]
    j = torch.arange(count, device=out.device)
    j = (j.flip(0) if reverse else j)[:, None, None] + first
    for columns in (slice(0, min(width, -first)), slice(max(0, width - count + 1 - first), width)):
        x = torch.arange(columns.start, columns.stop, device=out.device)
        out[..., columns].masked_fill_((x + j < 0) | (x + j >= width), 0)
