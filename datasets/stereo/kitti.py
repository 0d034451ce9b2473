"""KITTI 2012 and KITTI 2015 stereo (Geiger et al., CVPR 2012; Menze and Geiger, CVPR 2015).

Layouts as unpacked from the archives ``data_stereo_flow`` and ``data_scene_flow``::

    KITTI 2012                              KITTI 2015
    root/training/colored_0/000000_10.png   root/training/image_2/000000_10.png     left
    root/training/colored_1/000000_10.png   root/training/image_3/000000_10.png     right
    root/training/image_{0,1}/...           -                                       the same in grey
    root/training/disp_occ/000000_10.png    root/training/disp_occ_0/000000_10.png  all pixels
    root/training/disp_noc/000000_10.png    root/training/disp_noc_0/000000_10.png  non-occluded
    root/testing/...                        root/testing/...                        no disparity

Only frames ``*_10`` have ground truth; frames ``*_11`` are left out. The validation splits are
those of FADNet's published lists.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from ..files import check_choice, expand_path
from .base import StereoDataset, StereoRecord, published_records

__all__ = ["KITTI2012", "KITTI2015"]

_SPLITS = ("train", "val", "trainval", "test")
# fmt: off
_VALIDATION_2015 = frozenset([
    1, 6, 26, 38, 43, 49, 67, 81, 89, 109, 122, 129, 132, 141, 152, 159, 171, 179, 184, 187,
])
# fmt: on


class _KITTI(StereoDataset):
    title: str
    published: dict[str, int]  # pairs of each half
    validation: frozenset[int]
    views: tuple[str, str]
    truths: tuple[str, str]  # without and with hidden pixels

    def __init__(
        self,
        root: str | os.PathLike,
        split: str = "train",
        occluded: bool = True,
        transform: Callable[[dict], dict] | None = None,
    ) -> None:
        check_choice(f"{self.title} split", split, _SPLITS)
        base = expand_path(root)
        half = base / ("testing" if split == "test" else "training")
        folders = {"left images": half / self.views[0], "right images": half / self.views[1]}
        if split != "test":
            folders["disparity maps"] = half / self.truths[occluded]
        files = sorted({path.name for each in folders.values() for path in each.glob("*_10.png")})
        records = published_records(
            self.title,
            base,
            [f"{half.name}/{file.removesuffix('.png')}" for file in files],
            {kind: [folder / file for file in files] for kind, folder in folders.items()},
            "kitti",
            expected=f"{half / self.views[0]}/000000_10.png and so on",
            published=self.published[half.name],
        )
        if split in ("train", "val"):
            records = [r for r in records if self._is_validation(r) == (split == "val")]
        super().__init__(records, transform)

    def _is_validation(self, record: StereoRecord) -> bool:
        frame = record.name.rpartition("/")[2].partition("_")[0]
        return frame.isdigit() and int(frame) in self.validation


class KITTI2012(_KITTI):
    """KITTI 2012: 194 training and 195 testing pairs of about 375x1240 pixels.

    Args:
        root: the folder that holds ``training`` and ``testing``.
        split: ``train`` (frames 0 to 179), ``val`` (the last 14), ``trainval``, or ``test``, which
            has no ground truth.
        occluded: take the ground truth that includes pixels hidden in the right image.
        colour: read ``colored_0/1``, else the grey images ``image_0/1``.
        transform: called with each sample, returns the sample to use.

    Raises:
        FileNotFoundError: files are missing; the message counts and names them.
    """

    title = "KITTI 2012"
    published = {"training": 194, "testing": 195}
    validation = frozenset(range(180, 194))
    truths = ("disp_noc", "disp_occ")

    def __init__(
        self,
        root: str | os.PathLike,
        split: str = "train",
        occluded: bool = True,
        colour: bool = True,
        transform: Callable[[dict], dict] | None = None,
    ) -> None:
        self.views = ("colored_0", "colored_1") if colour else ("image_0", "image_1")
        super().__init__(root, split, occluded, transform)


class KITTI2015(_KITTI):
    """KITTI 2015: 200 training and 200 testing pairs of about 375x1240 pixels.

    Args:
        root: the folder that holds ``training`` and ``testing``.
        split: ``train`` (180 pairs), ``val`` (20), ``trainval``, or ``test``, which has no ground
            truth.
        occluded: take the ground truth that includes pixels hidden in the right image.
        transform: called with each sample, returns the sample to use.

    Raises:
        FileNotFoundError: files are missing; the message counts and names them.
    """

    title = "KITTI 2015"
    published = {"training": 200, "testing": 200}
    validation = _VALIDATION_2015
    views = ("image_2", "image_3")
    truths = ("disp_noc_0", "disp_occ_0")
