"""Engines of TensorRT: what is asked of it, and what is said where it is missing."""

import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from vizoo.vision import _export_formats as formats
from vizoo.vision import _tensorrt
from vizoo.vision.export import export


class Pair(nn.Module):
    """Two images to a map."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 1, 3, padding=1)

    def forward(self, left, right):
        return self.conv(left - right)


def network_bytes():
    pytest.importorskip("onnxscript")
    inputs = tuple(torch.rand(2, 1, 3, 16, 24))
    job = formats.Job(Pair().eval(), inputs, None, ("left", "right"), ("map",), {}, None)
    return formats._onnx(job, optimize=True).SerializeToString()


def test_without_it_the_message_installs_it(tmp_path, monkeypatch):
    there = formats._installed
    monkeypatch.setattr(formats, "_installed", lambda name: name != "tensorrt" and there(name))
    with pytest.raises(
        ImportError, match=r"tensorrt needs .*tensorrt: pip install .vizoo\[tensorrt\]"
    ):
        export(Pair(), tmp_path / "net.engine", to="tensorrt")
    with pytest.raises(ValueError, match=r"net.plan: a file of tensorrt ends in .engine"):
        export(Pair(), tmp_path / "net.plan", to="tensorrt")


def test_dynamic_sizes_are_a_range():
    images = tuple(torch.rand(2, 1, 3, 16, 26))
    axes = ({2: "height", 3: "width"}, {})
    assert _tensorrt.ranges(("left", "right"), images, axes) == {
        "left": ((1, 3, 4, 6), (1, 3, 16, 26), (1, 3, 64, 104)),
        "right": ((1, 3, 16, 26),) * 3,
    }


class Asked:
    """A stand-in for the package: keeps what an engine is asked for."""

    Logger = SimpleNamespace(ERROR=1)
    BuilderFlag = SimpleNamespace(TF32="tf32")

    def __init__(self, readable=True, built=b"engine"):
        self.readable, self.built, self.shapes, self.profiles = readable, built, {}, []
        self.Logger = lambda level: "logger"
        self.Logger.ERROR = 1
        self.logger = "logger"

    def Builder(self, logger):  # noqa: N802
        return self

    def OnnxParser(self, network, logger):  # noqa: N802
        error = SimpleNamespace(desc=lambda: "no such operator")
        return SimpleNamespace(parse=lambda onnx: self.readable, get_error=lambda index: error)

    def create_network(self, flags):
        return "network"

    def create_builder_config(self):
        cleared = []
        return SimpleNamespace(
            clear_flag=cleared.append, add_optimization_profile=self.profiles.append
        )

    def create_optimization_profile(self):
        def set_shape(name, *shapes):
            self.shapes[name] = shapes

        return SimpleNamespace(set_shape=set_shape)

    def build_serialized_network(self, network, settings):
        return self.built


def test_an_engine_and_what_it_says_of_itself(tmp_path, monkeypatch):
    asked, file = Asked(), tmp_path / "net.engine"
    monkeypatch.setitem(sys.modules, "tensorrt", asked)
    shapes = {"left": ((1, 3, 4, 6), (1, 3, 16, 24), (1, 3, 64, 96))}
    _tensorrt.write(b"onnx", '{"model": "pair"}', file, shapes)
    assert file.read_bytes() == b"engine" and asked.shapes == shapes and len(asked.profiles) == 1
    assert (tmp_path / "net.engine.json").read_text() == '{"model": "pair"}'
    for package, says in (
        (Asked(readable=False), "TensorRT cannot read it: no such operator"),
        (Asked(built=None), "TensorRT builds no engine of it"),
    ):
        monkeypatch.setitem(sys.modules, "tensorrt", package)
        with pytest.raises(ValueError, match=says):
            _tensorrt.write(b"onnx", "{}", file, {})
    job = formats.Job(Pair(), (torch.rand(1, 3, 4, 4),), None, (), (), {}, None)
    with pytest.raises(ValueError, match="builds for the GPU that it runs on: give --device cuda"):
        formats.FORMATS["tensorrt"].write(job, file)


@pytest.mark.gpu
def test_tensorrt_reads_the_network():
    trt = pytest.importorskip("tensorrt")
    network = _tensorrt.parse(network_bytes(), trt.Builder(trt.Logger(trt.Logger.ERROR)))
    assert [network.get_input(i).name for i in range(network.num_inputs)] == ["left", "right"]


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
def test_an_engine_predicts_what_pytorch_does(tmp_path, dynamic):
    pytest.importorskip("tensorrt")
    path = tmp_path / "net.engine"
    exported = export(Pair().cuda(), path, to="tensorrt", size=(16, 24), dynamic=dynamic)
    assert exported.maximum <= exported.checks[0].allowed and len(exported.checks) == 1 + dynamic
