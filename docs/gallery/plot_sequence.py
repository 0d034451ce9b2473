"""
Less flicker
============

A rig moves over a table top that stands still. With ``steady`` the disparity found before has a say
where pictures and disparities agree: it changes less from frame to frame, and is no worse.
"""

import matplotlib.pyplot as plt
import numpy as np

import vizoo
from vizoo.datasets.worlds.sequence import WorldSequence
from vizoo.stereo.sequences import StereoFrame, StereoSequence
from vizoo.stereo.steadiness import flicker
from vizoo.stereo.streaming import disparities
from vizoo.vision.io.images import to_bytes

samples = list(WorldSequence(12, 144, 240, layouts=["table"], seed=2))
predictor = vizoo.StereoPredictor("easnet_small", guided=False)
figure, axes = plt.subplots(1, 4, figsize=(12, 2.2), layout="constrained")
for steady, label in ((False, "as it is"), (True, "steady")):
    views = ([to_bytes(sample[side]) for side in ("left", "right")] for sample in samples)
    frames = (StereoFrame(left, right, str(count)) for count, (left, right) in enumerate(views))
    found = [d for _, d in disparities(predictor, StereoSequence("t", frames), steady=steady)]
    errors = [
        np.where(sample["valid"][0], disparity - sample["disparity"][0].numpy(), np.nan)
        for sample, disparity in zip(samples, found, strict=True)
    ]
    changes = [
        flicker(errors[i], errors[i - 1], samples[i]["earlier"].numpy())
        for i in range(1, len(errors))
    ]
    axes[2].plot(range(1, len(errors)), changes, label=label)
    axes[3].plot([np.nanmean(np.abs(error)) for error in errors], label=label)
axes[0].imshow(samples[-1]["left"].permute(1, 2, 0))
axes[1].imshow(found[-1], cmap="turbo")
for axis, title in zip(axes, ("left", "disparity", "flicker, px", "mean error, px"), strict=True):
    axis.set_title(title)
for axis in axes[2:]:
    axis.set(xlabel="frame", ylim=(0, None))
    axis.legend()
for axis in axes[:2]:
    axis.axis("off")
plt.show()
