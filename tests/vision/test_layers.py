"""What networks refuse to take for images; see also `network_tester`."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses import FakeTensorMode

from vizoo.vision.layers import check_images, check_range


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_a_little_beyond_the_range_is_taken(dtype):
    """As resizing and noise leave it."""
    check_images(torch.linspace(-0.2, 1.3, 300, dtype=dtype).view(1, 3, 10, 10))


@pytest.mark.parametrize(
    ("dtype", "remedy"),
    [("uint8", "divide by 255"), ("uint16", "divide by 65535"), ("int64", "convert and scale")],
)
def test_integers(dtype, remedy):
    images = torch.zeros(1, 3, 4, 4, dtype=getattr(torch, dtype))
    with pytest.raises(ValueError, match=rf"float in \[0, 1\], got {dtype}: {remedy}"):
        check_range(images)


def test_sixteen_bits_and_hounsfield_units():
    with pytest.raises(ValueError, match="from 0 to 6.2e.04: divide by 65535"):
        check_range(torch.tensor([0.0, 62000]).repeat(1, 3, 8, 4))
    with pytest.raises(ValueError, match="volumes must be .* from -1024 to 400: scale them"):
        check_range(torch.tensor([-1024.0, 400]).repeat(1, 1, 4, 8, 4), "volumes")


def test_what_has_no_values_is_taken():
    check_images(torch.empty(1, 3, 8, 8, device="meta"))
    check_images(torch.empty(0, 3, 8, 8))
    check_images(torch.full((1, 3, 8, 8), torch.nan))  # of another kind, see check_prediction
    with FakeTensorMode():
        check_images(torch.empty(1, 3, 8, 8))


def test_few_values_are_read(monkeypatch):
    seen = []
    reduce = torch.Tensor.aminmax
    monkeypatch.setattr(torch.Tensor, "aminmax", lambda x: seen.append(x.numel()) or reduce(x))
    check_images(torch.rand(4, 3, 400, 1000).contiguous(memory_format=torch.channels_last))
    check_range(torch.rand(2, 1, 32, 128, 128))
    assert max(seen) <= 512


def test_graphs_keep_no_trace():
    class Scaled(torch.nn.Module):
        def forward(self, image):
            check_images(image)
            return 2 * image

    image = torch.rand(1, 3, 8, 8)
    compiled = torch.compile(Scaled(), fullgraph=True, backend="eager")
    assert torch.equal(compiled(image), 2 * image)
    calls = [n for n in torch.export.export(Scaled(), (image,)).graph.nodes if n.op[:4] == "call"]
    assert len(calls) == 1
    traced = torch.jit.trace(Scaled(), (image,))
    assert "aminmax" not in str(traced.graph)
