"""
What a supernet offers
======================

The Pareto front that comes with `easnet_scaled`: each point is a network that is cut out of it
without training.
"""

import json
from pathlib import Path

import matplotlib.pyplot as plt

import vizoo

path = Path(vizoo.__file__).parent / "stereo/weights/easnet_scaled.front.json"
front = json.loads(path.read_text())
latency = [subnet["latency"] for subnet in front["front"]]
error = [100 * subnet["error"] for subnet in front["front"]]

figure, axis = plt.subplots(figsize=(6, 3.6), layout="constrained")
axis.step(latency, error, where="post")
axis.plot(latency, error, "o")
axis.set(xlabel="latency at 540x960, two CPU threads, ms", ylabel="pixels off by more than 2 px, %")
axis.grid(alpha=0.3)
plt.show()
