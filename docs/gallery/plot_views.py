"""
Depth of several views
======================

A plane sweep, which compares the views on planes through the scene, `dispmvs_tiny`, and the network
guided by the sweep: the figures are the shares of pixels within 5 % of the truth.
"""

import matplotlib.pyplot as plt
import torch

import vizoo
from vizoo.datasets.worlds.views import WorldViews
from vizoo.mvs.classical import PlaneSweep

sample = WorldViews(1, 192, 256, 4, seed=5, photometric=False)[0]
near, far = sample["depth_range"].tolist()
truth, known = sample["depth"][0], sample["valid"][0]
predictors = {
    "plane sweep": vizoo.MVSPredictor(PlaneSweep(), "cpu"),
    "dispmvs_tiny": vizoo.MVSPredictor("dispmvs_tiny", "cpu", guided=False),
    "guided": vizoo.MVSPredictor("dispmvs_tiny", "cpu", guided=True),
}

figure, axes = plt.subplots(1, 5, figsize=(13, 2.4), layout="constrained")
axes[0].imshow(sample["images"][0].permute(1, 2, 0))
axes[0].set_title("reference")
colours = {"cmap": "turbo_r", "vmin": near, "vmax": far}
axes[1].imshow(truth, **colours)
axes[1].set_title("true depth")
for axis, (name, predictor) in zip(axes[2:], predictors.items(), strict=True):
    depth = torch.from_numpy(predictor.predict_sample(sample).depth)
    share = ((depth - truth).abs() / truth < 0.05)[known].float().mean()
    axis.imshow(depth, **colours)
    axis.set_title(f"{name}: {share:.0%}")
for axis in axes:
    axis.axis("off")
plt.show()
