"""
Depth of several views by a plane sweep
=======================================

The classical method that learned ones are measured against: planes through the scene, each compared
by normalised correlation.
"""

import matplotlib.pyplot as plt

from vizoo.datasets.worlds.views import WorldViews
from vizoo.mvs.classical import plane_sweep

sample = WorldViews(1, 192, 256, 4, seed=5, photometric=False)[0]
near, far = sample["depth_range"].tolist()
depth, score = plane_sweep(
    sample["images"], sample["intrinsics"], sample["extrinsics"], (near, far)
)

figure, axes = plt.subplots(1, 4, figsize=(11, 2.6), layout="constrained")
axes[0].imshow(sample["images"][0].permute(1, 2, 0))
axes[0].set_title("reference")
colours = {"cmap": "turbo_r", "vmin": near, "vmax": far}
axes[1].imshow(sample["depth"][0], **colours)
axes[1].set_title("true depth")
axes[2].imshow(depth, **colours)
axes[2].set_title("plane sweep")
axes[3].imshow(score, cmap="viridis", vmin=0, vmax=1)
axes[3].set_title("correlation of the best plane")
for axis in axes:
    axis.axis("off")
plt.show()
