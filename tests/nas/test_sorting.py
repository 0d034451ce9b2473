"""Channel sorting: keeps the largest network's function; by the readers' weights, or by scores."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from vizoo.nas import Choice, concat, convert, extract, sort_channels, taylor_scores
from vizoo.nas.elastic import (
    BatchNorm2d,
    Conv2d,
    ConvTranspose2d,
    GroupNorm,
    LayerNorm,
    Linear,
    Sequential,
    SqueezeExcite,
)


class Bottleneck(nn.Module):
    def __init__(self, name="e", channels=8):
        super().__init__()
        ratio = Choice(name, (1, 2, 3))
        middle = ratio * channels
        self.expand = Conv2d(channels, middle, 1)
        self.norm1 = BatchNorm2d(middle)
        self.depthwise = Conv2d(middle, middle, 3, 1, 1, groups=middle)
        self.norm2 = BatchNorm2d(middle)
        self.squeeze = SqueezeExcite(middle, ratio * 4)
        self.project = Conv2d(middle, channels, 1)

    def forward(self, x):
        y = F.relu(self.norm1(self.expand(x)))
        return x + self.project(self.squeeze(F.relu(self.norm2(self.depthwise(y)))))


def randomize(net):
    with torch.no_grad():
        for tensor in (*net.parameters(), *net.buffers()):
            if tensor.is_floating_point():
                tensor.uniform_(0.2, 1).mul_(torch.rand_like(tensor).sub(0.3).sign())
        for name, tensor in net.named_buffers():
            if name.endswith("running_var"):
                tensor.abs_()
    return net.eval()


def output(net, *inputs):
    with torch.no_grad():
        return net(*inputs)


def test_bottleneck_is_sorted_and_computes_the_same():
    net, x = randomize(Sequential(Bottleneck("a"), Bottleneck("b"))), torch.randn(2, 8, 6, 6)
    before = output(net, x)
    norms = net[0].project.weight.detach().double().abs().sum((0, 2, 3))
    names = sort_channels(net)
    assert names == ["0.expand", "0.squeeze.fc1", "1.expand", "1.squeeze.fc1"]
    torch.testing.assert_close(output(net, x), before, rtol=1e-5, atol=1e-5)
    after = net[0].project.weight.detach().double().abs().sum((0, 2, 3))
    torch.testing.assert_close(after, norms.sort(descending=True).values)
    inner = net[0].squeeze.fc2.weight.detach().abs().sum((0, 2, 3))
    assert torch.equal(inner, inner.sort(descending=True).values)
    state = {key: value.clone() for key, value in net.state_dict().items()}
    sort_channels(net)  # sorted already
    assert all(torch.equal(state[key], value) for key, value in net.state_dict().items())


class Twins(nn.Module):
    """Two layers that share their weight read the same channels."""

    def __init__(self):
        super().__init__()
        width = Choice("w", (2, 8))
        self.write, self.one, self.two = Linear(3, width), Linear(width, 2), Linear(width, 2)
        self.two.weight = self.one.weight

    def forward(self, x):
        y = self.write(x)
        return self.one(y) + self.two(y.square())


def test_a_weight_of_two_layers_is_sorted_once():
    net, x = randomize(Twins()), torch.randn(4, 3)
    before = output(net, x)
    assert sort_channels(net) == ["write"]
    torch.testing.assert_close(output(net, x), before)


class Strangers(nn.Module):
    """Two layers that share their weight read different channels."""

    def __init__(self, other):
        super().__init__()
        width = Choice("w", (2, 8))
        self.write, self.beside = Linear(3, width), Linear(3, other)
        self.one, self.two = Linear(width, 2), Linear(other, 2)
        self.two.weight = self.one.weight

    def forward(self, x):
        return self.one(self.write(x)) + self.two(self.beside(x))


@pytest.mark.parametrize("other", [Choice("v", (2, 8)), 8])
def test_a_weight_that_reads_different_channels_is_not_sorted(other):
    net, x = randomize(Strangers(other)), torch.randn(4, 3)
    before = output(net, x)
    assert sort_channels(net) == []
    assert torch.equal(output(net, x), before)


def test_gate_does_not_count_as_a_reader():
    net = randomize(Bottleneck())
    with torch.no_grad():
        net.squeeze.fc1.weight[:, 0] = 100
        net.project.weight[:, 0] = 0.01
    x = torch.randn(1, 8, 4, 4)
    before = output(net, x)
    sort_channels(net)
    assert net.project.weight[:, -1].abs().max() < 0.02
    torch.testing.assert_close(output(net, x), before, rtol=1e-4, atol=1e-4)


class Mixed(nn.Module):
    """Transposed convolution, linear layers, layer norm; a width with two producers."""

    def __init__(self):
        super().__init__()
        a, b, self_wide = Choice("a", (2, 8)), Choice("b", (3, 6)), Choice("s", (4, 8))
        self.one, self.up = Conv2d(3, a, 3, 1, 1), ConvTranspose2d(a, 4, 2, 2)
        self.left, self.right = Conv2d(4, self_wide, 1), Conv2d(4, self_wide, 1)
        self.mix = Conv2d(self_wide, 4, 1)
        self.first, self.norm, self.second = Linear(4, b), LayerNorm(b), Linear(b, 2)

    def forward(self, x):
        x = self.up(F.relu(self.one(x)))
        x = self.mix(F.relu(self.left(x)) + self.right(x)).mean((2, 3))
        return {"out": [self.second(self.norm(self.first(x)))]}


def test_widths_of_one_producer_are_sorted():
    torch.manual_seed(0)
    net, x = randomize(Mixed()), torch.randn(2, 3, 6, 6)
    before = output(net, x)["out"][0]
    assert sort_channels(net) == ["one", "first"]
    torch.testing.assert_close(output(net, x)["out"][0], before, rtol=1e-4, atol=1e-4)
    read = net.up.weight.detach().abs().sum((1, 2, 3))
    assert (read.diff() <= 1e-6).all()


class Unsafe(nn.Module):
    """Widths that somebody else depends on."""

    def __init__(self):
        super().__init__()
        a, b, c, d = (Choice(name, (4, 8)) for name in "abcd")
        self.a, self.join = Conv2d(3, a, 1), Conv2d(concat(a, 3), b, 1)
        self.after, self.norm = Conv2d(b, c, 1), GroupNorm(2, c)
        self.grouped, self.end = Conv2d(c, d, 1, groups=2), Conv2d(d, 2, 1)

    def forward(self, x):
        x = self.join(torch.cat((self.a(x), x), 1))
        return self.end(self.grouped(self.norm(self.after(x))))


def test_widths_that_others_depend_on_stay():
    net, x = randomize(Unsafe()), torch.randn(1, 3, 4, 4)
    before = output(net, x)
    assert sort_channels(net) == ["join"]
    torch.testing.assert_close(output(net, x), before, rtol=1e-4, atol=1e-4)


class Flattened(nn.Module):
    """The linear layer reads channels of the convolution that it was not given the number of."""

    def __init__(self):
        super().__init__()
        width = Choice("width", (4, 8))
        self.features = Conv2d(3, width, 1)
        self.head, self.other = Linear(width * 9, 5), Conv2d(width, 5, 3)

    def forward(self, x):
        y = self.features(x)
        return self.head(y.flatten(1)) + self.other(y).flatten(1)


class Gated(nn.Module):
    """Halves of what one layer writes meet channel by channel what another writes."""

    def __init__(self):
        super().__init__()
        width = Choice("width", (4, 8))
        self.gate, self.features = Conv2d(3, width * 2, 1), Conv2d(3, width, 1)
        self.head = Conv2d(width, 5, 1)

    def forward(self, x):
        return self.head(self.features(x) * F.glu(self.gate(x), 1))


@pytest.mark.parametrize("network", [Flattened, Gated])
def test_channels_that_are_flattened_or_split_stay(network):
    net, x = randomize(network()), torch.randn(2, 3, 3, 3)
    before = output(net, x)
    assert sort_channels(net) == []
    assert torch.equal(output(net, x), before)


def test_equal_values_written_twice_are_one_width():
    width = Choice("w", (1, 2))
    net = nn.Sequential(
        Conv2d(3, width.map(lambda w: 4 * w), 1),
        BatchNorm2d(width * 4),
        Conv2d(4 * width, 2, 1),
    )
    randomize(net)
    x = torch.randn(1, 3, 4, 4)
    before = output(net, x)
    assert sort_channels(net) == ["0"]
    torch.testing.assert_close(output(net, x), before, rtol=1e-5, atol=1e-5)
    read = net[2].weight.detach().abs().sum((0, 2, 3))
    assert (read.diff() <= 0).all()


def misleading(width=8):
    """Four channels that give much are read by small weights, four that give nothing by large."""
    net = nn.Sequential(Conv2d(3, width, 1), nn.ReLU(), Conv2d(width, 2, 1)).eval()
    with torch.no_grad():
        net[0].weight.fill_(1)
        net[0].bias.copy_(torch.tensor([16, 4, 0.5, -0.5, -9, -9, -9, -9]))
        net[2].weight.copy_(torch.arange(1, 9).view(1, 8, 1, 1).expand(2, 8, 1, 1) / 8)
    return net


@pytest.mark.parametrize("made", ["elastic", "converted"])
def test_channels_without_which_the_loss_changes_most_come_first(made):
    torch.manual_seed(0)
    batches = [torch.rand(4, 3, 4, 4) for _ in range(3)]

    def loss(net, x):
        return net(x).square().mean()

    changes = []
    for index in range(8):
        net, cut = misleading(), misleading()
        with torch.no_grad():
            cut[2].weight[:, index] = 0
            changes.append(sum(float(loss(net, x) - loss(cut, x)) for x in batches))
    best = torch.tensor(changes).argsort(descending=True)[:4]
    assert best.tolist() == [0, 1, 2, 3]
    if made == "converted":
        net = convert(misleading(), batches[0]).net
    else:
        net = misleading(Choice("0.width", (4, 8)))
    before = [output(net, x) for x in batches]
    sort_channels(net)
    assert (extract(net, {"0.width": 4})[0].bias == -9).all()
    assert sort_channels(net, taylor_scores(net, batches, loss)) == ["0"]
    kept = extract(net, {"0.width": 4})[0].bias.tolist()
    best = misleading()[0].bias[best].tolist()
    assert kept == best if made == "elastic" else sorted(kept) == sorted(best)
    for x, y in zip(batches, before, strict=True):
        torch.testing.assert_close(output(net, x), y)


def test_scores_of_other_networks():
    with pytest.raises(ValueError, match="scores of '0.wieght': no such parameter; did you mean"):
        sort_channels(misleading(Choice("w", (4, 8))), {"0.wieght": torch.ones(8, 3, 1, 1)})


@pytest.mark.parametrize("net", [nn.Conv2d(3, 3, 1), Sequential()])
def test_nothing_to_sort(net):
    assert sort_channels(net) == []
