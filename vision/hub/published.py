"""Checkpoints that authors published, read and recognised.

A family whose authors published weights reads them by one function in its model file (or in a
neighbour of it that the model file imports)::

    def convert_published(state):
        if "their.first.weight" not in state:
            raise ValueError("these are not the weights of X: no their.first.weight")
        renamed = {key.replace("their.", "ours."): value for key, value in state.items()}
        return "x_small", {"max_disparity": 192}, renamed

It gets the tensors by their published names, unwrapped and without a ``module.`` prefix, and
returns the registered model, its architecture arguments (what the shapes tell; what they do not
tell is an option of `vizoo convert`) and our state dict, or raises ValueError on tensors of
others. It does no more: reading, unwrapping, refusing unsafe pickles, asking every family
(`recognise`), comparing every name and shape, and writing are done here and in `weights`. A test
sends a published file with known outputs through the command line and compares the outputs; where
no file may be kept, one of the published names and shapes with made-up values
(tests/cli/test_convert_stereo.py).

A record may name such a file as a source: `create_model("name.tag")` then reads it the same way.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...common.files import few
from ._pickles import load_pickle
from .download import sha256_of
from .registry import family_modules
from .weights import StoredWeights, all_tensors, check_stored, existing_file, open_safetensors

__all__ = ["read_published", "recognise"]


def recognise(path: str | os.PathLike[str]) -> StoredWeights:
    """Read a published checkpoint as weights of one of our models.

    Returns:
        The weights, which fit the model that they name.

    Raises:
        FileNotFoundError: no such file.
        ValueError: no family knows the tensors, or they do not fit; it says why.
    """
    path = Path(path)
    state = read_published(path)
    reasons = []
    for module in family_modules():
        convert = getattr(module, "convert_published", None)
        if convert is None:
            continue
        try:
            name, architecture, renamed = convert(state)
        except ValueError as error:
            reasons.append(str(error))
            continue
        facts = {"converted_from": path.name, "sha256": sha256_of(path)}
        stored = StoredWeights(name, architecture, renamed, facts)
        check_stored(stored, path)
        return stored
    raise ValueError(f"{path}: no model family recognises it: {'; '.join(reasons)}")


def read_published(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Read the state dict out of a checkpoint that authors published.

    Dictionaries wrapped around it (``state_dict``, ``model``) are taken off, and each ``module.``
    that leads every key.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not a checkpoint, a pickle that needs more than tensors, or no tensors in it.
    """
    path = existing_file(path)
    state: Any
    if path.suffix.lower() == ".safetensors":
        with open_safetensors(path) as file:
            state = all_tensors(file)
    else:
        state = load_pickle(path)
    while isinstance(state, Mapping):
        inner = [state.get(key) for key in ("state_dict", "model")]
        wrapped = [value for value in inner if isinstance(value, Mapping)]
        if not wrapped:
            break
        state = wrapped[0]
    if not isinstance(state, Mapping) or not state:
        raise ValueError(f"{path}: holds a {type(state).__name__}, not a state dict")
    wrong = [str(k) for k, v in state.items() if not (isinstance(v, Tensor) and isinstance(k, str))]
    if wrong:
        raise ValueError(f"{path}: not a state dict: no tensor under {few(wrong)}")
    other = [key for key, value in state.items() if value.layout != torch.strided]
    if other:
        raise ValueError(f"{path}: tensors are not dense, as all networks' are: {few(other)}")
    while all(key.startswith("module.") for key in state):
        state = {key.removeprefix("module."): value for key, value in state.items()}
    return dict(state)
