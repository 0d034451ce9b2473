"""The operators on a GPU, by their kernels, against the references in float64 on the CPU."""

from __future__ import annotations

import contextlib
import math
import warnings

import pytest
import torch
from torch import Tensor

from vizoo.vision import ops
from vizoo.vision.ops import _kernels, inverse_table

pytestmark = pytest.mark.gpu

TYPES = [torch.float32, torch.float16, torch.bfloat16]
TOLERANCE = {torch.float32: 5e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}


def everywhere(*tensors):
    """For each device's index (None for the CPU) copies, as a graph cannot record copying."""
    gpus = range(torch.cuda.device_count())
    return {None: tensors, **{i: [x.to(f"cuda:{i}") for x in tensors] for i in gpus}}


def pair(*shape):
    return [torch.randn(shape, dtype=torch.float64) for _ in range(2)]


def epipolar(batch, channels, height, width, views, levels, radius):
    reference = torch.randn(batch, channels, height, width, dtype=torch.float64)
    sizes = [(max(1, height >> p), max(1, width >> p)) for p in range(levels)]
    features = [torch.randn(batch, views, channels, *s, dtype=torch.float64) for s in sizes]
    shape = batch, views, 2, height, width
    base = torch.rand(shape) * torch.tensor([width, height]).view(2, 1, 1)
    direction = torch.nn.functional.normalize(torch.randn(shape), dim=2)
    lines = everywhere(base, direction, torch.randn(batch, views, height, width))

    def call(reference, *pyramid):
        return ops.epipolar_correlation(reference, pyramid, *lines[reference.device.index], radius)

    return call, [reference, *features]


def mesh(faces, channels, slots, stride, batch=2):
    features = torch.randn(batch, faces, channels, dtype=torch.float64)
    weight = torch.randn(6, channels, 4, dtype=torch.float64)
    inputs = [features, weight, torch.randn(6, dtype=torch.float64)]
    if slots is None:
        return ops.mesh_convolution, inputs
    own = torch.arange(faces)[::stride][:, None]
    table = (
        (own + torch.stack([torch.randperm(faces - 1)[:slots] + 1 for _ in own])) % faces
    ).int()
    tables = everywhere(table, inverse_table(table, faces))

    def call(features, weight, bias):
        return ops.mesh_convolution(features, weight, bias, *tables[features.device.index])

    return call, inputs


def warp(shape, padding, align_corners):
    whole = torch.randint(-2, 13, (shape[0], 1, *shape[2:]))
    disparity = whole + torch.randint(1, 8, whole.shape).double() / 8
    disparity[torch.rand(whole.shape) < 0.1] = 200

    def call(image, disparity):
        return ops.warp_by_disparity(image, disparity, padding=padding, align_corners=align_corners)

    return call, [torch.randn(shape, dtype=torch.float64), disparity]


# To the call on tensors of a device, and its inputs in float64.
CASES = {
    "correlation": lambda: (lambda a, b: ops.correlation(a, b, 41), pair(2, 130, 5, 77)),
    "correlation, deep": lambda: (lambda a, b: ops.correlation(a, b, 20), pair(1, 128, 3, 40)),
    "correlation, large": lambda: (lambda a, b: ops.correlation(a, b, 20), pair(4, 48, 64, 128)),
    "correlation, tiny": lambda: (lambda a, b: ops.correlation(a, b, 3), pair(1, 1, 1, 1)),
    "correlation, wide": lambda: (lambda a, b: ops.correlation(a, b, 200), pair(1, 32, 3, 96)),
    "groups": lambda: (lambda a, b: ops.group_wise_correlation(a, b, 48, 8), pair(2, 64, 6, 144)),
    "groups, deep": lambda: (
        lambda a, b: ops.group_wise_correlation(a, b, 9, 2),
        pair(1, 60, 3, 31),
    ),
    "square": lambda: (lambda a, b: ops.correlation_2d(a, b, 4), pair(2, 33, 9, 47)),
    "concat": lambda: (lambda a, b: ops.concat_volume(a, b, 24), pair(2, 8, 5, 64)),
    "concat, odd": lambda: (lambda a, b: ops.concat_volume(a, b, 50), pair(2, 3, 5, 33)),
    "soft argmin": lambda: (lambda x: ops.soft_argmin(x, start=2.0), [4 * pair(2, 70, 9, 33)[0]]),
    "warp": lambda: warp((2, 35, 5, 150), "border", True),
    "warp, as published": lambda: warp((2, 3, 6, 40), "zeros", False),
    "epipolar": lambda: epipolar(2, 128, 12, 16, 2, 4, 4),
    "epipolar, odd": lambda: epipolar(1, 35, 7, 9, 3, 6, 2),
    "epipolar, deep": lambda: epipolar(1, 200, 5, 9, 1, 1, 3),
    "mesh": lambda: mesh(80, 24, 3, 1),
    "mesh, nine": lambda: mesh(80, 33, 9, 4),
    "mesh, siblings": lambda: mesh(80, 8, None, 4),
}


# Likewise, without an image.
EMPTY = {
    "correlation": lambda: (lambda a, b: ops.correlation(a, b, 5), pair(0, 8, 3, 9)),
    "groups": lambda: (lambda a, b: ops.group_wise_correlation(a, b, 5, 2), pair(0, 8, 3, 9)),
    "square": lambda: (lambda a, b: ops.correlation_2d(a, b, 1), pair(0, 8, 3, 9)),
    "concat": lambda: (lambda a, b: ops.concat_volume(a, b, 5), pair(0, 8, 3, 9)),
    "soft argmin": lambda: (ops.soft_argmin, pair(0, 8, 3, 9)[:1]),
    "warp": lambda: warp((0, 8, 3, 9), "border", True),
    "epipolar": lambda: epipolar(0, 8, 5, 7, 2, 2, 1),
    "mesh": lambda: mesh(80, 8, 3, 1, batch=0),
}


@pytest.fixture(autouse=True)
def kernels_only(monkeypatch):
    """No falling back unnoticed."""
    monkeypatch.setenv("VIZOO_OPS", "cuda")


@contextlib.contextmanager
def references():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VIZOO_OPS", "torch")
        yield


def shifted(x: Tensor) -> Tensor:
    """At an address that nothing wider than a number fits."""
    return torch.cat((x.new_zeros(1), x.flatten()))[1:].view(x.shape)


def inputs(case, change=lambda x: x):
    call, given = CASES[case]()
    return call, [change(x.cuda()) for x in given]


def gradients(call, given):
    given = [x.detach().requires_grad_() for x in given]
    out = call(*given)
    share = torch.linspace(-1, 2, out.numel(), device=out.device).view(out.shape).to(out.dtype)
    return out.detach(), torch.autograd.grad(out, given, share)


def check(call, given, dtype):
    out, grads = gradients(call, given)
    with references():
        wanted, exact = gradients(call, [x.double().cpu() for x in given])
    # The reference gets the same share, rounded as the result's type rounds it.
    for found, right in zip((out, *grads), (wanted, *exact), strict=True):
        finite = right[right.isfinite()].abs()
        scale = max(1e-6, finite.max().item()) if finite.numel() else 1.0
        torch.testing.assert_close(
            found.double().cpu(),
            right.double(),
            rtol=0,
            atol=TOLERANCE[dtype] * scale,
            equal_nan=True,
        )


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("case", CASES)
def test_equals_reference(case, dtype):
    check(*inputs(case, lambda x: x.to(dtype)), dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("case", CASES)
def test_any_layout(case, dtype):
    def last(x: Tensor) -> Tensor:
        return x.movedim(-3, -1).contiguous().movedim(-1, -3) if x.dim() > 3 else x

    for change in (last, shifted, lambda x: torch.stack((x, x), -1)[..., 0]):
        check(*inputs(case, lambda x, change=change: change(x.to(dtype))), dtype)


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_left_unwritten(case):
    """With deterministic algorithms PyTorch fills what it allocates with NaN."""
    call, given = inputs(case, lambda x: x.float())
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        out, grads = call(*given), []
        if not case.startswith("epipolar"):  # whose gradients are then the reference's
            out, grads = gradients(call, given)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(x.isfinite().all() for x in (out, *grads))


@pytest.mark.parametrize("case", [c for c in CASES if not c.startswith("epipolar")])
def test_repeats_bit_for_bit(case):
    call, given = inputs(case, lambda x: x.float())
    one, other = (gradients(call, given) for _ in range(2))
    for a, b in zip((one[0], *one[1]), (other[0], *other[1]), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("case", CASES)
def test_nan_stays_where_it_is(case):
    call, given = inputs(case, lambda x: x.float())
    given[0].view(-1)[given[0].numel() // 2] = math.nan
    found = call(*given)
    with references():
        wanted = call(*(x.double().cpu() for x in given))
    assert torch.equal(found.isnan().cpu(), wanted.isnan())


@pytest.mark.parametrize("case", ["concat", "soft argmin", "mesh"])
def test_nan_in_the_gradient(case):
    """Reaches what the result was made from, and nothing else."""

    def lost(call, given):
        given = [x.detach().requires_grad_() for x in given]
        out = call(*given)
        share = torch.ones_like(out)
        share.view(-1)[out.numel() // 2] = math.nan
        return torch.autograd.grad(out, given, share)

    call, given = inputs(case, lambda x: x.float())
    found = lost(call, given)
    with references():
        wanted = lost(call, [x.double().cpu() for x in given])
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one.isnan().cpu(), other.isnan())


@pytest.mark.parametrize("case", EMPTY)
def test_empty_batch(case):
    call, given = EMPTY[case]()
    given = [x.float().cuda() for x in given]
    out, grads = gradients(call, given)
    assert len(out) == 0
    assert [x.shape for x in grads] == [x.shape for x in given]
    assert not any(x.any() for x in grads)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("case", CASES)
def test_runs_where_its_tensors_are(case):
    call, given = CASES[case]()
    given = [x.float().to("cuda:1") for x in given]
    assert torch.cuda.current_device() == 0
    check(call, given, torch.float32)
    assert call(*given).device.index == 1 and torch.cuda.current_device() == 0


def test_what_has_no_kernel_is_refused():
    left = torch.randn(1, 4, 3, 5)
    for given, message in (
        (left, "tensors on the CPU"),
        (left.double().cuda(), "no kernels for float64"),
    ):
        with pytest.raises(ValueError, match=message):
            ops.correlation(given, given, 2)


@pytest.mark.parametrize("case", CASES)
def test_compiles_whole(case):
    torch.compiler.reset()
    call, given = inputs(case, lambda x: x.float())
    out, grads = gradients(call, given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, others = gradients(torch.compile(call, fullgraph=True), given)
    torch.testing.assert_close((found, *others), (out, *grads), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_export_writes_standard_operators(case):
    class Wrapped(torch.nn.Module):
        def forward(self, *given):
            return call(*given)

    call, given = inputs(case, lambda x: x.float())
    with torch.no_grad():
        program = torch.export.export(Wrapped(), tuple(given))
        assert "vizoo" not in str(program.graph)
        torch.testing.assert_close(program.module()(*given), call(*given), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("case", CASES)
def test_cuda_graph(case):
    call, given = inputs(case, lambda x: x.float())
    with torch.no_grad():
        want = call(*given)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = call(*given)
        out.zero_()
        graph.replay()
    torch.testing.assert_close(out, want, rtol=0, atol=0)


@pytest.mark.parametrize("function", [lambda x: ops.correlation(x, 2 * x, 4), ops.soft_argmin])
def test_second_derivatives(function):
    def twice(x):
        x = x.detach().requires_grad_()
        slope = torch.autograd.grad(function(x).square().sum(), x, create_graph=True)[0]
        return torch.autograd.grad(slope.square().sum(), x)[0]

    given = torch.randn(1, 5, 2, 6, device="cuda")
    found = twice(given)
    with references():
        wanted = twice(given.double().cpu())
    torch.testing.assert_close(found.double().cpu(), wanted, rtol=1e-3, atol=1e-3)


def test_first_use_may_be_captured():
    left = torch.randn(1, 8, 3, 9, device="cuda")
    want = ops.correlation(left, left, 4)
    _kernels._load.cache_clear()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        out = ops.correlation(left, left, 4)
    graph.replay()
    assert torch.equal(out, want)


@pytest.mark.parametrize("name", ["correlation", "soft_argmin", "warp_by_disparity"])
def test_opcheck(name):
    left, right = (torch.randn(2, 4, 3, 7, device="cuda", requires_grad=True) for _ in range(2))
    overload = getattr(torch.ops.vizoo, name).default
    arguments = {
        "correlation": (left, right, 3),
        "soft_argmin": (left, 0.0, 1.0),
        "warp_by_disparity": (left, right[:, :1].detach(), "border", True),
    }[name]
    torch.library.opcheck(overload, arguments)


def test_autocast():
    left, right = (torch.randn(1, 8, 4, 9, device="cuda", requires_grad=True) for _ in range(2))
    with torch.autocast("cuda", torch.bfloat16):
        out = ops.correlation(left, right, 3)
        assert out.dtype == torch.bfloat16
        assert ops.soft_argmin(out).dtype == torch.float32
    out.float().sum().backward()
    assert left.grad.dtype == torch.float32


def test_runs_on_the_current_stream():
    left, right = (torch.randn(1, 64, 64, 256, device="cuda") for _ in range(2))
    want = ops.correlation(left, right, 40)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        late = left.clone()
        found = ops.correlation(late, right, 40)
    side.synchronize()
    assert torch.equal(found, want)


def test_epipolar_correlation_takes_little_memory():
    call, given = epipolar(1, 128, 72, 96, 4, 4, 4)
    last = [x.float().cuda().movedim(-3, -1).contiguous().movedim(-1, -3) for x in given]
    with torch.no_grad():
        out = call(*last)
        torch.cuda.reset_peak_memory_stats()
        # What is asked for: the allocator gives out up to a megabyte more, as its blocks come.
        before = torch.cuda.memory_stats()["requested_bytes.all.current"]
        call(*last)
    peak = torch.cuda.memory_stats()["requested_bytes.all.peak"]
    assert peak - before <= 1.05 * out.nbytes


def test_deterministic_algorithms_take_the_reference(monkeypatch):
    def fail(*arguments):
        raise AssertionError("the kernel adds atomically")

    monkeypatch.delenv("VIZOO_OPS")
    call, given = inputs("epipolar", lambda x: x.float())
    reference = given[0].requires_grad_()
    out = call(reference, *given[1:])
    monkeypatch.setattr(ops.epipolar, "launch", fail)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        out.sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    assert reference.grad is not None
