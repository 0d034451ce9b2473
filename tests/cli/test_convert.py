"""`vizoo convert`: published checkpoints and training runs; what is refused, and why."""

import collections

import pytest
import torch

from vizoo.__main__ import main
from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.weights import StoredWeights, load_weights


@pytest.fixture(scope="module")
def micro():
    return create_model("fadnet_plus_micro")


def published(net):
    """The state dict under the authors' names and shapes, as several GPUs would save it."""
    return {
        f"module.{key}": value.flip(2, 3).transpose(0, 1)
        if ".iconv" in key and value.dim() == 4
        else value
        for key, value in net.state_dict().items()
    }


def test_convert(tmp_path, monkeypatch, capsys, micro):
    monkeypatch.chdir(tmp_path)
    torch.save({"epoch": 1, "state_dict": published(micro)}, "best.tar")
    assert main(["convert", "best.tar", "net.safetensors"]) == 0
    said = capsys.readouterr()
    assert "net.safetensors: fadnet_plus_micro, 414 tensors" in said.out
    assert said.err == (
        "vizoo: warning: best.tar does not say its range: taken for disparities to 192 px; "
        "--max-disparity N says otherwise\n"
    )
    told = ("convert", "best.tar", "told.safetensors", "--max-disparity", "128")
    assert main([*told]) == 0 and capsys.readouterr().err == ""
    again = load_weights("net.safetensors")
    assert all(
        torch.equal(a, b) for a, b in zip(again.parameters(), micro.parameters(), strict=True)
    )

    assert main(["convert", "best.tar", "net.safetensors"]) == 2
    assert "exists already; --force" in capsys.readouterr().err
    assert main(["convert", "best.tar", "net.safetensors", "--force"]) == 0
    assert main(["convert", "none.tar", "best.tar/net.safetensors"]) == 2
    assert "is a file; name a folder" in capsys.readouterr().err

    state = published(micro)
    state.pop("module.cunet.upconv0.0.weight")
    torch.save(state, "best.tar")
    assert main(["convert", "best.tar", "other.safetensors"]) == 2
    state = published(micro)
    state.pop("module.cunet.conv4.bn1.weight")
    torch.save(state, "best.tar")
    assert main(["convert", "best.tar", "other.safetensors"]) == 2
    assert "1 missing (cunet.conv4.bn1.weight)" in capsys.readouterr().err
    assert main(["convert", "none.tar", "other.safetensors"]) == 2
    assert "none.tar: no such weight file" in capsys.readouterr().err
    assert main(["convert", "best.tar", "other.pth"]) == 2
    assert not (tmp_path / "other.safetensors").exists()


def test_convert_keeps_and_takes_architecture(tmp_path, monkeypatch, capsys, micro):
    monkeypatch.chdir(tmp_path)
    torch.save(published(micro), "best.tar")
    words = ("--normalization", "instance", "--max-disparity", "360")
    assert main(["convert", "best.tar", "net.safetensors", *words]) == 0
    wanted = {"name": "fadnet_plus_micro", "normalization": "instance", "max_disparity": 360}
    assert load_weights("net.safetensors").architecture == wanted
    assert main(["convert", "net.safetensors", "again.safetensors", "--max-disparity", "64"]) == 0
    assert load_weights("again.safetensors").architecture == {**wanted, "max_disparity": 64}
    capsys.readouterr()
    assert main(["convert", "best.tar", "x.safetensors", "--max-disparity", "999"]) == 2
    assert "best.tar: max_disparity must be from 1 to 407" in capsys.readouterr().err
    state = {"extract_network.conv1.0.weight": torch.ones(64, 3, 7, 7)}
    monkeypatch.setattr(
        "vizoo.vision.hub.published.recognise", lambda path: StoredWeights("fadnet", {}, state)
    )
    assert main(["convert", "best.tar", "x.safetensors", "--max-disparity", "192"]) == 2
    assert "fadnet has no --max-disparity; leave it out" in capsys.readouterr().err


def test_convert_a_training_run(tmp_path, micro):
    content = {
        "pytorch-lightning_version": "2.6.6",
        "hyper_parameters": {"model": "fadnet_plus_micro"},
        "state_dict": {f"net.{key}": value for key, value in micro.state_dict().items()},
    }
    torch.save(content, tmp_path / "last.ckpt")
    target = tmp_path / "net.safetensors"
    assert main(["convert", str(tmp_path / "last.ckpt"), str(target)]) == 0
    assert load_weights(target).architecture["name"] == "fadnet_plus_micro"


class Payload:
    """Stands for whatever a pickle could run."""


@pytest.mark.parametrize("suffix", ["onnx", "xml", "pt2", "engine", "pt"])
def test_an_export_is_no_checkpoint(tmp_path, capsys, suffix):
    path = tmp_path / f"net.{suffix}"
    path.write_bytes(b"\x08\x0a\x12")
    if suffix == "pt":
        torch.jit.trace(torch.nn.Linear(1, 1), torch.ones(1)).save(path)
    assert main(["convert", str(path), str(tmp_path / "net.safetensors")]) == 2
    wanted = f"{path}: an export, not a checkpoint: give the checkpoint that it was exported from\n"
    assert capsys.readouterr().err.endswith(wanted)


@pytest.mark.parametrize(
    ("name", "kind"), [("left.png", "image"), ("left.mp4", "video"), ("calib.txt", "text")]
)
def test_a_picture_is_no_checkpoint(tmp_path, capsys, name, kind):
    path = tmp_path / name
    path.write_bytes(b"\x89PNG\r\n")
    assert main(["convert", str(path), str(tmp_path / "net.safetensors")]) == 2
    wanted = f"{path}: of the type {kind}, not weights: give .safetensors, .ckpt or .pth\n"
    assert capsys.readouterr().err.endswith(wanted)


@pytest.mark.parametrize("zipped", [True, False])
def test_an_unsafe_pickle_is_refused_with_its_names(tmp_path, capsys, zipped, micro):
    content = {"state_dict": published(micro), "args": Payload(), "more": collections.Counter()}
    source = tmp_path / "best.tar"
    torch.save(content, source, _use_new_zipfile_serialization=zipped)
    assert main(["convert", str(source), str(tmp_path / "net.safetensors")]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"vizoo: error: {source}: ") and said.count("\n") == 1
    assert "Payload" in said and "save its state dict alone" in said
    assert not (tmp_path / "net.safetensors").exists()


def test_a_whole_pickled_network_is_refused(tmp_path, capsys, micro):
    torch.save(micro, tmp_path / "net.pth")
    assert main(["convert", str(tmp_path / "net.pth"), str(tmp_path / "x.safetensors")]) == 2
    said = capsys.readouterr().err
    assert "vizoo.stereo.fadnet.FADNetPlus" in said and "Traceback" not in said


def test_weights_that_are_not_finite_are_refused(tmp_path, capsys, micro):
    state = published(micro)
    state["module.cunet.conv4.bn1.weight"] = torch.full_like(
        state["module.cunet.conv4.bn1.weight"], float("nan")
    )
    torch.save(state, tmp_path / "best.tar")
    target = tmp_path / "x.safetensors"
    assert main(["convert", str(tmp_path / "best.tar"), str(target)]) == 2
    assert "not finite (cunet.conv4.bn1.weight)" in capsys.readouterr().err
    assert not target.exists()


def test_convert_a_released_folder(tmp_path, capsys, micro):
    from vizoo.vision.hub.sharing import save_pretrained

    save_pretrained(micro, tmp_path / "release", licence="x", trained_on="y")
    target = tmp_path / "net.safetensors"
    assert main(["convert", str(tmp_path / "release"), str(target)]) == 2
    assert "is a folder; name the weight file in it" in capsys.readouterr().err
    assert main(["convert", str(tmp_path / "release/model.safetensors"), str(target)]) == 0
