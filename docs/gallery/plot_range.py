"""
Beyond a network's reach
========================

What is nearer than the disparities a network is made for it cannot find at all. The predictor sees
that, matches the pair at a smaller size, and again at its own around what it found.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np

import vizoo
from vizoo.datasets.worlds.stereo import WorldStereo

pair = WorldStereo(1, 384, 640, seed=5, layouts=["room"])[0]
views, truth = (pair["left"], pair["right"]), pair["disparity"][0].numpy()
predictor = vizoo.StereoPredictor("easnet_small", guided=False)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    found = {
        "the network alone": predictor(*views, scale=1, check=False).disparity,
        "the predictor": predictor(*views).disparity,
    }
print(*(warning.message for warning in said), sep="\n")

figure, axes = plt.subplots(1, 4, figsize=(12, 2.3), layout="constrained")
axes[0].imshow(pair["left"].permute(1, 2, 0))
axes[0].set_title("left")
panels = {f"truth, to {truth.max():.0f} px": truth}
for name, disparity in found.items():
    error = np.abs(disparity - truth)[pair["valid"][0]].mean()
    panels[f"{name}: {error:.1f} px off"] = disparity
for axis, (title, panel) in zip(axes[1:], panels.items(), strict=True):
    shown = axis.imshow(panel, cmap="turbo", vmin=0, vmax=truth.max())
    axis.set_title(title)
figure.colorbar(shown, ax=axes, label="disparity, px")
for axis in axes:
    axis.axis("off")
plt.show()
