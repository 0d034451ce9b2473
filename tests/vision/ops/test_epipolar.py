"""Correlation along epipolar lines: naive loops, gradients, memory, exporters, published case."""

from __future__ import annotations

import json
import math
import warnings
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from vizoo.vision.ops import epipolar, epipolar_correlation

RADIUS = 2


def case(height=6, width=7, batch=2, views=2, channels=3, levels=2, dtype=torch.float64):
    """Features, pyramid, lines and flow; some places lie outside, none at a texel's centre."""
    sizes = [(max(1, height >> p), max(1, width >> p)) for p in range(levels)]
    reference = torch.randn(batch, channels, height, width, dtype=torch.float64)
    pyramid = [torch.randn(batch, views, channels, *s, dtype=torch.float64) for s in sizes]
    shape = batch, views, 2, height, width
    base = torch.rand(shape, dtype=torch.float64) * torch.tensor([width, height]).view(2, 1, 1)
    direction = torch.nn.functional.normalize(torch.randn(shape, dtype=torch.float64), dim=2)
    flow = torch.randn(batch, views, height, width, dtype=torch.float64)
    features = [x.to(dtype) for x in (reference, *pyramid)]
    return features[0], features[1:], base, direction, flow


def naive(reference, pyramid, base, direction, flow, radius=RADIUS):
    planes = []
    for level, features in enumerate(pyramid):
        for k in range(-radius, radius + 1):
            x, y = ((base + (flow + k)[:, :, None] * direction) / 2**level).unbind(2)
            planes.append((reference[:, None] * read(features, x, y)).mean(2))
    return torch.stack(planes, 2)


def read(features: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Bilinear, texel by texel: (B, S, C, H, W)."""
    height, width = features.shape[-2:]
    total = 0
    for dy in (0, 1):
        for dx in (0, 1):
            column, row = x.floor() + dx, y.floor() + dy
            weight = (1 - (x - column).abs()) * (1 - (y - row).abs())
            inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
            index = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)
            index = index.long().flatten(2)[:, :, None].expand(-1, -1, features.shape[2], -1)
            texel = features.flatten(3).gather(3, index).unflatten(3, x.shape[2:])
            total = total + torch.where(inside, weight, 0)[:, :, None] * texel
    return total


def gradients(function, reference, pyramid, *lines):
    features = [x.detach().requires_grad_() for x in (reference, *pyramid)]
    out = function(features[0], features[1:], *lines)
    weight = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view_as(out)
    return torch.autograd.grad((out * weight).sum(), features)


def ours(*arguments, **settings):
    return epipolar_correlation(*arguments, RADIUS, **settings)


@pytest.mark.parametrize(
    ("size", "memory"),  # one place at a time, whole; in several chunks, the last of them shorter
    [*product([(6, 7), (1, 4), (3, 1)], [1, epipolar._MEMORY]), ((12, 17), 20_000)],
)
def test_equals_naive(size, memory):
    inputs = case(*size)
    torch.testing.assert_close(ours(*inputs, memory=memory), naive(*inputs))
    torch.testing.assert_close(
        gradients(lambda *x: ours(*x, memory=memory), *inputs), gradients(naive, *inputs)
    )


def test_levels_that_are_made_one_by_one():
    reference, pyramid, *lines = case()
    wanted = epipolar_correlation(reference, pyramid, *lines, RADIUS)
    assert torch.equal(epipolar_correlation(reference, iter(pyramid), *lines, RADIUS), wanted)


def test_layouts():
    reference, pyramid, *lines = case()
    want = naive(reference, pyramid, *lines)
    last = [x.flatten(0, 1).contiguous(memory_format=torch.channels_last) for x in pyramid]
    last = [x.unflatten(0, y.shape[:2]) for x, y in zip(last, pyramid, strict=True)]
    other = reference.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(ours(other, last, *lines), want)
    torch.testing.assert_close(
        gradients(ours, other, last, *lines), gradients(naive, reference, pyramid, *lines)
    )


def test_gradcheck():
    reference, pyramid, *lines = case()
    features = [x.requires_grad_() for x in (reference, *pyramid)]
    assert torch.autograd.gradcheck(lambda f, *p: ours(f, p, *lines), features, fast_mode=True)


def test_opcheck():
    reference, pyramid, *lines = case(dtype=torch.float32)
    pyramid = [x.requires_grad_() for x in pyramid]
    arguments = reference.requires_grad_(), pyramid, lines, RADIUS, epipolar._MEMORY
    torch.library.opcheck(torch.ops.vizoo.epipolar_correlation.default, arguments)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half(dtype):
    reference, pyramid, *lines = case(12, 17, dtype=dtype)
    out = ours(reference, pyramid, *lines)
    want = naive(reference.double(), [x.double() for x in pyramid], *lines)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), want, rtol=torch.finfo(dtype).eps, atol=1e-4)
    found = gradients(ours, reference, pyramid, *lines)
    assert all(x.dtype == dtype and x.isfinite().all() for x in found)


def test_autocast():
    reference, pyramid, *lines = case(dtype=torch.float32)
    features = [x.requires_grad_() for x in (reference, *pyramid)]
    with torch.autocast("cpu", torch.bfloat16):
        out = ours(features[0], features[1:], *lines)
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert all(x.grad.dtype == torch.float32 for x in features)


@pytest.mark.parametrize("place", [math.inf, -math.inf, 1e30, -1e30])
def test_far_away_is_zero(place):
    reference, pyramid, base, direction, flow = case()
    base[:, :, 0, 0] = place
    assert (ours(reference, pyramid, base, direction, flow)[..., 0, :] == 0).all()
    plain = epipolar._plain(reference, pyramid, [base, direction, flow], RADIUS)
    assert (plain[..., 0, :] == 0).all()


def test_nan_stays_nan():
    reference, pyramid, base, direction, flow = case()
    base[0, 1, 0, 2, 3] = math.nan
    out = ours(reference, pyramid, base, direction, flow)
    assert out[0, 1, :, 2, 3].isnan().all() and out.isnan().sum() == out.shape[2]


def test_empty_batch():
    reference, pyramid, *lines = case()
    empty = reference[:0], [x[:0] for x in pyramid], *(x[:0] for x in lines)
    assert ours(*empty).shape == (0, 2, 10, 6, 7)
    assert all(x.shape[0] == 0 for x in gradients(ours, *empty))


def test_compiles():
    torch.compiler.reset()
    compiled = torch.compile(ours, fullgraph=True, dynamic=True, backend="aot_eager")
    for size in ((6, 7), (8, 9)):
        inputs = case(*size)
        torch.testing.assert_close(compiled(*inputs), ours(*inputs))
        torch.testing.assert_close(gradients(compiled, *inputs), gradients(ours, *inputs))


class Wrapped(torch.nn.Module):
    def forward(self, reference, fine, coarse, base, direction, flow):
        return epipolar_correlation(reference, [fine, coarse], base, direction, flow, 1)


def flat(inputs):
    reference, pyramid, *lines = inputs
    return tuple(x.float() for x in (reference, *pyramid, *lines))


def test_exports(tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    auto = torch.export.Dim.DYNAMIC
    sizes = [{x.dim() - 2: auto, x.dim() - 1: auto} for x in flat(case())]
    program = torch.export.export(Wrapped(), flat(case(8, 10)), dynamic_shapes=tuple(sizes))
    assert "vizoo" not in str(program.graph)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(program, dynamo=True, verbose=False).save(str(tmp_path / "net.onnx"))
    session = runtime.InferenceSession(
        str(tmp_path / "net.onnx"), providers=["CPUExecutionProvider"]
    )
    inputs = flat(case(12, 6))
    want = Wrapped()(*inputs)
    torch.testing.assert_close(program.module()(*inputs), want, rtol=1e-4, atol=1e-4)
    names = [x.name for x in session.get_inputs()]
    feed = dict(zip(names, (x.numpy() for x in inputs), strict=True))
    (found,) = session.run(None, feed)
    torch.testing.assert_close(torch.from_numpy(found), want, rtol=1e-4, atol=1e-4)


def test_memory_is_bounded(monkeypatch):
    """Tensors of the chunks, added up, keep to the setting."""
    reference, pyramid, *lines = case(64, 80, 1, 1, 32, dtype=torch.float32)
    largest = []
    bag = torch.nn.functional.embedding_bag

    def watched(*arguments, **settings):
        samples = bag(*arguments, **settings)
        largest.append(samples.nbytes + 2 * sum(x.nbytes for x in arguments[:1]))
        return samples

    monkeypatch.setattr(epipolar.F, "embedding_bag", watched)
    whole = ours(reference, pyramid, *lines)
    counts = len(largest), max(largest)
    small = ours(reference, pyramid, *lines, memory=1 << 18)
    assert max(largest[counts[0] :]) <= 1 << 18 < counts[1]
    torch.testing.assert_close(small, whole)


def test_refuses():
    reference, pyramid, base, direction, flow = case()
    for arguments, message in (
        ((reference[0], pyramid, base, direction, flow), r"\(3, 6, 7\)"),
        ((reference, [], base, direction, flow), "no level"),
        ((reference, [pyramid[0][:, :, :, :0]], base, direction, flow), "have a pixel"),
        ((reference, [pyramid[0][:, :1]], base, direction, flow), r"\(2, 2, 3, H, W\)"),
        ((reference, pyramid, base[..., 1:], direction, flow), "base must be"),
        ((reference, pyramid, base, direction[:, :, :1], flow), "direction must be"),
        ((reference, pyramid, base, direction, flow[..., :1]), "flow must be"),
        ((reference.float(), pyramid, base, direction, flow), "float32"),
        ((reference, pyramid, base, direction, flow.long()), "floating"),
    ):
        with pytest.raises(ValueError, match=message):
            epipolar_correlation(*arguments, 1)
    with pytest.raises(ValueError, match="radius must be at least 0"):
        epipolar_correlation(reference, pyramid, base, direction, flow, -1)
    with pytest.raises(ValueError, match="memory must be at least 1"):
        epipolar_correlation(reference, pyramid, base, direction, flow, 1, memory=0)


@pytest.mark.parametrize("stage", ["sixteenth", "quarter"])
def test_published_case(golden, stage):
    folder, synthetic = golden("dispmvs")
    meta = json.loads((folder / "correlation.json").read_text())
    arrays = np.load(folder / "correlation.npz")
    levels, radius = map(int, arrays[f"in_{stage}_levels_radius"])
    names = [name for name in meta["input_names"] if f"/{stage}/" in name]
    shape = tuple(arrays[f"in_{stage}_shape"])
    reference, source = (2 * synthetic.synthetic_image(name, shape)[None] - 1 for name in names)
    pyramid = [source]
    for _ in range(levels - 1):
        pyramid.append(torch.nn.functional.avg_pool2d(pyramid[-1], 2))
    lines = (
        torch.from_numpy(arrays[f"in_{stage}_{name}"])[None, None]
        for name in ("base", "direction", "flow")
    )
    cost = epipolar_correlation(reference, [x[:, None] for x in pyramid], *lines, radius)
    want = torch.from_numpy(arrays[f"out_{stage}_cost"])
    assert (cost[0, 0] - want).abs().max() < meta["tolerance"]["absolute"]
