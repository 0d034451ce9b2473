"""Networks made by any spelling of their weights: names with tags, repositories, folders, files.

`create_model` takes all of these but files; `open_model`, which the commands use, and
`load_network`, which the predictors use, take all of them.
"""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

from torch import nn

from ...common.arguments import checked
from .download import fetch, find_local
from .registry import (
    REMOTE,
    TIMM,
    build_model,
    has_scheme,
    hub_spelling,
    is_path,
    list_models,
    model_info,
    refusal,
)
from .released import CONFIG, read_pretrained, read_recorded
from .weights import StoredWeights, build, describe, load_state, read_weights

__all__ = ["beside_weights", "create_model", "is_name", "load_network", "open_model", "read_source"]


@checked("weights")
def create_model(
    name: str,
    *,
    pretrained: bool = False,
    weights: str | os.PathLike[str] | None = None,
    **architecture: Any,
) -> nn.Module:
    """Build a network by name, in training mode as any new module.

    Args:
        name: one of `list_models()`; ``NAME.TAG`` of `list_models(pretrained=True)`, with those
            weights; ``hf-hub:ORG/NAME[@REVISION]`` or ``local-dir:FOLDER``, the network and the
            weights that `save_pretrained` wrote; ``timm/NAME``, that is ``image_classifier`` with
            this backbone.
        pretrained: load trained weights; of several those of the first tag.
        weights: load these instead: a file (``save_weights`` or a Lightning checkpoint), or any
            of the above spellings of this very model. Their architecture arguments hold where
            ``architecture`` does not say otherwise.
        **architecture: the network's own arguments, and for any network `convert`, a mapping of
            arguments of `nas.convert` and the `size` of images to trace it with: a supernet of it.

    Returns:
        The network, with ``model.architecture = {"name": name, **architecture}``; a trained
        classifier also with ``model.classes`` and ``model.input`` where its weights say them.

    Raises:
        ValueError: unknown name, tag or argument, no trained weights, or weights that do not fit.
        FileNotFoundError: ``weights`` does not exist.
        OSError: no source gave the weights; the message names all and what to do.

    Example:
        >>> net = create_model("fadnet_plus_tiny", max_disparity=256)
    """
    if isinstance(name, str) and name.startswith(TIMM):
        if pretrained:
            raise ValueError(
                f"{name}: timm's weights are of other classes; create_model({name!r}, classes=N), "
                "and of that load_pretrained(), take all but the last layer's"
            )
        backbone = name.removeprefix(TIMM)
        if architecture.setdefault("backbone", backbone) != backbone:
            raise ValueError(
                f"{name}: its backbone is {backbone!r}, not {architecture['backbone']!r}; leave "
                "`backbone` out"
            )
        return create_model("image_classifier", weights=weights, **architecture)
    source = _weights_of(name, pretrained, weights)
    if source is None:
        return build_model(name, architecture)
    stored = read_source(source)
    if weights is not None and stored.name != name:
        raise ValueError(
            f"{source}: holds weights of {stored.name}, not of {name}; "
            f"use create_model({stored.name!r}, weights=…) or load_weights(…)"
        )
    model = build_model(
        stored.name,
        {**stored.architecture, **architecture},
        lambda model: load_state(model, stored.state, os.fspath(source)),
    )
    return describe(model, stored.facts)


def _weights_of(
    name: str, pretrained: bool, weights: str | os.PathLike[str] | None
) -> str | os.PathLike[str] | None:
    """Where the weights that `create_model` was asked for come from; None for fresh ones."""
    if not isinstance(pretrained, bool):
        raise ValueError(
            f"{name}: pretrained is True or False, not {pretrained!r}; a tag belongs to the name, "
            f"as in {name}.{pretrained}"
        )
    remote = isinstance(name, str) and name.startswith(REMOTE)
    entry = None if remote else model_info(name)
    if weights is not None and (pretrained or entry is None or entry.tag is not None):
        both = "pretrained=True" if pretrained else "a name that brings its weights"
        raise ValueError(f"{name}: give either {both} or weights=…, not both")
    if entry is None or entry.tag is not None:
        return name
    if not pretrained:
        return weights
    if not entry.weights:
        have = ", ".join(list_models(pretrained=True)) or "none"
        raise ValueError(
            f"{name} has no pretrained weights (there are: {have}); train it or pass weights=FILE"
        )
    return entry.tagged_names[0]


@checked("model")
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
    if not of_timm and not is_name(source, task):
        stored = read_source(source)
        net = build(stored, name)
        check_task(stored.name, task, f"{name}: holds {stored.name}, which")
        return net, True
    entry = model_info("image_classifier" if of_timm else name)
    check_task(entry.name, task, name)
    if entry.record and (download or entry.tag or find_local(entry.record)):
        return create_model(name, pretrained=entry.tag is None).eval(), True
    if untrained or not download:
        return create_model(name).eval(), False
    have = [n for n in list_models(pretrained=True) if model_info(n).task == entry.task]
    others = f" (there are: {', '.join(have)})" if have else ""
    raise ValueError(
        f"{name} has no trained weights{others}; give a weight file instead of the name: "
        "`vizoo fit` writes one"
    )


def check_task(name: str, task: str | None, subject: str) -> None:
    """Raise a ValueError, which begins with the subject, unless a model is one for the task."""
    own = model_info(name).task
    if task is not None and own != task:
        raise ValueError(f"{subject} is a model for {own}, not for {task}")


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
    the weights' own, and after the whole name of a folder.

    Returns:
        The path, which need not exist; None where the weights are not on this machine, or are
        those of a repository.
    """
    name = os.fspath(source)
    if name.startswith("hf-hub:"):
        return None
    if name.startswith("local-dir:") or not is_name(source):
        given = Path(name.removeprefix("local-dir:"))
        if given.is_dir():
            return Path(os.path.abspath(given) + ending)  # of `.` too
        return given.with_suffix(ending)
    entry = model_info(name)
    path = find_local(entry.record) if entry.record else None
    return None if path is None else path.with_name(f"{entry.name}{ending}")


def is_name(source: str | os.PathLike[str], task: str | None = None) -> bool:
    """Whether a string names a registered model; files of that name are written ``./NAME``.

    The error for an unknown one proposes models for the task alone.

    Raises:
        ValueError: neither a model's name nor anything that exists.
    """
    if isinstance(source, os.PathLike) or source.startswith(REMOTE) or is_path(source):
        return False
    try:
        model_info(source, task)
    except ValueError:
        if os.path.exists(source):
            return False
        raise
    return True
