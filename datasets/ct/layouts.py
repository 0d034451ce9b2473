"""The published layouts of chest CT with diagnoses, driven by JSON lists.

A list names class → patient → scan → [files]. Slices lie in ``root/class/patient/scan``, NIfTI
files in ``root/class``. The lists of CovidNet3D (He et al., AAAI 2021) come as training and test
alone; validation is then held out by the data module, by patient.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from ...common.files import write_json
from ..files import check_choice, check_files, data_folder, expand_path
from .dataset import CTDataset, ScanRecord
from .nifti import is_nifti
from .preparation import CTPreset

__all__ = [
    "CCCCII",
    "COVIDCTset",
    "ListedScan",
    "ListedScans",
    "MosMed",
    "read_scan_list",
    "write_scan_list",
]


class ListedScan(NamedTuple):
    """Class, patient and scan, as a list calls them, and files: slices in order, or one NIfTI."""

    kind: str
    patient: str
    scan: str
    files: tuple[str, ...]


def read_scan_list(path: str | os.PathLike, classes: Sequence[str]) -> list[ListedScan]:
    """Read the scans of a JSON list, in its order; it may name certain classes.

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
        check_choice(f"{path}: class", kind, classes)
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


class ListedScans(CTDataset):
    """Scans that a list names: slices as PNG or 16-bit TIFF, DICOM series, or NIfTI files.

    Args:
        root: the folder of the classes.
        list_file: the list, relative to `root` or absolute.
        classes: label of each class that the list may name, from 0 on.
        preset: how scans are prepared; other arguments as of `CTDataset`.

    Raises:
        FileNotFoundError: the list or files in it are missing; the message counts and names them.
        ValueError: the list is malformed, a label is left out, or the first scan cannot be used.
    """

    def __init__(
        self,
        root: str | os.PathLike,
        list_file: str,
        classes: Mapping[str, int],
        preset: CTPreset = CTPreset(),  # noqa: B008 (it is frozen)
        value_range: tuple[float, float] | None = None,
        cache: str | None = None,
        title: str = "scans",
    ) -> None:
        base = data_folder(title, root)
        labels = sorted(set(classes.values()))
        if labels != list(range(len(labels))) or len(labels) < 2:
            raise ValueError(f"classes {dict(classes)}: labels run from 0 on, two at least")
        path = base / expand_path(list_file)
        records = []
        wanted: list[Path] = []
        for scan in read_scan_list(path, list(classes)):
            name = f"{scan.kind}/{scan.patient}/{scan.scan}"
            place, files = base / name, scan.files
            if len(files) == 1 and is_nifti(files[0]):
                place, files = base / scan.kind / files[0], ()
            records.append(ScanRecord(name, scan.patient, classes[scan.kind], str(place), files))
            wanted += [place / file for file in files] or [place]
        check_files(
            f"{title} by {path}", base, {"files": wanted}, "what the list names", what="files"
        )
        names = ["/".join(kind for kind in classes if classes[kind] == label) for label in labels]
        super().__init__(records, names, preset, title, value_range, cache)


class CCCCII(ListedScans):
    """CC-CCII, cleaned: PNG slices of segmented lungs, of three classes.

    CP (other pneumonia) is 0, NCP (COVID-19) 1, Normal 2, each a folder. Its authors' lists hold
    3195 scans for training and 798 for test. Arguments as of `ListedScans`.
    """

    def __init__(
        self,
        root: str | os.PathLike,
        list_file: str = "train.json",
        preset: CTPreset = CTPreset((128, 128), 32),  # noqa: B008 (it is frozen)
        cache: str | None = None,
    ) -> None:
        classes = {"CP": 0, "NCP": 1, "Normal": 2}
        super().__init__(root, list_file, classes, preset, None, cache, "CC-CCII")


class MosMed(ListedScans):
    """MosMedData: NIfTI files, or PNG slices made of them, of two classes.

    CT-0 (no findings) is 0; CT-1 to CT-4 (by the share of affected lung) are 1, each a folder. Its
    lists hold 779 scans for training and 331 for test, 77 % of class 1. Arguments as of
    `ListedScans`.
    """

    def __init__(
        self,
        root: str | os.PathLike,
        list_file: str = "train.json",
        preset: CTPreset = CTPreset((256, 256), 40),  # noqa: B008 (it is frozen)
        cache: str | None = None,
    ) -> None:
        classes = {"CT-0": 0, "CT-1": 1, "CT-2": 1, "CT-3": 1, "CT-4": 1}
        super().__init__(root, list_file, classes, preset, None, cache, "MosMedData")


class COVIDCTset(ListedScans):
    """COVID-CTset: 16-bit TIFF slices of two classes, normal 0 and covid 1, each a folder.

    The balanced list holds 402 scans for training and 124 for test. In the five published folds
    about 200 patients are in both validation and test; the data module refuses them together.
    Arguments as of `ListedScans`; ``value_range`` is the lung window, -1350 to 150 Hounsfield
    units, where a stored value is the unit plus 1024.
    """

    def __init__(
        self,
        root: str | os.PathLike,
        list_file: str = "train.json",
        preset: CTPreset = CTPreset((512, 512), 32),  # noqa: B008 (it is frozen)
        value_range: tuple[float, float] = (-326.0, 1174.0),
        cache: str | None = None,
    ) -> None:
        classes = {"normal": 0, "covid": 1}
        super().__init__(root, list_file, classes, preset, value_range, cache, "COVID-CTset")
