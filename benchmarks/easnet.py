"""EASNet on the CPU: inference against the network run plainly, and the price of being elastic.

    python -m benchmarks.easnet [--threads 2] [--size 288 576]

Plainly is eager, float32, NCHW, batch norms of their own and torchvision's deformable convolution.
A supernet's step is activate, forward, loss and backward; the extracted network's the same without
activate. The forms take turns.
"""

from __future__ import annotations

import random
from functools import partial
from statistics import median
from unittest import mock

import torch
from rich.table import Table
from torch import Tensor, nn
from torchvision.ops import deform_conv2d

from benchmarks._machine import arguments, measured, seconds, start, table
from vizoo.nas.space import Architecture
from vizoo.nas.supernet import activate, extract, search_space
from vizoo.stereo.losses import upsampled_loss
from vizoo.vision import layers
from vizoo.vision.hub.create import create_model
from vizoo.vision.inference import optimize


def _torchvision(
    x: Tensor, offsets: Tensor, mask: Tensor, weight: Tensor, *, dilation: int = 1
) -> Tensor:
    return deform_conv2d(x, offsets, weight, None, 1, dilation, dilation, mask)


def _plainly(net: nn.Module, *views: Tensor) -> Tensor:
    with mock.patch.object(layers, "deformable_convolution", _torchvision):
        return net(*views)


def _calibrated(net: nn.Module) -> nn.Module:
    """Batch norms that normalise and soft heads: random weights saturate and amplify rounding."""
    with torch.no_grad():
        for layer in (*net.heads, *(refinement.final_conv for refinement in net.refinement)):
            layer.weight *= 0.1
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None
    with torch.no_grad():
        for _ in range(2):
            net.train()(*torch.rand(2, 1, 3, 96, 192))
    return net.eval()


def inference(size: tuple[int, int], repeat: int) -> Table:
    """Milliseconds of the largest and smallest subnets."""
    rows = []
    views = torch.rand(2, 1, 3, *size).unbind()
    for name in ("easnet", "easnet_extended"):
        supernet = create_model(name)
        space = search_space(supernet)
        for kind, architecture in (("largest", space.largest()), ("smallest", space.smallest())):
            net = _calibrated(extract(supernet, architecture))
            forms = {"plain": partial(_plainly, net), "float32": optimize(net)}
            forms["bfloat16"] = optimize(net, torch.bfloat16)
            found = measured(forms, views, repeat).values()
            plain, fast, half = (1000 * median(times) for times, _ in found)
            wanted, single, rounded = (output for _, output in found)
            row = [
                f"{name}, {kind}",
                f"{plain:.0f}",
                f"{fast:.0f}",
                f"{plain / fast:.2f}",
                f"{(single - wanted).norm() / wanted.norm():.0e}",
                f"{half:.0f}",
                f"{fast / half:.2f}",
                f"{(rounded - wanted).abs().mean():.3f}",
            ]
            rows.append(row)
    columns = ["subnet", "plain", "float32", "times", "difference", "bfloat16", "× float32"]
    title = f"inference, batch 1, {size[0]}x{size[1]}: median ms"
    return table([*columns, "bfloat16 difference, px"], rows, title)


def steps(size: tuple[int, int], repeat: int) -> Table:
    """Seconds of a training step of a subnet within the supernet and extracted."""
    rows = []
    views = torch.rand(2, 2, 3, *size).unbind()
    truth = 40 * torch.rand(2, 1, *size) + 1

    def step(net: nn.Module) -> None:
        net.zero_grad()
        upsampled_loss(net.forward_stages(*views), truth, truth > 0, [1.0]).backward()

    def elastic_step(net: nn.Module, architecture: Architecture) -> None:
        activate(net, architecture)
        step(net)

    rng = random.Random(0)
    for name in ("easnet", "easnet_extended"):
        supernet = create_model(name).train()
        space = search_space(supernet)
        chosen = {"largest": space.largest(), "smallest": space.smallest()}
        chosen |= {f"random {seed}": space.sample(random.Random(seed)) for seed in range(3)}
        for kind, architecture in chosen.items():
            plain = extract(supernet, architecture).train()
            forms = partial(step, plain), partial(elastic_step, supernet, architecture)
            for form in forms:
                form()
            pairs = []
            for _ in range(repeat):
                activate(supernet, space.sample(rng))  # so that activating changes something
                pairs.append(tuple(map(seconds, forms)))
            ratio = median(elastic / extracted for extracted, elastic in pairs)
            row = (*(median(times) for times in zip(*pairs, strict=True)), ratio)
            rows.append([f"{name}, {kind}", *(f"{value:.3f}" for value in row)])
    title = f"training step, batch 2, {size[0]}x{size[1]}: median s"
    return table(["subnet", "extracted", "supernet", "ratio"], rows, title)


def main() -> None:
    options, console = start(arguments(__doc__, repeat=9, size=(288, 576)))
    torch.manual_seed(0)
    console.print(inference(tuple(options.size), options.repeat))
    console.print(steps((192, 384), options.repeat))


if __name__ == "__main__":
    main()
