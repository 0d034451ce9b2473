"""Middlebury 2014 and v3, and ETH3D two-view, which has the layout of v3.

Middlebury (Scharstein et al., GCPR 2014), ETH3D low-resolution two-view (Schoeps et al., CVPR
2017). Layouts as unpacked from the archives::

    2014   root/Adirondack-perfect/{im0.png, im1.png, im1E.png, im1L.png, disp0.pfm, calib.txt}
    v3     root/trainingH/Adirondack/{im0.png, im1.png, disp0GT.pfm, mask0nocc.png, calib.txt}
           root/testH/Australia/{im0.png, im1.png, calib.txt}
    ETH3D  root/two_view_training/delivery_area_1l/{im0.png, im1.png, calib.txt}
           root/two_view_training_gt/delivery_area_1l/{disp0GT.pfm, mask0nocc.png}
           root/two_view_test/lakeside_1l/{im0.png, im1.png, calib.txt}

v3 comes in full (F), half (H) and quarter (Q) size, with 15 training and 15 test pairs; its root
is the folder ``MiddEval3`` or the one above it. Unknown disparity is stored as infinity.
ETH3D's ground truth may also lie in ``two_view_training`` beside the images, which are grey.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from ..files import check_choice, expand_path
from .base import StereoDataset, StereoRecord, published_records

__all__ = ["ETH3D", "Middlebury2014", "MiddleburyV3"]

_NON_OCCLUDED = 255  # in mask0nocc.png; 128 is occluded, 0 unknown


class Middlebury2014(StereoDataset):
    """Middlebury 2014: 23 indoor scenes of about 2000x2900 pixels.

    Args:
        root: the folder that holds ``<Scene>-perfect`` and ``<Scene>-imperfect``.
        calibration: ``perfect``, ``imperfect`` or ``both``.
        right: the right image: ``im1``, ``im1E`` (other exposure) or ``im1L`` (other light).
        transform: called with each sample, returns the sample to use.

    Raises:
        FileNotFoundError: files are missing; the message counts and names them.
    """

    def __init__(
        self,
        root: str | os.PathLike,
        calibration: str = "perfect",
        right: str = "im1",
        transform: Callable[[dict], dict] | None = None,
    ) -> None:
        check_choice("Middlebury 2014 calibration", calibration, ("perfect", "imperfect", "both"))
        check_choice("Middlebury 2014 right image", right, ("im1", "im1E", "im1L"))
        base = expand_path(root)
        kinds = ("perfect", "imperfect") if calibration == "both" else (calibration,)
        scenes = sorted(path for kind in kinds for path in base.glob(f"*-{kind}") if path.is_dir())
        records = published_records(
            "Middlebury 2014",
            base,
            [scene.name for scene in scenes],
            {
                "left images": [scene / "im0.png" for scene in scenes],
                "right images": [scene / f"{right}.png" for scene in scenes],
                "disparity maps": [scene / "disp0.pfm" for scene in scenes],
            },
            "pfm",
            expected=f"folders such as {base / f'Adirondack-{kinds[0]}'}",
        )
        super().__init__(records, transform)

    @staticmethod
    def _group(name: str) -> str:
        return name.rpartition("-")[0]


class MiddleburyV3(StereoDataset):
    """Middlebury evaluation, version 3: 15 training and 15 test pairs.

    Args:
        root: the folder ``MiddEval3``, or the one that holds it.
        split: ``train``, or ``test``, which has no ground truth.
        resolution: ``F``, ``H`` or ``Q``: full, half or quarter size.
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
        resolution: str = "H",
        occluded: bool = True,
        transform: Callable[[dict], dict] | None = None,
    ) -> None:
        check_choice("Middlebury v3 split", split, ("train", "test"))
        check_choice("Middlebury v3 resolution", resolution, ("F", "H", "Q"))
        base = expand_path(root)
        half = ("training" if split == "train" else "test") + resolution
        folder = base / "MiddEval3" / half
        folder = folder if folder.is_dir() else base / half
        records = _scene_records(
            "Middlebury v3", base, folder, folder, split == "train", occluded, published=15
        )
        super().__init__(records, transform)

    @staticmethod
    def _group(name: str) -> str:
        # PianoL, MotorcycleE and PlaytableP: in another light, exposure or calibration.
        return name.rstrip("ELP")


def _scene_records(
    title: str,
    base: Path,
    folder: Path,
    truths: Path,
    with_truth: bool,
    occluded: bool,
    published: int,
) -> list[StereoRecord]:
    """Find the scenes, sorted by name, of the layout that Middlebury v3 and ETH3D share.

    ``folder`` holds ``<scene>/im0.png`` and ``im1.png``, ``truths`` holds ``<scene>/disp0GT.pfm``
    and ``mask0nocc.png``, which applies unless ``occluded``; for the rest see `check_files`.
    """
    scenes = sorted(path.name for path in folder.glob("*") if path.is_dir())
    parts = {
        "left images": [folder / scene / "im0.png" for scene in scenes],
        "right images": [folder / scene / "im1.png" for scene in scenes],
    }
    if with_truth:
        parts["disparity maps"] = [truths / scene / "disp0GT.pfm" for scene in scenes]
        if not occluded:
            parts["occlusion masks"] = [truths / scene / "mask0nocc.png" for scene in scenes]
    names, expected = [f"{folder.name}/{scene}" for scene in scenes], f"{folder}/<scene>/im0.png"
    return published_records(
        title, base, names, parts, "pfm", _NON_OCCLUDED, expected=expected, published=published
    )


class ETH3D(StereoDataset):
    """ETH3D two-view: 27 training and 20 test pairs of about 490x940 pixels.

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
        records = _scene_records("ETH3D", base, folder, truths, truth, occluded, published)
        super().__init__(records, transform)

    @staticmethod
    def _group(name: str) -> str:
        return re.sub(r"_\d+[ls]$", "", name)
