"""Where the cells of a network's features lie in its input.

Along each axis cell j is centred on the input's pixel ``start + jump * j``. A layer of kernel k,
stride s and padding p multiplies the jump by s and moves the start by (k - 1) / 2 - p jumps of its
own input (Araujo et al., "Computing Receptive Fields of Convolutional Neural Networks", Distill
2019). The first cell of a network of odd, padded kernels lies on the first pixel, so that spreading
its cells evenly over the input would move a map by half a cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

__all__ = ["Places", "resized", "watch_cells"]

Places = Sequence[dict[int, tuple[float, float]]]
"""For each axis: number of cells to their jump and start."""

_LAYERS = (
    nn.Conv2d,
    nn.Conv3d,
    nn.MaxPool2d,
    nn.MaxPool3d,
    nn.AvgPool2d,
    nn.AvgPool3d,
)


@contextmanager
def watch_cells(net: nn.Module, inputs: Tensor) -> Iterator[Places]:
    """Learn where cells lie while the network runs on these inputs within the block.

    Args:
        net: its convolutions and poolings are watched.
        inputs: (B, C, *size).
    """
    places: Places = [{length: (1.0, 0.0)} for length in inputs.shape[2:]]

    def look(layer: nn.Module, args: tuple[Tensor], output: Tensor) -> None:
        count = len(places)
        if output.dim() != count + 2 or isinstance(layer.padding, str):
            return
        sides = (args[0].shape[2:], output.shape[2:])
        settings = (layer.kernel_size, layer.stride, layer.padding, getattr(layer, "dilation", 1))
        settings = (s if isinstance(s, tuple) else (s,) * count for s in settings)
        for known, have, made, k, s, p, d in zip(places, *sides, *settings, strict=True):
            if made < have and have in known and made not in known:
                jump, start = known[have]
                known[made] = (jump * s, start + (d * (k - 1) / 2 - p) * jump)

    layers = [part for part in net.modules() if isinstance(part, _LAYERS)]
    handles = [layer.register_forward_hook(look) for layer in layers]
    try:
        yield places
    finally:
        for handle in handles:
            handle.remove()


def resized(maps: Tensor, size: Sequence[int], places: Places | None = None) -> Tensor:
    """Resize maps linearly, each cell to where it lies; the outermost ones reach to the edges.

    Args:
        maps: (B, *cells).
        size: of the input.
        places: see `watch_cells`; None, and numbers of cells not seen, spread cells evenly.

    Returns:
        (B, *size).
    """
    for axis, length in enumerate(size, 1):
        cells = maps.shape[axis]
        even = length / cells
        known = places[axis - 1] if places else {}
        jump, start = known.get(cells, (even, (even - 1) / 2))
        at = ((torch.arange(length, device=maps.device) - start) / jump).clamp(0, cells - 1)
        below = at.floor().long()
        above = (below + 1).clamp(max=cells - 1)
        share = (at - below).to(maps.dtype).view(-1, *[1] * (maps.dim() - axis - 1))
        maps = torch.lerp(maps.index_select(axis, below), maps.index_select(axis, above), share)
    return maps
