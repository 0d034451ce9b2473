"""Convolution on the faces of a mesh: ``kernels/mesh.cu`` combines, matrix products do the rest."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .._kernels import TYPES, launch

KERNELS = ("mesh_forward<{}>", "mesh_backward<{}>")
TERMS = 4

_THREADS = 128
_GROUP = 16  # channels at least: shorter rows would waste what a read of memory brings
_BLOCKS = 1 << 16


def forward(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    neighbours: Tensor | None,
    inverse: Tensor | None,
    memory: int,
) -> Tensor:
    """(B, F, C) to (B, rows, C_out)."""
    channels, rows = features.shape[2], _rows(features, neighbours)
    out = features.new_empty(len(features), rows, len(weight))
    if out.numel() == 0 or channels == 0:
        return out.zero_() if bias is None else out.copy_(bias.expand_as(out))
    matrix = weight.permute(2, 1, 0).flatten(0, 1)
    table = _table(features, neighbours)
    for image, into in zip(features.contiguous(), out, strict=True):
        for some, terms in _combined(image, neighbours, table, rows, memory):
            if bias is None:
                torch.mm(terms, matrix, out=into[some])
            else:
                torch.addmm(bias, terms, matrix, out=into[some])
    return out


def backward(
    gradient: Tensor,
    features: Tensor,
    weight: Tensor,
    neighbours: Tensor | None,
    inverse: Tensor | None,
    memory: int,
) -> tuple[Tensor, Tensor]:
    """By groups of channels: what the products give for one keeps to `memory`."""
    (_, faces, channels), rows = features.shape, _rows(features, neighbours)
    to_features = torch.empty_like(features, memory_format=torch.contiguous_format)
    to_weight = weight.new_zeros(weight.shape, dtype=torch.float32)
    if gradient.numel() == 0 or channels == 0:
        return to_features.zero_(), to_weight.to(weight.dtype)
    gradient, features = gradient.to(features.dtype).contiguous(), features.contiguous()
    table = _table(features, neighbours)
    places = _table(features, inverse)
    fit = memory // (TERMS * rows * features.element_size())
    group = min(channels, max(_GROUP, fit // _GROUP * _GROUP))
    for first in range(0, channels, group):
        some = slice(first, first + group)
        matrix = weight[:, some].transpose(1, 2).flatten(1)  # (C_out, 4 c)
        total = to_weight.new_zeros(matrix.shape)
        for image, given, into in zip(features, gradient, to_features, strict=True):
            part = image[:, some]
            for rows_, terms in _combined(part, neighbours, table, rows, memory):
                total += given[rows_].T @ terms
            launch(
                "mesh",
                f"mesh_backward<{TYPES[features.dtype]}>",
                (min(_BLOCKS, -(-faces * part.shape[1] // _THREADS)),),
                _THREADS,
                *(part, channels, table, places, inverse.shape[1] if inverse is not None else 1),
                *(given @ matrix, into[:, some], channels, faces, rows),
                *(_slots(neighbours), part.shape[1], faces // rows),
            )
        to_weight[:, some] = total.unflatten(1, (TERMS, -1)).transpose(1, 2)
    return to_features, to_weight.to(weight.dtype)


def _combined(
    features: Tensor, neighbours: Tensor | None, table: Tensor, rows: int, memory: int
) -> Iterator[tuple[slice, Tensor]]:
    """Chunks of rows and their combinations (n, 4 C), which keep to `memory`."""
    channels = features.shape[1]
    step = max(1, memory // (TERMS * channels * features.element_size()))
    for first in range(0, rows, step):
        count = min(step, rows - first)
        terms = features.new_empty(count, TERMS * channels)
        launch(
            "mesh",
            f"mesh_forward<{TYPES[features.dtype]}>",
            (min(_BLOCKS, -(-count * channels // _THREADS)),),
            _THREADS,
            *(features, features.stride(0), table, terms),
            *(first, count, _slots(neighbours), channels, features.shape[0] // rows),
            features.shape[0],
        )
        yield slice(first, first + count), terms


def _rows(features: Tensor, neighbours: Tensor | None) -> int:
    return features.shape[1] // 4 if neighbours is None else neighbours.shape[0]


def _slots(neighbours: Tensor | None) -> int:
    return 3 if neighbours is None else neighbours.shape[1]


def _table(features: Tensor, table: Tensor | None) -> Tensor:
    """As the kernels read it: int32, and an empty tensor's null pointer for none."""
    if table is None:
        return torch.empty(0, dtype=torch.int32, device=features.device)
    return table.int().contiguous()
