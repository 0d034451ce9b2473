"""Conversion of networks to supernets: couplings, what is kept, what stays and why."""

from __future__ import annotations

import copy
import functools
import json
import pickle
import random

import conversion_networks as networks
import pytest
import torch
from conversion_networks import EVERY, Deep, Places, Residual, Scaled, Small, Transformer, layer
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from vizoo import nas
from vizoo.nas.conversion.importance import taylor_scores
from vizoo.nas.conversion.labels import Ties
from vizoo.nas.sorting import sort_channels

IMAGE = (2, 3, 16, 16)


def randomized(net: nn.Module) -> nn.Module:
    """With statistics and scales that are none of them alike."""
    for module in net.modules():
        for name in ("weight", "bias", "running_mean", "running_var"):
            tensor = getattr(module, name, None)
            if isinstance(tensor, torch.Tensor) and tensor.dim() == 1:
                nn.init.uniform_(tensor, 0.5, 1.5)
    return net.eval()


def converted(net, **settings):
    return nas.convert(net, torch.rand(IMAGE), **settings)


def run(net, image):
    with torch.no_grad():
        return net(image)


def drawn(space, count=5):
    rng = random.Random(0)
    return [space.smallest(), *(space.sample(rng) for _ in range(count))]


@functools.cache
def together(kind):
    """A network, its state before it was converted, and what that gave; all to be left as is."""
    torch.manual_seed(0)
    net = randomized(kind())
    return net, copy.deepcopy(net.state_dict()), converted(net)


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
class TestEveryCoupling:
    def test_the_largest_is_the_network(self, kind):
        net, state, made = together(kind)
        image = torch.rand(IMAGE)
        assert torch.equal(run(made.net, image), run(net, image))
        largest = nas.extract(made.net, made.space.largest())
        assert torch.equal(run(largest, image), run(net, image))
        assert type(largest) is type(net)
        assert all(torch.equal(net.state_dict()[name], t) for name, t in state.items())
        assert made.net.state_dict().keys() == largest.state_dict().keys() == state.keys()

    def test_extracted_equals_activated(self, kind):
        net, _, made = together(kind)
        image, supernet = torch.rand(IMAGE), copy.deepcopy(made.net)
        smallest = nas.extract(supernet, made.space.smallest())
        assert sum(p.numel() for p in smallest.parameters()) < 0.8 * sum(
            p.numel() for p in net.parameters()
        )
        for architecture in drawn(made.space):
            nas.activate(supernet, architecture)
            plain = nas.extract(supernet, architecture)
            assert torch.equal(run(plain, image), run(supernet, image))
            assert not any(isinstance(m, nas.ElasticModule) for m in plain.modules())

    def test_extracted_equals_activated_in_training(self, kind):
        torch.manual_seed(0)
        net, plan = randomized(kind()).train(), together(kind)[2].plan
        made, image = converted(net, plan=plan), torch.rand(IMAGE)
        assert all(module.training for module in made.net.modules())
        nas.activate(made.net, made.space.smallest())
        plain = nas.extract(made.net, made.space.smallest())
        for _ in range(2):
            assert torch.equal(made.net(image), plain(image))
        plain.eval(), made.net.eval()
        assert torch.equal(made.net(image), plain(image))

    def test_state_dict_and_plan(self, kind):
        _, _, made = together(kind)
        image, trained = torch.rand(IMAGE), copy.deepcopy(made.net)
        with torch.no_grad():
            for parameter in trained.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
        plan = json.loads(json.dumps(made.plan))
        again = converted(randomized(kind()), plan=plan)
        again.net.load_state_dict(trained.state_dict())
        assert again.space == made.space and again.plan == plan and again.fixed == made.fixed
        for architecture in drawn(made.space):
            nas.activate(trained, architecture)
            nas.activate(again.net, architecture)
            assert torch.equal(run(again.net, image), run(trained, image))

    def test_sorted_it_is_as_if_converted_by_these_scores(self, kind):
        net, _, made = together(kind)
        image, supernet = torch.rand(IMAGE), copy.deepcopy(made.net)
        sort_channels(supernet)  # by magnitude, as they are
        state = made.net.state_dict()
        assert all(torch.equal(state[name], t) for name, t in supernet.state_dict().items())
        torch.manual_seed(2)
        scores = {name: torch.rand(p.shape) ** 4 for name, p in net.named_parameters()}
        number = sum(name.endswith((".width", "num_heads")) for name in made.space.names)
        assert len(sort_channels(supernet, scores)) == number
        assert any(not torch.equal(state[name], t) for name, t in supernet.state_dict().items())
        other = converted(net, scores=scores)
        for architecture in (made.space.largest(), *drawn(made.space)):
            nas.activate(supernet, architecture)
            nas.activate(other.net, architecture)
            one, wanted = run(supernet, image), run(other.net, image)
            torch.testing.assert_close(one, wanted, rtol=1e-4, atol=1e-5)


def values(made):
    return {choice.name: choice.values for choice in made.space}


def widths(net, **settings):
    return values(converted(net, **settings))


def test_modes_come_back_where_all_choices_are_tried():
    net = randomized(Residual()).train()
    net.block[0].eval()
    made = converted(net)
    modes = [module.training for module in net.modules()]
    assert [module.training for module in made.net.modules()] == modes


def test_choices():
    def widths(kind):
        return values(together(kind)[2])

    assert widths(Residual) == {
        "first.0.width": (8, 12, 16),
        "block.0.0.width": (12, 20, 24),
    }
    assert widths(networks.SqueezeExcite) == {
        "first.0.width": (8, 12, 16),
        "down.width": (4, 6, 8),
        "place.kernel": (3, 5, 7),
    }
    assert widths(networks.Depthwise) == {"first.0.width": (8, 12, 16), "each.0.kernel": (3, 5)}
    assert widths(networks.Grouped)["groups.0.width"] == (32, 48, 64)
    assert widths(networks.GroupNormed)["normed.0.width"] == (8, 12, 16)
    assert widths(Deep) == {
        "first.0.width": (8, 12, 16),
        "blocks.depth": (2, 3, 4),
        "blocks.0.0.width": (8, 12, 16),
        "blocks.1.0.width": (8, 12, 16),
        "blocks.0.0.kernel": (3, 5, 7),
    }
    assert widths(networks.Levels) == {
        "first.0.width": (8, 12, 16),  # that of every level of every block
        "exchanges.depth": (1, 2, 3),
    }
    assert widths(networks.Matched) == {"first.0.width": (8, 12, 16)}
    assert widths(networks.Scales)["wide.0.width"] == (12, 18, 24)  # of 3 pieces
    names = widths(Transformer)
    assert names["blocks.depth"] == (2, 3, 4)
    assert names["blocks.2.attention.num_heads"] == (2, 3, 4)
    assert names["blocks.2.mlp.0.width"] == (32, 48, 64) and names["patches.width"] == (16, 24, 32)


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
def test_norms_of_the_last_dimension_are_as_wide_as_what_they_keep(norm):
    net = nn.Sequential(nn.Linear(8, 16), norm(16), nn.Linear(16, 4)).eval()
    image = torch.rand(2, 5, 8)
    made = nas.convert(net, image)
    assert [choice.values for choice in made.space] == [(8, 12, 16)]
    nas.activate(made.net, made.space.smallest())
    small = nas.extract(made.net, made.space.smallest())
    assert small[1].normalized_shape == (8,) and torch.equal(small(image), made.net(image))


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
def test_norms_of_maps_keep_channels_only_where_those_come_last(norm):
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = norm(16)

        def forward(self, x):
            return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    # As wide as there are channels: of the other norm, it is the width that it is of.
    for middle, size in ((Last(), 8), (norm(16), 16)):
        net = randomized(nn.Sequential(nn.Conv2d(3, 16, 1), middle, nn.Conv2d(16, 4, 1)))
        made = converted(net)
        assert [choice.values for choice in made.space] == [(8, 12, 16)]
        nas.activate(made.net, made.space.smallest())
        small, image = nas.extract(made.net, made.space.smallest()), torch.rand(IMAGE)
        assert getattr(small[1], "norm", small[1]).normalized_shape == (size,)
        assert torch.equal(small(image), made.net(image))


def test_what_is_asked_for():
    assert not any("kernel" in name for name in widths(Deep(), kernels=False))
    assert not any("depth" in name for name in widths(Deep(), depths=False))
    assert set(widths(Deep(), widths=())) == {"blocks.0.0.kernel", "blocks.depth"}
    assert widths(Residual(), widths=[0.25])["first.0.width"] == (4, 16)
    assert set(widths(Deep(), keep=["blocks.[01]"])) == {"blocks.depth"}
    assert set(widths(Residual(), keep=["first"])) == {"block.0.0.width"}
    assert converted(Residual(), keep=["first"]).fixed["first.0"] == "first.0 is kept"


def test_what_can_be_gone_through_once_counts_as_a_list():
    found = widths(Residual(), widths=iter([0.25, 1]), keep=(name for name in ["first"]))
    assert found == {"block.0.0.width": (8, 24)}


def test_a_sequence_with_a_block_twice_keeps_its_length():
    block = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
    found = converted(nn.Sequential(nn.Conv2d(3, 8, 1), nn.Sequential(block, block), layer(8, 8)))
    assert "1.depth" not in found.space.names


def test_a_head_goes_whole():
    made = converted(Transformer().eval(), depths=False)
    small = nas.extract(made.net, made.space.smallest())
    attention = small.blocks[0].attention
    assert (attention.num_heads, attention.head_dim) == (2, 8)
    large = made.net.blocks[0].attention.qkv.weight.view(3, 4, 8, 32)
    rows = attention.qkv.weight.view(3, 2, 8, 16)
    column = next(
        i for i in range(32) if torch.equal(small.patches.weight[0], made.net.patches.weight[i])
    )
    heads = [
        h
        for h in range(4)
        if any(torch.equal(rows[:, k, :, 0], large[:, h, :, column]) for k in (0, 1))
    ]
    assert len(heads) == 2


def test_heads_go_with_their_biases():
    made = converted(Places().eval(), depths=False)
    small = nas.extract(made.net, made.space.smallest())
    assert [block.attention.num_heads for block in small.blocks] == [2] * 4
    assert all(block.attention.table.shape == (5, 2) for block in small.blocks)


def test_the_important_channels_are_kept():
    net = Small().eval()
    important = [1, 4, 5, 9, 10, 11, 13, 14]
    with torch.no_grad():
        net.first[0].weight[important] += 10
    made = converted(net)
    small = nas.extract(made.net, made.space.smallest())
    assert torch.equal(small.first[0].weight, net.first[0].weight[important])
    assert torch.equal(small.head.weight, net.head.weight[:, important])


class Joined(Small):
    """One width, half of whose channels another layer reads too."""

    def __init__(self):
        super().__init__(24)
        self.one, self.other = layer(16, 8), layer(16, 8)
        self.wide, self.after = layer(16, 16), layer(8, 8)

    def between(self, x):
        one = self.one(x)
        return torch.cat([self.wide(x) + torch.cat([one, self.other(x)], 1), self.after(one)], 1)


def test_channels_change_places_with_their_like_alone():
    net, image = randomized(Joined()), torch.rand(IMAGE)
    made = converted(net)
    scores = {name: torch.rand(p.shape) ** 4 for name, p in net.named_parameters()}
    before = copy.deepcopy(made.net.state_dict())
    assert "one.0" in sort_channels(made.net, scores)
    assert not torch.equal(made.net.wide[0].weight, before["wide.0.weight"])
    nas.activate(made.net, made.space.largest())
    torch.testing.assert_close(run(made.net, image), run(net, image), rtol=1e-4, atol=1e-5)


def test_classes_that_are_tied_otherwise_are_of_another_kind():
    ties = Ties()
    for turned in ([1, 2, 0, 4, 5, 3], [1, 2, 0, 5, 3, 4]):
        one, other = ties.new(6), ties.new(6)
        ties.unite(one, other, "")
        ties.unite(other, one[turned], "")
    classes, _ = ties.classes()
    kinds = ties.kinds(classes)
    assert classes.unique().tolist() == [0, 3, 12, 15]
    assert kinds[0] == kinds[3] and len(kinds.unique()) == 3


@pytest.mark.parametrize("frozen", [False, True])
def test_scores_say_what_is_important(frozen):
    """Frozen weights have no score, and do not count by their magnitudes either."""
    net = Small().eval()
    net.first[0].weight.requires_grad_(not frozen)
    with torch.no_grad():
        net.head.weight[:, 8:] = 0  # whatever the first layer's weights are
        net.first[0].weight[8:] += 10
    batches = [torch.rand(IMAGE) for _ in range(2)]
    scores = taylor_scores(net, batches, lambda net, x: net(x).square().mean())
    assert all(p.grad is None for p in net.parameters())
    with pytest.raises(ValueError, match="no batches"):
        taylor_scores(net, [], lambda net, x: net(x).mean())
    made = converted(net, scores=scores)
    small = nas.extract(made.net, made.space.smallest())
    assert torch.equal(small.first[0].weight, net.first[0].weight[:8])


class Hard(Small):
    """Sizes that are written into the code."""

    def __init__(self):
        super().__init__()
        self.second = layer(16, 16)

    def between(self, x):
        return self.second(x.view(len(x), 16, *x.shape[2:]))


class Sliced32(Small):
    def __init__(self):
        super().__init__(8)
        self.wide, self.second = layer(16, 32), layer(16, 8)

    def between(self, x):
        x = self.wide(x)
        return self.second(x[:, :16] + x[:, 16:])


class Spectral(Small):
    def __init__(self):
        super().__init__()
        self.second = parametrizations.weight_norm(nn.Conv2d(16, 16, 1))
        self.third = layer(16, 16)

    def between(self, x):
        return self.third(self.second(x))


class Transformed(Small):
    def __init__(self):
        super().__init__()
        self.second = layer(16, 16)

    def between(self, x):
        return self.second(torch.fft.fft2(x).abs())


class Tied(Small):
    """Two layers with one weight."""

    def __init__(self):
        super().__init__()
        self.one, self.other, self.last = (nn.Conv2d(16, 16, 1) for _ in range(3))
        self.other.weight = self.one.weight

    def between(self, x):
        return self.last(self.other(F.relu(self.one(x))))


class OwnLayer(nn.TransformerEncoderLayer):
    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


class Encoded(Small):
    """PyTorch reads the encoder's weights itself, unless a layer of it has a hook."""

    layer = nn.TransformerEncoderLayer

    def __init__(self):
        super().__init__()
        kept = self.layer(16, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(kept, 2)

    def between(self, x):
        return self.encoder(x.flatten(2).mT).mT.unflatten(2, x.shape[2:])


class OwnEncoded(Encoded):
    layer = OwnLayer


@pytest.mark.parametrize(
    ("kind", "name", "why"),
    [
        (Encoded, "encoder.layers.0.linear1", "computes all of encoder.layers.0"),
        (OwnEncoded, "encoder.layers.0.linear1", "computes all of encoder.layers.0"),
        (Hard, "first.0", "it does not run smaller: shape"),
        (Sliced32, "wide.0", "it does not run smaller: The size of tensor a"),
        (Spectral, "first.0", "operator convolution in second"),
        (Spectral, "second", "its weight is computed, as by a parametrization"),
        (Transformed, "first.0", "operator _fft_c2c"),
        (Tied, "one", "shares its weight with another layer"),
        (Small, "head", "output of the network"),
    ],
)
def test_what_stays_is_told(kind, name, why):
    net, image = kind().eval(), torch.rand(IMAGE)
    made = converted(net)
    assert why in made.fixed[name]
    assert f"{name} stays: {made.fixed[name]}" in str(made)
    nas.activate(made.net, made.space.smallest())
    small = nas.extract(made.net, made.space.smallest())
    assert torch.equal(run(made.net, image), run(small, image))
    assert len(small.get_submodule(name).weight) == len(net.get_submodule(name).weight)


class Eights(Small):
    """Channels in eights: half as many run, three quarters do not."""

    def __init__(self):
        super().__init__()
        self.wide = nn.ModuleList(layer(16, 16) for _ in range(12))
        self.back = nn.ModuleList(nn.Conv2d(16, 16, 1) for _ in range(12))

    def between(self, x):
        for wide, back in zip(self.wide, self.back, strict=True):
            y = wide(x)
            x = x + back(y.view(len(y), y.shape[1] // 8, 8, *y.shape[2:]).flatten(1, 2))
        return x


def test_every_value_of_a_choice_is_tried():
    made = converted(Eights())
    for choice in made.space:
        for value in choice.values:
            nas.activate(made.net, {**made.space.largest(), choice.name: value})
            run(made.net, torch.rand(IMAGE))
    assert "it does not run smaller: shape" in made.fixed["wide.0.0"]


class Dynamic(Small):
    def between(self, x):
        return x * 2 if x.mean() > 0 else x


class Watched(Small):
    """A hook hands on what a layer gives."""

    def __init__(self):
        super().__init__()
        self.first.register_forward_hook(lambda module, args, out: setattr(self, "seen", out))

    def forward(self, image):
        self.first(image)
        return self.head(self.seen.mean((2, 3)))


@pytest.mark.parametrize(
    ("net", "settings", "message"),
    [
        (
            Dynamic(),
            {},
            r"Dynamic cannot be traced: what it does depends on the values of a tensor",
        ),
        (nn.Linear(7, 3), {}, "Linear cannot be traced: .*mat1 and mat2"),
        (nn.Conv2d(3, 8, 3), {}, "nothing of Conv2d can be elastic: Conv2d: output of the network"),
        (Watched(), {}, "first has forward hooks, which subnets would lack: remove them"),
        (nn.Flatten(), {}, "nothing of Flatten can be elastic: no layers"),
        (Small(), {"widths": [0.5, 50]}, "widths are shares above 0 and up to 1, not 50"),
        (Small(), {"widths": 0.5}, r"widths is a list of shares, such as \(0.5, 1\)"),
        (Small(), {"widths": "0.5"}, "widths are shares above 0 and up to 1, not '0'"),
        (Small(), {"keep": ["frist"]}, "keep 'frist': no such module; did you mean 'first'"),
        (Small(), {"keep": "first"}, r"keep is a list of names, such as \['first'\]"),
        (Small(), {"keep": 5}, r"keep is a list of names, such as \['5'\]"),
        (Small(), {"scores": {"a.weight": torch.ones(2)}}, "scores of 'a.weight': no such param"),
        (Small(), {"scores": {"head.weight": torch.ones(2)}}, r"of shape \(2,\) instead of \("),
        (nas.elastic.Conv2d(3, nas.Choice("w", (2, 4)), 3), {}, "is a supernet already: extract"),
        (Residual(), {"plan": {"version": 7}}, "version 7"),
        (Residual(), {"plan": [7]}, r"^plan \[7\]: give the `plan` of an earlier conversion$"),
    ],
)
def test_what_cannot_be(net, settings, message):
    with pytest.raises(ValueError, match=message):
        converted(net.eval(), **settings)


def test_arguments_of_another_kind():
    with pytest.raises(ValueError, match="^net 'resnet18': give a network$"):
        nas.convert("resnet18", torch.ones(1, 3, 8, 8))
    with pytest.raises(ValueError, match="^example_inputs None: give a tensor or several$"):
        nas.convert(Small(), None)


def test_the_line_that_depends_on_values_is_told():
    with pytest.raises(ValueError, match=r"test_convert.py:\d+: return x \* 2 if"):
        converted(Dynamic())


def test_a_plan_of_another_network():
    with pytest.raises(
        ValueError, match="the plan is of another network: it has 'block.0.0.width'"
    ):
        converted(Small(), plan=converted(Residual()).plan)


def test_supernets_are_copied_and_pickled():
    made, image = converted(randomized(Scaled())), torch.rand(IMAGE)
    nas.activate(made.net, made.space.smallest())
    for other in (copy.deepcopy(made.net), pickle.loads(pickle.dumps(made.net))):
        assert torch.equal(run(other, image), run(made.net, image))
        nas.activate(other, made.space.largest())
        assert not torch.equal(run(other, image), run(made.net, image))


def test_channels_last_stays():
    net = randomized(Residual()).to(memory_format=torch.channels_last)
    made, image = converted(net), torch.rand(IMAGE).to(memory_format=torch.channels_last)
    assert torch.equal(run(made.net, image), run(net, image))
    for architecture in drawn(made.space):
        nas.activate(made.net, architecture)
        small = nas.extract(made.net, architecture)
        weight = small.block[0][0].weight
        assert weight.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(run(small, image), run(made.net, image))


def test_it_trains():
    made, image = converted(Residual()), torch.rand(IMAGE)
    nas.activate(made.net, made.space.smallest())
    made.net.train()(image).square().mean().backward()
    gradient = made.net.first[0].weight.grad.flatten(1).abs().sum(1)
    assert (gradient > 0).sum() == 8


@torch.no_grad()
def test_a_subnet_is_exported(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    made = converted(randomized(Transformer()))
    small = nas.extract(made.net, made.space.smallest())
    image, file = torch.rand(IMAGE), tmp_path / "small.onnx"
    torch.onnx.export(small, (image,), file, dynamo=True, verbose=False)
    session = runtime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: image.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), small(image), rtol=1e-4, atol=1e-4)
