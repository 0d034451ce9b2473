"""
A generated chest, and where its lesions are
============================================

Scans with lesions of known place are what maps of where a network looked are measured on. Research
software, not a medical device.
"""

import matplotlib.pyplot as plt

from vizoo.datasets.ct import GeneratedCT

scans = GeneratedCT(2, seed=4)
figure, axes = plt.subplots(2, 4, figsize=(9, 4.6), layout="constrained")
for row, number in zip(axes, range(2), strict=True):
    sample = scans[number]
    volume, lesion = sample["volume"][0], sample["lesion"][0]
    places = [round(share * (len(volume) - 1)) for share in (0.3, 0.45, 0.6, 0.75)]
    for axis, place in zip(row, places, strict=True):
        axis.imshow(volume[place], cmap="gray")
        if lesion[place].any():
            axis.contour(lesion[place], levels=[0.5], colors="red", linewidths=0.8)
        axis.set(xticks=[], yticks=[])
    row[0].set_ylabel(scans.classes[sample["label"]])
plt.show()
