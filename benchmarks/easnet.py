"""EASNet on the CPU: inference against the network run plainly, and the price of being elastic.

    python -m benchmarks.easnet [--threads 2] [--size 288 576]

Plainly is eager, float32, NCHW, batch norms of their own and torchvision's deformable convolution.
A supernet's step is activate, forward, loss and backward; the extracted network's the same without
activate. The forms take turns.
"""

from __future__ import annotations

import argparse
import random
from functools import partial
from statistics import median
from unittest import mock

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torchvision.ops import deform_conv2d

from benchmarks._machine import machine, seconds
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


def _settled(net: nn.Module) -> nn.Module:
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
    table = Table(title=f"inference, batch 1, {size[0]}x{size[1]}: median ms")
    for column in ("subnet", "plain", "float32", "times", "difference", "bfloat16", "× float32"):
        table.add_column(column, justify="left" if column == "subnet" else "right")
    table.add_column("bfloat16 difference, px", justify="right")
    views = torch.rand(2, 1, 3, *size).unbind()
    for name in ("easnet", "easnet_extended"):
        supernet = create_model(name)
        space = search_space(supernet)
        for kind, architecture in (("largest", space.largest()), ("smallest", space.smallest())):
            net = _settled(extract(supernet, architecture))
            fast, half = optimize(net), optimize(net, torch.bfloat16)
            forms = {
                "plain": lambda net=net: _plainly(net, *views),
                "float32": lambda fast=fast: fast(*views),
                "bfloat16": lambda half=half: half(*views),
            }
            with torch.inference_mode():
                found = {form: run() for form, run in forms.items()}
                times = {form: [] for form in forms}
                for _ in range(repeat):
                    for form, run in forms.items():
                        times[form].append(seconds(run))
            wanted = found["plain"]
            ms = {form: 1000 * median(values) for form, values in times.items()}
            table.add_row(
                f"{name}, {kind}",
                f"{ms['plain']:.0f}",
                f"{ms['float32']:.0f}",
                f"{ms['plain'] / ms['float32']:.2f}",
                f"{(found['float32'] - wanted).norm() / wanted.norm():.0e}",
                f"{ms['bfloat16']:.0f}",
                f"{ms['float32'] / ms['bfloat16']:.2f}",
                f"{(found['bfloat16'] - wanted).abs().mean():.3f}",
            )
    return table


def steps(size: tuple[int, int], repeat: int) -> Table:
    """Seconds of a training step of a subnet within the supernet and extracted."""
    table = Table(title=f"training step, batch 2, {size[0]}x{size[1]}: median s")
    for column in ("subnet", "extracted", "supernet", "ratio"):
        table.add_column(column, justify="left" if column == "subnet" else "right")
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
            forms = (
                partial(step, plain),
                partial(elastic_step, supernet, architecture),
            )
            for form in forms:
                form()
            pairs = []
            for _ in range(repeat):
                activate(supernet, space.sample(rng))  # so that activating changes something
                pairs.append(tuple(map(seconds, forms)))
            ratio = median(elastic / extracted for extracted, elastic in pairs)
            row = (*(median(times) for times in zip(*pairs, strict=True)), ratio)
            table.add_row(f"{name}, {kind}", *(f"{value:.3f}" for value in row))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--size", type=int, nargs=2, default=(288, 576), metavar=("H", "W"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    console = Console(width=120)
    console.print(machine())
    console.print(inference(tuple(options.size), options.repeat))
    console.print(steps((192, 384), options.repeat))


if __name__ == "__main__":
    main()
