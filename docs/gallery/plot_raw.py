"""
Raw cameras
===========

Two fisheye cameras that do not quite look the same way take a generated room. By their calibration
both pictures become those of pinhole cameras with parallel axes: straight things are straight, and
what belongs together lies in one row, such as the red one.
"""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import cv2
import matplotlib.pyplot as plt
import numpy as np
import torch

from vizoo.datasets.draws import Draws
from vizoo.datasets.stereo.rigs import StereoRig, read_rig, write_rig
from vizoo.datasets.worlds.cameras import frame, render
from vizoo.datasets.worlds.layouts import build_place
from vizoo.datasets.worlds.stock import stock
from vizoo.stereo.rectification import measure_pair
from vizoo.stereo.rectify import rectify
from vizoo.vision.lenses import Lens

HEIGHT, WIDTH = 300, 400


@dataclass
class Camera:
    """What worlds are rendered by: a lens, where it stands, and right, down and ahead of it."""

    lens: Lens
    eye: np.ndarray
    axes: np.ndarray
    height: int = HEIGHT
    width: int = WIDTH
    pixel: float = 1 / 160

    def rays(self, x, y):
        rays = self.lens.unproject(np.stack([x, y], -1)) @ self.axes
        return torch.from_numpy(rays / np.linalg.norm(rays, axis=1, keepdims=True)).float().T


lens = Lens("fisheye", (160, 160), (199.5, 149.5), (0.02, 0.01, 0, 0), WIDTH, HEIGHT)
turn, baseline = cv2.Rodrigues(np.array([0.05, -0.03, 0.06]))[0], np.array([0.12, 0, 0])
with TemporaryDirectory() as folder:
    calibration = Path(folder, "rig.yml")
    write_rig(calibration, StereoRig(lens, lens, turn, -turn @ baseline))
    rig = read_rig(calibration)

place = build_place("room", Draws(3), stock())
axes = frame(place.gaze)
cameras = Camera(lens, place.eye, axes), Camera(lens, place.eye + baseline @ axes, turn @ axes)
raw = [(0.6 * render(place.world, camera).colour).clamp(0, 1) ** (1 / 2.2) for camera in cameras]
*rectified, _ = rectify(rig, *raw)

raw = [(255 * view.permute(1, 2, 0).numpy()).astype(np.uint8) for view in raw]
figure, rows = plt.subplots(2, 2, figsize=(8, 6), layout="constrained")
for row, name, pair in zip(rows, ("raw", "rectified"), (raw, rectified), strict=True):
    off = measure_pair(*pair).row_offset
    for axis, side, view in zip(row, ("left", "right"), pair, strict=True):
        axis.imshow(view)
        axis.axhline(170, color="red", linewidth=1)
        axis.set_title(f"{name}, {side}")
        axis.axis("off")
    row[0].set_title(f"{name}, left: rows differ by {off:.1f} px")
plt.show()
