"""
A choice that is learned by gradients
=====================================

Two operations for one place. The target is a blur, which the convolution can learn and the
shortcut cannot; the logits of the choice follow, drawn hard by the Gumbel-Softmax, so that one
operation runs in each step. `DifferentiableSearch` does the same for any task, with costs,
schedules and validation.
"""

import matplotlib.pyplot as plt
import torch
from torch.nn import functional as F

from vizoo.nas import Choice, elastic, extract, search_space
from vizoo.nas.differentiable import GumbelSoftmax, Logits, most_likely, weighted

torch.manual_seed(0)
kinds = {"shortcut": torch.nn.Identity(), "convolution": torch.nn.Conv2d(1, 1, 3, padding=1)}
net = torch.nn.Sequential(elastic.Operation(kinds, Choice("block", tuple(kinds))))
logits = Logits(search_space(net))
optimizer = torch.optim.Adam([*net.parameters(), *logits.parameters()], lr=0.03)
generator, shares = torch.Generator().manual_seed(0), []
for _ in range(150):
    image = torch.rand(8, 1, 16, 16)
    with weighted(net, logits.draw(GumbelSoftmax(), generator)):
        loss = F.mse_loss(net(image), F.avg_pool2d(image, 3, 1, 1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    shares.append(logits.vectors["block"].softmax(0).tolist())
with torch.no_grad():
    best = most_likely(search_space(net), logits.probabilities())
print(extract(net, best))

figure, axis = plt.subplots(figsize=(6, 3.2), layout="constrained")
for name, values in zip(kinds, zip(*shares, strict=True), strict=True):
    axis.plot(values, label=name)
axis.set(xlabel="step", ylabel="probability")
axis.legend()
plt.show()
