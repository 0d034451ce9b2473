"""Every operator against naive loops, and through everything PyTorch may do with it."""

import itertools
import math
import warnings

import pytest
import torch
from network_tester import slow
from torch import Tensor

from vizoo.vision import ops
from vizoo.vision.ops import _banded
from vizoo.vision.ops._registration import _untraced

SIZES = [(3, 7), (2, 1), (1, 4), (2, 75)]  # (H, W): odd, one column, W < D, three blocks


class OperatorTester:
    """What every operator must stand; a subclass says what it computes."""

    channels = 4

    def inputs(self, height=3, width=7, batch=2, dtype=torch.float64) -> tuple[Tensor, ...]:
        shape = (batch, self.channels, height, width)
        return tuple(torch.randn(shape, dtype=torch.float64).to(dtype) for _ in range(2))

    def call(self, *inputs: Tensor) -> Tensor:
        raise NotImplementedError

    def naive(self, *inputs: Tensor) -> Tensor:
        raise NotImplementedError

    def registered(self, *inputs: Tensor):
        """The overload and its arguments."""
        raise NotImplementedError

    def gradients(self, function, inputs):
        inputs = [x.detach().requires_grad_() for x in inputs]
        out = function(*inputs)
        weight = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view_as(out)
        return torch.autograd.grad((out * weight).sum(), inputs)

    @pytest.mark.parametrize("size", SIZES)
    def test_equals_naive(self, size):
        inputs = self.inputs(*size)
        torch.testing.assert_close(self.call(*inputs), self.naive(*inputs))
        torch.testing.assert_close(
            self.gradients(self.call, inputs), self.gradients(self.naive, inputs)
        )

    def test_layouts(self):
        inputs = self.inputs(4, 70)
        want, grads = self.naive(*inputs), self.gradients(self.naive, inputs)
        wide = [torch.stack((x, x), -1)[..., 0] for x in inputs]
        last = [x.to(memory_format=torch.channels_last) for x in inputs]
        for other in (wide, last, (wide[0], *last[1:])):
            torch.testing.assert_close(self.call(*other), want)
            torch.testing.assert_close(self.gradients(self.call, other), grads)

    @pytest.mark.parametrize("workspace", [1, 9000])  # a row each; a shorter last chunk
    def test_chunks(self, monkeypatch, workspace):
        inputs = self.inputs(5, 40)
        monkeypatch.setattr(_banded, "WORKSPACE", workspace)
        torch.testing.assert_close(self.call(*inputs), self.naive(*inputs))
        torch.testing.assert_close(
            self.gradients(self.call, inputs), self.gradients(self.naive, inputs)
        )

    def test_empty_batch(self):
        inputs = self.inputs(batch=0)
        out = self.call(*inputs)
        assert out.shape == (0, *self.call(*self.inputs()).shape[1:])
        assert all(g.shape[0] == 0 for g in self.gradients(self.call, inputs))

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half(self, dtype):
        inputs = self.inputs(3, 40, dtype=dtype)
        out, want = self.call(*inputs), self.naive(*(x.double() for x in inputs))
        tolerance = torch.finfo(out.dtype).eps  # the sum is exact, the result is rounded once
        torch.testing.assert_close(out.double(), want, rtol=tolerance, atol=1e-4)
        grads = self.gradients(self.call, inputs)
        assert all(g.dtype == dtype and g.isfinite().all() for g in grads)

    def test_nan(self):
        for which in range(len(self.inputs())):
            inputs = self.inputs(3, 40)
            inputs[which][0, 0, 1, 0] = math.nan  # next to places outside
            out, want = self.call(*inputs), self.naive(*inputs)
            assert want.isnan().any() and not want.isnan().all()
            torch.testing.assert_close(out, want, equal_nan=True)

    def test_gradcheck(self):
        inputs = [x.requires_grad_() for x in self.inputs(2, 5)]
        torch.autograd.gradcheck(self.call, inputs, fast_mode=True)
        if all(x.shape[1] > 1 for x in inputs):  # grid_sample's places have a kink
            torch.autograd.gradgradcheck(self.call, inputs, fast_mode=True)

    def test_opcheck(self):
        overload, arguments = self.registered(
            *(x.requires_grad_() for x in self.inputs(dtype=torch.float32))
        )
        torch.library.opcheck(overload, arguments)

    def test_autocast(self):
        inputs = [x.requires_grad_() for x in self.inputs(dtype=torch.float32)]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = self.call(*inputs)
        assert out.dtype == self.autocast_type
        torch.testing.assert_close(out.float(), self.naive(*inputs), rtol=0.02, atol=0.05)
        out.float().sum().backward()
        assert all(x.grad.dtype == torch.float32 for x in inputs)

    autocast_type = torch.bfloat16


class PairTester(OperatorTester):
    """Operators on two feature maps."""

    def test_refuses(self):
        left, right = self.inputs()
        with pytest.raises(ValueError, match=r"\(2, 4, 3, 7\) and \(2, 4, 3, 6\)"):
            self.call(left, right[..., :-1])
        with pytest.raises(ValueError, match=r"\(4, 3, 7\)"):
            self.call(left[0], right[0])
        with pytest.raises(ValueError, match="torch.float32, torch.float64: convert"):
            self.call(left, right.float())
        with pytest.raises(ValueError, match="int64"):
            self.call(left.long(), right.long())
        for arguments, message in self.refused:
            with pytest.raises(ValueError, match=message):
                self.function(left, right, *arguments)

    def call(self, left, right):
        return self.function(left, right, *self.arguments)

    def registered(self, left, right):
        overload = getattr(torch.ops.vizoo, self.function.__name__).default
        return overload, (left, right, *self.arguments)


def pixel_by_pixel(left, right, shifts, function):
    """(B, K, shifts, H, W): (B, K) of the channels at (y, x) and (y + dy, x + dx), 0 outside."""
    height, width = left.shape[2:]
    found = []
    for (dy, dx), y, x in itertools.product(shifts, range(height), range(width)):
        inside = 0 <= y + dy < height and 0 <= x + dx < width
        there = right[:, :, y + dy, x + dx] if inside else right[:, :, y, x]
        value = function(left[:, :, y, x], there)
        found.append(value if inside else torch.zeros_like(value))
    return torch.stack(found, 2).unflatten(2, (-1, height, width))


def mean_product(left, right, groups=1):
    return (left * right).unflatten(1, (groups, -1)).mean(2)


class TestCorrelation(PairTester):
    function, arguments = staticmethod(ops.correlation), (6,)
    refused = [
        ((0,), "displacements must be at least 1, got 0"),
        ((2.5,), "displacements must be a whole number, got 2.5"),
        ((None,), "displacements must be a whole number, got None"),
    ]

    def naive(self, left, right):
        return pixel_by_pixel(left, right, [(0, -d) for d in range(6)], mean_product)[:, 0]

    def test_sums_in_float32(self):
        left = torch.full((1, 4096, 1, 1), 1.0, dtype=torch.float16)
        right = torch.full_like(left, 30.0)  # the sum, 122880, is beyond float16
        assert ops.correlation(left, right, 1).item() == 30.0

    def test_memory_does_not_grow_with_the_square_of_the_width(self):
        left = torch.zeros(1, 1, 1, 100_000)  # the (W, W) product would take 40 GB
        assert ops.correlation(left, left, 4).shape == (1, 4, 1, 100_000)


@pytest.mark.parametrize("groups", [4, 8])  # matrix products, slices
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("width", [5, 70])
def test_groups_are_correlations(groups, dtype, width):
    left, right = torch.randn(2, 2, 24, 3, width, dtype=torch.float64).to(dtype)
    left = left.contiguous(memory_format=torch.channels_last)
    want = [
        ops.correlation(*x, 9)
        for x in zip(*(x.chunk(groups, 1) for x in (left, right)), strict=True)
    ]
    torch.testing.assert_close(
        ops.group_wise_correlation(left, right, 9, groups), torch.stack(want, 1)
    )


class TestGroupWiseCorrelation(PairTester):
    function, arguments = staticmethod(ops.group_wise_correlation), (3, 2)
    refused = [
        ((0, 2), "displacements must be at least 1, got 0"),
        ((3, 0), "groups must be at least 1, got 0"),
        ((3, "2"), "groups must be a whole number, got '2'"),
        ((3, 3), "4 channels do not divide into 3 groups"),
    ]

    def naive(self, left, right):
        shifts = [(0, -d) for d in range(3)]
        return pixel_by_pixel(left, right, shifts, lambda a, b: mean_product(a, b, groups=2))


class TestCorrelation2d(PairTester):
    function, arguments = staticmethod(ops.correlation_2d), (1,)
    refused = [((-1,), "radius must be at least 0, got -1")]

    def naive(self, left, right):
        window = list(itertools.product((-1, 0, 1), repeat=2))
        return pixel_by_pixel(left, right, window, mean_product)[:, 0]


class TestConcatVolume(PairTester):
    function, arguments = staticmethod(ops.concat_volume), (6,)
    refused = [((0,), "displacements must be at least 1, got 0")]

    def naive(self, left, right):
        shifts = [(0, -d) for d in range(6)]
        return pixel_by_pixel(left, right, shifts, lambda a, b: torch.cat((a, b), 1))

    @pytest.mark.parametrize("shape", [(1, 0, 3, 5), (1, 2, 3, 0)])
    def test_no_channels_or_columns(self, shape):
        features = torch.rand(shape, requires_grad=True)
        volume = ops.concat_volume(features, features, 4)
        assert volume.shape == (1, 2 * shape[1], 4, *shape[2:])
        volume.sum().backward()
        assert features.grad.shape == shape


class TestSoftArgmin(OperatorTester):
    autocast_type = torch.float32

    def inputs(self, height=3, width=7, batch=2, dtype=torch.float64):
        return (super().inputs(height, width, batch, dtype)[0],)

    def call(self, cost):
        return ops.soft_argmin(cost, start=2.0, step=0.5)

    def naive(self, cost):
        weight = torch.exp(-cost)
        weight = weight / weight.sum(1, keepdim=True)
        return sum((2.0 + 0.5 * d) * weight[:, d : d + 1] for d in range(cost.shape[1]))

    def registered(self, cost):
        return torch.ops.vizoo.soft_argmin.default, (cost, 2.0, 0.5)

    def test_half_gives_float32(self):
        assert ops.soft_argmin(torch.zeros(1, 192, 1, 1, dtype=torch.float16)).item() == 95.5

    def test_refuses(self):
        with pytest.raises(ValueError, match=r"\(2, 3, 4\)"):
            ops.soft_argmin(torch.zeros(2, 3, 4))
        with pytest.raises(ValueError, match=r"\(2, 0, 3, 4\)"):
            ops.soft_argmin(torch.zeros(2, 0, 3, 4))
        with pytest.raises(ValueError, match="int64"):
            ops.soft_argmin(torch.zeros(2, 3, 3, 4, dtype=torch.long))


class TestWarpByDisparity(OperatorTester):
    padding, align_corners = "border", True
    autocast_type = torch.float32

    def inputs(self, height=3, width=7, batch=2, dtype=torch.float64):
        image = super().inputs(height, width, batch, dtype)[0]
        # Off the whole pixels, where the derivative jumps; partly far outside.
        whole = torch.randint(-2, width + 3, (batch, 1, height, width), dtype=torch.float64)
        return image, (whole + 0.2 + 0.5 * torch.rand_like(whole)).to(dtype)

    def call(self, image, disparity):
        return ops.warp_by_disparity(
            image, disparity, padding=self.padding, align_corners=self.align_corners
        )

    def place(self, position, size):
        if self.align_corners:
            return position
        return position * size / max(size - 1, 1) - 0.5

    def read(self, image, y, x):
        height, width = image.shape[-2:]
        if self.padding == "border":
            return image[:, min(max(y, 0), height - 1), min(max(x, 0), width - 1)]
        inside = 0 <= x < width and 0 <= y < height
        return image[:, y, x] if inside else torch.zeros_like(image[:, 0, 0])

    def naive(self, image, disparity):
        batch, _, height, width = image.shape
        out = []
        for b in range(batch):
            for y in range(height):
                for x in range(width):
                    d = disparity[b, 0, y, x]
                    if d.isnan():
                        out.append(image[b, :, 0, 0] * math.nan)
                        continue
                    column, row = self.place(x - d, width), self.place(y, height)
                    x0, y0 = int(column.detach().floor()), math.floor(row)
                    u, v = column - x0, row - y0
                    top = self.read(image[b], y0, x0) * (1 - u)
                    top = top + self.read(image[b], y0, x0 + 1) * u
                    low = self.read(image[b], y0 + 1, x0) * (1 - u)
                    low = low + self.read(image[b], y0 + 1, x0 + 1) * u
                    out.append(top * (1 - v) + low * v)
        return torch.stack(out).view(batch, height, width, -1).permute(0, 3, 1, 2)

    def registered(self, image, disparity):
        overload = torch.ops.vizoo.warp_by_disparity.default
        return overload, (image, disparity, self.padding, self.align_corners)

    def test_autocast(self):
        image, disparity = self.inputs(2, 400, dtype=torch.float32)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = self.call(image, disparity)
        torch.testing.assert_close(out, self.call(image, disparity))

    def test_infinite_disparity_reads_the_outside(self):
        image, disparity = self.inputs()
        disparity[...] = math.inf
        far = torch.full_like(disparity, 1e6)
        torch.testing.assert_close(self.call(image, disparity), self.call(image, far))

    @pytest.mark.parametrize("name", ["warp_by_disparity", "warp_by_disparity_fused"])
    def test_gradients_where_disparity_is_lost(self, name):
        """None to the image; the other pixels' as if it were elsewhere; its own is the result."""
        operator = getattr(torch.ops.vizoo, name)
        image, disparity = self.inputs()
        lost = torch.zeros_like(disparity, dtype=torch.bool)
        lost[0, 0, 1, 2] = lost[1, 0, 0, 0] = True
        share = torch.randn(image.shape, dtype=image.dtype)

        def gradients(place, share):
            given = image.clone(), disparity.masked_fill(lost, place)
            given = [x.requires_grad_() for x in given]
            out = operator(*given, self.padding, self.align_corners)
            return torch.autograd.grad(out, given, share)

        found = gradients(math.nan, share)
        to_image, to_disparity = gradients(1.0, share.masked_fill(lost, 0))
        torch.testing.assert_close(found[0], to_image)
        own = torch.where(lost, share.sum(1, keepdim=True), to_disparity)
        torch.testing.assert_close(found[1], own)

    def test_refuses(self):
        image, disparity = self.inputs()
        with pytest.raises(ValueError, match=r"\(2, 4, 3, 7\) and \(2, 1, 3, 6\)"):
            self.call(image, disparity[..., :-1])
        with pytest.raises(ValueError, match="int64"):
            self.call(image, disparity.long())
        with pytest.raises(ValueError, match="'border' or 'zeros', got 'mirror'"):
            ops.warp_by_disparity(image, disparity, padding="mirror")


class TestWarpAsPublished(TestWarpByDisparity):
    padding, align_corners = "zeros", False
    test_opcheck = slow(OperatorTester.test_opcheck)


class Every(torch.nn.Module):
    """All of them at once: what compilers and exporters take for one takes a second by itself."""

    def forward(self, left: Tensor, right: Tensor, disparity: Tensor) -> tuple[Tensor, ...]:
        return (
            *every_pair(left, right),
            ops.soft_argmin(left, start=2.0, step=0.5),
            ops.warp_by_disparity(left, disparity, padding="border", align_corners=True),
            ops.warp_by_disparity(left, disparity, padding="zeros", align_corners=False),
        )


def every_pair(left: Tensor, right: Tensor) -> tuple[Tensor, ...]:
    return (
        ops.correlation(left, right, 2),
        ops.group_wise_correlation(left, right, 2, 2),
        ops.correlation_2d(left, right, 1),
        ops.concat_volume(left, right, 2),
    )


def joined(function):
    """The same with one vector as the result."""
    return lambda *inputs: torch.cat([out.flatten() for out in function(*inputs)])


def inputs_of_all(height, width, dtype=torch.float64):
    pair = PairTester().inputs(height, width, dtype=dtype)
    return *pair, TestWarpByDisparity().inputs(height, width, dtype=dtype)[1]


@pytest.fixture
def sizes():
    """Of every input the height and the width may change."""
    size = {2: torch.export.Dim("height", min=2), 3: torch.export.Dim("width", min=2)}
    return size, size, size


def test_compile():
    torch.compiler.reset()
    call = joined(Every())
    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    for size in ((3, 7), (4, 9)):
        inputs = inputs_of_all(*size)
        torch.testing.assert_close(compiled(*inputs), call(*inputs))
        gradients = OperatorTester().gradients
        torch.testing.assert_close(gradients(compiled, inputs), gradients(call, inputs))


def test_transforms():
    call, inputs = joined(every_pair), PairTester().inputs(2, 3, batch=1)
    wanted = torch.autograd.functional.jacobian(call, inputs)
    torch.testing.assert_close(torch.func.jacfwd(call, (0, 1))(*inputs), wanted)
    torch.testing.assert_close(torch.func.jacrev(call, (0, 1))(*inputs), wanted)
    torch._dynamo.reset()
    within = torch.compile(torch.func.jacfwd(call, (0, 1)), backend="eager")
    torch.testing.assert_close(within(*inputs), wanted)
    compiled = torch.compile(call, backend="eager")
    torch.testing.assert_close(torch.func.jacfwd(compiled, (0, 1))(*inputs), wanted)
    inputs = [x.requires_grad_() for x in inputs]
    torch.autograd.gradcheck(call, inputs, fast_mode=True, check_forward_ad=True)


def test_export(sizes):
    program = torch.export.export(
        Every(),
        inputs_of_all(4, 7),
        dynamic_shapes=sizes,
        strict=True,  # the ONNX exporter takes the other way
    )
    assert "vizoo" not in str(program.graph)
    other = inputs_of_all(3, 11)
    torch.testing.assert_close(program.module()(*other), Every()(*other))


def test_trace():
    inputs = inputs_of_all(4, 7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(Every(), inputs)
    torch.testing.assert_close(traced(*inputs), Every()(*inputs))
    assert "vizoo::" not in str(traced.graph)


def test_onnx(tmp_path, sizes):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    path = str(tmp_path / "operators.onnx")
    example = inputs_of_all(4, 7, torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(Every(), example, path, dynamo=True, dynamic_shapes=sizes, verbose=False)
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [x.name for x in session.get_inputs()]
    for size in ((4, 7), (3, 11)):
        inputs = inputs_of_all(*size, torch.float32)
        found = session.run(None, dict(zip(names, (x.numpy() for x in inputs), strict=True)))
        for out, want in zip(found, Every()(*inputs), strict=True):
            torch.testing.assert_close(torch.from_numpy(out), want, rtol=1e-4, atol=1e-4)


def test_compilers_look_into_no_kernel():
    seen = []

    @_untraced
    def kernel(x: Tensor) -> Tensor:
        seen.append(torch.compiler.is_compiling())
        return x + 1

    torch.compiler.reset()
    assert torch.equal(torch.compile(kernel, backend="eager")(torch.ones(2)), torch.full((2,), 2.0))
    assert seen == [False]


@pytest.mark.parametrize("autocast", [True, False])
def test_features_of_two_types_of_which_one_is_double(autocast):
    """Autocast leaves float64 as it is, so it does not make them one."""
    left, right = torch.randn(2, 1, 4, 3, 9).unbind()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        with pytest.raises(ValueError, match=r"torch.float32, torch.float64: convert"):
            ops.correlation(left, right.double(), 3)


def test_shapes_without_values():
    """On the meta device, which knows no autocast."""
    with torch.device("meta"):
        image, flow = torch.empty(1, 4, 3, 9), torch.empty(1, 2, 3, 9)
        lines = torch.empty(1, 2, 2, 3, 9), torch.empty(1, 2, 2, 3, 9), flow
        faces, weight = torch.empty(1, 8, 4), torch.empty(5, 4, 4)
    assert ops.correlation(image, image, 6).shape == (1, 6, 3, 9)
    assert ops.mesh_convolution(faces, weight).shape == (1, 2, 5)
    found = ops.epipolar_correlation(image, [image[:, None].expand(-1, 2, -1, -1, -1)], *lines, 1)
    assert found.shape == (1, 2, 3, 3, 9)
