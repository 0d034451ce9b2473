"""Elastic normalisations, linear layers and squeeze-excites."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

from vizoo.nas import Choice, concat, elastic
from vizoo.nas.elastic import base

W, V = Choice("w", (2, 4)), Choice("v", (3, 6))
SMALL = {"w": 2, "v": 3}
NAMES = ["BatchNorm2d", "BatchNorm3d", "GroupNorm", "LayerNorm", "Linear"]


@pytest.mark.parametrize("name", NAMES)
def test_ints_give_the_torch_layer(name):
    sizes = {"GroupNorm": (2, 4), "Linear": (4, 4)}.get(name, (4,))
    found = getattr(elastic, name)(*sizes)
    assert type(found) is getattr(nn, name)


@pytest.mark.parametrize("name", NAMES)
def test_signature_begins_as_in_torch(name):
    wanted = inspect.signature(getattr(nn, name)).parameters
    found = inspect.signature(getattr(elastic, name)).parameters
    shared = list(found)
    assert shared == list(wanted)[: len(shared)]
    assert all(found[n].default == wanted[n].default for n in shared)


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("channels", [W, concat(W, 1, V)])
@pytest.mark.parametrize("dims", [2, 3])
def test_batch_norm_updates_the_active_statistics(channels, momentum, dims):
    layer = getattr(elastic, f"BatchNorm{dims}d")(channels, momentum=momentum)
    nn.init.uniform_(layer.weight)
    nn.init.uniform_(layer.bias)
    used = [0, 1] if channels is W else [0, 1, 4, 5, 6, 7]
    unused = [c for c in range(layer.num_features) if c not in used]
    plain = layer.export(SMALL)
    assert type(plain) is getattr(nn, f"BatchNorm{dims}d")
    layer.activate(SMALL)
    for _ in range(3):
        x = torch.randn(4, len(used), *[5] * dims)
        assert torch.equal(layer(x), plain(x))
    assert torch.equal(layer.running_mean[used], plain.running_mean)
    assert torch.equal(layer.running_var[used], plain.running_var)
    assert layer.running_mean[unused].eq(0).all() and layer.running_var[unused].eq(1).all()
    assert layer.num_batches_tracked == plain.num_batches_tracked == 3
    layer.eval(), plain.eval()
    assert torch.equal(layer(x), plain(x))
    assert layer.running_mean[used].equal(plain.running_mean)


@pytest.mark.parametrize("flags", [(False, True), (True, False), (False, False)])
def test_batch_norm_flags(flags):
    layer = elastic.BatchNorm2d(W, 1e-3, 0.2, *flags)
    plain = layer.export(SMALL)
    layer.activate(SMALL)
    assert (plain.eps, plain.momentum, plain.affine, plain.track_running_stats) == (
        (1e-3, 0.2, *flags)
    )
    for training in (True, False):
        layer.train(training), plain.train(training)
        x = torch.randn(3, 2, 4, 4)
        assert torch.equal(layer(x), plain(x))


def test_groups_of_a_group_norm_keep_their_width():
    layer = elastic.GroupNorm(4, Choice("w", (2, 4, 8)))
    nn.init.uniform_(layer.weight)
    for width, groups in ((2, 1), (4, 2), (8, 4)):
        layer.activate({"w": width})
        plain = layer.export({"w": width})
        assert (plain.num_groups, plain.num_channels) == (groups, width)
        x = torch.randn(2, width, 3, 3)
        assert torch.equal(layer(x), plain(x))
    with pytest.raises(ValueError, match="3 channels are no multiple of the group width 2"):
        elastic.GroupNorm(2, Choice("w", (3, 4)))


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"elementwise_affine": False}])
def test_layer_norm(options):
    layer = elastic.LayerNorm(W, **options)
    layer.activate(SMALL)
    plain, x = layer.export(SMALL), torch.randn(3, 5, 2)
    assert torch.equal(layer(x), plain(x))
    assert len(list(plain.parameters())) == len(list(layer.parameters()))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("sizes", [(W, 3), (3, W), (concat(W, 1, V), V), (2, concat(W, V))])
def test_linear(sizes, bias):
    layer = elastic.Linear(*sizes, bias=bias)
    for architecture in (SMALL, {"w": 4, "v": 3}, {"w": 4, "v": 6}):
        layer.activate(architecture)
        plain = layer.export(architecture)
        assert type(plain) is nn.Linear
        for shape in ((7,), (2, 3)):
            x = torch.randn(*shape, plain.in_features)
            assert torch.equal(layer(x), plain(x))
    found = elastic.Linear(concat(W, 1, V), 2).export(SMALL)
    assert found.in_features == 6


def test_linear_takes_the_leading_columns_of_each_part():
    layer = elastic.Linear(concat(W, 1, V), V)
    found = layer.export(SMALL)
    assert torch.equal(found.weight, layer.weight[:3][:, [0, 1, 4, 5, 6, 7]])


@pytest.fixture
def many():
    """A layer of so many parts that they are taken by indices, none of which are kept, and rows."""
    base._listed.cache_clear()
    parts = [Choice(f"part{i}", (1, 2)) for i in range(8)]
    layer = elastic.Linear(concat(*parts), 3)
    layer.activate({part.name: 1 for part in parts})
    return layer, torch.ones(2, 8)


def test_many_parts_train_after_inference_mode(many):
    layer, x = many
    with torch.inference_mode():
        wanted = layer(x)
    y = layer(x)
    y.sum().backward()
    assert torch.equal(y, wanted) and layer.weight.grad[:, ::2].eq(2).all()


def test_many_parts_are_traced(many):
    layer, x = many
    torch.testing.assert_close(torch.jit.trace(layer, x)(x), layer(x))


def test_many_parts_compute_after_an_export(many):
    layer, x = many
    exported = torch.export.export(layer, (x,), strict=False).module()
    y = layer(x)
    assert type(y.detach()) is torch.Tensor
    torch.testing.assert_close(exported(x), y)


@pytest.mark.parametrize(
    "layer, x",
    [
        (elastic.BatchNorm2d(W), torch.rand(1, 3, 2, 2)),
        (elastic.GroupNorm(2, W), torch.rand(1, 3, 2, 2)),
        (elastic.LayerNorm(W), torch.rand(1, 3)),
        (elastic.Linear(W, 3), torch.rand(1, 3)),
    ],
)
def test_wrong_channels(layer, x):
    layer.activate(SMALL)
    with pytest.raises(ValueError, match="2 input channels active but was given 3"):
        layer(x)
    assert "active: 2" in repr(layer)


def test_squeeze_excite():
    layer, x = elastic.SqueezeExcite(W, V), torch.randn(2, 2, 4, 4)
    for part in (layer.fc1, layer.fc2):
        part.activate(SMALL)
    mean = x.flatten(2).mean(2)
    hidden = (mean @ layer.fc1.weight[:3, :2].flatten(1).T + layer.fc1.bias[:3]).relu()
    scale = hidden @ layer.fc2.weight[:2, :3].flatten(1).T + layer.fc2.bias[:2]
    scale = nn.functional.relu6(scale + 3) / 6
    torch.testing.assert_close(layer(x), x * scale[..., None, None])


def test_plain_squeeze_excite():
    layer = elastic.SqueezeExcite(4, 2)
    assert type(layer.fc1) is type(layer.fc2) is nn.Conv2d
    assert layer.fc1.weight.shape == (2, 4, 1, 1)
