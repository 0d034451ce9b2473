"""The CUDA kernels and the code that starts them, run on the CPU by the system's C++ compiler.

Every thread of a block runs, with real barriers and shuffles, so that indices, borders, types and
layouts are those of a GPU; only its memory and its arithmetic units are not.
"""

from __future__ import annotations

import importlib
import math

import pytest
import torch
from kernel_emulator import Emulator, Guard, compiler, guarded
from torch import Tensor

from vizoo.vision import ops
from vizoo.vision.ops import _kernels, inverse_table
from vizoo.vision.ops._kernels import KERNELS

TYPES = [torch.float32, torch.float16, torch.bfloat16]
BASE, REGRESSION, WARP, VOLUME, EPIPOLAR, MESH = (
    importlib.import_module(f"vizoo.vision.ops.{name}")
    for name in ("correlation", "regression", "warp", "volume", "epipolar", "mesh")
)
HOSTS = (BASE, REGRESSION, WARP, VOLUME, EPIPOLAR, MESH)


@pytest.fixture(scope="module")
def built(request, tmp_path_factory) -> Emulator:
    found = compiler()
    if found is None:
        pytest.skip("no C++ compiler with _Float16 on this machine: the kernels were not run")
    cache = getattr(request.config, "cache", None)
    folder = cache.mkdir("vizoo_kernels") if cache else tmp_path_factory.mktemp("kernels")
    return Emulator(found, folder, KERNELS)


@pytest.fixture
def emulator(built, monkeypatch) -> Emulator:
    for module in HOSTS:
        monkeypatch.setattr(module, "launch", built)
    monkeypatch.setattr(BASE, "_MANY", 6)
    built.launched.clear()
    built.backwards = False
    return built


def pair(batch, channels, height, width):
    return [torch.randn(batch, channels, height, width, dtype=torch.float64) for _ in range(2)]


def lines(batch, views, height, width):
    shape = batch, views, 2, height, width
    base = torch.rand(shape, dtype=torch.float64) * torch.tensor([width, height]).view(2, 1, 1)
    direction = torch.nn.functional.normalize(torch.randn(shape, dtype=torch.float64), dim=2)
    flow = torch.randn(batch, views, height, width, dtype=torch.float64)
    # Kernels take places in float32; the reference shall see the same ones.
    return [x.float().double() for x in (base, direction, flow)]


def pyramid(batch, views, channels, height, width, levels):
    sizes = [(max(1, height >> p), max(1, width >> p)) for p in range(levels)]
    return [torch.randn(batch, views, channels, *s, dtype=torch.float64) for s in sizes]


def epipolar_case(batch, channels, height, width, views, levels, radius):
    reference = torch.randn(batch, channels, height, width, dtype=torch.float64)
    features = pyramid(batch, views, channels, height, width, levels)
    return [reference, features, lines(batch, views, height, width), radius, 1 << 20]


def mesh_case(batch, faces, channels, out, slots, stride):
    features = torch.randn(batch, faces, channels, dtype=torch.float64)
    weight = torch.randn(out, channels, 4, dtype=torch.float64)
    bias = torch.randn(out, dtype=torch.float64)
    if slots is None:
        return [features, weight, bias, None, None, 1 << 20]
    own = torch.arange(faces)[::stride][:, None]
    steps = torch.stack([torch.randperm(faces - 1)[:slots] + 1 for _ in own])
    table = ((own + steps) % faces).int()
    return [features, weight, bias, table, inverse_table(table, faces), 4000]


def warp_case(batch, channels, height, width, padding, align_corners):
    image = torch.randn(batch, channels, height, width, dtype=torch.float64)
    # Off the whole pixels, where the derivative jumps, in bfloat16 too; partly far outside.
    shape = batch, 1, height, width
    disparity = torch.randint(-2, 13, shape) + torch.randint(1, 8, shape).double() / 8
    disparity[torch.rand(shape) < 0.1] = width + 200
    return [image, disparity, padding, align_corners]


def by_autograd(function, differentiable):
    """Reference gradients of the first arguments, with that of the result put first."""

    def backward(gradient, *arguments):
        inputs = [x.detach().requires_grad_() for x in arguments[:differentiable]]
        out = function(*inputs, *arguments[differentiable:])
        return torch.autograd.grad(out, inputs, gradient)

    return backward


def mesh_backward(function):
    return lambda gradient, features, weight, bias, *rest: function(
        gradient, features, weight, *rest
    )


# Arguments, forward and backward kernels, forward and backward reference.
CORRELATION, GROUPED, SQUARE = (
    (forward, backward, exact, exact_backward)
    for exact, exact_backward, _, forward, backward in (
        BASE._CORRELATION,
        BASE._GROUPED,
        BASE._SQUARE,
    )
)
CONCAT = (VOLUME._forward_cuda, VOLUME._backward_cuda, VOLUME._forward, VOLUME._backward)
SOFT = (
    REGRESSION._forward_cuda,
    lambda *x: (REGRESSION._backward_cuda(*x),),
    REGRESSION._soft_argmin,
    by_autograd(REGRESSION._soft_argmin, 1),
)
WARPED = (
    WARP._forward_cuda,
    lambda *x: (WARP._backward_image_cuda(*x), WARP._backward_disparity_cuda(*x)),
    WARP._warp,
    by_autograd(WARP._warp, 2),
)
LINES = (EPIPOLAR._forward_cuda, EPIPOLAR._backward_cuda, EPIPOLAR._forward, EPIPOLAR._backward)
FACES = (
    MESH._forward_cuda,
    mesh_backward(MESH._backward_cuda),
    MESH._forward,
    mesh_backward(MESH._backward),
)
CASES = {
    "correlation": (CORRELATION, lambda: [*pair(2, 5, 3, 9), 6]),
    "correlation, one pixel": (CORRELATION, lambda: [*pair(1, 1, 1, 1), 1]),
    "correlation, wider than the image": (CORRELATION, lambda: [*pair(1, 20, 2, 36), 70]),
    "correlation, deep": (CORRELATION, lambda: [*pair(1, 120, 2, 40), 41]),
    "correlation, several blocks": (CORRELATION, lambda: [*pair(1, 24, 1, 161), 130]),
    "correlation, many pieces": (CORRELATION, lambda: [*pair(1, 34, 2, 100), 20]),
    "correlation, 64 channels": (CORRELATION, lambda: [*pair(1, 64, 2, 68), 36]),
    "groups": (GROUPED, lambda: [*pair(2, 12, 2, 37), 9, 3]),
    "groups, wide": (GROUPED, lambda: [*pair(1, 16, 2, 140), 50, 2]),
    "groups, deep": (GROUPED, lambda: [*pair(1, 80, 2, 35), 20, 2]),
    "square": (SQUARE, lambda: [*pair(2, 6, 5, 37), 2]),
    "square, larger than the image": (SQUARE, lambda: [*pair(1, 3, 2, 3), 4]),
    "square, one place": (SQUARE, lambda: [*pair(1, 40, 3, 5), 0]),
    "concat": (CONCAT, lambda: [*pair(2, 3, 3, 8), 6]),
    "concat, odd": (CONCAT, lambda: [*pair(2, 3, 3, 7), 40]),
    "soft argmin": (SOFT, lambda: [2 * pair(2, 7, 3, 5)[0], 2.0, 0.5]),
    "soft argmin, many": (SOFT, lambda: [pair(1, 70, 3, 5)[0], 0.0, 3.0]),
    "soft argmin, one": (SOFT, lambda: [pair(1, 1, 1, 1)[0], 1.0, 1.0]),
    "warp": (WARPED, lambda: warp_case(2, 4, 3, 7, "border", True)),
    "warp, several blocks": (WARPED, lambda: warp_case(1, 18, 2, 150, "zeros", True)),
    "warp, wider than what is staged": (WARPED, lambda: warp_case(1, 2, 1, 1060, "border", True)),
    "warp, as published": (WARPED, lambda: warp_case(2, 4, 4, 7, "zeros", False)),
    "warp, published border": (WARPED, lambda: warp_case(1, 3, 5, 6, "border", False)),
    "epipolar": (LINES, lambda: epipolar_case(2, 3, 6, 7, 2, 2, 2)),
    "epipolar, coarse": (LINES, lambda: epipolar_case(1, 128, 6, 8, 2, 4, 4)),
    "epipolar, six levels": (LINES, lambda: epipolar_case(1, 36, 5, 7, 1, 6, 1)),
    "epipolar, far": (LINES, lambda: epipolar_case(1, 160, 3, 5, 1, 1, 20)),
    "mesh": (FACES, lambda: mesh_case(2, 24, 5, 4, 3, 1)),
    "mesh, nine": (FACES, lambda: mesh_case(1, 24, 18, 3, 9, 4)),
    "mesh, siblings": (FACES, lambda: mesh_case(2, 24, 33, 4, None, 4)),
}
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def cast(arguments, change):
    """Applies `change` to what is differentiated, and float32 to lines and tables' places."""
    out = []
    for position, value in enumerate(arguments):
        if isinstance(value, list):
            out.append([x.float() if position == 2 else change(x) for x in value])
        elif isinstance(value, Tensor) and value.is_floating_point():
            out.append(change(value))
        else:
            out.append(value)
    return out


def flat(found) -> list[Tensor]:
    if isinstance(found, Tensor):
        return [found]
    return [x for part in found for x in flat(part)]


def close(found, wanted, tolerance):
    for a, b in zip(flat(found), flat(wanted), strict=True):
        scale = max([1.0, *b[b.isfinite()].abs().tolist()])
        torch.testing.assert_close(
            a.double(), b, rtol=0, atol=tolerance * scale, equal_nan=True, check_stride=False
        )


def run(case, arguments):
    """Result and gradients by the kernels, in guarded memory; and what the gradients are of."""
    (forward, backward, _, _), _ = CASES[case]
    with Guard() as guard:
        out = forward(*arguments)
        gradient = torch.randn(out.shape, dtype=torch.float64).to(out.dtype)
        grads = backward(gradient, *arguments)
    assert guard.intact()
    return (out, grads), gradient


def reference(case, arguments, gradient):
    """The same in float64."""
    (_, _, exact, exact_backward), _ = CASES[case]
    double = cast(arguments, lambda x: x.double())
    double = [[x.double() for x in value] if isinstance(value, list) else value for value in double]
    return exact(*double), exact_backward(gradient.double(), *double)


@pytest.mark.parametrize("dtype", TYPES, ids=["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("case", CASES)
def test_equals_reference(emulator, case, dtype):
    arguments = cast(CASES[case][1](), lambda x: x.to(dtype))
    found, gradient = run(case, arguments)
    close(found, reference(case, arguments, gradient), TOLERANCE[dtype])
    assert all(x.dtype == dtype or case.startswith(("soft", "warp")) for x in flat(found))


@pytest.mark.parametrize("case", CASES)
def test_any_layout(emulator, case):
    """Channels last, every second number, and addresses that nothing wider than a number fits."""
    for change in (channels_last, every_second, lambda x: guarded(x, 1)):
        arguments = cast(CASES[case][1](), lambda x, change=change: change(x.float()))
        found, gradient = run(case, arguments)
        close(found, reference(case, arguments, gradient), TOLERANCE[torch.float32])


def channels_last(x: Tensor) -> Tensor:
    return x.movedim(-3, -1).contiguous().movedim(-1, -3) if x.dim() > 2 else x


def every_second(x: Tensor) -> Tensor:
    return torch.stack((x, torch.full_like(x, math.nan)), -1)[..., 0]


@pytest.mark.parametrize("case", CASES)
def test_threads_in_any_order(emulator, case):
    arguments = cast(CASES[case][1](), lambda x: x.float())
    found = []
    for emulator.backwards in (False, True):
        torch.manual_seed(1)
        found.append(flat(run(case, arguments)[0]))
    for one, other in zip(*found, strict=True):
        if case.startswith("epipolar"):  # adds atomically, backwards
            torch.testing.assert_close(one, other)
        else:
            assert torch.equal(one, other)


@pytest.mark.parametrize("case", CASES)
def test_nan_stays_where_it_is(emulator, case):
    arguments = cast(CASES[case][1](), lambda x: x.float())
    first = arguments[1 if case.startswith("warp") else 0]
    first.view(-1)[first.numel() // 2] = math.nan
    (forward, _, exact, _), _ = CASES[case]
    double = cast(arguments, lambda x: x.double())
    wanted = exact(*double)
    assert wanted.isnan().any()
    close(forward(*arguments), wanted, TOLERANCE[torch.float32])


@pytest.mark.parametrize("dtype", TYPES[1:], ids=["float16", "bfloat16"])
@pytest.mark.parametrize(
    "case", [x for x in CASES if x.startswith(("correlation", "groups, deep", "square, one"))]
)
def test_tensor_cores(emulator, case, dtype):
    """In any layout, with threads in either order, and NaN stays where it is."""
    (forward, _, exact, _), make = CASES[case]
    given = cast(make(), lambda x: x.to(dtype))
    given[0].view(-1)[given[0].numel() // 2] = math.nan
    wanted = exact(*cast(given, lambda x: x.double()))
    layouts = channels_last, every_second, lambda x: guarded(x, 1), channels_last
    for change, emulator.backwards in zip(layouts, (False, False, True, True), strict=True):
        changed = cast(given, change)
        with Guard() as guard:
            found = forward(*changed)
        assert guard.intact()
        close(found, wanted, TOLERANCE[dtype])
    assert all(x.startswith("banded") for x in emulator.launched)


@pytest.mark.parametrize("case", CASES)
def test_empty_batch(emulator, case):
    empty = [[level[:0] for level in x] if isinstance(x, list) else x for x in CASES[case][1]()]
    tensors = 2 if case.startswith("warp") else 1
    if isinstance(empty[1], Tensor) and not case.startswith("mesh"):
        tensors = 2
    empty = [x[:0] if isinstance(x, Tensor) and i < tensors else x for i, x in enumerate(empty)]
    (forward, backward, exact, _), _ = CASES[case]
    arguments = cast(empty, lambda x: x.float())
    out = forward(*arguments)
    assert out.shape == exact(*arguments).shape and len(out) == 0
    assert all(0 in x.shape or not x.any() for x in flat(backward(out, *arguments)))


def test_every_kernel_was_run(emulator):
    """So that none goes untested for lack of a case."""
    for case in CASES:
        run(case, cast(CASES[case][1](), lambda x: x.float()))
    for dtype in TYPES[1:]:
        SQUARE[0](*cast(CASES["square, one place"][1](), lambda x, dtype=dtype: x.to(dtype)))
    wanted = {k.format("float") for names in KERNELS.values() for k in names}
    assert set(emulator.launched) == wanted


@pytest.mark.parametrize("place", [math.inf, -math.inf, 1e30, math.nan])
def test_places_beyond_numbers(emulator, place):
    arguments = cast(epipolar_case(1, 8, 4, 5, 1, 2, 2), lambda x: x.float())
    arguments[2][0][0, 0, 0, 1] = place
    close(
        EPIPOLAR._forward_cuda(*arguments),
        EPIPOLAR._forward(*cast(arguments, lambda x: x.double())),
        TOLERANCE[torch.float32],
    )
    for padding in ("border", "zeros"):
        image, disparity, *_ = (x.float() for x in warp_case(1, 3, 4, 9, "", True)[:2])
        disparity[0, 0, 1, 2] = place
        found = WARP._forward_cuda(image, disparity, padding, True)
        close(found, WARP._warp(image.double(), disparity.double(), padding, True), 2e-5)


def test_tables_that_name_no_face(emulator):
    """Nothing beyond the features is read."""
    arguments = cast(mesh_case(1, 24, 5, 4, 3, 1), lambda x: x.float())
    arguments[3][2, 1], arguments[3][4, 0], arguments[4][0, 0] = 1 << 30, -7, -1
    found = MESH._forward_cuda(*arguments)
    assert found[0, [2, 4]].isnan().all() and not found[0, [0, 1, 3]].isnan().any()
    features, weight, _, *tables = arguments
    to_features, _ = MESH._backward_cuda(torch.ones(found.shape), features, weight, *tables)
    assert to_features.shape == features.shape


@pytest.fixture
def chosen(emulator, monkeypatch) -> Emulator:
    """Operators take their kernels for tensors on the CPU."""
    monkeypatch.setattr(_kernels, "_DEVICE", "cpu")
    monkeypatch.setattr(_kernels, "_unusable", lambda device: None)
    monkeypatch.setattr(_kernels, "_FAILED", {})
    monkeypatch.setattr(_kernels, "_WARNED", set())
    monkeypatch.delenv("VIZOO_OPS", raising=False)
    torch.compiler.reset()
    return emulator


def composite(name):
    """The operator, its reference, the tensors that it has gradients for, and the rest."""
    if name == "warp_by_disparity":
        image, disparity, *rest = warp_case(2, 4, 3, 7, "border", True)
        given, reference = [image.float(), disparity.float()], WARP._warp
    else:
        given, rest, reference = [pair(2, 7, 3, 5)[0].float()], [2.0, 0.5], REGRESSION._soft_argmin
    overload = getattr(torch.ops.vizoo, name).default
    return overload, reference, [x.requires_grad_() for x in given], rest


@pytest.mark.parametrize("name", ["soft_argmin", "warp_by_disparity"])
def test_composites_take_kernels(chosen, name):
    """Through autograd, second derivatives, the compiler and opcheck."""
    overload, reference, given, rest = composite(name)

    def derivatives(function, inputs):
        out = function(*inputs, *rest)
        first = torch.autograd.grad(out.square().sum(), inputs, create_graph=True)
        try:
            return out, first, torch.autograd.grad(first[0].square().sum(), inputs)
        except RuntimeError as error:  # earlier PyTorch has no second ones of grid_sample
            if "derivative for aten::grid_sampler_2d_backward" not in str(error):
                raise
            return out, first

    found = derivatives(overload, given)
    double = [x.detach().double().requires_grad_() for x in given]
    close(found, derivatives(reference, double), 1e-4)
    chosen.launched.clear()

    out = overload(*given, *rest)
    close(
        torch.autograd.grad(out.sum(), given[:1]),
        torch.autograd.grad(reference(*double, *rest).sum(), double[:1]),
        1e-4,
    )
    assert len(chosen.launched) == 1 + len(given)  # one way and back

    compiled = torch.compile(lambda *x: overload(*x, *rest), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*given), out)
    with torch.inference_mode():
        torch.testing.assert_close(overload(*given, *rest), out.detach())
    torch.library.opcheck(getattr(torch.ops.vizoo, f"{name}_fused").default, (*given, *rest))


@pytest.mark.parametrize("name", ["soft_argmin", "warp_by_disparity"])
def test_a_compiled_graph_falls_back_to_the_reference(chosen, monkeypatch, name):
    """Where a kernel turns out not to compile when the graph runs: one warning, equal values."""
    overload, reference, given, rest = composite(name)
    compiled = torch.compile(lambda *x: overload(*x, *rest), fullgraph=True, backend="aot_eager")

    def fail(*arguments):
        raise _kernels._KernelMissing("does not compile")

    for module in HOSTS:
        monkeypatch.setattr(module, "launch", fail)
    exact = [x.detach().requires_grad_() for x in given]
    wanted = reference(*exact, *rest)
    wanted_grads = torch.autograd.grad(wanted.square().sum(), exact)
    with pytest.warns(UserWarning, match="does not compile") as told:
        found = compiled(*given)
        grads = torch.autograd.grad(found.square().sum(), given)
    assert len([x for x in told if "PyTorch reference" in str(x.message)]) == 1
    torch.testing.assert_close((found, *grads), (wanted, *wanted_grads))


def test_operators_take_kernels(chosen):
    """What users call, by autograd, for every kernel; then a compiled one."""
    left, right = (x.float().requires_grad_() for x in pair(1, 8, 3, 9))
    cases = [
        lambda: ops.correlation(left, right, 3),
        lambda: ops.correlation_2d(left, right, 1),
        lambda: ops.group_wise_correlation(left, right, 3, 2),
        lambda: ops.concat_volume(left, right, 3),
        lambda: ops.soft_argmin(left) + 0 * right[:, :1],
        lambda: ops.warp_by_disparity(left, right[:, :1]),
    ]
    for call in cases:
        chosen.launched.clear()
        found = torch.autograd.grad(call().square().sum(), (left, right))
        names = {x.split("_")[-1].split("<")[0] for x in chosen.launched}
        assert len(chosen.launched) >= 2 and names & {"backward", "image"}
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("VIZOO_OPS", "torch")
            wanted = torch.autograd.grad(call().square().sum(), (left, right))
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    compiled = torch.compile(ops.correlation, fullgraph=True, backend="aot_eager")
    chosen.launched.clear()
    torch.testing.assert_close(compiled(left, right, 3), ops.correlation(left, right, 3))
    assert len(chosen.launched) == 2
