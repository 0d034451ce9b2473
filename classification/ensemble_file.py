"""The JSON file of an ensemble: members by path and hash, temperatures, how they are combined."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..common.files import read_json, write_json
from ..vision.hub.download import sha256_of
from .ensemble import Combination

__all__ = ["EnsembleFile", "ListedMember", "is_ensemble", "read_ensemble", "write_ensemble"]

_KIND = "ensemble of image classifiers"
_FORMAT = 1


@dataclass(frozen=True)
class ListedMember:
    """One member."""

    source: str  #: a file, or another spelling of trained weights
    temperature: float = 1.0  #: that its logits are divided by


@dataclass(frozen=True)
class EnsembleFile:
    """What the file says."""

    classes: tuple[str, ...]  #: names, in the order of the probabilities
    members: tuple[ListedMember, ...]  #: the networks
    combination: Combination  #: how they are combined
    flips: bool = False  #: whether each is asked about mirror images too
    report: Mapping[str, Any] = field(default_factory=dict)  #: scores, by set


def is_ensemble(path: str | os.PathLike) -> bool:
    """Whether a model is given by such a file."""
    return os.fspath(path).lower().endswith(".json")


def write_ensemble(path: str | os.PathLike, ensemble: EnsembleFile) -> None:
    """Write the file; members that are files are named relative to it, with their SHA-256.

    Raises:
        ValueError: another suffix than ``.json``.
    """
    path = Path(path)
    if not is_ensemble(path):
        raise ValueError(f"{path}: an ensemble is written as .json; choose such a name")
    members = []
    for member in ensemble.members:
        row = {"source": member.source, "temperature": member.temperature}
        if os.path.isfile(member.source):
            file = Path(member.source)
            relative = os.path.relpath(file.parent.resolve() / file.name, path.parent.resolve())
            row = {**row, "source": relative, "sha256": sha256_of(member.source)}
        members.append(row)
    content = {
        "kind": _KIND,
        "format": _FORMAT,
        "classes": list(ensemble.classes),
        "members": members,
        "combination": {k: v for k, v in asdict(ensemble.combination).items() if v},
        "flips": ensemble.flips,
        "report": dict(ensemble.report),
    }
    write_json(path, content)


def read_ensemble(path: str | os.PathLike) -> EnsembleFile:
    """Read the file, and compare the members' files with their hashes.

    Raises:
        FileNotFoundError: it or a member is missing.
        ValueError: it is no such file, or a member is another file by now.
    """
    path = Path(path)
    content = read_json(path, "an ensemble of `vizoo ensemble`")
    try:
        if content.get("kind") != _KIND or content.get("format") != _FORMAT:
            raise ValueError("its kind or format is another")
        combination = content["combination"]
        combined = Combination(
            combination["method"],
            tuple(map(float, combination.get("weights", ()))),
            tuple(tuple(map(float, row)) for row in combination.get("coefficients", ())),
            tuple(map(float, combination.get("bias", ()))),
        )
        classes = tuple(map(str, content["classes"]))
        members = tuple(_member(row, path) for row in content["members"])
        flips, report = bool(content["flips"]), dict(content.get("report", {}))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path}: not an ensemble of `vizoo ensemble`: {error}") from error
    if not members:
        raise ValueError(f"{path}: an ensemble without members")
    return EnsembleFile(classes, members, combined, flips, report)


def _member(row: Mapping[str, Any], path: Path) -> ListedMember:
    source, temperature = str(row["source"]), float(row["temperature"])
    if "sha256" not in row:
        return ListedMember(source, temperature)
    file = path.parent / source
    if not file.is_file():
        raise FileNotFoundError(f"{path}: its member {file} is missing")
    if sha256_of(file) != row["sha256"]:
        raise ValueError(f"member {file} is another file than when it was written")
    return ListedMember(str(file), temperature)
