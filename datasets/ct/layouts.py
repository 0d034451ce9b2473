"""The published layouts of chest CT with diagnoses, driven by JSON lists.

A list names class → patient → scan → [files]. Slices lie in ``root/class/patient/scan``, NIfTI
files in ``root/class``. The lists of CovidNet3D (He et al., AAAI 2021) come as training and test
alone; validation is then held out by the data module, by patient.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ..files import check_files, expand_path
from .dataset import CTDataset, ScanRecord
from .lists import ListedScan, read_scan_list
from .nifti import is_nifti
from .preparation import CTPreset

__all__ = ["CCCCII", "COVIDCTset", "ListedScans", "MosMed"]


class ListedScans(CTDataset):
    """Scans that a list names: slices as PNG or 16-bit TIFF, DICOM series, or NIfTI files.

    Args:
        root: the folder of the classes.
        list_file: the list, relative to `root` or absolute.
        classes: label of each class that the list may name, from 0 on.
        preset: how scans are prepared.
        value_range: see `CTDataset`.
        cache: see there.
        title: see there.

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
        base = expand_path(root)
        if not base.is_dir():
            raise FileNotFoundError(f"{title} at {base}: no such folder")
        labels = sorted(set(classes.values()))
        if labels != list(range(len(labels))) or len(labels) < 2:
            raise ValueError(f"classes {dict(classes)}: labels run from 0 on, two at least")
        path = base / expand_path(list_file)
        records = []
        wanted: list[Path] = []
        for scan in read_scan_list(path, list(classes)):
            record = _record(base, scan, classes[scan.kind])
            records.append(record)
            wanted += [Path(record.path, name) for name in record.files] or [Path(record.path)]
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


def _record(root: Path, scan: ListedScan, label: int) -> ScanRecord:
    name = f"{scan.kind}/{scan.patient}/{scan.scan}"
    path, files = root / name, scan.files
    if len(files) == 1 and is_nifti(files[0]):
        path, files = root / scan.kind / files[0], ()
    return ScanRecord(name, scan.patient, label, str(path), files)
