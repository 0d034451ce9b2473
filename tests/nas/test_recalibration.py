"""Recalibration of batch normalisation: a pure function of weights, architecture and data."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vizoo.nas import elastic
from vizoo.nas.recalibration import recalibrate
from vizoo.nas.space import Choice
from vizoo.nas.supernet import activate
from vizoo.nas.values import concat


class Siamese(nn.Module):
    """Two passes of one encoder, a concatenation with elastic parts, a layer that may not run."""

    def __init__(self) -> None:
        super().__init__()
        width, depth = Choice("width", (2, 4, 6)), Choice("depth", (1, 2))
        self.encoder = elastic.Conv2d(3, width, 3, padding=1)
        self.encoder_norm = elastic.BatchNorm2d(width)
        self.joined_norm = elastic.BatchNorm2d(concat(width, width))
        self.blocks = elastic.Sequential(
            *(
                nn.Sequential(elastic.Conv2d(concat(width, width), 5, 1), nn.BatchNorm2d(5))
                if not block
                else nn.Sequential(nn.Conv2d(5, 5, 1), nn.BatchNorm2d(5))
                for block in range(2)
            ),
            length=depth,
        )
        self.dropout = nn.Dropout(0.5)

    def forward(self, left, right):
        views = [self.encoder_norm(self.encoder(view)).relu() for view in (left, right)]
        return self.dropout(self.blocks(self.joined_norm(torch.cat(views, 1))))


@pytest.fixture
def net():
    torch.manual_seed(0)
    net = Siamese()
    for norm in _norms(net).values():
        nn.init.uniform_(norm.weight)
        nn.init.normal_(norm.running_mean)
        norm.running_var.uniform_(0.5, 2)
    return net.eval()


def _norms(net):
    return {n: m for n, m in net.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)}


def _batches(*sizes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        [torch.randn(size, 3, 6, 5, generator=generator) * 3 + 1 for _ in range(2)]
        for size in sizes
    ]


def _state(net):
    return {name: tensor.clone() for name, tensor in net.state_dict().items()}


def test_averages_over_batches_and_siamese_calls(net):
    activate(net, {"width": 6, "depth": 1})
    batches = _batches(2, 3)
    with torch.no_grad():
        maps = [(len(v), net.encoder(v)) for batch in batches for v in batch]
    means = [(size, x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)) for size, x in maps]
    recalibrate(net, batches)
    for index, name in ((1, "running_mean"), (2, "running_var")):
        expected = sum(entry[0] * entry[index] for entry in means) / 10
        torch.testing.assert_close(getattr(net.encoder_norm, name), expected)


def test_one_batch_is_normalised_as_in_training(net):
    """Layers behind a layer see what training shows them."""
    activate(net, {"width": 4, "depth": 2})
    batch = [_batches(4)[0][0]] * 2  # one view twice, since a layer keeps one average of two
    recalibrate(net, [batch])
    got = net(*batch)
    for norm in _norms(net).values():
        norm.train()
    torch.testing.assert_close(got, net(*batch), rtol=1e-4, atol=1e-5)


def test_two_subnets_in_either_order(net):
    small, large = {"width": 2, "depth": 1}, {"width": 6, "depth": 2}
    batches, (views,) = _batches(2, 2), _batches(1, seed=9)

    def outputs(order):
        found = {}
        for architecture in order:
            active = activate(net, architecture)
            recalibrate(net, batches)
            with torch.no_grad():
                found[active] = net(*views)
        return found

    first, second = outputs([small, large]), outputs([large, small])
    assert all(torch.equal(first[active], second[active]) for active in first)


def test_only_what_is_active_changes(net):
    before = _state(net)
    activate(net, {"width": 2, "depth": 1})
    recalibrate(net, _batches(2))
    after = net.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    running = [f"running_{what}" for what in ("mean", "var")]
    assert changed == {
        f"{layer}.{what}"
        for layer in ("encoder_norm", "joined_norm", "blocks.0.1")
        for what in running
    }
    assert torch.equal(
        before["encoder_norm.running_mean"][2:], after["encoder_norm.running_mean"][2:]
    )
    kept = before["joined_norm.running_var"] == after["joined_norm.running_var"]
    assert kept.tolist() == [False] * 2 + [True] * 4 + [False] * 2 + [True] * 4


@pytest.mark.parametrize("broken", [False, True])
def test_modes_gradients_and_hooks_come_back(net, broken):
    net.train()
    net.encoder_norm.eval()
    net.encoder.weight.requires_grad_(False)
    modes = {name: module.training for name, module in net.named_modules()}
    needs = {name: parameter.requires_grad for name, parameter in net.named_parameters()}
    before = _state(net)
    batches = _batches(2)
    if broken:
        batches.append([torch.zeros(1, 2, 6, 5)] * 2)
        with pytest.raises(ValueError, match="input channels"):
            recalibrate(net, batches)
        assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())
    else:
        recalibrate(net, batches)
    assert modes == {name: module.training for name, module in net.named_modules()}
    assert needs == {name: parameter.requires_grad for name, parameter in net.named_parameters()}
    assert not any(module._forward_pre_hooks for module in net.modules())
    assert all(parameter.grad is None for parameter in net.parameters())


def test_plain_networks_of_other_dimensions_and_batches_of_any_kind():
    net = nn.Sequential(nn.Conv3d(1, 2, 1), nn.BatchNorm3d(2), nn.Flatten(1), nn.BatchNorm1d(16))
    batch = {"volume": torch.randn(3, 1, 2, 2, 2)}
    seen = []

    def forward(model, batch):
        assert not torch.is_grad_enabled()
        seen.append(len(batch["volume"]))
        return model(batch["volume"])

    recalibrate(net, iter([batch, batch]), forward=forward)
    assert seen == [3, 3]
    x = net[0](batch["volume"])
    torch.testing.assert_close(net[1].running_var, x.var((0, 2, 3, 4), unbiased=False))
    before = net[1].running_mean.clone()
    recalibrate(net, [batch["volume"]])
    torch.testing.assert_close(net[1].running_mean, before)


def test_a_batch_at_a_time():
    """Nothing of an earlier batch is held when the next one is asked for."""
    import weakref

    net, held = nn.Sequential(nn.BatchNorm1d(2)), []

    def batches():
        for _ in range(3):
            assert not any(reference() is not None for reference in held[:-1])
            x = torch.randn(4, 2)
            held.append(weakref.ref(x))
            yield x
            del x

    recalibrate(net, batches())
    assert len(held) == 3


def test_no_batch(net):
    before = _state(net)
    with pytest.raises(ValueError, match="no batch"):
        recalibrate(net, [])
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())


def test_without_batch_norms_a_process_needs_no_batch():
    """Of several processes one may have no share of the batches."""
    recalibrate(nn.Conv2d(3, 2, 1), [], group=object())


def test_channels_that_lie_apart_keep_their_type():
    parts = [Choice(f"width{number}", (1, 2)) for number in range(40)]
    net = elastic.BatchNorm2d(concat(*parts))
    activate(net, {choice.name: 1 for choice in parts})
    x = torch.rand(8, 40, 2, 2)
    recalibrate(net, [x])
    assert net.running_mean.dtype == torch.float32
    torch.testing.assert_close(net.running_mean[::2], x.mean((0, 2, 3)))
    assert net.running_mean[1::2].eq(0).all()
