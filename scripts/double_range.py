"""EASNet's weights for twice the range of disparities, to train on.

    python scripts/double_range.py stereo/weights/easnet_small.safetensors OUT.safetensors

EASNet's aggregation has a channel for each candidate. Twice as many start as two networks side by
side, the second of which sees the candidates beyond the first one's range.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.weights import save_weights


def doubled(value: Tensor, shape: torch.Size) -> Tensor:
    """A tensor that stands twice along each dimension that is doubled, diagonally if two are."""
    grown = [axis for axis, size in enumerate(shape) if size == 2 * value.shape[axis]]
    wide = value.new_zeros(shape)
    if shape == value.shape:
        return value
    for half in range(2):
        part = [slice(None)] * value.dim()
        for axis in grown:
            part[axis] = slice(half * value.shape[axis], (half + 1) * value.shape[axis])
        wide[tuple(part)] = value
    return wide


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("weights")
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    narrow = create_model("easnet_small", weights=options.weights)
    wide = create_model("easnet_small", max_disparity=192)
    known = wide.state_dict()
    wide.load_state_dict(
        {name: doubled(value, known[name].shape) for name, value in narrow.state_dict().items()}
    )
    save_weights(wide, options.out)


if __name__ == "__main__":
    main()
