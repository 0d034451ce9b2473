"""
How sure a disparity is
=======================

The confidence is about the chance that a pixel is within 1 px of the truth; the last diagram shows
how nearly, in these four scenes. Without the least sure pixels the mean error falls as if, at best,
the truth had chosen them: the area between both curves (AUSE) is then 0, and of a random choice 1.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import vizoo
from vizoo.datasets.worlds.stereo import WorldStereo
from vizoo.vision.sparsification import ause, sparsification

predictor = vizoo.StereoPredictor("easnet_small", guided=False)
found = []
for sample in WorldStereo(4, 256, 512, seed=11, layouts=["table", "room"], max_disparity=64):
    result = predictor(sample["left"], sample["right"], both=True)
    known = sample["valid"][0]
    error = (torch.from_numpy(result.disparity) - sample["disparity"][0]).abs()
    found.append((result, error[known], torch.from_numpy(result.confidence)[known]))
results, errors, sure = zip(*found, strict=True)
errors, sure = torch.cat(errors), torch.cat(sure)

figure, axes = plt.subplots(1, 5, figsize=(14, 2.6), layout="constrained")
axes[0].imshow(results[0].image)
axes[0].set_title("left")
axes[1].imshow(results[0].confident(0.5).disparity, cmap="turbo")
axes[1].set_title("disparity, where sure to 0.5")
axes[2].imshow(results[0].confidence, cmap="viridis", vmin=0, vmax=1)
axes[2].set_title("confidence")
for axis in axes[:3]:
    axis.axis("off")

kept = 100 * np.linspace(1, 0.05, 20)
by_confidence, by_error = sparsification(errors.clamp(max=10), sure)
axes[3].plot(kept, by_confidence, label="by confidence")
axes[3].plot(kept, by_error, label="by the error itself")
axes[3].set(xlabel="pixels kept, %", ylabel="mean error, of all = 1", xlim=(100, 5))
axes[3].set_title(f"AUSE {ause(errors.clamp(max=10), sure):.2f}")
axes[3].legend()

bins = (10 * sure).long().clamp(max=9)
count = bins.bincount(minlength=10)
means, right = (
    bins.bincount(values.double(), minlength=10) / count for values in (sure, errors < 1)
)
axes[4].plot([0, 1], [0, 1], "--", color="grey")
axes[4].plot(means, right, marker="o")
axes[4].set(xlabel="confidence", ylabel="share within 1 px", xlim=(0, 1), ylim=(0, 1))
axes[4].set_title("reliability")
plt.show()
