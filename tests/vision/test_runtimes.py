"""Networks in other runtimes: same values, kept files, and what is refused."""

import pytest
import torch
from torch import nn

from vizoo.vision import runtimes
from vizoo.vision.runtimes import Compiled, check_runtime, prepared


class Pair(nn.Module):
    """Two images in, a map out; `predict` gives two."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, left, right):
        return self.predict(left, right)[0]

    def predict(self, left, right):
        x = self.conv(left) - self.conv(right)
        return x.sum(1, keepdim=True), x.abs().amax(1, keepdim=True)


@pytest.fixture
def net(monkeypatch, tmp_path):
    monkeypatch.setenv("VIZOO_HOME", str(tmp_path))
    torch.manual_seed(0)
    return Pair().eval()


@pytest.mark.parametrize("runtime", ["openvino", "onnxruntime"])
def test_a_network_in_another_runtime_gives_the_same_at_any_size(net, runtime, monkeypatch):
    pytest.importorskip(runtime)
    fast = prepared(net, runtime)
    for size in ((2, 3, 33, 65), (1, 3, 64, 40)):
        pair = torch.rand(2, *size)
        torch.testing.assert_close(fast(*pair), net(*pair), atol=1e-5, rtol=1e-5)
        for one, other in zip(fast.predict(*pair), net.predict(*pair), strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    # The next time nothing is exported.
    monkeypatch.setattr(runtimes, "export", None)
    torch.testing.assert_close(prepared(net, runtime)(*pair), fast(*pair))


def test_other_weights_are_another_file(net):
    pytest.importorskip("openvino")
    pair = torch.rand(2, 1, 3, 16, 24)
    before = prepared(net, "openvino")(*pair)
    with torch.no_grad():
        net.conv.weight.mul_(2)
    torch.testing.assert_close(prepared(net, "openvino")(*pair), 2 * before)


def test_the_network_is_copied(net):
    fast = Compiled(net, "openvino")
    assert all(parameter.requires_grad for parameter in net.parameters())
    assert fast.net is not net


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tensorrt", "cpu", torch.float32), "runtime 'tensorrt': there are torch, openvino, onnx"),
        (("openvino", "cuda", torch.float32), "runtime openvino runs on the cpu here, not on cuda"),
        (("onnxruntime", "cpu", torch.bfloat16), "onnxruntime computes in float32, not in bfloat"),
    ],
)
def test_what_a_runtime_cannot_do(arguments, message):
    runtime, device, dtype = arguments
    with pytest.raises(ValueError, match=message):
        check_runtime(runtime, torch.device(device), dtype)


def test_a_missing_runtime_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.delitem(__import__("sys").modules, "openvino", raising=False)
    with pytest.raises(ImportError, match="openvino needs .*openvino: pip install"):
        check_runtime("openvino", torch.device("cpu"), torch.float32)
