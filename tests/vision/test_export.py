"""Export: what is written, what is refused, and that every registered network is tested."""

from __future__ import annotations

import ast
import dataclasses
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn

import vizoo
from vizoo.nas.elastic import Conv2d
from vizoo.nas.space import Choice
from vizoo.nas.supernet import activate
from vizoo.vision import _export_formats as formats
from vizoo.vision.export import export, open_named, stored_bytes
from vizoo.vision.hub.registry import list_models
from vizoo.vision.int8 import Sample
from vizoo.vision.ops import correlation, warp_by_disparity


class Sum(nn.Module):
    """Two images to a map."""

    output_names = ("map",)

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, first, second, scale=1.0):
        return self.norm(self.conv(first) + self.conv(second)) * scale


class Baked(nn.Module):
    """Keeps the size that it was traced with."""

    def forward(self, image):
        height = int(image.shape[2])
        return image.sum(2) * height


class Volumes(nn.Module):
    """CT-like input: one channel, depth, height and width; and a table that has no size."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv3d(1, 2, 3, padding=1)

    def forward(self, volume, spacing):
        mean = self.conv(volume).mean((2, 3, 4))
        return {"scores": mean, "scaled": mean * spacing.sum(1, keepdim=True)}

    def example_inputs(self, height, width, *, batch=1, device="cpu", dtype=torch.float32):
        volume = torch.rand(batch, 1, height // 2, height, width, device=device, dtype=dtype)
        return volume, torch.rand(batch, 3, device=device, dtype=dtype)


def runtimes(to):
    if to == "onnx":
        pytest.importorskip("onnxscript")
        pytest.importorskip("onnxruntime")


def test_where_weights_come_from(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("easnet_small").mkdir()  # such as one of results; the model is meant
    assert open_named("easnet_small")[1] == "easnet_small.generated"
    assert open_named("easnet_small.generated")[1] == "easnet_small.generated"
    assert open_named("fadnet_plus_micro")[1] == "random"
    net = vizoo.create_model("fadnet_plus_micro")
    vizoo.save_weights(net, "mine.safetensors")
    assert open_named(tmp_path / "mine.safetensors")[1] == "mine.safetensors"
    vizoo.save_pretrained(net, "released", licence="MIT", trained_on="nothing")
    assert open_named("local-dir:released")[1] == "local-dir:released"


@pytest.mark.parametrize("to", ["onnx", "torch-export", "torchscript"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_formats(tmp_path, to, dynamic):
    runtimes(to)
    net, path = Sum(), tmp_path / f"sum{formats.FORMATS[to].suffixes[0]}"
    net.conv.eval()
    opset = 18 if to == "onnx" else None
    exported = export(net, path, to=to, size=(12, 20), dynamic=dynamic, batch=2, opset=opset)
    assert [path] == list(tmp_path.iterdir()) and exported.bytes == path.stat().st_size
    assert (net.training, net.conv.training) == (True, False)
    assert exported.maximum < 1e-5 and exported.mean <= exported.maximum
    sizes = [check.shapes[0][2:] for check in exported.checks]
    assert sizes == [(12, 20), (11, 57)][: 1 + dynamic]
    facts = exported.metadata
    assert (facts["model"], facts["outputs"], facts["weights"]) == ("Sum", ["map"], "unknown")
    assert [entry["name"] for entry in facts["inputs"]] == ["first", "second"]
    shape = [2, 3, "height", "width"] if dynamic else [2, 3, 12, 20]
    expected = {"name": "first", "shape": shape, "dtype": "float32"}
    assert facts["inputs"][0] == {**expected, "channels": "RGB", "range": [0, 1]}
    assert facts["vizoo"] == vizoo.__version__
    if to == "onnx":
        check_onnx(path, shape)


def test_maps_of_three_channels_are_no_pictures(tmp_path):
    net = Sum().eval()
    net.example_inputs = lambda height, width, **_: (
        torch.rand(1, 3, height, width),
        8 * torch.rand(1, 3, height, width),
    )
    inputs = export(net, tmp_path / "sum.pt2", to="torch-export", size=(12, 20)).metadata["inputs"]
    assert ["range" in entry for entry in inputs] == [True, False]


def check_onnx(path, shape):
    """It names its axes, and holds no paths of this machine."""
    import onnx

    model = onnx.load(path)
    for entry in model.graph.input:
        axes = [d.dim_param or d.dim_value for d in entry.type.tensor_type.shape.dim]
        assert axes == shape
    assert [entry.name for entry in model.graph.output] == ["map"]
    assert {p.key for p in model.metadata_props} >= {"model", "vizoo", "torch", "weights"}
    assert [o.version for o in model.opset_import if not o.domain] == [18]
    assert b"test_export.py" not in path.read_bytes()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("to", ["torch-export", "torchscript"])
def test_images_larger_than_the_network(tmp_path, to, dynamic):
    """A pair of them has 7 MB, the network 500 bytes."""
    path = tmp_path / f"sum{formats.FORMATS[to].suffixes[0]}"
    exported = export(Sum(), path, to=to, size=(384, 768), dynamic=dynamic)
    assert exported.bytes < 100_000


class Pooled(nn.Module):
    """Its last windows reach beyond images whose sizes are no multiples of four."""

    def forward(self, image):
        return nn.functional.avg_pool2d(image, 4, ceil_mode=True, count_include_pad=False)


def test_images_smaller_than_a_window(tmp_path):
    """`export` compares at the size that was traced, too."""
    pytest.importorskip("openvino")
    pytest.importorskip("onnxscript")
    exported = export(Pooled(), tmp_path / "pooled.xml", to="openvino", size=(2, 3), dynamic=True)
    assert len(exported.checks) == 2


@pytest.mark.parametrize("padding_counts", [False, True])
def test_windows_beyond_the_image_are_pooled_whole(padding_counts):
    image = torch.rand(1, 2, 5, 7)
    pooled = formats._pool_whole(image, [2, 3], [2, 3], [0, 0], True, padding_counts)
    pool = nn.AvgPool2d((2, 3), ceil_mode=True, count_include_pad=padding_counts)
    torch.testing.assert_close(pooled, pool(image))


@pytest.mark.slow
def test_compiled_windows_beyond_the_image(tmp_path):
    """`export` compares at the size that was traced and at one that is no multiple."""
    path = tmp_path / "pooled.pt2"
    exported = export(Pooled(), path, to="aot-inductor", size=(48, 64), dynamic=True)
    assert len(exported.checks) == 2


@pytest.mark.slow
def test_compiled(tmp_path):
    exported = export(Sum(), tmp_path / "sum.pt2", to="aot-inductor", size=(12, 20), dynamic=True)
    assert len(exported.checks) == 2 and exported.metadata["model"] == "Sum"


def test_inputs_other_than_images(tmp_path):
    runtimes("onnx")
    exported = export(Volumes(), tmp_path / "net.onnx", to="onnx", size=(8, 12), dynamic=True)
    volume, spacing = exported.metadata["inputs"]
    assert volume["shape"] == [1, 1, "volume_2", "height", "width"] and "range" not in volume
    assert spacing == {"name": "spacing", "shape": [1, 3], "dtype": "float32"}
    assert exported.metadata["outputs"] == ["scores", "scaled"]


def test_what_is_compiled_is_exported_as_what_it_wraps(tmp_path):
    net = torch.compile(nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU()).eval(), backend="eager")
    exported = export(net, tmp_path / "net.pt", to="torchscript", size=(8, 12))
    assert exported.metadata["model"] == "Sequential" and len(exported.metadata["inputs"]) == 1


def test_a_graph_in_words_does_not_count(tmp_path):
    """What symbolic sizes take in a program's JSON says nothing of surplus weights."""
    with zipfile.ZipFile(tmp_path / "net.pt2", "w") as archive:
        archive.writestr("net/models/model.json", b" " * 5000)
        archive.writestr("net/data/weights/0", b" " * 70)
    assert stored_bytes(tmp_path / "net.pt2") == 70
    (tmp_path / "net.onnx").write_bytes(b" " * 30)
    assert stored_bytes(tmp_path / "net.onnx") == 30


def test_a_supernet_exports_what_is_active(tmp_path):
    width = Choice("width", (2, 64))
    net = nn.Sequential(Conv2d(3, width, 3, padding=1), Conv2d(width, 1, 1))
    activate(net, {"width": 2})
    exported = export(net, tmp_path / "net.pt", to="torchscript", size=(8, 8))
    assert exported.weight_bytes == 4 * (2 * 27 + 2 + 2 + 1)


def test_a_file_of_weights(tmp_path):
    cell = "|none~0|+|none~0|none~1|+|skip_connect~0|nor_conv_1x1~1|none~2|"
    architecture = {"channels": 2, "cells": 1, "cell": cell}
    net = vizoo.create_model("nasbench201", **architecture)
    path = vizoo.save_weights(net, tmp_path / "mine.safetensors")
    exported = vizoo.export(path, tmp_path / "net.pt", to="torchscript", size=(64, 64))
    assert exported.metadata["weights"] == "mine.safetensors"
    assert exported.metadata["architecture"] == architecture


class Matching(nn.Module):
    """Has operators that vizoo registers."""

    def forward(self, left, right):
        disparity = 8 * correlation(left, right, 8).mean(1, keepdim=True)
        return warp_by_disparity(right, disparity)


def test_files_run_without_vizoo(tmp_path):
    """In a process that cannot import it."""
    net = Matching()
    pair = torch.rand(2, 1, 3, 64, 64)
    with torch.inference_mode():
        torch.save([*pair, net(*pair)], tmp_path / "known.pt")
    export(net, tmp_path / "net.pt2", to="torch-export", size=(64, 64))
    export(net, tmp_path / "net.pt", to="torchscript", size=(64, 64))
    code = """
import sys
sys.modules["vizoo"] = None
import torch
*pair, wanted = torch.load("known.pt")
for net in (torch.export.load("net.pt2").module(), torch.jit.load("net.pt")):
    torch.testing.assert_close(net(*pair), wanted, rtol=1e-4, atol=1e-3)
"""
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("to", "name", "options", "says"),
    [
        ("onx", "net.onnx", {}, "no export format is called 'onx'; did you mean onnx?"),
        ("caffe", "net.onnx", {}, "there are onnx, openvino, torch-export"),
        ("onnx", "net.pt", {}, "a file of onnx ends in .onnx"),
        ("torchscript", "net.onnx", {}, "a file of torchscript ends in .pt or .ts"),
        ("torchscript", "net.pt", {"opset": 18}, "torchscript has none"),
        ("onnx", "net.onnx", {"opset": 11}, "opset 11: take one from 16"),
        ("torchscript", "net.pt", {"size": (0, 4)}, "size 0x4: must be at least 1"),
        ("torchscript", "net.pt", {"inputs": (), "dynamic": True}, "give size instead"),
        ("onnx", "net.onnx", {"float_parts": ["conv"]}, "for precision 'int8', not 'float32'"),
        ("onnx", "net.onnx", {"calibrate": [Sample(())]}, "for precision 'int8', not 'float32'"),
        ("onnx", "net.onnx", {"precision": "int8", "float_parts": "conv"}, "not 'conv'"),
        ("onnx", "net.onnx", {"precision": "int8", "max_loss": float("nan")}, "not nan"),
        ("onnx", "net.onnx", {"precision": "int8", "max_loss": -1.0}, "max_loss -1: must be at le"),
    ],
)
def test_refused_at_once(tmp_path, to, name, options, says):
    with pytest.raises(ValueError) as error:
        export(Sum(), tmp_path / name, to=to, **options)
    assert says in str(error.value) and not list(tmp_path.iterdir())


def test_a_full_disk_is_said_before_work(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=400)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    monkeypatch.setattr("vizoo.vision.export._write", lambda *given: pytest.fail("wrote"))
    with pytest.raises(OSError, match="No space left on device: .*net.pt'$"):
        export(Sum(), tmp_path / "net.pt", to="torchscript", size=(8, 8))


@pytest.mark.parametrize("to", ["torch-export", "torchscript"])
def test_a_baked_size_is_noticed(tmp_path, to):
    path = tmp_path / f"net{formats.FORMATS[to].suffixes[0]}"
    path.write_text("earlier")
    with pytest.raises(ValueError, match="Baked"):
        export(Baked(), path, to=to, size=(8, 12), dynamic=True)
    assert path.read_text() == "earlier" and [path] == list(tmp_path.iterdir())


def test_a_network_that_takes_even_sizes(tmp_path):
    class Even(nn.Module):
        def forward(self, image):
            return nn.functional.pixel_unshuffle(image, 2)

    path, how = tmp_path / "net.pt", {"to": "torchscript"}
    exported = export(Even(), path, size=(8, 12), dynamic=True, **how)
    assert exported.checks[1].shapes == ((1, 3, 16, 12),)
    with pytest.raises(ValueError, match="^Even does not take inputs of 1x3x7x12: "):
        export(Even(), path, size=(7, 12), **how)


@pytest.mark.parametrize("form", [lambda x: x, lambda x: (x,), lambda x: iter([x])])
def test_inputs_may_be_one_tensor(tmp_path, form):
    image = torch.rand(1, 3, 8, 12)
    net, path = nn.Conv2d(3, 2, 3), tmp_path / "net.pt2"
    exported = export(net, path, to="torch-export", inputs=form(image))
    assert exported.checks[0].shapes == (image.shape,)


class Keyed(nn.Module):
    """Gives a dictionary, in which nothing or several tensors may stand under a key."""

    def __init__(self, scales):
        super().__init__()
        self.scales = scales

    def forward(self, image):
        scaled = [image * scale for scale in self.scales]
        return {"map": image + 1, "scaled": scaled, "aux": None}


@pytest.mark.parametrize(
    ("scales", "names"), [((), ["map"]), ((2, 3), ["output_0", "output_1", "output_2"])]
)
def test_an_output_is_called_by_a_key_of_its_own(tmp_path, scales, names):
    path = tmp_path / "net.pt2"
    exported = export(Keyed(scales), path, to="torch-export", size=(8, 12))
    assert exported.metadata["outputs"] == names


class Twice(Sum):
    """Gives its map twice."""

    output_names = ("map", "again")

    def forward(self, first, second):
        return (super().forward(first, second),) * 2


@pytest.mark.parametrize(("added", "by"), [(1e-2, r"0\.01"), (float("nan"), "nan")])
def test_a_difference_is_an_error(tmp_path, monkeypatch, added, by):
    """Also in the last output alone."""
    form = formats.FORMATS["torchscript"]

    def read(file, dtype):
        run, facts = form.read(file, dtype)

        def changed(inputs):
            first, last = run(inputs)
            return first, last + added

        return changed, facts

    monkeypatch.setitem(formats.FORMATS, "torchscript", dataclasses.replace(form, read=read))
    with pytest.raises(ValueError, match=rf"1x3x8x12 it differs .* up to {by}.* nothing was"):
        export(Twice(), tmp_path / "net.pt", to="torchscript", size=(8, 12))
    assert not list(tmp_path.iterdir())


def test_other_weights_in_the_file_are_an_error(tmp_path, monkeypatch):
    form = formats.FORMATS["torchscript"]

    def write(job, file):
        form.write(job, file)
        with file.open("ab") as stream:
            stream.write(bytes(3 << 20))

    monkeypatch.setitem(formats.FORMATS, "torchscript", dataclasses.replace(form, write=write))
    with pytest.raises(ValueError, match="holds something else too; nothing was written"):
        export(Sum(), tmp_path / "net.pt", to="torchscript", size=(8, 12))
    assert not list(tmp_path.iterdir())


def test_the_size_is_that_of_all_files(tmp_path, monkeypatch):
    form = formats.FORMATS["torchscript"]

    def write(job, file):
        form.write(job, file)
        file.with_suffix(".bin").write_bytes(bytes(1000))

    changed = dataclasses.replace(form, write=write, beside=(".bin",))
    monkeypatch.setitem(formats.FORMATS, "torchscript", changed)
    exported = export(Sum(), tmp_path / "net.pt", to="torchscript", size=(8, 12))
    assert exported.bytes == exported.path.stat().st_size + 1000


def test_not_finite_is_said(tmp_path):
    net = Sum()
    nn.init.constant_(net.conv.weight, float("nan"))
    with pytest.raises(ValueError, match="not finite in PyTorch already"):
        export(net, tmp_path / "net.pt", to="torchscript", size=(8, 12))


def test_missing_packages_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "_installed", lambda module: module == "onnx")
    with pytest.raises(
        ImportError, match=r"onnx needs onnxscript, onnxruntime: pip install .vizoo\[export\]"
    ):
        export(Sum(), tmp_path / "net.onnx", to="onnx")


@pytest.mark.parametrize("name", ["net.pt2", "net.xml"])
def test_a_full_disk_is_an_error(tmp_path, name):
    """PyTorch itself ends the process, and OpenVINO names neither the file nor the disk."""
    resource = pytest.importorskip("resource")
    to = {"net.pt2": "torch-export", "net.xml": "openvino"}[name]
    if to == "openvino":
        pytest.importorskip("openvino")
        pytest.importorskip("onnxscript")
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, most))
    try:
        with pytest.raises(OSError, match=rf"{name}.*disk full|File too large: .*{name}"):
            export(Sum(), tmp_path / name, to=to, size=(8, 12))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    assert not list(tmp_path.iterdir())


def test_no_compiler(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(ValueError, match=r"needs a C\+\+ compiler.*apt install g\+\+"):
        export(Sum(), tmp_path / "net.pt2", to="aot-inductor")


def test_what_cannot_be_exported_is_one_line(tmp_path):
    class Odd(nn.Module):
        def forward(self, image):
            return image * 2 if image.sum() > 0 else image

    with pytest.raises(ValueError, match="^Odd cannot be exported to torch-export: .+") as error:
        export(Odd(), tmp_path / "net.pt2", to="torch-export", size=(8, 12))
    assert "\n" not in str(error.value)


def test_import_of_the_package_loads_no_exporter():
    assert "export" in dir(vizoo) and vizoo.export is export
    assert not {"onnxruntime", "onnxscript"} & vars(sys.modules["vizoo.vision.export"]).keys()


def test_every_registered_network_has_a_tester(root):
    """A class of the testers in tests/support names each model: that is all it takes."""
    named = set()
    texts = [file.read_text() for file in Path(root / "tests").rglob("test_*.py")]
    for text in (text for text in texts if "Tester" in text):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and node.name.startswith("Test") and node.bases:
                named |= {
                    line.value.value
                    for line in node.body
                    if isinstance(line, ast.Assign)
                    and getattr(line.targets[0], "id", "") == "name"
                    and isinstance(line.value, ast.Constant)
                }
    assert set(list_models()) - named == set()
