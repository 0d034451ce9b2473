"""Checks that every network passes; a test class inherits them and names its network."""

from __future__ import annotations

import copy

import pytest
import torch

from vizoo.vision.hub.registry import create_model
from vizoo.vision.hub.weights import load_weights, save_weights


class StereoNetworkTester:
    """Inherit, and set `name`, `parameters` and `architecture` (arguments for a small test)."""

    name: str
    parameters: int
    architecture: dict = {}
    multiple = 64
    trains_at_any_size = False

    @pytest.fixture(scope="class")
    def net(self):
        torch.manual_seed(0)
        return create_model(self.name, **self.architecture).eval()

    @staticmethod
    def views(height=64, width=128, batch=1):
        generator = torch.Generator().manual_seed(1)
        return torch.rand(2, batch, 3, height, width, generator=generator).unbind()

    def test_parameter_count(self):
        with torch.device("meta"):
            net = create_model(self.name)
        assert sum(p.numel() for p in net.parameters()) == self.parameters

    @pytest.mark.parametrize("size", [(64, 128), (65, 127), (40, 300), (1, 1)])
    def test_any_size(self, net, size):
        with torch.inference_mode():
            disparity = net(*self.views(*size, batch=2))
        assert disparity.shape == (2, 1, *size)
        assert disparity.isfinite().all() and (disparity >= 0).all()

    def test_batch_of_two_equals_two_of_one(self, net):
        left, right = self.views(batch=2)
        with torch.inference_mode():
            both = net(left, right)
            each = torch.cat([net(left[i : i + 1], right[i : i + 1]) for i in range(2)])
        assert (both - each).norm() < 1e-3 * each.norm()

    def test_save_and_load_keep_the_output(self, net, tmp_path):
        save_weights(net, tmp_path / "net.safetensors")
        loaded = load_weights(tmp_path / "net.safetensors").eval()
        with torch.inference_mode():
            assert torch.equal(net(*self.views()), loaded(*self.views()))

    def test_gradients_reach_every_parameter(self, net):
        net = copy.deepcopy(net).train()
        stages = net.forward_stages(*self.views(2 * self.multiple, 2 * self.multiple, batch=2))
        sum(prediction.mean() for stage in stages for prediction in stage).backward()
        lacking = [name for name, p in net.named_parameters() if p.grad is None]
        assert not lacking
        assert all(p.grad.isfinite().all() for p in net.parameters())

    def test_stages_are_finest_first(self, net):
        with torch.inference_mode():
            stages = net.forward_stages(*self.views())
            finest = net(*self.views())
        assert torch.equal(stages[-1][0], finest)
        for stage in stages:
            widths = [prediction.shape[-1] for prediction in stage]
            assert widths == sorted(widths, reverse=True) and widths[0] == 128

    def test_bfloat16_is_close(self, net):
        with torch.inference_mode():
            exact = net(*self.views())
            with torch.autocast("cpu", torch.bfloat16):
                rough = net(*self.views())
        assert (rough.float() - exact).norm() < 0.1 * exact.norm() + 1e-3

    def test_compiles_to_one_graph(self, net):
        compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
        with torch.inference_mode():
            torch.testing.assert_close(
                compiled(*self.views()), net(*self.views()), rtol=1e-4, atol=1e-4
            )

    def test_exports_with_dynamic_size(self, net):
        size = {2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC}
        exported = torch.export.export(net, self.views(96, 160), dynamic_shapes=(size, size))
        views = self.views(130, 200)
        with torch.inference_mode():
            torch.testing.assert_close(exported.module()(*views), net(*views), rtol=1e-4, atol=1e-4)

    def test_wrong_inputs_are_named(self, net):
        left, right = self.views()
        with pytest.raises(ValueError, match="one shape"):
            net(left, right[..., :64])
        with pytest.raises(ValueError, match=r"RGB.*\(1, 1, 64, 128\)"):
            net(left[:, :1], right[:, :1])
        if not self.trains_at_any_size:
            with pytest.raises(ValueError, match="multiples of 64.*65x128"):
                net.forward_stages(*self.views(65, 128))
