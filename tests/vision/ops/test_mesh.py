"""Mesh convolution: a naive form, gradients, chunks, memory, exporters, what it refuses."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from vizoo.vision.ops import gather_faces, inverse_table, mesh, mesh_convolution

FACES = 24


def table(slots: int = 3, faces: int = FACES, rows: int | None = None) -> Tensor:
    """Any neighbours but the face itself; not each face is named equally often."""
    own = torch.arange(faces)[:: faces // (rows or faces)][:, None]
    steps = torch.stack([torch.randperm(faces - 1)[:slots] + 1 for _ in own])
    return ((own + steps) % faces).int()


def case(slots=3, stride=1, channels=5, out=4, batch=2, dtype=torch.float64):
    """Features without ties, weight, bias, table and inverse; None for siblings."""
    features = torch.randn(batch, FACES, channels, dtype=torch.float64).to(dtype)
    weight = torch.randn(out, channels, 4, dtype=torch.float64).to(dtype)
    bias = torch.randn(out, dtype=torch.float64).to(dtype)
    if slots is None:
        return features, weight, bias, None, None
    neighbours = table(slots, rows=FACES // stride)
    return features, weight, bias, neighbours, inverse_table(neighbours, FACES)


def naive(features, weight, bias, neighbours, inverse=None):
    rows = []
    if neighbours is None:
        neighbours = torch.arange(FACES).view(-1, 4)[:, :3]
    stride = FACES // len(neighbours)
    for row, near in enumerate(neighbours.tolist()):
        x = features[:, row if stride == 1 else 4 * row + 3]
        around = [features[:, j] for j in near]
        following = around[1:] + around[:1]
        terms = (
            x,
            sum(around),
            sum((b - a).abs() for a, b in zip(around, following, strict=True)),
            sum((x - a).abs() for a in around),
        )
        y = sum(term @ weight[:, :, t].T for t, term in enumerate(terms))
        rows.append(y if bias is None else y + bias)
    return torch.stack(rows, 1)


def gradients(function, features, weight, bias, *tables, **settings):
    inputs = [x.detach().requires_grad_() for x in (features, weight, bias) if x is not None]
    given = inputs if bias is not None else [*inputs, None]
    out = function(*given, *tables, **settings)
    share = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view_as(out)
    return torch.autograd.grad((out * share).sum(), inputs)


CASES = [(3, 1), (9, 1), (6, 1), (2, 1), (9, 4), (3, 4), (None, 4)]


@pytest.mark.parametrize("slots, stride", CASES)
@pytest.mark.parametrize("memory", [1, 3000, mesh._MEMORY])
def test_equals_naive(slots, stride, memory):
    inputs = case(slots, stride, channels=18)
    torch.testing.assert_close(mesh_convolution(*inputs, memory=memory), naive(*inputs))
    torch.testing.assert_close(
        gradients(mesh_convolution, *inputs, memory=memory), gradients(naive, *inputs)
    )


@pytest.mark.parametrize("slots, stride", CASES[-2:])
def test_without_bias(slots, stride):
    features, weight, _, *tables = case(slots, stride)
    inputs = features, weight, None, *tables
    torch.testing.assert_close(mesh_convolution(*inputs), naive(*inputs))
    torch.testing.assert_close(gradients(mesh_convolution, *inputs), gradients(naive, *inputs))


@pytest.mark.parametrize("slots, stride", CASES)
def test_gradcheck(slots, stride):
    features, weight, bias, *tables = case(slots, stride, channels=2, out=3)
    inputs = [x.requires_grad_() for x in (features, weight, bias)]
    assert torch.autograd.gradcheck(
        lambda *x: mesh_convolution(*x, *tables), inputs, fast_mode=True
    )


def test_ties_give_no_slope():
    features, weight, bias, *tables = case()
    flat = torch.ones_like(features)
    torch.testing.assert_close(
        gradients(mesh_convolution, flat, weight, bias, *tables),
        gradients(naive, flat, weight, bias, *tables),
    )


def test_layouts():
    features, weight, bias, *tables = case()
    inputs = features.transpose(1, 2).contiguous().transpose(1, 2), weight.mT.contiguous().mT
    want = naive(features, weight, bias, *tables)
    torch.testing.assert_close(mesh_convolution(*inputs, bias, *tables), want)
    torch.testing.assert_close(
        gradients(mesh_convolution, *inputs, bias, *tables),
        gradients(naive, features, weight, bias, *tables),
    )


@pytest.mark.parametrize("slots, stride", [(9, 4), (None, 4)])
def test_opcheck(slots, stride):
    features, weight, bias, *tables = case(slots, stride, dtype=torch.float32)
    inputs = [x.requires_grad_() for x in (features, weight, bias)]
    torch.library.opcheck(
        torch.ops.vizoo.mesh_convolution.default, (*inputs, *tables, mesh._MEMORY)
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half(dtype):
    inputs = case(dtype=dtype)
    found = mesh_convolution(*inputs)
    want = naive(*(x.double() for x in inputs[:3]), *inputs[3:])
    assert found.dtype == dtype
    torch.testing.assert_close(
        found.double(), want, rtol=0, atol=2 * torch.finfo(dtype).eps * want.abs().max().item()
    )
    both = zip(
        gradients(mesh_convolution, *inputs),
        gradients(naive, *(x.double() for x in inputs[:3]), *inputs[3:]),
        strict=True,
    )
    for half, exact in both:
        assert half.dtype == dtype
        assert (half.double() - exact).norm() < 8 * torch.finfo(dtype).eps * exact.norm()


def test_autocast():
    features, weight, bias, *tables = case(dtype=torch.float32)
    inputs = [x.requires_grad_() for x in (features, weight, bias)]
    with torch.autocast("cpu", torch.bfloat16):
        out = mesh_convolution(*inputs, *tables)
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert all(x.grad.dtype == torch.float32 for x in inputs)


def test_empty():
    features, weight, bias, *tables = case()
    assert mesh_convolution(features[:0], weight, bias, *tables).shape == (0, FACES, 4)
    found = mesh_convolution(features[..., :0], weight[:, :0], bias, *tables)
    torch.testing.assert_close(found, bias.expand(2, FACES, 4))
    to_features, to_weight, _ = gradients(mesh_convolution, features[:0], weight, bias, *tables)
    assert to_features.shape == (0, FACES, 5) and not to_weight.any()


def test_compiles():
    torch.compiler.reset()
    compiled = torch.compile(mesh_convolution, fullgraph=True, backend="aot_eager")
    inputs = case()
    torch.testing.assert_close(compiled(*inputs), mesh_convolution(*inputs))
    torch.testing.assert_close(gradients(compiled, *inputs), gradients(mesh_convolution, *inputs))


class Wrapped(torch.nn.Module):
    def __init__(self, neighbours):
        super().__init__()
        self.register_buffer("neighbours", neighbours)

    def forward(self, features, weight, bias):
        return mesh_convolution(features, weight, bias, self.neighbours)


@pytest.mark.parametrize("slots, stride", [(9, 4), (None, 4)])
def test_exports(slots, stride, tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    *inputs, neighbours, _ = case(slots, stride, dtype=torch.float32)
    with torch.no_grad():
        program = torch.export.export(Wrapped(neighbours), tuple(inputs))
        assert "vizoo" not in str(program.graph)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(program, dynamo=True, verbose=False).save(str(tmp_path / "a.onnx"))
    session = runtime.InferenceSession(str(tmp_path / "a.onnx"), providers=["CPUExecutionProvider"])
    names = [x.name for x in session.get_inputs()]
    (found,) = session.run(None, dict(zip(names, (x.numpy() for x in inputs), strict=True)))
    want = naive(*inputs, neighbours)
    torch.testing.assert_close(program.module()(*inputs), want, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.from_numpy(found), want, rtol=1e-4, atol=1e-4)


def test_memory_is_bounded():
    """The bytes that are gathered, combined and written down at once keep to the setting."""
    faces, channels = 20 * 4**4, 64
    near = ((torch.arange(faces)[:, None] + torch.tensor([1, 5, 9])) % faces).int()
    given = (torch.randn(1, faces, channels), torch.randn(64, channels, 4), None, near)
    given = *given, inverse_table(near, faces)
    sizes = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, arguments=(), settings=None):
            found = func(*arguments, **(settings or {}))
            if isinstance(found, Tensor):
                sizes.append(found.untyped_storage().nbytes())
            return found

    arguments = given[0], given[1], None, *given[3:]
    with Watch():
        mesh._forward(*arguments, 1 << 18)
    assert max(size for size in sizes if size != given[0].nbytes) <= 1 << 18
    sizes.clear()
    with Watch():
        gradient, limit = torch.randn(1, faces, 64), 1 << 20
        mesh._backward(gradient, *given[:2], *given[3:], limit)
    assert max(size for size in sizes if size != given[0].nbytes) <= limit + channels


def test_multiply_adds_are_counted():
    inputs = case()
    with FlopCounterMode(display=False) as counter:
        mesh_convolution(*inputs)
    assert counter.get_total_flops() == 2 * 2 * FACES * 4 * 5 * 4
    with FlopCounterMode(display=False) as counter:
        gradients(mesh_convolution, *inputs)
    assert counter.get_total_flops() == 3 * 2 * 2 * FACES * 4 * 5 * 4


def test_inverse_table():
    neighbours = torch.tensor([[1, 2], [2, 0], [2, 1]])
    assert inverse_table(neighbours, 4).tolist() == [[4, 6, 6], [0, 5, 6], [1, 2, 3], [6, 6, 6]]


def test_gather_faces():
    features, _, _, neighbours, inverse = case()
    features.requires_grad_()
    found = gather_faces(features, neighbours, inverse)
    assert torch.equal(found, features[:, neighbours.long()])
    assert torch.autograd.gradcheck(lambda x: gather_faces(x, neighbours, inverse), features)
    torch.library.opcheck(
        torch.ops.vizoo.gather_faces.default, (features.float(), neighbours, inverse)
    )


def test_result_does_not_depend_on_the_numbering():
    features, weight, bias, neighbours, _ = case()
    order = torch.randperm(FACES)
    place = order.argsort()
    other = place[neighbours[order].long()]
    share = torch.randn(2, FACES, 4, dtype=torch.float64)
    found = []
    for x, table, g in (
        (features, neighbours, share),
        (features[:, order], other, share[:, order]),
    ):
        x = x.detach().requires_grad_()
        y = mesh_convolution(x, weight, bias, table, inverse_table(table, FACES))
        y.backward(g)
        found.append((y.detach(), x.grad))
    for one, shuffled in zip(*found, strict=True):
        torch.testing.assert_close(one[:, order], shuffled)


def test_refuses():
    features, weight, bias, neighbours, inverse = case()
    for arguments, message in (
        ((features[0], weight), r"\(24, 5\)"),
        ((features, weight[..., :3]), r"weight \(C_out, C, 4\)"),
        ((features, weight[:, 1:]), r"\(4, 4, 4\)"),
        ((features, weight, bias[1:], neighbours), r"bias must be \(4,\)"),
        ((features[:, 1:], weight), "23 faces"),
        ((features, weight, bias, neighbours[:7]), r"\(7, 3\)"),
        ((features, weight, bias, neighbours[:, :1]), "at least 2"),
        ((features, weight, bias, neighbours, inverse[1:]), r"inverse must be \(24, m\)"),
        ((features.float(), weight, bias, neighbours), "float32"),
        ((features, weight.float()), "float32"),
        ((features.requires_grad_(), weight, bias, neighbours), "gradients need inverse"),
    ):
        with pytest.raises(ValueError, match=message):
            mesh_convolution(*arguments)
    with pytest.raises(ValueError, match="memory must be at least 1"):
        mesh_convolution(features, weight, memory=0)
    with pytest.raises(ValueError, match=r"inverse \(F, m\)"):
        gather_faces(features, neighbours, inverse[1:])


def test_a_table_without_its_inverse_has_no_gradient():
    features, weight, bias, neighbours, _ = case(dtype=torch.float32)
    call = torch.ops.vizoo.mesh_convolution
    out = call(features.requires_grad_(), weight, bias, neighbours, None, 1 << 20)
    with pytest.raises(ValueError, match="need its `inverse_table`"):
        out.sum().backward()
