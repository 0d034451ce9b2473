"""`vizoo bench ops`: the operators against what the machine could do, and against PyTorch.

The floor of an operator is the time that its inputs and outputs take at the rate at which this
machine copies, or its arithmetic at the rate at which it multiplies matrices, whichever is longer.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ..memory import PeakMemory
from ..ops import (
    concat_volume,
    correlation,
    correlation_2d,
    epipolar_correlation,
    group_wise_correlation,
    inverse_table,
    mesh_convolution,
    soft_argmin,
    warp_by_disparity,
)
from ..ops._kernels import implementation
from ..ops.correlation import _correlation_2d_plain, _correlation_plain
from ..ops.epipolar import _plain as _epipolar_plain
from ..ops.mesh import _plain as _mesh_plain
from ..ops.regression import _soft_argmin
from ..ops.volume import _plain as _concat_plain
from ..ops.warp import _warp
from ._work import progress

__all__ = ["run"]

_FLUSH = 256 << 20
"""Bytes written between two repetitions on a GPU, so that nothing is left in its caches."""
_COLUMNS = ("floor us", "ours us", "of floor", "compiled us", "ratio", "peak MB", "out MB")


@dataclass
class Case:
    """One operator at one size.

    Attributes:
        name: of the operator.
        size: what a line says of it.
        call: takes the tensors that are differentiated.
        plain: the same in standard operators, to be compiled.
        inputs: those tensors.
        operations: multiplications and additions forward; backward they are twice as many.
        others: bytes that are read beside the inputs.
    """

    name: str
    size: str
    call: Callable[..., Tensor]
    plain: Callable[..., Tensor]
    inputs: list[Tensor]
    operations: float
    others: int = 0


def run(device: torch.device, dtype: torch.dtype, seconds: float) -> int:
    """Measure and print two lines for each operator, and what a launch takes.

    Args:
        device: where to measure; on the CPU at a fraction of the sizes, references only.
        dtype: of the features.
        seconds: how long to measure each.
    """
    cuda = device.type == "cuda"
    taken, why = implementation(device)
    copies, products = _copy_rate(device), _product_rate(device, dtype)
    name = torch.cuda.get_device_name(device) if cuda else "CPU"
    print(f"{name}, torch {torch.__version__}, {str(dtype)[6:]}; operators: {taken} ({why})")
    print(f"copies {copies / 1e9:.0f} GB/s, matrix products {products / 1e12:.2f} TFLOP/s")
    if not cuda:
        print("no GPU: the references are measured, at a fraction of the published sizes")
    print(f"{'operator':<24}{'size':<36}{'':<9}" + "".join(f"{c:>12}" for c in _COLUMNS))
    builders = list(_cases(device, dtype, 1 if cuda else 4))
    with progress() as report:
        for done, build in enumerate(builders):
            for line in _lines(build(), copies, products, seconds):
                print(line, flush=True)
            report("operators", done + 1, len(builders))
    if cuda:
        print(_launches(device))
    return 0


def _lines(case: Case, copies: float, products: float, seconds: float) -> Iterator[str]:
    device = case.inputs[0].device
    compiled = torch.compile(case.plain) if device.type == "cuda" else None
    for backward in (False, True):
        work, out = _work(case.call, case.inputs, backward)
        factor = 2 if backward else 1
        traffic = factor * sum(x.nbytes for x in case.inputs) + out.nbytes + case.others
        floor = max(traffic / copies, factor * case.operations / products)
        work()  # compiles the kernel
        held = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
        with PeakMemory(device) as peak:
            work()
        ours = _time(work, device, seconds)
        other = float("nan")
        if compiled is not None:
            other = _time(_work(compiled, case.inputs, backward)[0], device, seconds)
        numbers = (1e6 * floor, 1e6 * ours, floor / ours, 1e6 * other, other / ours)
        numbers = (*numbers, (peak.bytes - held) / 1e6, out.nbytes / 1e6)
        cells = "".join(f"{x:12.2f}" for x in numbers)
        yield f"{case.name:<24}{case.size:<36}{'backward' if backward else 'forward':<9}{cells}"


def _work(
    function: Callable[..., Tensor], inputs: list[Tensor], backward: bool
) -> tuple[Callable[[], object], Tensor]:
    """What to time, and the function's result."""
    given = [x.detach().requires_grad_(backward) for x in inputs]
    if not backward:
        return torch.no_grad()(lambda: function(*given)), torch.no_grad()(function)(*given)
    out = function(*given)
    share = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, given, share, retain_graph=True), out


def _time(work: Callable[[], object], device: torch.device, seconds: float) -> float:
    """Median seconds of a call, at least five of them."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    work()
    if device.type != "cuda":
        while len(times) < 5 or time.perf_counter() < end:
            start = time.perf_counter()
            work()
            times.append(time.perf_counter() - start)
        return statistics.median(times)
    flush = torch.empty(_FLUSH, dtype=torch.uint8, device=device)
    while len(times) < 5 or time.perf_counter() < end:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        flush.zero_()  # while it runs the CPU gets ahead, so that launching is not measured
        first.record()
        work()
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last) / 1e3)
    return statistics.median(times)


def _copy_rate(device: torch.device) -> float:
    """Bytes read and written per second."""
    source = torch.ones(1 << (28 if device.type == "cuda" else 23), device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _time(lambda: target.copy_(source), device, 0.2)


def _product_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations per second."""
    side = 8192 if device.type == "cuda" else 512
    a = torch.randn(side, side, device=device).to(dtype)
    return 2 * side**3 / _time(lambda: a @ a, device, 0.2)


def _cases(device: torch.device, dtype: torch.dtype, shrink: int) -> Iterator[Callable[[], Case]]:
    """The sizes of published networks, each side divided by `shrink`."""

    def features(*shape: int, count: int = 1) -> list[Tensor]:
        shape = *shape[:-2], shape[-2] // shrink, shape[-1] // shrink
        return [torch.randn(shape, device=device, dtype=dtype) for _ in range(count)]

    def pair(function, plain, shape, arguments, places):
        left, right = features(*shape, count=2)
        size = f"{'x'.join(map(str, left.shape))}, {','.join(map(str, arguments))}"
        calls = (lambda a, b, f=f: f(a, b, *arguments) for f in (function, plain))
        return Case(function.__name__, size, *calls, [left, right], 2 * places * left.numel())

    def grouped(left, right, displacements, groups):
        left, right = (x.unflatten(1, (groups, -1)).flatten(0, 1) for x in (left, right))
        return _correlation_plain(left, right, displacements).unflatten(0, (-1, groups))

    def line_case(channels, height, width, levels, radius):
        (reference,) = features(1, channels, height, width)
        height, width = reference.shape[2:]
        pyramid = [reference.new_empty(4, height >> p, width >> p, channels) for p in range(levels)]
        pyramid = [x.normal_().permute(0, 3, 1, 2)[None] for x in pyramid]
        y, x = torch.meshgrid(
            torch.arange(height, device=device), torch.arange(width, device=device), indexing="ij"
        )
        base = torch.stack((x, y)).float().expand(1, 4, 2, -1, -1).contiguous()
        along = torch.nn.functional.normalize(torch.randn(1, 4, 2, 1, 1, device=device), dim=2)
        lines = base, along.expand_as(base).contiguous(), torch.randn_like(base[:, :, 0])
        reference = reference.contiguous(memory_format=torch.channels_last)
        size = f"4 pairs, {channels}x{height}x{width}, {levels} levels, {radius}"
        # On average: distinct texels of a pixel and view.
        texels = 50.7 if levels == 4 else 21.7
        return Case(
            "epipolar_correlation",
            size,
            lambda r, *p: epipolar_correlation(r, p, *lines, radius),
            lambda r, *p: _epipolar_plain(r, p, *lines, radius),
            [reference, *pyramid],
            2 * 4 * texels * reference.numel(),
            sum(x.nbytes for x in lines),
        )

    def regression_case():
        (cost,) = features(1, 64, 192, 320)
        size = "x".join(map(str, cost.shape))
        plain = partial(_soft_argmin, start=0.0, step=1.0)
        return Case("soft_argmin", size, soft_argmin, plain, [cost], 0.0)

    def warp_case():
        (image,) = features(1, 32, 192, 320)
        ramp = torch.linspace(0, 40, image.shape[3], device=device)
        disparity = ramp.expand(1, 1, *image.shape[2:]).contiguous()
        plain = partial(_warp, padding="border", align_corners=True)
        size = "x".join(map(str, image.shape))
        return Case("warp_by_disparity", size, warp_by_disparity, plain, [image, disparity], 0.0)

    def mesh_case():
        faces, channels = 20 * 4**6 // shrink**2, 64
        near = ((torch.arange(faces)[:, None] + torch.tensor([1, 5, 9])) % faces).int()
        near, inverse = near.to(device), inverse_table(near, faces).to(device)
        shapes = (1, faces, channels), (channels, channels, 4), (channels,)
        given = [torch.randn(shape, device=device, dtype=dtype) for shape in shapes]
        return Case(
            "mesh_convolution",
            f"{faces} faces, {channels} channels",
            lambda *x: mesh_convolution(*x, near, inverse),
            lambda *x: _mesh_plain(*x, near),
            given,
            8 * faces * channels**2,
            near.nbytes,
        )

    gwc = partial(pair, group_wise_correlation, grouped, (1, 320, 144, 240), (48, 40), 48)
    one = partial(pair, correlation, _correlation_plain)
    yield partial(one, (1, 256, 72, 120), (41,), 41)
    yield partial(one, (4, 256, 72, 120), (41,), 41)
    yield partial(one, (1, 64, 192, 320), (64,), 64)
    yield partial(pair, correlation_2d, _correlation_2d_plain, (1, 128, 96, 112), (4,), 81)
    yield gwc
    yield partial(pair, concat_volume, _concat_plain, (1, 32, 144, 240), (48,), 0)
    yield partial(line_case, 128, 72, 96, 4, 4)
    yield partial(line_case, 96, 288, 384, 2, 2)
    yield regression_case
    yield warp_case
    yield mesh_case


def _launches(device: torch.device) -> str:
    """What calling an operator takes on the CPU, beside one that does nothing."""

    @torch.library.custom_op("vizoo_bench::nothing", mutates_args=())
    def nothing(left: Tensor, right: Tensor, displacements: int) -> Tensor:
        return torch.empty_like(left)

    left = torch.randn(1, 8, 4, 8, device=device)
    taken = []
    for function in (nothing, torch.ops.vizoo.correlation):
        with torch.no_grad():
            for _ in range(100):
                function(left, left, 4)
            torch.cuda.synchronize(device)
            start = time.perf_counter()
            for _ in range(1000):
                function(left, left, 4)
            taken.append(1e6 * (time.perf_counter() - start) / 1000)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        for _ in range(100):
            torch.ops.vizoo.correlation(left, left, 4)
    replay = 1e6 * _time(graph.replay, device, 0.2) / 100
    empty, ours = taken
    return (
        f"a call from Python: {ours:.1f} us, of an empty operator {empty:.1f} us, difference "
        f"{ours - empty:.1f} us; in a CUDA graph {replay:.1f} us a kernel"
    )
