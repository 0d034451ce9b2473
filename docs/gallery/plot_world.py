"""
One world, four places
======================

Worlds are drawn from a seed; a camera finds its own place in each. Every pixel's depth is exact.
"""

import matplotlib.pyplot as plt

from vizoo.datasets.worlds.stereo import WorldStereo

figure, axes = plt.subplots(4, 4, figsize=(10, 6.1), layout="constrained")
for row, layout in zip(axes, ("room", "home", "table", "street"), strict=True):
    worlds = WorldStereo(2, 192, 320, seed=11, layouts=(layout,), max_disparity=96)
    for number in range(2):
        pair = worlds[number]
        row[2 * number].imshow(pair["left"].permute(1, 2, 0))
        row[2 * number + 1].imshow(pair["disparity"][0], cmap="turbo")
    row[0].set_ylabel(layout)
for axis in axes.flat:
    axis.set(xticks=[], yticks=[])
plt.show()
