"""ETH3D low-resolution two-view stereo (Schoeps et al., CVPR 2017).

Layout as unpacked from the archives of the same names::

    root/two_view_training/delivery_area_1l/{im0.png, im1.png, calib.txt}
    root/two_view_training_gt/delivery_area_1l/{disp0GT.pfm, mask0nocc.png}
    root/two_view_test/lakeside_1l/{im0.png, im1.png, calib.txt}

The ground truth may also lie in ``two_view_training`` beside the images. The images are grey.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from ..files import check_choice, expand_path
from .base import StereoDataset
from .middlebury import scene_records

__all__ = ["ETH3D"]


class ETH3D(StereoDataset):
    """ETH3D two-view: 27 training and 20 test pairs of about 940 x 490 pixels.

    Args:
        root: the folder that holds ``two_view_training`` and ``two_view_training_gt``.
        split: ``train``, or ``test``, which has no ground truth.
        occluded: keep pixels that are hidden in the right image; without them the mask
            ``mask0nocc.png`` is applied.
        transform: called with each sample, returns the sample to use.

    Raises:
        FileNotFoundError: files are missing; the message counts and names them.
    """

    def __init__(
        self,
        root: str | os.PathLike,
        split: str = "train",
        occluded: bool = True,
        transform: Callable[[dict], dict] | None = None,
    ) -> None:
        check_choice("ETH3D split", split, ("train", "test"))
        base = expand_path(root)
        folder = base / ("two_view_training" if split == "train" else "two_view_test")
        truths = base / "two_view_training_gt"
        if not truths.is_dir() and any(folder.glob("*/disp0GT.pfm")):
            truths = folder
        truth, published = (True, 27) if split == "train" else (False, 20)
        records = scene_records("ETH3D", base, folder, truths, truth, occluded, published)
        super().__init__(records, transform)
