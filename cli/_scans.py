"""Which scans `vizoo infer ct` was asked for, found before any work starts."""

from __future__ import annotations

import glob
from collections import Counter
from pathlib import Path

from ..classification.ct_infer import is_result
from ..datasets.ct import dicom, nifti
from ..datasets.ct.reading import scan_kind
from ..vision.io.images import SUFFIXES
from ._work import unique_names, warn

_ENDINGS = (*nifti.SUFFIXES, *dicom.SUFFIXES)
_MASK = "_lesion.nii.gz"


def find_scans(words: list[str], skip: Path | None = None) -> dict[str, Path]:
    """The scans that files, folders and globs name, by the first part of their results' names.

    A NIfTI file is a scan, and so is a folder that itself holds DICOM files or pictures; other
    folders are searched for such. Several slices of one folder stand for the folder. Results
    of this command and the masks of `vizoo scans` are passed over, and so, with a warning, are
    folders found by searching whose DICOM files hold no CT slices. The folder `skip`, which holds
    results, is not searched.
    """
    every: list[Path] = []
    for word in words:
        path = Path(word)
        paths = [path]
        if not path.exists() and glob.has_magic(word):
            paths = sorted(Path(name) for name in glob.glob(word, recursive=True))
        if not paths or not paths[0].exists():
            what = "nothing matches" if glob.has_magic(word) else "no such file or folder"
            raise FileNotFoundError(f"{word}: {what}")
        paths = [path for path in paths if not _is_made(path)]
        foreign: list[Path] = []
        seen = set() if skip is None else {skip.resolve()}
        scans = [
            scan
            for path in paths
            for scan in ([path] if path.is_file() else _within(path, foreign, seen))
        ]
        if scans and foreign:
            warn(
                f"{word}: {len(foreign)} folders without CT slices in their DICOM files passed "
                f"over, first {foreign[0]}"
            )
        elif foreign:  # to be told why, when it is read
            scans = paths[:1]
        if paths and not scans:
            raise FileNotFoundError(
                f"{word}: no scan: no DICOM file, no NIfTI file (.nii, .nii.gz) and no PNG or TIFF "
                "slices"
            )
        every += scans
    if not every:
        raise FileNotFoundError(f"{words[0]}: no scan: a result of this command, or a mask")
    scans = _one_a_folder(list({scan.resolve(): scan for scan in every}.values()))
    return dict(zip(unique_names(scans, _stem), scans, strict=True))


def of_pictures(scan: Path) -> bool:
    """Whether a scan is a folder of pictures."""
    try:
        return scan_kind(scan) == "pictures"
    except (ValueError, OSError):  # to be told why, when it is read
        return False


def _within(folder: Path, foreign: list[Path], seen: set[Path]) -> list[Path]:
    """The scans in a folder; a folder of slices is one scan, whatever else lies in it.

    Folders of DICOM files without such are added to `foreign`, all folders to `seen`. Links that
    lead to one of these again, or up, are not followed.
    """
    here = folder.resolve()
    seen.add(here)
    entries = sorted(
        entry for entry in folder.iterdir() if entry.name[0] != "." and not _is_made(entry)
    )
    files = [entry for entry in entries if entry.is_file() and entry.name.upper() != "DICOMDIR"]
    series = [file for file in files if dicom.is_dicom(file)]
    if series and not dicom.has_slices(series):
        foreign.append(folder)
    elif series or any(file.suffix.lower() in SUFFIXES for file in files):
        return [folder]
    scans = [file for file in files if nifti.is_nifti(file)]
    for inner in sorted((e for e in entries if e.is_dir()), key=Path.is_symlink):
        place = inner.resolve()
        if place not in seen and not here.is_relative_to(place):
            scans += _within(inner, foreign, seen)
    return scans


def _is_made(path: Path) -> bool:
    """Whether a path is a result of `vizoo infer ct` or a mask of `vizoo scans`."""
    return is_result(path) or path.name.endswith(_MASK)


def _one_a_folder(scans: list[Path]) -> list[Path]:
    """Exchange several slices of a folder, such as a shell lists them, for the folder."""
    files = [scan for scan in scans if scan.is_file() and _is_slice(scan)]
    counts = Counter(file.parent for file in files)
    several = {file for file in files if counts[file.parent] > 1}
    for folder in dict.fromkeys(file.parent for file in several):
        named, total = counts[folder], sum(map(_is_slice, folder.iterdir()))
        if total > named:
            warn(f"{folder}: all of its {total} slices are read, not only the {named} named")
    return list(dict.fromkeys(scan.parent if scan in several else scan for scan in scans))


def _is_slice(file: Path) -> bool:
    return file.suffix.lower() in SUFFIXES or dicom.is_dicom(file)


def _stem(scan: Path) -> str:
    ending = next((e for e in _ENDINGS if scan.name.lower().endswith(e)), "")
    return scan.name[: len(scan.name) - len(ending)]
