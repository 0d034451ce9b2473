"""Reading released weights: what a folder, a repository or a record says of them, and they."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import _huggingface
from ._http import SourceError
from .download import DownloadError, difference, offline_flag
from .published import recognise
from .record import REPOSITORY, Source, WeightsRecord, thaw
from .registry import model_info
from .weights import StoredWeights, check_stored, names_its_model, read_weights

__all__ = ["ADDRESS", "CONFIG", "FORMAT", "open_released", "read_pretrained", "read_recorded"]

CONFIG = "config.json"
FORMAT = 1
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\.safetensors")
ADDRESS = re.compile(rf"({REPOSITORY})(?:@(.+))?")


def read_pretrained(name: str) -> StoredWeights:
    """Weights of a released folder or repository, without building a network.

    Args:
        name: ``local-dir:FOLDER`` or ``hf-hub:ORG/NAME[@REVISION]``.

    Raises:
        As `from_pretrained`.
    """
    model, record, path = open_released(name)
    if (wrong := difference(path, record)) is not None:
        # What is wrong inside says more than that something is.
        check_stored(read_weights(path), path)
        raise ValueError(
            f"{path}: {wrong} as {CONFIG} says: damaged or replaced; get it again, or load the "
            "file alone with load_weights"
        )
    return read_recorded(path, model, record, name)


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


def open_released(name: str) -> tuple[str, WeightsRecord, Path]:
    """Model, record and weight file of ``local-dir:`` or ``hf-hub:``."""
    prefix, _, rest = name.partition(":")
    if prefix == "local-dir":
        folder = Path(os.path.expanduser(rest))
        if not rest or not folder.is_dir():
            what = "is a file; load it with load_weights" if folder.is_file() else "no such folder"
            raise FileNotFoundError(f"{rest or name}: {what}")
        path = folder / CONFIG
        if not path.is_file():
            raise FileNotFoundError(f"{path}: missing; {folder} is no folder of save_pretrained")
        model, record, file = _read_config(path)
        weights = folder / file
        if not weights.is_file():
            raise FileNotFoundError(f"{weights}: missing, though {CONFIG} names it")
        return model, record, weights
    address = ADDRESS.fullmatch(rest)
    if not address:
        raise ValueError(f"{name!r}: a repository is spelled hf-hub:ORG/NAME[@REVISION]")
    repository, revision = address[1], address[2] or ""
    path = _from_hub(name, Source("hf-hub", CONFIG, repository, revision))
    model, record, file = _read_config(path, name)
    # The commit that the config is of, so that a push in between cannot mix two.
    commit = path.parent.name if _huggingface.COMMIT.fullmatch(path.parent.name) else revision
    return model, record, _from_hub(name, Source("hf-hub", file, repository, commit))


def _from_hub(name: str, source: Source) -> Path:
    flag = offline_flag()
    try:
        return _huggingface.obtain(source, local=flag is not None)
    except SourceError as error:
        remedy = f"; {flag} forbids to download it: unset that" if flag else ""
        raise DownloadError(f"{name}: {source.path}: {error}{remedy}") from error


def _read_config(path: Path, name: str | None = None) -> tuple[str, WeightsRecord, str]:
    where = f"{name}: {CONFIG}" if name else str(path)
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: no JSON, or damaged ({error})") from error
    if not isinstance(config, Mapping) or config.get("library") != "vizoo":
        raise ValueError(f'{where}: not of save_pretrained: no "library": "vizoo" in it')
    if config.get("format") != FORMAT:
        raise ValueError(
            f"{where}: of format {config.get('format')!r}, and this vizoo reads {FORMAT}: "
            "pip install --upgrade vizoo"
        )
    model, file = config.get("model"), config.get("file")
    if not isinstance(file, str) or not _FILE.fullmatch(file):
        raise ValueError(f"{where}: {file!r} is no plain name of a .safetensors file beside it")
    if not isinstance(model, str):
        raise ValueError(f"{where}: names no model")
    try:
        model_info(model)
        record = WeightsRecord.from_json(config.get("record"))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{where}: {error}") from error
    return model, record, file


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(dict(values)))
