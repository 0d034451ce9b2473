"""Depthwise 3D convolutions on this machine's CPU, and CovidNet3D in inference and training.

    python -m benchmarks.depthwise3d [--threads 1] [--repeat 7] [--only NAME …]

Convolutions of one volume of CovidNet3D's shapes: in contiguous and in channels-last-3d memory; as
sums of 2D depthwise convolutions over the taps of depth (in channels-last memory, and with all
taps as outputs of one convolution); and packed by oneDNN with its activation, as inference runs
them. Then the gradient of their weights in float32 and bfloat16. Then a whole network, plain and
optimised. Milliseconds, the best of ``--repeat`` calls that take turns, so that other work on the
machine disturbs all alike.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks._machine import arguments, in_turns, seconds, start
from vizoo.vision.fused import FusedConv3d
from vizoo.vision.hub.create import create_model
from vizoo.vision.inference import optimize

# Channels, depth, height and width, kernel.
SHAPES = [(72, 8, 16, 3), (240, 4, 8, 5), (576, 2, 4, 7), (96, 16, 64, 3), (160, 8, 32, 5)]
SHAPES += [(96, 10, 64, 7)]
MIXED = [0, 8, 6, 3, 4, 8, 5, 2, 0, 8, 3, 6, 1, 8, 5, 4, 2, 8, 0, 3, 6]


def by_taps(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A 2D depthwise convolution for each tap of depth, added where it belongs."""
    depth, reach = x.shape[2], weight.shape[2] // 2
    slices = x[0].transpose(0, 1).contiguous(memory_format=torch.channels_last)
    total = bias.view(1, -1, 1, 1).expand_as(slices).clone(memory_format=torch.channels_last)
    for tap in range(weight.shape[2]):
        first, last = max(0, tap - reach), min(depth, depth + tap - reach)
        if first < last:
            part = F.conv2d(slices[first:last], weight[:, :, tap], None, 1, reach, 1, len(weight))
            total[first - tap + reach : last - tap + reach] += part
    return total.transpose(0, 1)[None]


def by_outputs(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """All taps of depth as outputs of one 2D depthwise convolution, then added."""
    depth, taps, reach = x.shape[2], weight.shape[2], weight.shape[2] // 2
    slices = x[0].transpose(0, 1).contiguous(memory_format=torch.channels_last)
    kernel = weight.flatten(0, 2)[:, None]
    parts = F.conv2d(slices, kernel, None, 1, reach, 1, len(weight)).unflatten(1, (-1, taps))
    total = bias.view(1, -1, 1, 1).expand_as(slices).clone(memory_format=torch.channels_last)
    for tap in range(taps):
        first, last = max(0, tap - reach), min(depth, depth + tap - reach)
        if first < last:
            total[first - tap + reach : last - tap + reach] += parts[first:last, :, tap]
    return total.transpose(0, 1)[None]


def warm_seconds(function: Callable[[], object]) -> float:
    function()  # what the others left in the caches should not matter
    return seconds(function)


@torch.no_grad()
def convolutions(repeat: int) -> None:
    """One line a shape and type: milliseconds of each form."""
    for dtype in (torch.float32, torch.bfloat16):
        for channels, depth, side, kernel in SHAPES:
            plain = torch.rand(1, channels, depth, side, side, dtype=dtype)
            last = plain.contiguous(memory_format=torch.channels_last_3d)
            weight = torch.randn(channels, 1, kernel, kernel, kernel, dtype=dtype) / kernel
            bias = torch.randn(channels, dtype=dtype)
            shape = {"padding": kernel // 2, "groups": channels}
            packed = FusedConv3d(weight, bias, **shape, dtype=dtype)
            forms = {
                "contiguous": lambda x=plain, w=weight, b=bias, s=shape: F.conv3d(x, w, b, **s),
                "channels-last": lambda x=last, w=weight, b=bias, s=shape: F.conv3d(x, w, b, **s),
                "2D by taps": lambda x=last, w=weight, b=bias: by_taps(x, w, b),
                "2D by outputs": lambda x=last, w=weight, b=bias: by_outputs(x, w, b),
                "packed": lambda x=last, net=packed: net(x),
            }
            wanted = forms["contiguous"]().float()
            for name, form in forms.items():
                error = (form().float() - wanted).norm() / wanted.norm()
                if error > (1e-5 if dtype == torch.float32 else 2e-2):
                    raise SystemExit(f"{name} differs by {error:.1e}")
            report(f"{channels}x{depth}x{side}x{side} k{kernel} {dtype}", forms, repeat)


def gradients(repeat: int) -> None:
    """One line a shape: milliseconds of forward and backward in both types and memory formats."""
    for channels, depth, side, kernel in SHAPES[:5]:
        forms = {}
        for dtype in (torch.float32, torch.bfloat16):
            plain = torch.rand(4, channels, depth, side, side, dtype=dtype)
            weight = torch.randn(channels, 1, kernel, kernel, kernel, dtype=dtype)
            weight.requires_grad_()
            for name, format in (
                ("contiguous", torch.contiguous_format),
                ("channels-last", torch.channels_last_3d),
            ):
                x = plain.contiguous(memory_format=format).requires_grad_()
                forms[f"{name} {str(dtype)[6:]}"] = lambda x=x, w=weight: torch.autograd.grad(
                    F.conv3d(x, w, None, padding=w.shape[-1] // 2, groups=len(w)).sum(), (x, w)
                )
        report(f"training 4x{channels}x{depth}x{side}x{side} k{kernel}", forms, repeat)


@torch.no_grad()
def networks(repeat: int) -> None:
    """One line a size: milliseconds of CovidNet3D-S for one volume."""
    net = create_model("covidnet3d_s", encoding=MIXED).eval()
    for depth, side in ((16, 64), (32, 128)):
        volume = torch.rand(1, 1, depth, side, side)
        last = volume.contiguous(memory_format=torch.channels_last_3d)
        fast, half = optimize(net), optimize(net, torch.bfloat16)
        forms = {
            "plain": lambda x=volume: net(x),
            "channels-last": lambda x=last: net(x),
            "optimised": lambda x=volume, f=fast: f(x),
            "optimised bfloat16": lambda x=volume, f=half: f(x),
        }
        report(f"covidnet3d_s {depth}x{side}x{side}", forms, repeat)


def report(title: str, forms: dict[str, Callable[[], object]], repeat: int) -> None:
    """Print one line: milliseconds of each form, the best of the turns."""
    times = in_turns(forms, repeat, warm_seconds)
    columns = ", ".join(f"{name} {1e3 * min(taken):.2f}" for name, taken in times.items())
    print(f"{title}: {columns}", flush=True)


PARTS = {"convolutions": convolutions, "gradients": gradients, "networks": networks}


def main() -> None:
    parser = arguments(__doc__, threads=1, repeat=7)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    options, _ = start(parser)
    torch.manual_seed(0)
    for name in options.only:
        PARTS[name](options.repeat)


if __name__ == "__main__":
    main()
