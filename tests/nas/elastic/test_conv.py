"""Elastic convolutions: against slices and crops made by hand."""

from __future__ import annotations

import inspect
import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from vizoo.nas import Choice, concat, elastic
from vizoo.nas.elastic.conv import ElasticConv2d

PLAIN = ["Conv2d", "Conv3d", "ConvTranspose2d", "ConvTranspose3d"]
A, B, K = Choice("a", (2, 4)), Choice("b", (4, 8)), Choice("k", (3, 5, 7))
EVEN = Choice("even", (2, 4))


def image(channels, dims=2, batch=2):
    return torch.rand(batch, channels, *(9, 8, 7)[:dims])


@pytest.mark.parametrize("name", PLAIN)
def test_ints_give_the_torch_layer(name):
    arguments = {"stride": 2, "padding": 1, "groups": 2, "bias": False}
    torch.manual_seed(0)
    wanted = getattr(nn, name)(4, 6, 3, **arguments)
    torch.manual_seed(0)
    found = getattr(elastic, name)(4, 6, 3, **arguments)
    assert type(found) is type(wanted) and repr(found) == repr(wanted)
    assert torch.equal(found.weight, wanted.weight)


@pytest.mark.parametrize("name", PLAIN)
def test_signature_begins_as_in_torch(name):
    wanted = list(inspect.signature(getattr(nn, name)).parameters.values())
    found = list(inspect.signature(getattr(elastic, name)).parameters.values())[: len(wanted)]
    assert [(p.name, p.default) for p in found] == [(p.name, p.default) for p in wanted]


CASES = {
    "width": ("Conv2d", (A, B, 3), {}),
    "input only": ("Conv2d", (A, 5, 3), {"stride": 2}),
    "output only": ("Conv2d", (3, B, (3, 1)), {"padding": (1, 0)}),
    "no bias": ("Conv2d", (A, B, 1), {"bias": False}),
    "kernel": ("Conv2d", (3, B, K), {"padding": "half"}),
    "matrices": ("Conv2d", (A, B, K), {"padding": "half", "transform": True, "stride": 2}),
    "dilated": ("Conv2d", (A, B, K), {"padding": "half", "dilation": 2}),
    "fixed padding": ("Conv2d", (A, B, K), {"padding": 3}),
    "same": ("Conv2d", (A, B, K), {"padding": "same", "dilation": 2}),
    "reflect": ("Conv2d", (A, B, K), {"padding": "half", "padding_mode": "reflect"}),
    "same circular": ("Conv2d", (A, 3, EVEN), {"padding": "same", "padding_mode": "circular"}),
    "grouped": ("Conv2d", (A, B, 3), {"groups": 2}),
    "grouped matrices": ("Conv2d", (A, B, K), {"groups": 2, "padding": "half", "transform": True}),
    "depthwise": ("Conv2d", (B, B, K), {"groups": B, "padding": "half", "transform": True}),
    "depth multiplier": ("Conv2d", (B, B * 2, 3), {"groups": B}),
    "concatenation": ("Conv2d", (concat(A, 1, B), B, 3), {}),
    "concatenation out": ("Conv2d", (3, concat(A, 1, B), 3), {}),
    "depthwise concatenation": ("Conv2d", (concat(A, B), concat(A, B), 3), {"groups": A + B}),
    "3d": ("Conv3d", (A, B, K), {"padding": "half", "transform": True}),
    "3d replicate": ("Conv3d", (A, B, (1, 3, 3)), {"padding": 1, "padding_mode": "replicate"}),
    "3d depthwise": ("Conv3d", (B, B, 3), {"groups": B}),
    "up": ("ConvTranspose2d", (A, B, 4), {"stride": 2, "padding": 1}),
    "up kernel": ("ConvTranspose2d", (A, B, EVEN), {"stride": 2, "padding": "half"}),
    "up matrices": ("ConvTranspose2d", (A, B, K), {"padding": "half", "transform": True}),
    "up grouped": ("ConvTranspose2d", (A, B, 4), {"stride": 2, "groups": 2}),
    "up depthwise": ("ConvTranspose2d", (B, B, 4), {"stride": 2, "groups": B}),
    "up concatenation": ("ConvTranspose2d", (concat(A, 1, B), concat(B, A), 2), {"stride": 2}),
    "up 3d": ("ConvTranspose3d", (A, B, EVEN), {"stride": 2, "padding": "half"}),
}


@pytest.mark.parametrize("case", CASES)
def test_activated_equals_exported(case):
    name, sizes, arguments = CASES[case]
    dims = 2 if "2d" in name else 3
    layer = getattr(elastic, name)(*sizes, **arguments)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    assert isinstance(layer, getattr(nn, name))
    seen = set()
    for a, b, k, even in itertools.product(A.values, B.values, K.values, EVEN.values):
        architecture = {"a": a, "b": b, "k": k, "even": even}
        layer.activate(architecture)
        plain = layer.export(architecture)
        assert type(plain) is getattr(nn, name)
        x = image(plain.in_channels, dims)
        for memory_format in (torch.contiguous_format, torch.channels_last):
            if dims == 2:
                x = x.contiguous(memory_format=memory_format)
            elastic_output = layer(x)
            assert torch.equal(elastic_output, plain(x))
        seen.add(str(plain))
        if arguments.get("padding") == "half" and arguments.get("stride", 1) == 1:
            assert elastic_output.shape[2:] == x.shape[2:]
    assert len(seen) > 1
    elastic_output.sum().backward()
    assert layer.weight.grad is not None and layer.weight.grad.isfinite().all()


def test_leading_channels_and_centre():
    layer = elastic.Conv2d(A, B, K, padding="half")
    layer.activate({"a": 2, "b": 4, "k": 3})
    x = image(2)
    wanted = F.conv2d(x, layer.weight[:4, :2, 2:5, 2:5], layer.bias[:4], padding=1)
    assert torch.equal(layer(x), wanted)


def test_identity_matrices_are_a_centre_crop():
    for dims, name in ((2, "Conv2d"), (3, "Conv3d")):
        layer = getattr(elastic, name)(2, 2, K, transform=True)
        sizes = {n: tuple(p.shape) for n, p in layer.named_parameters() if "matrix" in n}
        assert sizes == {"matrix_7to5": (5**dims,) * 2, "matrix_5to3": (3**dims,) * 2}
        found = layer.export({"k": 3}).weight
        torch.testing.assert_close(found, layer.weight[(..., *[slice(2, 5)] * dims)])


def test_matrices_apply_one_after_the_other():
    layer = elastic.Conv2d(2, 3, K, transform=True)
    torch.nn.init.normal_(layer.matrix_7to5)
    torch.nn.init.normal_(layer.matrix_5to3)
    five = layer.weight[..., 1:6, 1:6].flatten(2) @ layer.matrix_7to5.T
    five = five.view(3, 2, 5, 5)
    three = (five[..., 1:4, 1:4].flatten(2) @ layer.matrix_5to3.T).view(3, 2, 3, 3)
    torch.testing.assert_close(layer.export({"k": 5}).weight, five)
    torch.testing.assert_close(layer.export({"k": 3}).weight, three)
    assert torch.equal(layer.export({"k": 7}).weight, layer.weight)
    layer.activate({"k": 3})
    layer(image(2)).sum().backward()
    assert layer.matrix_7to5.grad.any() and layer.matrix_5to3.grad.any()


def test_columns_of_a_concatenation_lead_each_part():
    layer = elastic.Conv2d(concat(A, 1, B), 3, 1)
    found = layer.export({"a": 2, "b": 4}).weight
    assert torch.equal(found, layer.weight[:, [0, 1, 4, 5, 6, 7, 8]])


def test_channels_are_sliced_inside_groups():
    layer = elastic.Conv2d(A, B, 1, groups=2)
    found = layer.export({"a": 2, "b": 4})
    assert torch.equal(found.weight, layer.weight[[0, 1, 4, 5], :1])
    assert torch.equal(found.bias, layer.bias[[0, 1, 4, 5]])


def test_one_part_is_a_view():
    layer = elastic.Conv2d(concat(4, A), B, 3)
    active = layer.settings({"a": 2, "b": 4})
    weight = layer.weight_in_use(active)
    assert weight.shape == (4, 6, 3, 3) and weight.data_ptr() == layer.weight.data_ptr()


def test_output_size_of_a_transposed_convolution():
    layer = elastic.ConvTranspose2d(A, 3, EVEN, 2, "half")
    for even in EVEN.values:
        layer.activate({"a": 2, "even": even})
        x = image(2)
        plain = layer.export({"a": 2, "even": even})
        assert torch.equal(layer(x, output_size=[19, 17]), plain(x, output_size=[19, 17]))


def test_channels_last_is_kept():
    layer = elastic.Conv2d(A, B, K).to(memory_format=torch.channels_last)
    assert layer.export({"a": 2, "b": 4, "k": 3}).weight.is_contiguous(
        memory_format=torch.channels_last
    )
    assert elastic.Conv2d(A, B, K).export({"a": 2, "b": 4, "k": 3}).weight.is_contiguous()


def test_half_padding_with_ints():
    assert elastic.Conv2d(1, 1, (3, 5), 1, "half", 2).padding == (2, 4)
    assert elastic.ConvTranspose2d(1, 1, 4, 2, "half").padding == (1, 1)


def test_repr_names_what_is_active():
    layer = elastic.Conv2d(A, B, K)
    layer.activate({"a": 2, "b": 4, "k": 5})
    assert "ElasticConv2d(4, 8, kernel_size=(7, 7)" in repr(layer)
    assert "active: 2->4, 5x5" in repr(layer)


def test_counts_as_convolution_and_consumes_the_same_random_numbers():
    torch.manual_seed(0)
    wanted = nn.Conv2d(4, 8, 3)
    torch.manual_seed(0)
    found = elastic.Conv2d(A, B, 3)
    assert type(found) is ElasticConv2d and torch.equal(found.weight, wanted.weight)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((A, B, 3, Choice("stride", (1, 2))), "stride, padding and dilation"),
        ((A, B, 3, 1, (1, A)), "stride, padding and dilation"),
        ((A, B, (3, K)), "one value, not a tuple"),
        ((A, B, Choice("k", (2, 3))), r"all odd or all even, not \[2, 3\]"),
        ((A, B, 3, 1, 0, 1, 3), "divisible by groups"),
        ((4, 4, 3, 1, 0, 1, A), "groups that depend on a choice must be in_channels"),
        ((B, 16, 3, 1, 0, 1, B), "2 output channels for each input channel cannot have 16 for 4"),
        ((4, Choice("w", (3, 4)), 3, 1, 0, 1, 2), "3 output channels do not fit 2 groups"),
        ((concat(A, B), B, 3, 1, 0, 1, 2), "cannot read or write a concatenation"),
        ((Choice("w", ("x", "y")), 2, 3), "'w' gives"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message) as error:
        elastic.Conv2d(*arguments)
    assert "\n" not in str(error.value)


def test_wrong_channels():
    layer = elastic.Conv2d(A, B, 3)
    layer.activate({"a": 2, "b": 4})
    says = "2 input channels active but was given 4: give it the choice of the layer before it"
    with pytest.raises(ValueError, match=says):
        layer(image(4))


@pytest.mark.parametrize("channels", [(2, 4), (A, B)])
def test_geometry_that_cannot_be(channels):
    for how in ({"stride": A}, {"dilation": (1, A)}, {"padding": A}):
        with pytest.raises(ValueError, match="stride, padding and dilation .* cannot be choices"):
            elastic.Conv2d(*channels, 3, **how)
    with pytest.raises(ValueError, match="^padding 'halff': choose half, same or valid"):
        elastic.Conv2d(*channels, 3, padding="halff")


def test_what_a_layer_keeps_of_its_settings_is_bounded():
    values = tuple(range(1, 33))
    layer = elastic.Conv2d(Choice("i", values), Choice("o", values), 1)
    for i in values:
        for o in values:
            layer.activate({"i": i, "o": o})
            assert (layer.active.in_channels, layer.active.out_channels) == (i, o)
    assert len(layer._known) <= 256
