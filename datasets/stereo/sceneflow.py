"""Scene Flow: FlyingThings3D, Monkaa and Driving (Mayer et al., CVPR 2016).

Two layouts are read. The full release, each set in a folder of its own::

    root/FlyingThings3D/frames_cleanpass/TRAIN/A/0000/left/0006.png      and right/0006.png
    root/FlyingThings3D/disparity/TRAIN/A/0000/left/0006.pfm
    root/Monkaa/frames_cleanpass/a_rain_of_stones_x2/left/0000.png
    root/Driving/frames_cleanpass/35mm_focallength/scene_forwards/fast/left/0001.png

and the flat one, with the sets beside each other in one tree::

    root/frames_cleanpass/{TRAIN,TEST}/..., root/frames_cleanpass/a_rain_of_stones_x2/..., ...
    root/disparity/{TRAIN,TEST}/..., ...

``frames_finalpass`` lies beside ``frames_cleanpass``. The published training set is the clean pass
of FlyingThings3D TRAIN (22,390 pairs), Driving (4,400) and Monkaa (8,664), the test set
FlyingThings3D TEST (4,370). A published list file of pairs is read by ``PairList``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from ..files import check_choice, expand_path
from .base import StereoDataset, StereoRecord, published_records

__all__ = ["SceneFlow"]

# Folders between a pass and the view; a set is told from the others by them in the flat layout.
_PATTERNS = {
    "FlyingThings3D": "{half}/*/*/left",
    "Monkaa": "*/left",
    "Driving": "*mm_focallength/*/*/left",
}
_PUBLISHED = {
    ("FlyingThings3D", "train"): 22390,
    ("FlyingThings3D", "test"): 4370,
    ("Monkaa", "train"): 8664,
    ("Driving", "train"): 4400,
}


class SceneFlow(StereoDataset):
    """Scene Flow, 540x960 pixels, dense ground truth.

    Args:
        root: the folder of one of the two layouts.
        split: ``train``, or ``test`` (FlyingThings3D's TEST half; the other sets have none).
        passes: ``clean``, ``final`` or ``both``.
        subsets: which of ``FlyingThings3D``, ``Monkaa`` and ``Driving`` to take for training.
        transform: called with each sample, returns the sample to use.

    Raises:
        FileNotFoundError: a set or files of it are missing; the message counts and names them.
        ValueError: a split, pass or set has another name.
    """

    def __init__(
        self,
        root: str | os.PathLike,
        split: str = "train",
        passes: str = "clean",
        subsets: Sequence[str] = ("FlyingThings3D", "Monkaa", "Driving"),
        transform: Callable[[dict], dict] | None = None,
    ) -> None:
        check_choice("Scene Flow split", split, ("train", "test"))
        check_choice("Scene Flow pass", passes, ("clean", "final", "both"))
        for subset in subsets:
            check_choice("Scene Flow subset", subset, tuple(_PATTERNS))
        base = expand_path(root)
        if split == "test":
            subsets = [subset for subset in subsets if subset == "FlyingThings3D"]
        if not subsets:
            raise ValueError(
                f"Scene Flow {split}: no subset left; only FlyingThings3D has a test half"
            )
        records = []
        for subset in subsets:
            for name in ("clean", "final") if passes == "both" else (passes,):
                records += _find(base, subset, split, f"frames_{name}pass")
        super().__init__(records, transform)

    @staticmethod
    def _group(name: str) -> str:
        subset, _, *scene, _ = name.split("/")
        if subset == "Driving":  # each drive by two lenses and at two speeds
            scene = scene[1:2]
        elif subset == "Monkaa":  # a scene with other things, textures or from another camera
            scene = [re.sub(r"_(augmented|camera|difftex)\d*", "", scene[0])]
        return "/".join([subset, *scene])


def _find(base: Path, subset: str, split: str, frames: str) -> list[StereoRecord]:
    own = base / subset
    tree = own if own.is_dir() else base
    pattern = _PATTERNS[subset].format(half=split.upper())
    scenes = sorted(
        path.parent.relative_to(tree / frames)
        for view in ("left", "right")
        for path in (tree / frames).glob(pattern[: -len("left")] + view)
    )
    lefts, rights, maps, names = [], [], [], []
    for scene in dict.fromkeys(scenes):
        images = tree / frames / scene
        files = {path.name for view in ("left", "right") for path in (images / view).glob("*.png")}
        for image in sorted(files):
            lefts.append(images / "left" / image)
            rights.append(images / "right" / image)
            maps.append((tree / "disparity" / scene / "left" / image).with_suffix(".pfm"))
            names.append(f"{subset}/{frames}/{(scene / image).with_suffix('').as_posix()}")
    return published_records(
        f"Scene Flow {subset}",
        base,
        names,
        {"left images": lefts, "right images": rights, "disparity maps": maps},
        "pfm",
        expected=f"{own / frames / pattern} or {base / frames / pattern}, and disparity/ beside it",
        published=_PUBLISHED[subset, split],
    )
