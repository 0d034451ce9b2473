"""Weights by any of their spellings: names with tags, repositories, folders, files.

`create_model` takes all of these but files; `open_model`, which the commands use, and
`load_network`, which the predictors use, take all of them.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .download import fetch, find_local
from .registry import (
    REMOTE,
    TIMM,
    create_model,
    has_scheme,
    hub_spelling,
    is_path,
    list_models,
    model_info,
    refusal,
)
from .weights import StoredWeights, build, names_its_model, read_weights

if TYPE_CHECKING:
    from torch import nn

    from .record import WeightsRecord

__all__ = ["beside_weights", "is_name", "load_network", "open_model", "read_source"]


def load_network(model: str | os.PathLike[str] | nn.Module, task: str) -> nn.Module:
    """The network of a predictor, in evaluation mode: the caller's, copied, or by what is opened.

    Args:
        model: a network, or what `open_model` takes.
        task: refuse models of other tasks.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: no such model, no trained weights for it, or weights of another task.
        OSError: its weights cannot be had.
    """
    if isinstance(model, (str, os.PathLike)):
        return open_model(model, task=task)[0]
    return copy.deepcopy(model).eval()


def open_model(
    source: str | os.PathLike[str],
    *,
    untrained: bool = False,
    task: str | None = None,
    download: bool = True,
) -> tuple[nn.Module, bool]:
    """A network as commands take it: by name, name and tag, repository, folder or file.

    Args:
        source: ``NAME`` (with its first weights), ``NAME.TAG``, ``hf-hub:ORG/NAME[@REVISION]``,
            ``local-dir:FOLDER``, a folder of `save_pretrained`, a weight file, or ``timm/NAME``
            (without trained weights).
        untrained: build a name without trained weights from fresh ones, instead of refusing it.
        task: refuse models of other tasks.
        download: where False, a bare ``NAME`` gets its weights only if they are on this machine,
            and fresh ones otherwise: for what depends on the architecture alone.

    Returns:
        The network in evaluation mode on the CPU, and whether its weights are trained ones. A
        classifier has `classes` and `input` where its source says them, see `weights.describe`.

    Raises:
        FileNotFoundError: no such file.
        ValueError: unknown or of another task, without trained weights, or a damaged file.
        OSError: no source gave the weights.
    """
    name = os.fspath(source)
    of_timm = name.startswith(TIMM) and not os.path.exists(name)
    if not of_timm and not is_name(source):
        stored = read_source(source)
        net = build(stored, name)
        _check_task(stored.name, task, f"{name}: holds {stored.name}, which")
        return net, True
    entry = model_info("image_classifier" if of_timm else name)
    _check_task(entry.name, task, name)
    if entry.weights and (download or entry.tag or find_local(entry.record)):
        return create_model(name, pretrained=entry.tag is None).eval(), True
    if untrained or not download:
        return create_model(name).eval(), False
    have = [n for n in list_models(pretrained=True) if model_info(n).task == entry.task]
    others = f" (there are: {', '.join(have)})" if have else ""
    raise ValueError(
        f"{name} has no trained weights{others}; give a weight file instead of the name: "
        "`vizoo fit` writes one"
    )


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
    from .sharing import CONFIG, read_pretrained

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
    if entry.tag is None:
        raise ValueError(
            f"{name!r} is a model; its weights are {', '.join(entry.tagged_names) or 'not trained'}"
        )
    return read_recorded(fetch(entry.record, name), entry.name, entry.record, name)


def read_recorded(path: Path, model: str, record: WeightsRecord, source: str) -> StoredWeights:
    """Read a file that a record describes, ours or as its authors published it.

    Args:
        path: the file, whose hash is right.
        model: the model that it should be for.
        record: its architecture arguments complete those of the file.
        source: what errors call it.

    Raises:
        ValueError: it is for another model or other arguments.
    """
    from .published import recognise
    from .record import thaw

    stored = read_weights(path) if names_its_model(path) else recognise(path)
    stated = _plain({**model_info(model).defaults, **record.arguments})
    differing = [
        f"{key} {value!r} instead of {stated[key]!r}"
        for key, value in _plain(stored.architecture).items()
        if key in stated and value != stated[key]
    ]
    if stored.name != model:
        differing = [f"weights of {stored.name} instead of {model}"]
    if differing:
        raise ValueError(f"{source}: {path} holds {'; '.join(differing)}: the record is wrong")
    architecture = {**stored.architecture, **record.arguments}
    said = {"classes": list(record.classes), "input": thaw(record.input)}
    said |= {"trained_on": record.trained_on, "licence": record.licence, "reach": record.reach}
    facts = {**stored.facts, **{key: value for key, value in said.items() if value}}
    return StoredWeights(stored.name, architecture, stored.state, facts)


def beside_weights(source: str | os.PathLike[str], ending: str) -> Path | None:
    """Where a file that belongs to weights would lie: a supernet's front, its latency table.

    Args:
        source: what `open_model` takes.
        ending: instead of the weights' own, such as ``.latency.json``.

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
    path = find_local(entry.record) if entry.weights else None
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


def _check_task(name: str, task: str | None, subject: str) -> None:
    found = model_info(name).task
    if task is not None and found != task:
        raise ValueError(f"{subject} is a model for {found}, not for {task}")


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(dict(values)))
