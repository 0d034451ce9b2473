"""The optimised network predicts what the network predicts."""

from __future__ import annotations

import copy
import io
import sys

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from vizoo.stereo import fadnet
from vizoo.vision import fused
from vizoo.vision.inference import optimize


def settle(net: nn.Module) -> nn.Module:
    """Give the batch norms statistics and weights as after training."""
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 2)
            if module.affine:
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.normal_(module.bias, 0, 0.1)
    return net.eval()


def close(found: Tensor, wanted: Tensor, tolerance: float = 1e-4) -> bool:
    return (found - wanted).abs().max() <= tolerance * wanted.abs().max()


NETS = {
    "tiny": fadnet.fadnet_plus_tiny,
    "micro": fadnet.fadnet_plus_micro,
    "wider": lambda: fadnet.FADNetPlus(
        [9 << i for i in range(6)], [9 << i for i in (4, 3, 2, 1, 0, 0)], max_disparity=100
    ),
}


@pytest.fixture(scope="module", params=["tiny", "micro", "wider", "border"])
def net(request) -> nn.Module:
    torch.manual_seed(0)
    if request.param == "border":  # FADNet's rules for warp, error and correlation, but thin

        class Thin(fadnet.FADNet):
            def __init__(self) -> None:
                encoder, decoder = (10, 12, 16, 16, 16, 20), (20, 16, 12, 10, 9, 7)
                fuse = fadnet.ResBlock(8 + self.shifts, encoder[2])
                fadnet._TwoStage.__init__(self, encoder, decoder, 8, fuse, "instance")

        return settle(Thin())
    return settle(NETS[request.param]())


@torch.no_grad()
@pytest.mark.parametrize(("batch", "height", "width"), [(1, 50, 90), (2, 64, 64), (1, 64, 141)])
def test_equals_the_network(net, batch, height, width):
    left, right = torch.rand(2, batch, 3, height, width)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    wanted = net(left, right)
    fast = optimize(net)
    assert close(fast(left, right), wanted)
    again = fast(left, right)  # weights are packed in the first call
    assert close(again, wanted) and again.shape == (batch, 1, height, width)
    after = net.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert close(net(left, right), wanted, 0)


def test_one_network_serves_several_sizes(net):
    fast = optimize(net)
    for size in ((64, 128), (130, 70), (64, 128)):
        left, right = torch.rand(2, 1, 3, *size)
        with torch.no_grad():
            assert close(fast(left, right), net(left, right))


@pytest.mark.parametrize("strip_bytes", [1, 100_000])
def test_strips_do_not_show(net, strip_bytes):
    left, right = torch.rand(2, 1, 3, 192, 128)
    fast = optimize(net)
    for module in fast.modules():
        if hasattr(module, "strip_bytes"):
            module.strip_bytes = strip_bytes
    with torch.no_grad():
        assert close(fast(left, right), net(left, right))


def test_plain_path_where_onednn_lacks(net, monkeypatch):
    monkeypatch.setattr(fused, "_ONEDNN", ("no such operator",))
    left, right = torch.rand(2, 2, 3, 64, 128)
    with torch.no_grad():
        assert close(optimize(net)(left, right), net(left, right))


def test_an_empty_batch_and_no_copies(net):
    fast = optimize(net)
    assert fast(*torch.rand(2, 0, 3, 64, 128)).shape == (0, 1, 64, 128)
    with pytest.raises(TypeError, match="optimize the network itself again"):
        copy.deepcopy(fast)


FUSED = {
    "convolution": lambda: fused.FusedConv2d(torch.rand(4, 3, 3, 3), None, padding=1),
    "grouped": lambda: fused.FusedConv2d(torch.rand(6, 1, 3, 3), None, padding=1, groups=3),
    "upsampling": lambda: fused.FusedUpsampling2d(torch.rand(3, 4, 4, 4)),
    "wide upsampling": lambda: fused.FusedUpsampling2d(torch.rand(3, 10, 4, 4)),
}


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("kind", FUSED)
def test_a_fused_convolution_is_saved(kind, used):
    conv, kept, x = FUSED[kind](), io.BytesIO(), torch.rand(1, 3, 8, 8)
    if used:
        conv(x)
    torch.save(conv, kept)
    kept.seek(0)
    assert torch.equal(torch.load(kept, weights_only=False)(x), conv(x))


def interrupted(conv: nn.Module, x: Tensor, line: int) -> tuple[Tensor, bool]:
    """A first call with another, as of a thread, before this line of it, and whether it has it."""
    lines, before = 0, sys.gettrace()

    def trace(frame, event, arg):
        nonlocal lines
        if frame.f_code is not fused._FusedConv.forward.__code__:
            return None
        if event == "line":
            lines += 1
            if lines == line:
                conv(x)
        return trace

    sys.settrace(trace)
    try:
        return conv(x), lines >= line
    finally:
        sys.settrace(before)


def test_a_fused_convolution_may_first_run_in_two_threads():
    x, weight = torch.rand(1, 3, 8, 8), torch.rand(4, 3, 3, 3)
    line, had = 0, True
    while had:
        line += 1
        found, had = interrupted(fused.FusedConv2d(weight, None, padding=1), x, line)
        assert close(found, F.conv2d(x, weight, padding=1))
    assert line > 4


def test_frozen_and_without_batch_norm(net):
    fast = optimize(net)
    assert not fast.training
    assert not any(p.requires_grad for p in fast.parameters())
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in fast.modules())
    left = torch.rand(1, 3, 64, 64, requires_grad=True)
    assert not fast(left, left.detach()).requires_grad


def test_half_precision_stays_near_and_returns_float32(net):
    left, right = torch.rand(2, 1, 3, 64, 128)
    found = optimize(net, torch.bfloat16)(left, right)
    assert found.dtype == torch.float32
    with torch.no_grad():
        wanted = net(left, right)
    assert (found - wanted).abs().mean() < 0.05 * wanted.abs().mean()


class Flipped(nn.Module):
    """A layer that brings its own faster form."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 4, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x.flip(2, 3), self.weight.flip(2, 3), padding=1).flip(2, 3)

    def fused(self, dtype: torch.dtype) -> nn.Conv2d:
        conv = nn.Conv2d(4, 2, 3, padding=1, bias=False).to(dtype)
        conv.load_state_dict({"weight": self.weight.detach()})
        return conv


class Residual(nn.Module):
    """A foreign network: shortcut, a convolution used twice, one whose output is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, 2, 1), nn.BatchNorm2d(6), nn.ReLU())
        self.conv1, self.bn1 = nn.Conv2d(6, 6, 3, 1, 1, bias=False), nn.BatchNorm2d(6)
        self.conv2, self.bn2 = nn.Conv2d(6, 6, 3, 1, 1, groups=2), nn.BatchNorm2d(6, affine=False)
        self.up, self.bn3 = nn.ConvTranspose2d(6, 4, 4, 2, 1), nn.BatchNorm2d(4)
        self.twice, self.bn4 = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.seen, self.bn5 = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.flipped = Flipped()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.stem(x)
        x = F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + x)
        x = self.bn3(self.up(x))
        x = self.bn4(self.twice(self.twice(x)))
        seen = self.seen(x)
        return {"out": self.flipped(self.bn5(seen) + seen)}


def test_foreign_network():
    net = settle(Residual())
    x = torch.rand(2, 3, 34, 50)
    fast = optimize(net)
    with torch.no_grad():
        wanted = net(x)["out"]
    assert close(fast(x)["out"], wanted)
    assert isinstance(fast.net.flipped, nn.Conv2d)
    left = [name for name, m in fast.named_modules() if isinstance(m, nn.BatchNorm2d)]
    assert left == ["net.bn4", "net.bn5"]  # these two cannot be folded
    half = optimize(net, torch.bfloat16)(x)["out"]
    assert half.dtype == torch.float32
    assert close(half, wanted, 0.05)


def test_a_sequence_of_a_class_of_its_own_is_folded_but_for_what_runs_twice(monkeypatch):
    monkeypatch.setattr(fx.Tracer, "trace", None)  # which takes long

    class Norm(nn.Sequential):
        """No forward pass of its own."""

    twice = nn.Conv2d(3, 3, 1)
    parts = (nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), twice, nn.BatchNorm2d(3))
    net = settle(Norm(*parts, nn.ReLU(), twice, nn.BatchNorm2d(3)))
    fast, x = optimize(net), torch.rand(1, 3, 4, 4)
    with torch.no_grad():
        assert close(fast(x), net(x))
    left = [name for name, m in fast.named_modules() if isinstance(m, nn.BatchNorm2d)]
    assert left == ["net.3", "net.6"]


def test_a_sequence_that_goes_through_its_children_in_another_order():
    class Backwards(nn.Sequential):
        def __iter__(self):
            return reversed([*self._modules.values()])

    net, x = settle(Backwards(nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1))), torch.rand(1, 3, 4, 4)
    with torch.no_grad():
        assert close(optimize(net)(x), net(x))


def test_control_flow_that_cannot_be_traced_runs_as_it_is():
    class Branching(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if x.sum() > 0 else x

    net = settle(Branching(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)))
    x = torch.rand(1, 3, 4, 4)
    with torch.no_grad():
        assert close(optimize(net)(x), net(x))


def test_refuses_other_types():
    with pytest.raises(ValueError, match="float64"):
        optimize(nn.Conv2d(1, 1, 1), torch.float64)


@pytest.mark.parametrize("block", [(1, 1), (2, 2), (4, 2)])
@pytest.mark.parametrize("stride", [1, 2])
def test_blocks_of_outputs_equal_single_outputs(block, stride):
    x, weight, bias = torch.rand(2, 5, 16, 24), torch.randn(3, 5, 5, 5), torch.randn(3)
    conv = fused.FusedConv2d(weight, bias, stride=stride, padding=2, slope=0.1, block=block)
    wanted = F.leaky_relu(F.conv2d(x, weight, bias, stride, 2), 0.1)
    torch.testing.assert_close(conv(x), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [(6, 7), (1, 7), (1, 1)])
@pytest.mark.parametrize("slope", [None, 0.0, 0.1])
def test_addition_comes_before_the_activation(slope, size):
    x, weight = torch.randn(2, 4, *size), torch.randn(4, 4, 3, 3)
    wanted = F.conv2d(x, weight, padding=1) + x
    wanted = wanted if slope is None else F.leaky_relu(wanted, slope)
    found = fused.FusedConv2d(weight, None, padding=1, slope=slope)(x, x)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("channels", [2, 20])
def test_upsampling_equals_the_transposed_convolution(channels):
    x, weight = torch.randn(2, 5, 6, 7), torch.randn(5, channels, 4, 4)
    wanted = F.leaky_relu(F.conv_transpose2d(x, weight, stride=2, padding=1), 0.1)
    layer = fused.FusedUpsampling2d(weight, slope=0.1)
    torch.testing.assert_close(layer(x), wanted, rtol=1e-4, atol=1e-4)
    blocked = fused.depth_to_space(layer.blocked(x), (2, 2))
    torch.testing.assert_close(blocked, wanted, rtol=1e-4, atol=1e-4)
