"""Checks that every network passes; a test class inherits them and names its network."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable

import pytest
import torch
from torch.utils import _pytree

from vizoo.vision._export_formats import FORMATS
from vizoo.vision.export import export
from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.weights import load_weights, save_weights
from vizoo.vision.inputs import example_inputs


def slow(test: Callable) -> Callable:
    """An inherited check that is slow for one class; marked itself, it would be so for all."""

    @pytest.mark.slow
    @functools.wraps(test)
    def check(*args, **kwargs):
        return test(*args, **kwargs)

    return check


class ExportTester:
    """Inherit, and set `name`: alone for the variants of a network that passes all other checks.

    Attributes:
        name: registered.
        architecture: arguments for a small test.
        exported: other arguments for exports and compilation, whose time grows with the number of
            layers.
        size: of the images at which it is traced.
        formats: written with a dynamic size; `aot-inductor` is a test of its own.
    """

    name: str
    architecture: dict = {}
    exported: dict | None = None
    size = (64, 128)
    formats: tuple[str, ...] = ("onnx",)

    def test_exports(self, tmp_path):
        for to in self.formats:
            self.check_export(tmp_path / f"net{FORMATS[to].suffixes[0]}", to)

    def check_export(self, path, to):
        if to == "onnx":
            pytest.importorskip("onnxscript")
            pytest.importorskip("onnxruntime")
        net = create_model(self.name, **(self.exported or self.architecture))
        exported = export(net, path, to=to, size=self.size, dynamic=True)  # compares, or raises
        shapes = {check.shapes for check in exported.checks}
        assert len(shapes) == 2 and path.stat().st_size == exported.bytes
        assert exported.metadata["model"] == self.name
        assert len(exported.metadata["inputs"]) == len(example_inputs(net, *self.size))
        assert all(not name.startswith("output") for name in exported.metadata["outputs"])


class NetworkTester(ExportTester):
    """Inherit, and set `name` and `parameters`; for networks of any inputs and outputs.

    Attributes:
        parameters: their number without `architecture`.
        backend: of the compiler in every run; `aot_eager` follows gradients and shapes through
            operators too, and takes twice as long.
    """

    parameters: int
    backend = "eager"
    formats = ("onnx", "torchscript")

    @pytest.fixture(scope="class")
    @classmethod
    def net(cls):
        return cls.build(cls.architecture)

    @pytest.fixture(scope="class")
    @classmethod
    def output(cls, net):
        """What it returns for its inputs."""
        inputs = cls().inputs(net)
        with torch.inference_mode():
            return flat(net(*inputs))

    @classmethod
    def build(cls, arguments):
        """The network that is tested, of random weights."""
        torch.manual_seed(0)
        return create_model(cls.name, **arguments).eval()

    def inputs(self, net, height=None, width=None, batch=1):
        """Arguments of a forward pass, the same each time."""
        torch.manual_seed(1)
        return example_inputs(net, height or self.size[0], width or self.size[1], batch=batch)

    def trained_outputs(self, net):
        """What a loss would see, of a network in training mode."""
        return net(*self.inputs(net, batch=2))

    def test_parameter_count(self):
        with torch.device("meta"):
            net = create_model(self.name)
        assert sum(p.numel() for p in net.parameters()) == self.parameters

    def test_batch_of_two_equals_two_of_one(self, net):
        inputs = self.inputs(net, batch=2)
        with torch.inference_mode():
            both = flat(net(*inputs))
            each = [flat(net(*(x[i : i + 1] for x in inputs))) for i in range(2)]
        for found, *wanted in zip(both, *each, strict=True):
            wanted = torch.cat(wanted)
            assert (found - wanted).norm() < 1e-3 * wanted.norm()

    def test_save_and_load_keep_the_output(self, net, output, tmp_path):
        save_weights(net, tmp_path / "net.safetensors")
        loaded, inputs = load_weights(tmp_path / "net.safetensors").eval(), self.inputs(net)
        with torch.inference_mode():
            pairs = zip(output, flat(loaded(*inputs)), strict=True)
            assert all(torch.equal(*pair) for pair in pairs)

    def test_gradients_reach_every_parameter(self, net):
        net = copy.deepcopy(net).train()
        sum(output.mean() for output in flat(self.trained_outputs(net))).backward()
        lacking = [name for name, p in net.named_parameters() if p.grad is None]
        assert not lacking
        assert all(p.grad.isfinite().all() for p in net.parameters())

    def test_bfloat16_is_close(self, net, output):
        inputs = self.inputs(net)
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            rough = flat(net(*inputs))
        for found, wanted in zip(rough, output, strict=True):
            assert (found.float() - wanted).norm() < 0.1 * wanted.norm() + 1e-3

    def test_images_of_other_ranges_are_refused(self, net):
        image, *others = self.inputs(net)
        wrong = {
            "uint8: divide by 255": (255 * image).byte(),
            "values .*: divide by 255": 255 * image,
            "values .*: scale them alone, without subtracting a mean": 4 * image - 2,
        }
        for remedy, images in wrong.items():
            with pytest.raises(ValueError, match=rf"must be .*in \[0, 1\], got .*{remedy}"):
                net(images, *others)

    def test_compiles_to_one_graph(self):
        self.check_compiled(self.backend)

    @pytest.mark.slow
    def test_compiles_to_one_graph_of_operators(self):
        self.check_compiled("aot_eager")

    def check_compiled(self, backend):
        net = self.build(self.exported or self.architecture)
        torch.compiler.reset()  # networks that share a `forward` share the limit of its graphs
        compiled = torch.compile(net, fullgraph=True, backend=backend)
        inputs = self.inputs(net)
        with torch.inference_mode():
            pairs = zip(flat(compiled(*inputs)), flat(net(*inputs)), strict=True)
            assert all((found - wanted).norm() < 1e-4 * wanted.norm() for found, wanted in pairs)

    @pytest.mark.slow
    @pytest.mark.parametrize("to", ["torch-export", "aot-inductor"])
    def test_slow_exports(self, to, tmp_path):
        self.check_export(tmp_path / "net.pt2", to)


class StereoNetworkTester(NetworkTester):
    """Inherit, and set `name` and `parameters`; for networks of two views and one disparity.

    Attributes:
        multiple: of training sizes.
        trains_at_any_size: whether those need not be multiples.
    """

    multiple = 64
    trains_at_any_size = False

    @staticmethod
    def views(height=64, width=128, batch=1):
        generator = torch.Generator().manual_seed(1)
        return torch.rand(2, batch, 3, height, width, generator=generator).unbind()

    def trained_outputs(self, net):
        return net.forward_stages(*self.views(2 * self.multiple, 2 * self.multiple, batch=2))

    @pytest.mark.parametrize("size", [(64, 128), (65, 127), (40, 300), (1, 1)])
    def test_any_size(self, net, size):
        with torch.inference_mode():
            disparity = net(*self.views(*size, batch=2))
        assert disparity.shape == (2, 1, *size)
        assert disparity.isfinite().all() and (disparity >= 0).all()

    def test_weights_in_bfloat16(self, net, output):
        """As Lightning's `bf16-true` trains them: disparities come out in float32 all the same."""
        net = copy.deepcopy(net).bfloat16()
        views = [view.bfloat16() for view in self.inputs(net)]
        with torch.inference_mode():
            disparity = net(*views)
        assert disparity.dtype == torch.float32
        assert (disparity - output[0]).norm() < 0.1 * output[0].norm() + 1e-3
        views = self.views(2 * self.multiple, 2 * self.multiple, batch=2)
        stages = net.train().forward_stages(*(view.bfloat16() for view in views))
        sum(prediction.mean() for stage in stages for prediction in stage).backward()
        assert all(p.grad.isfinite().all() for p in net.parameters() if p.grad is not None)

    def test_stages_are_finest_first(self, net):
        with torch.inference_mode():
            stages = net.forward_stages(*self.views())
            finest = net(*self.views())
        assert torch.equal(stages[-1][0], finest)
        for stage in stages:
            widths = [prediction.shape[-1] for prediction in stage]
            assert widths == sorted(widths, reverse=True) and widths[0] == 128

    def test_wrong_inputs_are_named(self, net):
        left, right = self.views()
        with pytest.raises(ValueError, match="one shape"):
            net(left, right[..., :64])
        with pytest.raises(ValueError, match=r"RGB.*\(1, 1, 64, 128\)"):
            net(left[:, :1], right[:, :1])
        if not self.trains_at_any_size:
            with pytest.raises(ValueError, match="multiples of 64.*65x128"):
                net.forward_stages(*self.views(65, 128))


def flat(output):
    """The tensors in what a network returns."""
    return _pytree.tree_leaves(output)
