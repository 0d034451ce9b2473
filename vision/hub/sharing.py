"""Released networks: a folder, or a repository on the Hugging Face Hub, that says what it holds.

It has ``model.safetensors`` (as `save_weights` writes it), ``config.json`` (the model's name and
its `WeightsRecord`) and ``README.md`` (a model card). Loading is strict: the file's SHA-256 and
every tensor's name and shape must be what the config and the model say.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...common.arguments import checked
from ...common.files import few, write_json, write_text
from . import _huggingface
from .download import DownloadError, offline_flag, sha256_of
from .record import REPOSITORY, Frozen, Source, WeightsRecord, thaw
from .registry import REMOTE, model_info
from .released import ADDRESS, CONFIG, FORMAT, read_pretrained
from .weights import build, weights_of, write_weights

__all__ = ["from_pretrained", "push_to_hub", "save_pretrained"]

_WEIGHTS = "model.safetensors"
_CARD = "README.md"


@checked("model", "folder", "classes", "dtype")
def save_pretrained(
    model: nn.Module,
    folder: str | os.PathLike[str],
    *,
    licence: str,
    trained_on: str,
    metrics: Mapping[str, Mapping[str, float]] | None = None,
    command: str = "",
    training: str = "",
    origin: str = "",
    input: Mapping[str, Any] | None = None,
    classes: Sequence[str] | None = None,
    reach: int | None = None,
    dtype: torch.dtype | None = None,
) -> WeightsRecord:
    """Write a network as a folder that `from_pretrained` and ``local-dir:`` load.

    The folder is made if it is missing; files of these names in it are replaced. What is said of
    the model, which is from `create_model`, are fields of `WeightsRecord`: `input`, `classes` and
    `reach` by default what the model has. `dtype` is that of convolutions and matrices in the file,
    such as ``torch.float16`` for half the size; loading brings them back to the network's own.
    Vectors (biases, statistics) stay as they are.

    Returns:
        The record of the weights, without sources: those are known when it is published.

    Raises:
        ValueError: a model without ``architecture``, a fact of a wrong form, another number of
            classes than it has outputs, a dtype of integers, or weights that are not finite.
        OSError: the folder cannot be written.
    """
    folder = Path(folder)
    stored = weights_of(model)
    name = stored.name
    stored = replace(stored, state=_cast(name, stored.state, dtype))
    # With the defaults of today, as a later version may have others.
    complete = {**model_info(name).defaults, **stored.architecture}
    names = tuple(stored.facts.get("classes", ()) if classes is None else classes)
    outputs = complete.get("classes", len(names))
    if names and outputs != len(names):
        raise ValueError(f"{name}: {outputs} outputs, but {len(names)} names of classes")
    facts: dict[str, Any] = {
        "licence": licence,
        "trained_on": trained_on,
        "metrics": Frozen(metrics),
        "command": command,
        "training": training,
        "origin": origin,
        "input": Frozen(stored.facts.get("input") if input is None else input),
        "classes": names,
        "reach": stored.facts.get("reach") if reach is None else reach,
        "architecture": {k: v for k, v in complete.items() if k != "subnet"},
        "subnet": complete.get("subnet"),
    }
    WeightsRecord((), "0" * 64, 1, **facts)  # a wrong fact stops before anything is written
    path = write_weights(stored, folder / _WEIGHTS)
    record = WeightsRecord((), sha256_of(path), path.stat().st_size, **facts)
    config = {"library": "vizoo", "format": FORMAT, "model": name, "file": _WEIGHTS}
    write_json(folder / CONFIG, {**config, "record": record.to_json()})
    write_text(folder / _CARD, _model_card(name, model_info(name).task, record))
    return record


@checked("source", "revision")
def from_pretrained(source: str | os.PathLike[str], *, revision: str | None = None) -> nn.Module:
    """Load what `save_pretrained` or `push_to_hub` wrote.

    Args:
        source: a folder, or ``ORG/NAME[@REVISION]`` on the Hugging Face Hub where no such folder
            is here; ``local-dir:`` and ``hf-hub:`` before it say which.
        revision: branch, tag or commit of a repository.

    Returns:
        The network, in evaluation mode, on the CPU.

    Raises:
        FileNotFoundError: no such folder, or a file is missing in it.
        ValueError: not such a folder, damaged, or tensors that are missing, surplus or misshapen.
        OSError: the Hub does not give it; the message says why.
    """
    name = _spelled(source, revision)
    return build(read_pretrained(name), name)


@checked("model", "repository")
def push_to_hub(
    model: nn.Module | str | os.PathLike[str],
    repository: str,
    *,
    revision: str | None = None,
    private: bool = False,
    message: str = "Upload by vizoo",
    token: str | None = None,
    **facts: Any,
) -> str:
    """Publish a network, or a folder of `save_pretrained`, on the Hugging Face Hub.

    Args:
        model: a network, or the folder.
        repository: ``ORG/NAME``; made if it is missing.
        revision: branch to push to.
        private: whether a new repository is private.
        message: of the commit.
        token: of the Hub; by default the one of ``hf auth login``.
        **facts: of a network, those of `save_pretrained`.

    Returns:
        Its source for a record: ``hf-hub:ORG/NAME@COMMIT/model.safetensors``.

    Raises:
        ValueError: not such a folder, or a wrong repository name.
        OSError: the Hub refused or cannot be reached.
    """
    if not re.fullmatch(REPOSITORY, repository):
        raise ValueError(f"{repository!r} is no repository; it is spelled ORG/NAME")
    if flag := offline_flag():
        raise DownloadError(f"{repository}: not pushed, since {flag}; unset it")
    from huggingface_hub import HfApi

    with tempfile.TemporaryDirectory() as folder:
        if not isinstance(model, (str, os.PathLike)):
            save_pretrained(model, folder, **facts)
        elif facts:
            raise ValueError(f"{', '.join(facts)}: a folder has its facts already")
        else:
            folder = os.fspath(model)
            read_pretrained(f"local-dir:{folder}")
        try:
            hub = HfApi(endpoint=_huggingface.endpoint(), token=token)
            hub.create_repo(repository, private=private, exist_ok=True)
            commit = hub.upload_folder(
                repo_id=repository,
                folder_path=folder,
                allow_patterns=[_WEIGHTS, CONFIG, _CARD],
                revision=revision,
                commit_message=message,
            )
        # What fails on the way depends on the HTTP library, which has changed before.
        except Exception as error:
            why = _huggingface.reason(error, Source("hf-hub", _WEIGHTS, repository, revision or ""))
            if _huggingface.status(error) in (401, 403):
                why += "; `hf auth login` with a token that may write there"
            raise DownloadError(f"{repository}: not pushed: {why}") from error
    return f"hf-hub:{repository}@{commit.oid}/{_WEIGHTS}"


def _spelled(source: str | os.PathLike[str], revision: str | None) -> str:
    """`source` with its prefix and its revision."""
    name = os.fspath(source)
    if not name.startswith(REMOTE):
        if isinstance(source, os.PathLike) or os.path.exists(name):
            name = f"local-dir:{name}"
        elif ADDRESS.fullmatch(name):
            name = f"hf-hub:{name}"
        else:
            raise ValueError(f"{name!r} is neither a folder nor ORG/NAME on the Hugging Face Hub")
    if revision is None:
        return name
    if name.startswith("local-dir:"):
        raise ValueError(f"{name}: a folder has no revisions; leave out revision={revision!r}")
    if "@" in name:
        raise ValueError(f"{name}: names its revision already; leave out revision={revision!r}")
    return f"{name}@{revision}"


def _cast(name: str, state: Mapping[str, Tensor], dtype: torch.dtype | None) -> dict[str, Tensor]:
    """The state with its matrices in `dtype`; ValueError where values are not finite then."""
    if dtype is not None and not dtype.is_floating_point:
        raise ValueError(f"dtype {dtype} is of integers; weights need a floating-point one")
    matrices = [] if dtype is None else [key for key, value in state.items() if value.ndim > 1]
    floating = [key for key in matrices if state[key].is_floating_point()]
    cast = {**state, **{key: state[key].to(dtype) for key in floating}}
    broken = [key for key, value in cast.items() if not value.isfinite().all()]
    if broken:
        raise ValueError(
            f"{name}: {few(broken)}: values that are not finite: the training diverged, or the "
            "dtype is too narrow"
        )
    return cast


def _model_card(name: str, task: str, record: WeightsRecord) -> str:
    """Markdown with the Hub's header, how to load, the metrics and what is known of the weights."""
    parts = [_header(name, task, record), f"# {name}", ""]
    parts += [f"Weights of the {task} network `{name}` of vizoo, trained on {record.trained_on}."]
    parts += ["", "```python", "import vizoo", ""]
    parts += ['net = vizoo.create_model("local-dir:FOLDER")  # this folder']
    parts += ['net = vizoo.create_model("hf-hub:ORG/NAME")  # on the Hugging Face Hub', "```", ""]
    if record.metrics:
        parts += ["## Metrics", "", *metrics_table(record), ""]
    parts += ["## Weights", "", *facts_table(record)]
    return "\n".join(parts) + "\n"


def metrics_table(record: WeightsRecord) -> list[str]:
    """Lines of Markdown: a record's metrics by data set, and the command that made them."""
    names = list(dict.fromkeys(name for values in record.metrics.values() for name in values))
    lines = [f"| data | {' | '.join(map(_cell, names))} |", f"|---|{'---:|' * len(names)}"]
    for data, values in record.metrics.items():
        cells = (f"{values[name]:.4g}" if name in values else "" for name in names)
        lines.append(f"| {_cell(data)} | {' | '.join(cells)} |")
    return [*lines, "", "Made by:", "", "```", record.command, "```"]


def facts_table(record: WeightsRecord) -> list[str]:
    """Lines of Markdown: where weights come from, what they are for, and their file."""
    rows = {
        "licence": record.licence,
        "trained on": record.trained_on,
        "trained by": f"`{record.training}`" if record.training else "",
        "origin": record.origin,
        "classes": ", ".join(record.classes),
        **{f"input: {key}": _value(value) for key, value in record.input.items()},
        **{f"architecture: {key}": _value(v) for key, v in record.architecture.items()},
        "subnet": _value(record.subnet) if record.subnet is not None else "",
        "reach": f"disparities up to {record.reach} pixels" if record.reach else "",
        "size": f"{record.size:,} bytes",
        "SHA-256": f"`{record.sha256}`",
    }
    return ["| | |", "|---|---|", *(f"| {key} | {_cell(v)} |" for key, v in rows.items() if v)]


def _header(name: str, task: str, record: WeightsRecord) -> str:
    """The header of the Hub, which takes a licence it knows or `other`."""
    known = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.+-]*", record.licence)
    licence = [f"license: {record.licence.lower()}"]
    if not known:
        licence = ["license: other", f"license_name: {json.dumps(record.licence)}"]
    lines = ["---", *licence, "library_name: vizoo", "tags:"]
    return "\n".join([*lines, *(f"- {tag}" for tag in ("vizoo", task, name)), "---", ""])


def _value(value: Any) -> str:
    return f"`{json.dumps(thaw(value))}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
