"""Opening scenes of whichever layout, one by one or as a data set."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from ...common.files import few
from ...vision.io.pairing import images_in
from ..files import check_choice, expand_path
from . import blendedmvs, colmap, dtu, folder
from .camera_files import RANGE_FORMS
from .colmap_model import find_model
from .dataset import MVSDataset
from .scene import Scene

__all__ = ["LAYOUTS", "SceneFolders", "open_scene"]


class _Layout(NamedTuple):
    """A layout: how to tell it, what to look for in a sentence, how to open it."""

    tells: Callable[[Path], bool]
    looks: str
    opens: Callable[[Path, str], Scene]


def _is_dtu(path: Path) -> bool:
    return (path / "pair.txt").is_file() or (
        any((path / name).is_dir() for name in ("cams_1", "cams")) and (path / "images").is_dir()
    )


def _open_dtu_training(path: Path, form: str) -> Scene:
    if path.parent.name != "Rectified":
        scans = sorted(p.name for p in (path / "Rectified").glob("scan*_train"))
        raise ValueError(
            f"{path}: DTU's training layout is opened by scan: {path / 'Rectified' / 'SCAN'}, with "
            f"SCAN of {few(scans) or 'scan1_train (none is here)'}"
        )
    scan = path.name.removesuffix("_train")
    return dtu.open_dtu_training(path.parent.parent, scan, range_form=form)


#: Layouts by name, in the order in which they are tried.
LAYOUTS: dict[str, _Layout] = {
    "dtu_training": _Layout(
        lambda path: path.parent.name == "Rectified" or (path / "Rectified").is_dir(),
        "Rectified/SCAN_train",
        _open_dtu_training,
    ),
    "blendedmvs": _Layout(
        lambda path: (path / "blended_images").is_dir(),
        "blended_images/",
        blendedmvs.open_blendedmvs,
    ),
    "eth3d": _Layout(
        lambda path: find_model(*(path / name for name in colmap.FOLDERS)) is not None,
        "dslr_calibration_undistorted/cameras.txt",
        lambda path, form: colmap.open_eth3d(path),
    ),
    "folder": _Layout(
        lambda path: path.suffix == ".json" or (path / folder.CAMERAS_FILE).is_file(),
        "cameras.json",
        lambda path, form: folder.open_folder(path),
    ),
    "dtu": _Layout(_is_dtu, "pair.txt with cams_1/ and images/", dtu.open_dtu),
    # On disk the same as DTU's evaluation layout; for who wants to say so.
    "tanks": _Layout(lambda path: False, "", lambda path, form: dtu.open_dtu(path, form, "tanks")),
    "colmap": _Layout(
        lambda path: find_model(path / "sparse", path / "sparse" / "0", path) is not None,
        "sparse/cameras.bin or .txt",
        lambda path, form: colmap.open_colmap(path),
    ),
    "middlebury": _Layout(
        lambda path: any(path.glob("*_par.txt")),
        "*_par.txt",
        lambda path, form: folder.open_middlebury(path),
    ),
}


def _recognised(path: Path) -> str | None:
    return next((name for name, row in LAYOUTS.items() if row.tells(path)), None)


def open_scene(
    path: str | os.PathLike, layout: str | None = None, *, range_form: str = "auto"
) -> Scene:
    """Open a scene: its files are found and checked, its photographs not read yet.

    Args:
        path: the scene's folder; ``ROOT/Rectified/scan1_train`` in DTU's training layout, of which
            the photographs under light 3 are taken.
        layout: a key of ``LAYOUTS``; None to recognise it.
        range_form: how camera files' last lines are to be read: ``max`` ("min max"), ``interval``
            ("min interval [planes [max]]") or ``auto``.

    Raises:
        FileNotFoundError: files are missing; the message names them.
        ValueError: the layout is not known, or a file is wrong; the message names it.

    Warns (``UserWarning``) of cameras so far from the origin that the scene is moved there.
    """
    check_choice("range form", range_form, RANGE_FORMS)
    if layout is not None:
        check_choice("layout", layout, tuple(LAYOUTS))
    path = Path(os.path.abspath(expand_path(path)))
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such scene")
    if layout is None:
        layout = _recognised(path)
    if layout is None:
        inner = sorted(filter(Path.is_dir, path.iterdir())) if path.is_dir() else []
        if scenes := [each.name for each in inner if _recognised(each)]:
            raise ValueError(f"{path}: no scene, but its folders are scenes: {few(scenes)}")
        looked = "; ".join(f"{name}: {row.looks}" for name, row in LAYOUTS.items() if row.looks)
        bare = path.is_dir() and images_in(path)
        looked += "; of photographs without cameras COLMAP finds these" if bare else ""
        raise ValueError(f"{path}: no scene of a known layout; looked for {looked}")
    return LAYOUTS[layout].opens(path, range_form)


class SceneFolders(MVSDataset):
    """Scenes of one's own, or of an evaluation set: every view in turn is the reference.

    Args:
        paths: the folder of a scene, or those of several, see ``vizoo.datasets.mvs.open_scene``.
        layout: of all of them; None to recognise each.
        views: photographs in a sample, the reference included.
        height: rows to resize photographs to; None, with ``width``, leaves them.
        width: columns to resize them to.
        range_form: how camera files' last lines are to be read: ``auto``, ``max`` or ``interval``.
        skip: whether views with fewer than ``views - 1`` sources are left out, else an error.
        random_sources: whether training draws sources at random from the pair list.
        transform: called with each sample, returns the sample to use.

    Raises:
        FileNotFoundError: files are missing; the message names them.
        ValueError: a file is wrong, or only one of height and width is given.
    """

    def __init__(
        self,
        # The list first: a config's list would be taken as a path's text.
        paths: Sequence[str | os.PathLike] | str | os.PathLike,
        layout: str | None = None,
        views: int = 5,
        height: int | None = None,
        width: int | None = None,
        range_form: str = "auto",
        skip: bool = False,
        random_sources: bool = True,
        transform: Callable[[dict], dict] | None = None,
    ) -> None:
        if isinstance(paths, (str, os.PathLike)):
            paths = [paths]
        if (height is None) != (width is None):
            raise ValueError(f"a size of {height}x{width}: give both sides, or neither")
        scenes = [open_scene(path, layout, range_form=range_form) for path in paths]
        size = None if height is None or width is None else (height, width)
        super().__init__(scenes, views, size, skip, random_sources, transform)
