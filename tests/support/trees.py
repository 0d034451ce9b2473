"""Miniature copies of the published layouts, written into a folder of a test.

Every pair is a random texture seen with a known disparity: the right image is the left one shifted,
so that a reader that swaps views, halves or files is found out.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from vizoo.vision.io.disparity import write_disparity
from vizoo.vision.io.images import write_image

HEIGHT, WIDTH = 24, 40


def pair(seed: int, shift: int, size: tuple[int, int] = (HEIGHT, WIDTH)) -> tuple:
    """Return left and right images (3, H, W) and the disparity (H, W), constant ``shift``."""
    generator = torch.Generator().manual_seed(seed)
    height, width = size
    wide = torch.randint(0, 256, (3, height, width + shift), generator=generator) / 255
    return wide[:, :, :width], wide[:, :, shift:], np.full(size, float(shift), np.float32)


def write_pair(
    left: Path,
    right: Path,
    disparity: Path | None = None,
    seed: int = 0,
    shift: int = 3,
    encoding: str | None = None,
    size: tuple[int, int] = (HEIGHT, WIDTH),
) -> None:
    """Write one pair, making its folders."""
    left_image, right_image, truth = pair(seed, shift, size)
    for path, image in ((left, left_image), (right, right_image)):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_image(path, image)
    if disparity is not None:
        disparity.parent.mkdir(parents=True, exist_ok=True)
        write_disparity(disparity, truth, encoding)


def write_mask(path: Path, values: np.ndarray) -> None:
    """Write an 8-bit mask."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_image(path, values.astype(np.uint8))


def sceneflow(root: Path, flat: bool = False) -> Path:
    """3 FlyingThings3D training pairs, 2 test pairs, 2 of Monkaa, 1 of Driving, both passes."""
    scenes = {
        "FlyingThings3D": {"TRAIN/A/0000": 2, "TRAIN/C/0007": 1, "TEST/B/0001": 2},
        "Monkaa": {"a_rain_of_stones_x2": 1, "eating_x2": 1},
        "Driving": {"35mm_focallength/scene_forwards/fast": 1},
    }
    for subset, folders in scenes.items():
        tree = root if flat else root / subset
        for number, (scene, count) in enumerate(folders.items()):
            for frame in range(count):
                truth = tree / "disparity" / scene / "left" / f"{frame:04d}.pfm"
                for frames in ("frames_cleanpass", "frames_finalpass"):
                    images = tree / frames / scene
                    name = f"{frame:04d}.png"
                    write_pair(
                        images / "left" / name, images / "right" / name, truth, number, 2 + frame
                    )
    return root


def kitti(root: Path, year: int, frames: tuple[int, ...] = (0, 1, 6, 150, 185)) -> Path:
    """Training frames with both ground truths (2 and 4 px), two testing frames, ``*_11`` frames."""
    views = ("image_2", "image_3") if year == 2015 else ("colored_0", "colored_1")
    suffix = "_0" if year == 2015 else ""
    for frame in frames:
        half, name = root / "training", f"{frame:06d}_10.png"
        write_pair(half / views[0] / name, half / views[1] / name, None, frame, 4)
        for kind, shift in (("occ", 4), ("noc", 2)):
            path = half / f"disp_{kind}{suffix}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            truth = np.full((HEIGHT, WIDTH), shift, np.float32)
            truth[: HEIGHT // 3] = 0
            write_disparity(path, truth)
        later = f"{frame:06d}_11.png"
        write_pair(half / views[0] / later, half / views[1] / later, None, frame, 4)
    for frame in range(2):
        half, name = root / "testing", f"{frame:06d}_10.png"
        write_pair(half / views[0] / name, half / views[1] / name, None, frame, 4)
    return root


def middlebury2014(root: Path) -> Path:
    """Two scenes, the first calibrated in both ways, with the two other right images."""
    for number, scene in enumerate(["Adirondack-perfect", "Adirondack-imperfect", "Cable-perfect"]):
        folder = root / scene
        write_pair(folder / "im0.png", folder / "im1.png", folder / "disp0.pfm", number, 5)
        for right in ("im1E", "im1L"):
            write_mask(folder / f"{right}.png", np.full((HEIGHT, WIDTH, 3), 51 * (right == "im1E")))
    return root


def middlebury3(root: Path, resolution: str = "H") -> Path:
    """Two training scenes with masks, one test scene, under ``MiddEval3``."""
    _scenes(root / "MiddEval3" / f"training{resolution}", None, ["Adirondack", "Teddy"])
    scene = root / "MiddEval3" / f"test{resolution}" / "Australia"
    write_pair(scene / "im0.png", scene / "im1.png", None, 7)
    return root


def eth3d(root: Path, beside: bool = False) -> Path:
    """Two training scenes, ground truth in its own folder or beside the images, one test scene."""
    truths = None if beside else root / "two_view_training_gt"
    _scenes(root / "two_view_training", truths, ["delivery_area_1l", "terrace_2s"])
    scene = root / "two_view_test" / "lakeside_1l"
    write_pair(scene / "im0.png", scene / "im1.png", None, 7)
    return root


def sintel(root: Path) -> Path:
    """Two scenes, three frames, both passes; 5 columns occluded, the next 3 out of frame."""
    half = root / "training"
    for scene, frames in (("alley_1", 2), ("market_6", 1)):
        for frame in range(1, frames + 1):
            name = f"{scene}/frame_{frame:04d}.png"
            for kind in ("clean", "final"):
                write_pair(
                    half / f"{kind}_left" / name,
                    half / f"{kind}_right" / name,
                    half / "disparities" / name,
                    frame,
                    6,
                    "sintel",
                )
            mask = np.zeros((HEIGHT, WIDTH))
            mask[:, :5] = 255
            write_mask(half / "occlusions" / name, mask)
            write_mask(half / "outofframe" / name, np.roll(mask, 3, axis=1))
    return root


def _scenes(images: Path, truths: Path | None, names: list[str]) -> None:
    truths = truths or images
    for number, name in enumerate(names):
        folder = images / name
        truth = truths / name / "disp0GT.pfm"
        write_pair(folder / "im0.png", folder / "im1.png", truth, number, 3)
        mask = np.full((HEIGHT, WIDTH), 255)
        mask[:, :4], mask[:2] = 128, 0
        write_mask(truths / name / "mask0nocc.png", mask)


def stock(root: Path) -> Path:
    """What generated worlds may be made of: one photograph, one mesh, one panorama."""
    random = np.random.default_rng(0)
    for name, size in (("textures", (40, 30)), ("panoramas", (32, 64))):
        picture = random.integers(0, 256, (*size, 3), np.uint8)
        write_image(root / name / "one.png", picture)
    (root / "meshes").mkdir(parents=True)
    wedge = ["v 0 0 0", "v 2 0 0", "v 0 0 1", "v 0 3 0", "f 1 2 3", "f 1 4 2", "f 1 3 4", "f 2 4 3"]
    (root / "meshes" / "wedge.obj").write_text("\n".join(wedge) + "\n")
    return root
