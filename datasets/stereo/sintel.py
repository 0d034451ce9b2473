"""MPI Sintel stereo (Butler et al., ECCV 2012; stereo release of 2015).

Layout as unpacked::

    root/training/clean_left/alley_1/frame_0001.png        and clean_right, final_left, final_right
    root/training/disparities/alley_1/frame_0001.png       RGB: d = 4 R + G / 2^6 + B / 2^14
    root/training/occlusions/alley_1/frame_0001.png        white: hidden in the right image
    root/training/outofframe/alley_1/frame_0001.png        white: outside the right image

There is no public test half.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from ..files import check_choice, expand_path
from .base import StereoDataset, StereoRecord, published_records

__all__ = ["Sintel"]

_PAIRS = 1064
_VISIBLE = 0


class Sintel(StereoDataset):
    """Sintel: 23 sequences, 1064 pairs of 436x1024 pixels, dense ground truth.

    Args:
        root: the folder that holds ``training``.
        passes: ``clean``, ``final`` or ``both``.
        occluded: keep pixels that the right image does not show; without them the masks of
            ``occlusions`` and ``outofframe`` are applied.
        transform: called with each sample, returns the sample to use.

    Raises:
        FileNotFoundError: files are missing; the message counts and names them.
    """

    def __init__(
        self,
        root: str | os.PathLike,
        passes: str = "final",
        occluded: bool = True,
        transform: Callable[[dict], dict] | None = None,
    ) -> None:
        check_choice("Sintel pass", passes, ("clean", "final", "both"))
        base = expand_path(root)
        half = base / "training"
        records: list[StereoRecord] = []
        for name in ("clean", "final") if passes == "both" else (passes,):
            folders = {
                "left images": half / f"{name}_left",
                "right images": half / f"{name}_right",
                "disparity maps": half / "disparities",
            }
            frames = sorted(
                {
                    path.relative_to(folder).as_posix()
                    for folder in folders.values()
                    for path in folder.glob("*/frame_*.png")
                }
            )
            if not occluded:
                folders |= {f"{mask} masks": half / mask for mask in ("occlusions", "outofframe")}
            records += published_records(
                "Sintel",
                base,
                [f"{name}/{frame.removesuffix('.png')}" for frame in frames],
                {kind: [folder / frame for frame in frames] for kind, folder in folders.items()},
                "sintel",
                _VISIBLE,
                expected=f"{half / f'{name}_left'}/<scene>/frame_0001.png",
                published=_PAIRS,
            )
        super().__init__(records, transform)

    @staticmethod
    def _group(name: str) -> str:
        return name.split("/")[1]
