"""Supernets: their space, activation and extraction, on networks made of every elastic layer."""

from __future__ import annotations

import copy
import functools
import random

import pytest
import torch
from supernet_tester import SupernetTester, randomized, traces
from torch import nn
from torch.nn import functional as F

from vizoo.nas import Choice, concat
from vizoo.nas.elastic import (
    BatchNorm2d,
    BatchNorm3d,
    Conv2d,
    Conv3d,
    ConvTranspose2d,
    ConvTranspose3d,
    GroupNorm,
    LayerNorm,
    Linear,
    ModuleList,
    Operation,
    Sequential,
    SqueezeExcite,
)
from vizoo.nas.supernet import activate, active, extract, search_space


class Block(nn.Module):
    """An inverted residual block."""

    def __init__(self, channels, name, squeeze=True):
        super().__init__()
        ratio = Choice(f"{name}.expand", (1, 2, 3))
        middle = ratio.map(lambda e: e * 8)
        self.expand = Conv2d(channels, middle, 1, bias=False)
        self.norm1 = BatchNorm2d(middle)
        kernel = Choice(f"{name}.kernel", (3, 5, 7))
        geometry = {"padding": "half", "groups": middle, "bias": False, "transform": True}
        self.depthwise = Conv2d(middle, middle, kernel, **geometry)
        self.norm2 = BatchNorm2d(middle)
        self.squeeze = SqueezeExcite(middle, ratio * 4) if squeeze else nn.Identity()
        self.project = Conv2d(middle, channels, 1, bias=False)
        self.norm3 = BatchNorm2d(channels)

    def forward(self, x):
        y = F.relu(self.norm1(self.expand(x)))
        y = self.squeeze(F.relu(self.norm2(self.depthwise(y))))
        return x + self.norm3(self.project(y))


class Pyramid(nn.Module):
    """Elastic number of levels and blocks, several outputs, widths that are choices."""

    def __init__(self):
        super().__init__()
        levels = Choice("levels", (1, 2))
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        stages = []
        for stage in range(2):
            blocks = [Block(8, f"stages.{stage}.{i}", squeeze=stage == 1) for i in range(2)]
            stages.append(Sequential(*blocks, length=Choice(f"stages.{stage}.depth", (1, 2))))
        self.stages = ModuleList(stages, length=levels)
        width = Choice("head.width", (4, 12))
        self.heads = ModuleList(
            [nn.Sequential(Conv2d(8, width, 1), Conv2d(width, 2, 1)) for _ in range(2)],
            length=levels,
        )
        self.blocks = [self.stages, self.stem]  # a second way to the same modules

    def forward(self, x):
        x, outputs = self.stem(x), []
        for stage, head in zip(self.stages, self.heads, strict=True):
            x = stage(x)
            outputs.append(head(x))
            x = F.avg_pool2d(x, 2)
        return tuple(outputs)


class TestPyramid(SupernetTester):
    architectures = 12

    def build(self):
        return Pyramid()

    def inputs(self):
        return (torch.rand(2, 3, 24, 40, generator=torch.Generator().manual_seed(0)),)


class Deformable(nn.Module):
    """torchvision's deformable convolution inside a plain module."""

    def __init__(self, channels):
        super().__init__()
        self.offsets = nn.Conv2d(channels, 18, 3, 1, 1)
        self.weight = nn.Parameter(torch.randn(channels, channels, 3, 3) * 0.1)

    def forward(self, x):
        from torchvision.ops import deform_conv2d

        return deform_conv2d(x, self.offsets(x), self.weight, None, 1, 1)


class Unet(nn.Module):
    """Concatenations, transposed and grouped convolutions, a choice of operation."""

    def __init__(self):
        super().__init__()
        a, b = Choice("a", (4, 6, 8)), Choice("b", (4, 8))
        self.down = Conv2d(3, a, 3, 2, 1)
        self.down_norm = GroupNorm(4, a)
        self.grouped = Conv2d(a, b, 3, padding=1, groups=2)
        self.up = ConvTranspose2d(b, a, Choice("up", (2, 4)), 2, "half")
        joined = concat(a, 3, b)
        self.join_norm = BatchNorm2d(joined)
        self.join = Conv2d(joined, 8, 3, padding=1, padding_mode="reflect")
        candidates = {
            "none": nn.Identity(),
            "plain": nn.Sequential(Conv2d(8, b, 1), Conv2d(b, 8, Choice("k", (1, 3)), 1, "half")),
            "deformable": Deformable(8),
        }
        self.operation = Operation(candidates, Choice("operation", tuple(candidates)))
        self.head = nn.Sequential(Linear(8, a), LayerNorm(a), nn.ReLU(), Linear(a, 2))

    def forward(self, x):
        y = self.grouped(F.relu(self.down_norm(self.down(x))))
        y = torch.cat((self.up(y), x, F.interpolate(y, scale_factor=2.0)), 1)
        y = self.operation(self.join(self.join_norm(y)))
        return self.head(y.permute(0, 2, 3, 1))


class TestUnet(SupernetTester):
    architectures = 12

    def build(self):
        return Unet()

    def inputs(self):
        return (torch.rand(2, 3, 16, 24, generator=torch.Generator().manual_seed(0)),)


class Volume(nn.Module):
    """Three dimensions."""

    def __init__(self):
        super().__init__()
        width, kernel = Choice("width", (4, 8)), Choice("kernel", (1, 3, 5))
        self.net = nn.Sequential(
            Conv3d(2, width, kernel, 1, "half", transform=True),
            BatchNorm3d(width),
            Conv3d(width, width, 3, 1, 1, groups=width),
            ConvTranspose3d(width, 3, 2, 2),
        )

    def forward(self, x):
        return self.net(x)


class TestVolume(SupernetTester):
    def build(self):
        return Volume()

    def inputs(self):
        return (torch.rand(2, 2, 6, 7, 8, generator=torch.Generator().manual_seed(0)),)


def test_conditions_follow_containers():
    space = search_space(Pyramid())
    assert space.names[0] == "levels"
    conditions = {name: list(cases) for name, cases in space.conditions.items()}
    assert conditions["stages.1.depth"] == [{"levels": (2,)}]
    assert conditions["stages.0.1.kernel"] == [{"stages.0.depth": (2,)}]
    case = conditions["stages.1.1.kernel"][0]
    assert case["stages.1.depth"] == (2,)
    assert "head.width" not in conditions and "stages.0.0.kernel" not in conditions


def test_operation_makes_its_candidates_conditional():
    space = search_space(Unet())
    assert list(space.conditions["k"]) == [{"operation": ("plain",)}]
    assert "b" not in space.conditions  # used elsewhere too


def test_active_choice_wherever_any_user_is():
    kernel, length = Choice("kernel", (1, 3)), Choice("length", (1, 2))
    layers = [Conv2d(2, 2, 1), Conv2d(2, 2, kernel, 1, "half")]
    assert search_space(Sequential(*layers, length=length)).conditions
    net = nn.Sequential(Sequential(*layers, length=length), Conv2d(2, 2, kernel, 1, "half"))
    assert not search_space(net).conditions


def test_one_condition_within_another_of_the_same_choice():
    scale = Choice("scale", (1, 2, 3))
    inner = ModuleList([Conv2d(2, 2, Choice(f"k{i}", (1, 3))) for i in range(3)], length=scale)
    net = ModuleList([nn.Identity(), inner, nn.Identity()], length=scale)
    conditions = search_space(net).conditions
    assert conditions["k0"][0]["scale"] == conditions["k1"][0]["scale"] == (2, 3)
    assert conditions["k2"][0]["scale"] == (3,)


def test_two_choices_with_one_name():
    net = nn.Sequential(Conv2d(3, Choice("w", (1, 2)), 1), Conv2d(3, Choice("w", (1, 3)), 1))
    with pytest.raises(ValueError, match=r"'w': \[1, 2\] and \[1, 3\]"):
        search_space(net)


def test_wrong_architectures():
    net = Pyramid()
    largest = dict(search_space(net).largest())
    with pytest.raises(ValueError, match="stages.0.depth"):
        activate(net, {**largest, "stages.0.depth": 5})
    with pytest.raises(ValueError, match="depht"):
        extract(net, {**largest, "depht": 1})
    with pytest.raises(ValueError, match="there is no choice"):
        activate(nn.Conv2d(3, 3, 1), largest)
    assert active(net) == search_space(net).largest()


def test_plain_network_is_a_space_of_one():
    net = nn.Conv2d(3, 3, 1)
    assert len(search_space(net)) == 0 and len(active(net)) == 0
    assert torch.equal(extract(net, {}).weight, net.weight)


def test_shared_modules_and_parameters_stay_shared():
    width = Choice("width", (2, 4))
    conv, plain = Conv2d(3, width, 1), nn.Conv2d(3, 3, 1)
    net = nn.ModuleDict({"a": nn.Sequential(plain, conv), "b": nn.Sequential(plain, conv)})
    net["tied"] = nn.Conv2d(3, 3, 1)
    net["tied"].weight = plain.weight
    found = extract(net, {"width": 2})
    assert found["a"][0] is found["b"][0] and found["a"][1] is found["b"][1]
    assert found["tied"].weight is found["a"][0].weight is not plain.weight
    inside = Sequential(conv, nn.Sequential(conv), length=Choice("length", (1, 2)))
    found = extract(inside, {"width": 4, "length": 2})
    assert found[0] is found[1][0]


def test_tensors_that_are_no_buffers_are_copied():
    """Such as the mean colour that a network takes off its images."""
    net = nn.Sequential(Conv2d(3, Choice("width", (2, 4)), 1))
    net.mean = torch.rand(3)
    found = extract(net, {"width": 2})
    assert torch.equal(found.mean, net.mean) and found.mean is not net.mean


def test_flags_are_kept():
    net = Pyramid().double()
    net.stages[0][0].expand.weight.requires_grad_(False)
    net.stages[0][0].norm1.eval()
    found = extract(net, search_space(net).smallest()).stages[0][0]
    assert not found.expand.weight.requires_grad and found.project.weight.requires_grad
    assert found.training and not found.norm1.training and found.norm2.training
    assert found.expand.weight.dtype == torch.float64


def test_architecture_names_the_subnet():
    net = Pyramid()
    net.architecture = {"name": "pyramid", "size": 3}
    smallest = search_space(net).smallest()
    found = extract(net, smallest).architecture
    assert found == {"name": "pyramid", "size": 3, "subnet": smallest.to_json()}
    assert net.architecture == {"name": "pyramid", "size": 3}


@pytest.mark.parametrize(
    "keep", [lambda c: c, lambda c: {"a": [c * 2]}, lambda c: (1, concat(c, 1))]
)
def test_kept_values_are_refused(keep):
    net, width = Pyramid(), Choice("head.width", (4, 12))
    net.stem.width = keep(width)
    with pytest.raises(ValueError, match=r"stem \(Conv2d\) keeps .* as 'width'"):
        extract(net, search_space(net).largest())


def test_traces_are_seen():
    width = Choice("w", (1, 2))
    for value in (width, [width], {1: width}, lambda: width, functools.partial(print, width)):
        net = nn.Identity()
        net.kept = value
        assert traces(net)
    assert traces(nn.Sequential(Conv2d(1, width, 1))) and not traces(nn.Sequential(nn.ReLU()))


def test_activation_survives_copies():
    net = randomized(Pyramid()).eval()
    smallest = activate(net, search_space(net).smallest())
    assert active(copy.deepcopy(net)) == smallest


def test_every_architecture_of_a_small_space():
    torch.manual_seed(0)
    net, x = randomized(Volume()).eval(), torch.rand(1, 2, 4, 4, 4)
    outputs = []
    for architecture in search_space(net).enumerate():
        activate(net, architecture)
        with torch.no_grad():
            assert torch.equal(net(x), extract(net, architecture)(x))
            outputs.append(net(x))
    assert len({o.sum().item() for o in outputs}) == search_space(net).count() == 6


def test_random_order_of_activation_leaves_nothing_behind():
    net, x = randomized(Unet()).eval(), torch.rand(1, 3, 8, 8)
    space, rng = search_space(net), random.Random(1)
    first = space.sample(rng)
    activate(net, first)
    with torch.no_grad():
        wanted = net(x)
        for _ in range(5):
            activate(net, space.sample(rng))
            net(x)
        activate(net, first)
        assert torch.equal(net(x), wanted)
