"""The lists of CT data sets: JSON, class → patient → scan → [files]."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from ...common.files import write_json

__all__ = ["ListedScan", "read_scan_list", "write_scan_list"]


class ListedScan(NamedTuple):
    """Class, patient and scan, as a list calls them, and files: slices in order, or one NIfTI."""

    kind: str
    patient: str
    scan: str
    files: tuple[str, ...]


def read_scan_list(path: str | os.PathLike, classes: Sequence[str]) -> list[ListedScan]:
    """Read a list.

    Args:
        path: the JSON file.
        classes: the classes that it may name.

    Returns:
        The scans, in the list's order.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no such list; the message says where in it.
    """
    path = Path(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=_once)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path}: no such list file") from error
    except IsADirectoryError as error:
        raise ValueError(f"{path} is a folder, not a list file") from error
    except (ValueError, RecursionError) as error:
        reason = str(error) or type(error).__name__
        raise ValueError(f"{path}: not a JSON list of scans: {reason}") from error
    scans = []
    for kind, patients in _inside(content, path, "classes").items():
        if kind not in classes:
            raise ValueError(f"{path}: class {kind!r} is none of {', '.join(classes)}")
        for patient, own in _inside(patients, path, f"patients of {kind}").items():
            where = f"{kind}/{patient}"
            for scan, files in _inside(own, path, f"scans of {where}").items():
                _check_files(files, path, f"{where}/{scan}")
                for name in (patient, scan):
                    _check_name(name, path, where)
                scans.append(ListedScan(kind, patient, scan, tuple(files)))
    if not scans:
        raise ValueError(f"{path}: no scan in it")
    return scans


def write_scan_list(path: str | os.PathLike, scans: Sequence[ListedScan]) -> None:
    """Write a list that `read_scan_list` reads."""
    content: dict[str, dict[str, dict[str, list[str]]]] = {}
    for scan in scans:
        patients = content.setdefault(scan.kind, {})
        patients.setdefault(scan.patient, {})[scan.scan] = list(scan.files)
    write_json(path, content)


def _inside(content: object, path: Path, what: str) -> dict:
    if not isinstance(content, dict):
        raise ValueError(
            f"{path}: {what}: wants a JSON object, got {type(content).__name__}; a list reads "
            "class, patient, scan, [files]"
        )
    return content


def _check_files(files: object, path: Path, where: str) -> None:
    if not isinstance(files, list) or not files or not all(isinstance(f, str) for f in files):
        raise ValueError(f'{path}: {where}: wants the names of its files, ["0001.png", ...]')
    for name in files:
        _check_name(name, path, where)
    if len(set(files)) < len(files):
        twice = next(name for name in files if files.count(name) > 1)
        raise ValueError(f"{path}: {where}: {twice} is listed twice")


def _check_name(name: str, path: Path, where: str) -> None:
    if not name or "\\" in name or "\0" in name or PurePosixPath(name).name != name or name == "..":
        raise ValueError(f"{path}: {where}: {name!r} is no name of a file or folder")


def _once(pairs: list[tuple[str, object]]) -> dict:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} stands twice in one object")
    return content
