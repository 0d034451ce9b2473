"""
A panorama and its depth
========================

A generated room, seen all around; below it the true distance, and what `spheredepth_small` makes of
the picture in the same colours; and a plan of the room from the points at the height of the eyes.
"""

import matplotlib.pyplot as plt
import numpy as np

import vizoo
from vizoo.datasets.worlds.panorama import WorldPanoramas
from vizoo.panorama.sampling import pixel_directions

sample = WorldPanoramas(1, 256, seed=2, layouts=("room",))[0]
depth = sample["depth"][0]
predicted = vizoo.PanoramaPredictor("spheredepth_small", "cpu")(sample["image"]).depth
points = depth[..., None] * pixel_directions(*depth.shape)

figure = plt.figure(figsize=(10, 6), layout="constrained")
grid = figure.add_gridspec(3, 3)
colours = {"cmap": "turbo_r", "vmin": float(depth.min()), "vmax": float(depth.max())}
for row, panel in enumerate((sample["image"].permute(1, 2, 0), depth, predicted)):
    axis = figure.add_subplot(grid[row, :2])
    axis.imshow(panel, **colours)
    axis.axis("off")
level = (points[..., 1].abs() < 0.3) & sample["valid"][0]
plan = figure.add_subplot(grid[:, 2])
plan.scatter(*np.asarray(points[level][:, [0, 2]]).T, s=0.4)
plan.set(aspect="equal", title="from above, metres")
plt.show()
