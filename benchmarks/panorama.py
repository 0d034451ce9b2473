"""SphereDepth: its convolution against the plain form, and the whole network's time and memory.

    python -m benchmarks.panorama [--level 6] [--channels 64] [--threads 2] [--repeat 9]
        [--networks 7,0 6,1 5,2] [--sizes 512x1024 1024x2048] [--device cpu] [--no-memory]

The plain form holds features as (N, C, F), gathers the neighbours of all faces with one
`index_select`, stacks the four combinations and multiplies them by the weights with `conv2d`;
autograd derives its backward pass. Both take turns, so that a busy machine disturbs both alike:
least milliseconds of each, their ratio, and the memory that a pass takes at its peak beyond what
a fresh process held before (outside Linux and CUDA: 0). The floor is what the matrix products alone
take at the rate that a large one reaches here, and what reading and writing each tensor once takes
at the rate of a copy. Networks run as `vizoo infer panorama` runs them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks._machine import apart, arguments, copy_rate, gemm_rate, in_turns, start, table
from vizoo.common.counts import count
from vizoo.common.memory import PeakMemory
from vizoo.common.timing import milliseconds
from vizoo.panorama.layers import Ring, ring_tables
from vizoo.panorama.mesh import face_count
from vizoo.panorama.spheredepth import SphereDepthNet
from vizoo.vision.inference import optimize
from vizoo.vision.ops import mesh_convolution

Pass = Callable[[], object]


def plain_convolution(features: Tensor, weight: Tensor, bias: Tensor, neighbours: Tensor) -> Tensor:
    """(N, C, F) to (N, C_out, F), all faces at once."""
    near = features.index_select(2, neighbours.flatten()).unflatten(2, neighbours.shape)
    terms = (
        features,
        near.sum(3),
        (near.roll(-1, 3) - near).abs().sum(3),
        (near - features[..., None]).abs().sum(3),
    )
    return F.conv2d(torch.stack(terms, 3), weight[:, :, None], bias)[..., 0]


def convolution(form: str, level: int, channels: int, device: torch.device) -> tuple[Pass, Pass]:
    """What runs one layer forward without and with what gradients need."""
    torch.manual_seed(0)
    neighbours, inverse = ring_tables(Ring(level), device)
    features = torch.randn(1, face_count(level), channels, device=device)
    weight = torch.randn(channels, channels, 4, device=device) / (4 * channels) ** 0.5
    bias = torch.randn(channels, device=device)
    function, tables = mesh_convolution, (neighbours, inverse)
    if form == "plain":
        features = features.mT.contiguous()
        function, tables = plain_convolution, (neighbours.long(),)
    run = partial(function, *(x.requires_grad_() for x in (features, weight, bias)), *tables)
    return torch.no_grad()(run), run


def gradients(form: str, level: int, channels: int, device: torch.device) -> tuple[Pass, Pass]:
    """What runs forward, and then backward on its own."""
    _, run = convolution(form, level, channels, device)
    kept: list[Tensor] = []

    def backward() -> None:
        out = kept.pop()
        out.backward(torch.ones_like(out))

    return lambda: kept.append(run()), backward


def convolution_peak(form: str, what: str, level: int, *more: object) -> float:
    """Megabytes of one pass, output and gradients included."""
    for step in (2, level):  # the first time to load what is needed
        forward, training = convolution(form, step, *more)
        with PeakMemory(more[-1]) as memory:
            out = forward() if what == "forward" else training()
            if what == "both":
                out.backward(torch.ones_like(out))
        del out
    return memory.bytes / 2**20


def convolutions(options: argparse.Namespace, device: torch.device) -> Table:
    level, channels = options.level, options.channels
    times: dict[str, dict[str, list[float]]] = {}
    for _ in range(options.repeat + 1):
        for form in ("plain", "ours"):
            taken = times.setdefault(form, {"forward": [], "backward": []})
            forward, _ = convolution(form, level, channels, device)
            taken["forward"].append(milliseconds(forward, device))
            before, backward = gradients(form, level, channels, device)
            before()
            taken["backward"].append(milliseconds(backward, device))
    rows = []
    least = {form: {k: min(v[1:]) for k, v in taken.items()} for form, taken in times.items()}
    macs, size = 4 * face_count(level) * channels**2, 4 * face_count(level) * channels
    # Forward reads a face and its neighbours and writes; backward does the same, both gradients,
    # and one value a neighbour there and back.
    for what, memory, products, tensors in (
        ("forward", "forward", 1, 5),
        ("backward", "both", 2, 12),
    ):
        floor = "-"
        if device.type == "cpu":
            floor = f"{1e3 * (products * macs / gemm_rate() + tensors * size / copy_rate()):.0f}"
        peaks = [
            apart(convolution_peak, form, memory, level, channels, device) if options.memory else 0
            for form in ("plain", "ours")
        ]
        plain, ours = least["plain"][what], least["ours"][what]
        share = f"{peaks[1] / peaks[0]:.2f}" if peaks[0] else "-"
        figures = [f"{plain:.1f}", f"{ours:.1f}", f"{plain / ours:.2f}", floor]
        rows.append([what, *figures, *(f"{peak:.0f}" for peak in peaks), share])
    columns = ["pass", "plain, ms", "ours, ms", "times", "floor, ms", "plain, MB", "ours, MB"]
    title = f"Mesh convolution, level {level}, {channels} channels, kernel 3, batch 1"
    shown = table([*columns, "share"], rows, title)
    shown.caption = "memory of the backward pass: forward and backward together"
    return shown


def network(level: int, texture_level: int, device: torch.device) -> nn.Module:
    return optimize(SphereDepthNet(mesh_level=level, texture_level=texture_level).eval().to(device))


@torch.inference_mode()
def network_peak(
    level: int, texture_level: int, size: tuple[int, int], device: torch.device
) -> float:
    net = network(level, texture_level, device)
    net(torch.rand(1, 3, 16, 32, device=device))
    image = torch.rand(1, 3, *size, device=device)
    with PeakMemory(device) as memory:
        net(image)
    return memory.bytes / 2**20


@torch.inference_mode()
def networks(options: argparse.Namespace, device: torch.device) -> Table:
    rows = []
    sizes = [tuple(map(int, text.split("x"))) for text in options.sizes]
    pairs = [tuple(map(int, text.split(","))) for text in options.networks]
    for level, texture_level in pairs:
        net = network(level, texture_level, device)
        images = {size: torch.rand(1, 3, *size, device=device) for size in sizes}
        calls = {size: partial(net, image) for size, image in images.items()}
        times = in_turns(calls, options.repeat, partial(milliseconds, device=device))
        with torch.device("meta"):
            shape = SphereDepthNet(mesh_level=level, texture_level=texture_level)
            macs = count(shape, torch.rand(1, 3, *sizes[0])).macs
        row = []
        for size in sizes:
            row.append(f"{min(times[size]):.0f}")
            given = level, texture_level, size, device
            row.append(f"{apart(network_peak, *given):.0f}" if options.memory else "-")
        place = f"{level}, {texture_level}"
        rows.append([place, f"{face_count(level)}", f"{macs / 1e9:.1f}", *row])
    columns = ["L, k", "faces", "GMAC", *(f"{h}x{w}, {u}" for h, w in sizes for u in ("ms", "MB"))]
    title = "SphereDepth, ResNet-18's widths, batch 1: least ms of a panorama, peak MB"
    return table(columns, rows, title)


def main() -> None:
    parser = arguments(__doc__, level=6, channels=64, repeat=9, device="cpu")
    parser.add_argument("--networks", nargs="*", default=["7,0", "6,1", "5,2"], metavar="L,K")
    parser.add_argument("--sizes", nargs="+", default=["512x1024", "1024x2048"], metavar="HxW")
    parser.add_argument("--no-memory", dest="memory", action="store_false", help="times only")
    options, console = start(parser)
    device = torch.device(options.device)
    console.print(f"{device}; {gemm_rate() / 1e9:.0f} GMAC/s, {copy_rate() / 1e9:.0f} GB/s")
    console.print(convolutions(options, device))
    if options.networks:
        console.print(networks(options, device))


if __name__ == "__main__":
    main()
