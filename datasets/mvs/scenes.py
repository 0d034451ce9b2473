"""A data set of scenes given by their folders, in any of the layouts."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from .dataset import MVSDataset
from .layouts import open_scene

__all__ = ["SceneFolders"]


class SceneFolders(MVSDataset):
    """Scenes of one's own, or of an evaluation set: every view in turn is the reference.

    Args:
        paths: the scenes' folders, see ``vizoo.datasets.mvs.open_scene``.
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
        paths: Sequence[str | os.PathLike],
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
            raise ValueError(f"a size of {width}x{height}: give both sides, or neither")
        scenes = [open_scene(path, layout, range_form=range_form) for path in paths]
        size = None if height is None or width is None else (height, width)
        super().__init__(scenes, views, size, skip, random_sources, transform)
