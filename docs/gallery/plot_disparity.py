"""
Disparity of a pair
===================

The default network, guided by semi-global matching, looks at a generated room. Left pixel x matches
right pixel x - d.
"""

import matplotlib.pyplot as plt

import vizoo
from vizoo.datasets.worlds.stereo import WorldStereo

pair = WorldStereo(1, 256, 448, seed=3, max_disparity=64)[0]
result = vizoo.StereoPredictor()(pair["left"], pair["right"], check=False)

truth = pair["disparity"][0]
error = abs(result.disparity - truth.numpy())
panels = {
    "left view": pair["left"].permute(1, 2, 0),
    "true disparity, px": truth,
    "predicted disparity, px": result.disparity,
    "error, px": error.clip(0, 3),
}
figure, axes = plt.subplots(2, 2, figsize=(9, 5.4), layout="constrained")
for axis, (title, panel) in zip(axes.flat, panels.items(), strict=True):
    shown = axis.imshow(panel, cmap="inferno" if "error" in title else "turbo")
    axis.set_title(title)
    axis.axis("off")
    if "px" in title:
        figure.colorbar(shown, ax=axis)
plt.show()
