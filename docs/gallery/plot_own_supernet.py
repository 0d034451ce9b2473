"""
A network of your own, made elastic
===================================

Torch's layers with a choice in place of a number. A subnet that is cut out computes what the
supernet computes when that subnet is active.
"""

import random

import matplotlib.pyplot as plt
import torch

from vizoo.common.counts import count, count_parameters
from vizoo.nas import Choice, activate, elastic, extract, search_space

widths = [Choice(f"width.{i}", (8, 16, 24, 32)) for i in range(3)]
kernels = [Choice(f"kernel.{i}", (3, 5)) for i in range(3)]
layers, channels = [], 3
for width, kernel in zip(widths, kernels, strict=True):
    layers += [elastic.Conv2d(channels, width, kernel, padding="half"), torch.nn.ReLU()]
    channels = width
net = torch.nn.Sequential(*layers, elastic.Conv2d(channels, 1, 1))
space = search_space(net)
image = torch.rand(1, 3, 64, 64)

rng = random.Random(0)
costs = []
for _ in range(60):
    architecture = space.sample(rng)
    activate(net, architecture)
    subnet = extract(net, architecture)
    assert torch.equal(net(image), subnet(image))
    counted = count(subnet, image.to("meta"))
    costs.append((counted.macs / 1e6, count_parameters(subnet)))

figure, axis = plt.subplots(figsize=(6, 3.6), layout="constrained")
axis.plot(*zip(*costs, strict=True), "o", alpha=0.6)
axis.set(
    title=f"60 of {space.count():,} subnets", xlabel="million multiply-adds", ylabel="parameters"
)
axis.grid(alpha=0.3)
plt.show()
