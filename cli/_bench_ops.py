"""`vizoo bench ops`: the operators against what the machine could do, and against PyTorch.

The floor of an operator is the time that its inputs and outputs take at the rate at which this
machine copies, or its arithmetic at the rate at which it multiplies matrices, whichever is longer.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ..common.memory import PeakMemory
from ..common.progress import progress
from ..common.timing import milliseconds
from ..vision.ops import (
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
from ..vision.ops._kernels import implementation
from ..vision.ops.correlation import _correlation_2d_plain, _correlation_plain, _grouped_plain
from ..vision.ops.epipolar import _plain as _epipolar_plain
from ..vision.ops.mesh import _plain as _mesh_plain
from ..vision.ops.regression import _soft_argmin
from ..vision.ops.volume import _plain as _concat_plain
from ..vision.ops.warp import _warp
from ._work import warn


@dataclass
class _Case:
    """One operator at one size, in standard operators too, and the inputs to differentiate by.

    It takes so many multiplications and additions forward, backward twice as many, and reads
    `others`, bytes, beside the inputs.
    """

    name: str
    size: str
    call: Callable[..., Tensor]
    plain: Callable[..., Tensor]
    inputs: list[Tensor]
    operations: float
    others: int = 0


@dataclass(frozen=True)
class _Maps:
    """Makes random maps of a device and type, each side divided by `shrink`."""

    device: torch.device
    dtype: torch.dtype
    shrink: int

    def __call__(self, *shape: int) -> Tensor:
        shape = *shape[:-2], shape[-2] // self.shrink, shape[-1] // self.shrink
        return torch.randn(shape, device=self.device, dtype=self.dtype)


def cases(device: torch.device, dtype: torch.dtype, shrink: int) -> Iterator[Callable[[], _Case]]:
    """For each case what makes it, so that only one is held at a time; `shrink` divides sides."""
    maps = _Maps(device, dtype, shrink)
    return (partial(build, maps) for build in _CASES)


def _size(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape))


def _pair(
    function: Callable[..., Tensor],
    plain: Callable[..., Tensor],
    shape: tuple[int, ...],
    arguments: tuple[int, ...],
    places: int,
    maps: _Maps,
) -> _Case:
    left, right = maps(*shape), maps(*shape)
    return _Case(
        function.__name__,
        f"{_size(left)}, {','.join(map(str, arguments))}",
        lambda a, b: function(a, b, *arguments),
        lambda a, b: plain(a, b, *arguments),
        [left, right],
        2 * places * left.numel(),
    )


def _epipolar(
    channels: int, height: int, width: int, levels: int, radius: int, texels: float, maps: _Maps
) -> _Case:
    """Four pairs; a pixel reads `texels` distinct texels of a view on average."""
    reference = maps(1, channels, height, width).contiguous(memory_format=torch.channels_last)
    height, width = reference.shape[2:]
    sizes = [(height >> p, width >> p) for p in range(levels)]
    pyramid = [reference.new_empty(4, *size, channels).normal_() for size in sizes]
    pyramid = [x.permute(0, 3, 1, 2)[None] for x in pyramid]
    rows, columns = (torch.arange(n, device=maps.device) for n in (height, width))
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    base = torch.stack((x, y)).float().expand(1, 4, 2, -1, -1).contiguous()
    along = F.normalize(torch.randn(1, 4, 2, 1, 1, device=maps.device), dim=2)
    lines = base, along.expand_as(base).contiguous(), torch.randn_like(base[:, :, 0])
    return _Case(
        "epipolar_correlation",
        f"4 pairs, {channels}x{height}x{width}, {levels} levels, {radius}",
        lambda r, *p: epipolar_correlation(r, p, *lines, radius),
        lambda r, *p: _epipolar_plain(r, p, lines, radius),
        [reference, *pyramid],
        2 * 4 * texels * reference.numel(),
        sum(x.nbytes for x in lines),
    )


def _regression(maps: _Maps) -> _Case:
    cost = maps(1, 64, 192, 320)
    plain = partial(_soft_argmin, start=0.0, step=1.0)
    return _Case("soft_argmin", _size(cost), soft_argmin, plain, [cost], 0.0)


def _warping(maps: _Maps) -> _Case:
    image = maps(1, 32, 192, 320)
    ramp = torch.linspace(0, 40, image.shape[3], device=maps.device)
    disparity = ramp.expand(1, 1, *image.shape[2:]).contiguous()
    plain = partial(_warp, padding="border", align_corners=True)
    given = [image, disparity]
    return _Case("warp_by_disparity", _size(image), warp_by_disparity, plain, given, 0.0)


def _mesh(maps: _Maps) -> _Case:
    faces, channels = 20 * 4**6 // maps.shrink**2, 64
    near = ((torch.arange(faces)[:, None] + torch.tensor([1, 5, 9])) % faces).int()
    near, inverse = near.to(maps.device), inverse_table(near, faces).to(maps.device)
    shapes = (1, faces, channels), (channels, channels, 4), (channels,)
    return _Case(
        "mesh_convolution",
        f"{faces} faces, {channels} channels",
        lambda x, weight, bias: mesh_convolution(x, weight, bias, near, inverse),
        lambda x, weight, bias: _mesh_plain(x, weight, bias, near),
        [torch.randn(shape, device=maps.device, dtype=maps.dtype) for shape in shapes],
        8 * faces * channels**2,
        near.nbytes,
    )


_ONE = partial(_pair, correlation, _correlation_plain)
_CASES = (
    partial(_ONE, (1, 256, 72, 120), (41,), 41),  # FADNet
    partial(_ONE, (4, 256, 72, 120), (41,), 41),
    partial(_ONE, (1, 64, 192, 320), (64,), 64),  # EASNet
    partial(_pair, group_wise_correlation, _grouped_plain, (1, 320, 144, 240), (48, 40), 48),
    partial(_epipolar, 128, 72, 96, 4, 4, 50.7),  # DispMVS, coarse and fine
    partial(_epipolar, 96, 288, 384, 2, 2, 21.7),
    partial(_pair, concat_volume, _concat_plain, (1, 32, 144, 240), (48,), 0),
    _regression,
    _warping,
    _mesh,
    partial(_pair, correlation_2d, _correlation_2d_plain, (1, 128, 96, 112), (4,), 81),
)


_TURN = 256 << 20
"""Bytes that calls on a GPU go through before inputs come again: its caches hold none by then."""
_AHEAD = 20_000_000
"""Cycles for which the GPU waits, about 10 ms, while Python starts what is measured."""
_COLUMNS = ("floor us", "ours us", "of floor", "compiled us", "ratio", "peak MB", "out MB")
_CALLS = 1000
_IN_GRAPH = 100


def run(device: torch.device, dtype: torch.dtype, seconds: float) -> int:
    """Measure each operator for so long, print two lines for it, then what a launch takes.

    On the CPU only references are measured, at a fraction of the sizes.
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
    builders = list(cases(device, dtype, 1 if cuda else 4))
    with progress() as report:
        for done, build in enumerate(builders):
            for line in _lines(build(), copies, products, seconds):
                print(line, flush=True)
            report("operators", done + 1, len(builders))
    if cuda:
        print(_launches(device, dtype))
    return 0


def _lines(case: _Case, copies: float, products: float, seconds: float) -> Iterator[str]:
    """The forward and the backward pass."""
    device = case.inputs[0].device
    torch.compiler.reset()  # else a size seen before makes the next one dynamic
    compiled = torch.compile(case.plain, dynamic=False) if device.type == "cuda" else None
    with torch.no_grad():
        size = case.call(*case.inputs).nbytes
    held = sum(x.nbytes for x in case.inputs)
    copied = -(-_TURN // (held + size)) if device.type == "cuda" else 1
    sets = [case.inputs, *([x.clone() for x in case.inputs] for _ in range(copied - 1))]
    for backward in (False, True):
        factor = 2 if backward else 1
        traffic = factor * held + size + case.others
        floor = max(traffic / copies, factor * case.operations / products)
        peak = _extra(_work(case.call, sets[:1], backward), device)
        ours = _time(_work(case.call, sets, backward), device, seconds, copied)
        other = math.nan
        if compiled:
            other = _time_compiled(compiled, case.name, sets, backward, seconds)
        times = (1e6 * floor, 1e6 * ours, floor / ours, 1e6 * other, other / ours)
        cells = "".join(f"{x:12.2f}" for x in (*times, peak / 1e6, size / 1e6))
        yield f"{case.name:<24}{case.size:<36}{'backward' if backward else 'forward':<9}{cells}"


def _time_compiled(
    compiled: Callable[..., Tensor],
    name: str,
    sets: list[list[Tensor]],
    backward: bool,
    seconds: float,
) -> float:
    """NaN, and a warning, where the compiler fails: the other figures stand without it."""
    try:
        # Buffers that the backward pass gives away would let it run once only.
        with torch._functorch.config.patch(donated_buffer=False):
            return _time(_work(compiled, sets, backward), sets[0][0].device, seconds, len(sets))
    except Exception as error:
        reason = str(error).strip().splitlines()[:1]
        warn(f"{name}: torch.compile: {type(error).__name__}: {''.join(reason)}")
        return math.nan


def _work(
    function: Callable[..., Tensor], sets: list[list[Tensor]], backward: bool
) -> Callable[[], Sequence[object]]:
    """What to time: a call for each set of inputs, whose results are all held till the last."""
    given = [[x.detach().requires_grad_(backward) for x in inputs] for inputs in sets]
    if not backward:
        return torch.no_grad()(lambda: [function(*inputs) for inputs in given])
    outs = [function(*inputs) for inputs in given]
    calls = list(zip(outs, given, [torch.randn_like(x) for x in outs], strict=True))
    return lambda: [torch.autograd.grad(*call, retain_graph=True) for call in calls]


def _extra(work: Callable[[], object], device: torch.device) -> int:
    """Bytes at the peak of the second call beyond what was held before it."""
    work()  # may compile, and keeps workspaces
    if device.type != "cuda":
        with PeakMemory(device) as peak:
            work()
        return peak.bytes
    # What was asked for: the allocator gives out up to a megabyte more, as its blocks come.
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_stats(device)["requested_bytes.all.current"]
    work()
    return torch.cuda.memory_stats(device)["requested_bytes.all.peak"] - before


def _time(
    work: Callable[[], object], device: torch.device, seconds: float, calls: int = 1
) -> float:
    """Median seconds of one of the calls that `work` makes, over at least five repetitions."""
    times: list[float] = []
    work()
    end = time.perf_counter() + seconds
    if device.type != "cuda":
        while len(times) < 5 or time.perf_counter() < end:
            times.append(milliseconds(work) / 1e3)
        return statistics.median(times) / calls
    with torch.cuda.device(device):
        while len(times) < 5 or time.perf_counter() < end:
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(_AHEAD)
            first.record()
            held = work()
            last.record()
            last.synchronize()
            times.append(first.elapsed_time(last) / 1e3)
            del held
    return statistics.median(times) / calls


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


def _launches(device: torch.device, dtype: torch.dtype) -> str:
    """What calling an operator takes on the CPU, beside one that does nothing."""

    @torch.library.custom_op("vizoo_bench::nothing", mutates_args=())
    def nothing(left: Tensor, right: Tensor, displacements: int) -> Tensor:
        return torch.empty_like(left)

    left = torch.randn(1, 8, 4, 8, device=device, dtype=dtype)
    with torch.no_grad(), torch.cuda.device(device):
        empty, ours = (_call_time(x, left) for x in (nothing, torch.ops.vizoo.correlation))
        side = torch.cuda.Stream(device)
        with torch.cuda.stream(side):
            torch.ops.vizoo.correlation(left, left, 4)
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(_IN_GRAPH):
                torch.ops.vizoo.correlation(left, left, 4)
        replay = 1e6 * _time(graph.replay, device, 0.2) / _IN_GRAPH
    return (
        f"a call from Python: {ours:.1f} us, of an empty operator {empty:.1f} us, difference "
        f"{ours - empty:.1f} us; in a CUDA graph {replay:.1f} us a kernel, from launch to launch"
    )


def _call_time(function: Callable[..., Tensor], left: Tensor) -> float:
    """Microseconds that Python takes for a call."""
    for _ in range(_CALLS // 10):
        function(left, left, 4)
    torch.cuda.synchronize(left.device)
    start = time.perf_counter()
    for _ in range(_CALLS):
        function(left, left, 4)
    return 1e6 * (time.perf_counter() - start) / _CALLS
