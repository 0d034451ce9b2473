"""
Which network for what
======================

A room, a street and a table top, with semi-global matching and four networks, one of them guided by
it, too: the colours are disparities, the figures the mean error and the share of pixels that are
off by more than 2 px.
``PAIRS=FOLDER`` draws three pairs of photographs of a folder instead, each with ``left.png``,
``right.png`` and ``truth.png`` (256 a pixel, 0 where unknown).
"""

import json
import os
from pathlib import Path

import cv2
import matplotlib.pyplot as plt
import numpy as np
import torch

import vizoo
from vizoo.datasets.worlds.stereo import WorldStereo
from vizoo.nas import Architecture, extract
from vizoo.stereo.classical import semi_global_matching
from vizoo.vision.io.images import read_image


def photographs(folder):
    """Left, right and true disparity of three pairs of a folder."""
    folders = sorted(path.parent for path in Path(folder).rglob("truth.png"))
    if not folders:
        raise SystemExit(f"{folder}: no pair with a truth.png in it")
    for pair in folders[:: max(1, len(folders) // 3)][:3]:
        truth = cv2.imread(str(pair / "truth.png"), cv2.IMREAD_UNCHANGED) / 256
        yield read_image(pair / "left.png"), read_image(pair / "right.png"), truth


def generated():
    """The same of three worlds."""
    for layout in ("room", "street", "table"):
        sample = WorldStereo(1, 384, 640, seed=6, layouts=[layout])[0]
        truth = torch.where(sample["valid"], sample["disparity"], 0)[0].numpy()
        yield sample["left"], sample["right"], truth


def subnet(milliseconds):
    """The best of `easnet_scaled` that takes no longer, as its front has it."""
    path = Path(vizoo.__file__).parent / "stereo/weights/easnet_scaled.front.json"
    front = [
        each for each in json.loads(path.read_text())["front"] if each["latency"] <= milliseconds
    ]
    best = min(front, key=lambda each: each["error"])
    supernet = vizoo.create_model("easnet_scaled", pretrained=True)
    return extract(supernet, Architecture.from_json(best["architecture"]))


ways = {
    "StereoSGBM": lambda left, right: semi_global_matching(left, right, disparities=192),
    "easnet_small.generated": vizoo.StereoPredictor("easnet_small.generated"),
    "easnet_scaled.two_thirds": vizoo.StereoPredictor(guided=False),
    "the same, guided (default)": vizoo.StereoPredictor(),
    "subnet within 100 ms": vizoo.StereoPredictor(subnet(100)),
    "subnet within 25 ms": vizoo.StereoPredictor(subnet(25)),
}
pairs = list(photographs(os.environ["PAIRS"]) if "PAIRS" in os.environ else generated())

shape, size = (len(pairs), len(ways) + 2), (18, 2.1 * len(pairs))
figure, axes = plt.subplots(*shape, figsize=size, layout="constrained", squeeze=False)
for row, (left, right, truth) in zip(axes, pairs, strict=True):
    known, colours = truth > 0, {"cmap": "turbo", "vmin": 0, "vmax": truth.max()}
    row[0].imshow(left.permute(1, 2, 0))
    row[1].imshow(np.where(known, truth, np.nan), **colours)
    row[1].set_title(f"truth, to {truth.max():.0f} px", fontsize=9)
    for axis, (name, way) in zip(row[2:], ways.items(), strict=True):
        result = way(left, right)
        disparity = getattr(result, "disparity", result)
        error = np.abs(disparity - truth)[known]
        axis.imshow(disparity, **colours)
        title = f"{name}\n{error.mean():.1f} px, {100 * (error > 2).mean():.0f} %"
        axis.set_title(title, fontsize=9)
for axis in axes.flat:
    axis.axis("off")
plt.show()
