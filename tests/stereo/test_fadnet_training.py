"""The decoder's form for training against the layers one by one."""

import random

import pytest
import torch
from torch import nn

from vizoo.nas.supernet import activate, search_space
from vizoo.stereo._fadnet_layers import _convolve_joined, _predict_finest
from vizoo.vision.hub.create import create_model
from vizoo.vision.layers import normalize_pair


@pytest.mark.parametrize("width", [4, 12])  # layer by layer; the prediction's taps multiplied in
@pytest.mark.parametrize("size", [(1, 1), (2, 5), (7, 6)])
def test_equals_the_layers(width, size):
    conv = nn.Conv2d(width + 4, width, 3, padding=1, dtype=torch.float64)
    head = nn.Conv2d(width, 1, 3, padding=1, bias=False, dtype=torch.float64)
    parts = [torch.randn(2, c, *size, dtype=torch.float64) for c in (width, 1, 3)]
    for part in parts:
        part.requires_grad_()
    wanted = conv(torch.cat(parts, 1))
    torch.testing.assert_close(_convolve_joined(conv, parts), wanted)
    wanted, found = head(wanted), _predict_finest(conv, head, parts)
    torch.testing.assert_close(found, wanted)
    leaves = *parts, *conv.parameters(), *head.parameters()
    weight = torch.randn_like(wanted)
    torch.testing.assert_close(
        torch.autograd.grad(found, leaves, weight), torch.autograd.grad(wanted, leaves, weight)
    )


@pytest.mark.parametrize("name", ["fadnet_plus_mobile", "fadnet_plus_elastic"])
def test_network_trains_as_layer_by_layer(name):
    net = create_model(name).train()
    if "elastic" in name:
        activate(net, search_space(net).sample(random.Random(0)))
    left, right = torch.rand(2, 2, 3, 64, 128)
    outputs = []
    for layered in (False, True):
        net.cunet.layered = net.dispnetres.layered = layered
        outputs.append(net.forward_stages(left, right))
    for found, wanted in zip(*outputs, strict=True):
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3 * b.abs().max().item())


def test_autocast():
    net = create_model("fadnet_plus_mobile").train()
    left, right = torch.rand(2, 2, 3, 64, 64)
    with torch.autocast("cpu", torch.bfloat16):
        stages = net.forward_stages(left, right)
    assert all(p.dtype == torch.float32 and p.isfinite().all() for s in stages for p in s)


def test_scores_are_products_of_the_features():
    net = create_model("fadnet_plus_micro").eval()
    left, right = torch.rand(2, 1, 3, 64, 128)
    with torch.no_grad():
        stages, [(scores, step)] = net.forward_volumes(left, right)
        pair = torch.cat(normalize_pair(left, right, net.normalization))
        of_left, of_right = net.extract_network(pair)[2]
        plain = net.forward_stages(left, right)
    assert step * scores.shape[-1] == 128 and scores.shape[1] == 16  # no shift beyond the width
    for shift in (0, 3):
        products = (of_left[..., shift:] * of_right[..., : 16 - shift]).sum(0)
        torch.testing.assert_close(scores[0, shift, :, shift:], products)
    torch.testing.assert_close(stages, plain, rtol=0, atol=0)
