"""
How sure a disparity is
=======================

The confidence is about the chance that a pixel is within 1 px of the truth. Without the least sure
ones the mean error falls, nearly as if the truth had chosen them.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import vizoo
from vizoo.datasets.worlds.stereo import WorldStereo
from vizoo.vision.sparsification import sparsification

sample = WorldStereo(1, 256, 512, seed=11, layouts=["table"])[0]
result = vizoo.StereoPredictor("easnet_small")(sample["left"], sample["right"], both=True)
truth, known = sample["disparity"][0], sample["valid"][0]
error = (torch.from_numpy(result.disparity) - truth).abs()
by_confidence, by_error = sparsification(
    error[known].clamp(max=10), torch.from_numpy(result.confidence)[known]
)

figure, axes = plt.subplots(1, 4, figsize=(12, 2.4), layout="constrained")
axes[0].imshow(result.image)
axes[0].set_title("left")
axes[1].imshow(result.confident(0.5).disparity, cmap="turbo")
axes[1].set_title("disparity, where sure to 0.5")
axes[2].imshow(result.confidence, cmap="viridis", vmin=0, vmax=1)
axes[2].set_title("confidence")
kept = 100 * np.linspace(1, 0.05, 20)
axes[3].plot(kept, by_confidence, label="by confidence")
axes[3].plot(kept, by_error, label="by the error itself")
axes[3].set(xlabel="pixels kept, %", ylabel="mean error, of all = 1", xlim=(100, 5))
axes[3].legend()
for axis in axes[:3]:
    axis.axis("off")
plt.show()
