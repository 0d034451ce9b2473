"""Weights by any of their spellings: names with tags, repositories, folders, files."""

from __future__ import annotations

import os
from pathlib import Path

from .download import fetch, find_local
from .registry import REMOTE, has_scheme, hub_spelling, is_path, model_info, refusal
from .released import CONFIG, read_pretrained, read_recorded
from .weights import StoredWeights, read_weights

__all__ = ["beside_weights", "is_name", "read_source"]


def read_source(source: str | os.PathLike[str]) -> StoredWeights:
    """Weights, with the model and the arguments that they are for, without building a network.

    Args:
        source: ``NAME.TAG``, ``hf-hub:ORG/NAME[@REVISION]``, ``local-dir:FOLDER``, a folder of
            `save_pretrained` or a weight file.

    Raises:
        FileNotFoundError: no such file.
        ValueError: unknown, or a damaged file.
        OSError: no source gave the weights.
    """
    name = os.fspath(source)
    if name.startswith(REMOTE):
        return read_pretrained(name)
    if not is_name(source):
        if os.path.isfile(os.path.join(name, CONFIG)):
            return read_pretrained(f"local-dir:{name}")
        if not os.path.exists(name):
            if has_scheme(name):
                raise ValueError(refusal(name))
            raise FileNotFoundError(f"{name}: no such weight file{hub_spelling(name)}")
        return read_weights(name)
    entry = model_info(name)
    record = entry.record
    if entry.tag is None or record is None:
        raise ValueError(
            f"{name!r} is a model; its weights are {', '.join(entry.tagged_names) or 'not trained'}"
        )
    return read_recorded(fetch(record, name), entry.name, record, name)


def beside_weights(source: str | os.PathLike[str], ending: str) -> Path | None:
    """Where a file that belongs to weights would lie: a supernet's front, its latency table.

    The source is what `open_model` takes; the ending, such as ``.latency.json``, stands instead of
    the weights' own.

    Returns:
        The path, which need not exist; None where the weights are not on this machine, or are
        those of a repository.
    """
    name = os.fspath(source)
    if name.startswith("hf-hub:"):
        return None
    if name.startswith("local-dir:") or not is_name(source):
        return Path(name.removeprefix("local-dir:")).with_suffix(ending)
    entry = model_info(name)
    path = find_local(entry.record) if entry.record else None
    return None if path is None else path.with_name(f"{entry.name}{ending}")


def is_name(source: str | os.PathLike[str]) -> bool:
    """Whether a string names a registered model; files of that name are written ``./NAME``.

    Raises:
        ValueError: neither a model's name nor anything that exists.
    """
    if isinstance(source, os.PathLike) or source.startswith(REMOTE) or is_path(source):
        return False
    try:
        model_info(source)
    except ValueError:
        if os.path.exists(source):
            return False
        raise
    return True
