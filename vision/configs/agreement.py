"""Whether a checkpoint that is resumed from agrees with the config that resumes it."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...common.renamed import present_name
from ..hub.weights import load_pickle
from ..training import read_subnet

__all__ = ["START", "check_agreement"]

START = "init_weights"
"""The hyper-parameter that names the weights to start from."""


def check_agreement(path: Path, given: dict[str, Any], subcommand: str) -> None:
    """Compare hyper-parameters of a checkpoint with the ``class_path`` and ``init_args`` given.

    Lightning lets those of the checkpoint override a config without a word.

    Raises:
        FileNotFoundError: no such checkpoint.
        ValueError: not a Lightning checkpoint, or they differ; the message names each key.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such checkpoint")
    stored = load_pickle(path, mmap=zipfile.is_zipfile(path))
    if not isinstance(stored, dict) or "pytorch-lightning_version" not in stored:
        raise ValueError(
            f"{path}: not a Lightning checkpoint, so nothing can resume from it; "
            f"weights are given as {START} of the model"
        )
    stored = dict(stored.get("hyper_parameters") or {})
    wanted = {**given.get("init_args", {}), **given.get("dict_kwargs", {})}
    if "class_path" in given:
        wanted["_class_path"] = given["class_path"]
        if not _same(given["class_path"], stored.get("_class_path", given["class_path"])):
            wanted = {"_class_path": given["class_path"]}  # whose arguments are others
    differing = [
        difference
        for key, value in sorted(wanted.items())
        if key in stored
        for difference in _differences(f"model.{key.removeprefix('_')}", value, stored[key])
    ]
    if differing:
        instead = "start a new stage from" if subcommand == "fit" else f"{subcommand} with"
        start, theirs = "model", stored
        while isinstance(inner := (given.get("init_args") or {}).get("task"), dict):
            given, start = inner, f"{start}.task"  # which has the network
            theirs = (theirs.get("task") or {}).get("init_args") or {}
        alone = f", or {instead} its weights alone: {start}.{START} instead of ckpt_path"
        raise ValueError(
            f"{path}: the checkpoint would override your config: {'; '.join(differing)}; make them "
            f"agree{alone if START in theirs else ''}"
        )


def _differences(key: str, mine: Any, theirs: Any, described: bool = False) -> Iterator[str]:
    """Where two arguments differ, by name; what is left to its default does not contradict."""
    if key.endswith(f".{START}"):
        return
    if isinstance(mine, dict) and isinstance(theirs, dict):
        # A checkpoint has all arguments of its network, also those that init_weights brought.
        described = described or key.endswith((".model_args", ".model_args.convert"))
        if "class_path" in mine:
            if not _same(mine["class_path"], theirs.get("class_path")):
                paths = mine["class_path"], theirs.get("class_path")
                yield "{}.class_path is {!r} here and {!r} there".format(key, *paths)
                return
            mine, theirs = mine.get("init_args") or {}, theirs.get("init_args") or {}
            described = True
        if described:
            for name, value in mine.items():
                yield from _differences(f"{key}.{name}", value, theirs.get(name))
            return
    if isinstance(mine, list) and isinstance(theirs, list) and len(mine) == len(theirs):
        if mine and all(isinstance(entry, dict) for entry in (*mine, *theirs)):
            for index, pair in enumerate(zip(mine, theirs, strict=True)):
                yield from _differences(f"{key}.{index}", *pair, described=True)
            return
    if key.endswith(".model_args.subnet") and isinstance(mine, str):
        if not os.path.exists(mine):
            return  # the checkpoint has what was in that file
        mine = read_subnet(mine)
    if not _same(mine, theirs):
        yield f"{key} is {mine!r} here and {theirs!r} there"


def _same(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, (list, tuple)) and isinstance(theirs, (list, tuple)):
        return len(mine) == len(theirs) and all(map(_same, mine, theirs))
    if isinstance(mine, str) and isinstance(theirs, str):
        mine, theirs = present_name(mine), present_name(theirs)
    return mine == theirs or str(mine) == str(theirs)
