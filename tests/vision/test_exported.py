"""Exported files as models of a predictor, and files that are none."""

import json
import shutil

import pytest
import torch

from vizoo import StereoPredictor, create_model
from vizoo.vision.export import export
from vizoo.vision.exported import is_exported


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A network, and what was written of it for any size."""
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    net = create_model("fadnet_plus_micro").eval()
    net.reach, net.max_disparity = 77, 91  # as a subnet, whose range is not its name's
    path = tmp_path_factory.mktemp("files") / "any.onnx"
    return net, export(net, path, to="onnx", size=(64, 128), dynamic=True)  # compares, or raises


@pytest.fixture(scope="module")
def files(written):
    """A network, and its file for any size."""
    net, exported = written
    return net, exported.path


def with_facts(path, target, **changed):
    """A copy of a file that says other things of itself; nothing, where these are none."""
    import onnx

    model = onnx.load(path)
    (entry,) = (entry for entry in model.metadata_props if entry.key == "vizoo")
    facts = {**json.loads(entry.value), **changed}
    entry.value = json.dumps(facts if changed else {})
    onnx.save(model, target)
    return target


def test_what_is_written(written):
    """In place of FADNet++ micro's own test of ONNX, which takes as long as all tests here."""
    _, exported = written
    assert len({check.shapes for check in exported.checks}) == 2
    assert exported.bytes == exported.path.stat().st_size
    assert exported.metadata["model"] == "fadnet_plus_micro"
    assert [entry["name"] for entry in exported.metadata["inputs"]] == ["left", "right"]
    assert exported.metadata["outputs"] == ["disparity"]


def test_a_file_predicts_as_its_network(files):
    net, path = files
    mine, plain = StereoPredictor(path, "cpu"), StereoPredictor(net, "cpu")
    left, right = torch.rand(2, 3, 70, 90)
    wanted = plain.maps(left, right)
    assert (mine.maps(left, right) - wanted).abs().mean() < 1e-3 * wanted.abs().max()
    assert (mine.max_disparity, mine.reach) == (plain.max_disparity, 77) == (91, 77)
    assert mine.runtime == "onnxruntime"
    assert StereoPredictor(str(path), "cpu", runtime="auto").runtime == "onnxruntime"


def test_a_network_of_ones_own(files, tmp_path):
    """Of a name that is not registered nothing is known; the file says the rest."""
    path = with_facts(files[1], tmp_path / "own.onnx", model="Mine", architecture={})
    mine = StereoPredictor(path, "cpu")
    assert mine.net.architecture == {} and (mine.max_disparity, mine.reach) == (91, 77)


def test_a_file_runs_on_the_cpu_of_a_machine_with_a_gpu(files, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert StereoPredictor(files[1]).device == torch.device("cpu")


def test_a_file_in_capitals(files, tmp_path):
    path = shutil.copy(files[1], tmp_path / "ANY.ONNX")
    assert StereoPredictor(path, "cpu").runtime == "onnxruntime"


def test_what_is_a_file(tmp_path):
    assert is_exported("net.xml") and is_exported(tmp_path / "net.onnx")
    assert is_exported("NET.XML") and is_exported(tmp_path / "NET.ONNX")
    assert not is_exported("easnet_small.worlds") and not is_exported(torch.nn.Identity())


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({}, "other.onnx: does not say what it is; `vizoo export` writes files that do"),
        ({"metadata": 0}, "other.onnx: written by another version of vizoo; export it again"),
        (
            {"inputs": [{"shape": [1, 3, 64, 128]}]},
            "other.onnx: takes images of 64x128 alone; export it with --dynamic",
        ),
        (
            {"inputs": [{"shape": [2, 3, "height", "width"]}]},
            "other.onnx: takes 2 pairs at once; export it with --batch 1",
        ),
        ({"model": "mbnet"}, "other.onnx: holds mbnet, which is a model for classification, not"),
    ],
)
def test_other_files_are_one_line(files, tmp_path, changed, says):
    path = with_facts(files[1], tmp_path / "other.onnx", **changed)
    with pytest.raises(ValueError, match=says):
        StereoPredictor(path, "cpu")


def test_what_cannot_be_read(files, tmp_path):
    with pytest.raises(FileNotFoundError, match="absent.xml: no such file"):
        StereoPredictor(tmp_path / "absent.xml", "cpu")
    (tmp_path / "no.onnx").write_text("no network")
    with pytest.raises(ValueError, match="no.onnx: onnxruntime cannot read it; export it again"):
        StereoPredictor(tmp_path / "no.onnx", "cpu")
    with pytest.raises(ValueError, match="any.onnx: is run by onnxruntime, not by openvino"):
        StereoPredictor(files[1], "cpu", runtime="openvino")
    with pytest.raises(ValueError, match="onnxruntime computes in float32, not in bfloat16"):
        StereoPredictor(files[1], "cpu", dtype="bfloat16")
    pytest.importorskip("openvino")
    shutil.copy(files[1], tmp_path / "lone.xml")
    with pytest.raises(FileNotFoundError, match="lone.bin: no such file; an OpenVINO model is"):
        StereoPredictor(tmp_path / "lone.xml", "cpu")
