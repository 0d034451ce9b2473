"""Published checkpoints: unwrapping, and which family they belong to."""

import io
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from vizoo.vision.hub._pickles import load_pickle
from vizoo.vision.hub.published import read_published, recognise
from vizoo.vision.hub.registry import create_model

STATE = {"a.weight": torch.ones(2), "module.b": torch.zeros(1)}


@pytest.mark.parametrize(
    "content",
    [
        STATE,
        {"epoch": 3, "state_dict": STATE},
        {"model": {"state_dict": STATE, "arch": "x"}},
        {"state_dict": {f"module.{key}": value for key, value in STATE.items()}},
    ],
)
def test_wrappings(tmp_path, content):
    torch.save(content, tmp_path / "x.tar")
    state = read_published(tmp_path / "x.tar")
    # Only a `module.` that leads every key comes from a wrapper.
    assert list(state) == ["a.weight", "module.b"]
    assert torch.equal(state["a.weight"], torch.ones(2))


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("module", ["numpy.core.multiarray", "numpy._core.multiarray"])
def test_numpy_numbers_beside_the_state(tmp_path, zipped, module):
    """KITTI's best.tar of FADNet keeps losses as NumPy scalars; old PyTorch wrote no zip."""
    content = {
        "model": {"state_dict": STATE},
        "train_loss": np.float64(1.5),
        "test_loss": np.float32(0.5),
        "epoch": np.int64(3),
        "kind": np.dtype("float32"),
    }
    torch.save(content, tmp_path / "x.tar", _use_new_zipfile_serialization=zipped)
    written = np.float64(0).__reduce__()[0].__module__.encode()
    data = (tmp_path / "x.tar").read_bytes()
    assert written in data
    data = (
        rezipped(tmp_path / "x.tar", written, module.encode())
        if zipped
        else data.replace(written, module.encode())
    )
    (tmp_path / "x.tar").write_bytes(data)
    assert list(read_published(tmp_path / "x.tar")) == ["a.weight", "module.b"]
    loaded = load_pickle(tmp_path / "x.tar")
    assert loaded["train_loss"] == 1.5 and loaded["epoch"] == 3


def rezipped(path, old: bytes, new: bytes) -> bytes:
    """The same archive with another name in its pickle."""
    content = io.BytesIO()
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(content, "w") as target:
        for name in source.namelist():
            target.writestr(name, source.read(name).replace(old, new))
    return content.getvalue()


def test_safetensors(tmp_path):
    save_file(STATE, tmp_path / "x.safetensors")
    assert set(read_published(tmp_path / "x.safetensors")) == set(STATE)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ([1, 2], "holds a list"),
        ({}, "holds a dict"),
        ({"state_dict": {"a": torch.ones(1), "epoch": 3}}, "no tensor under epoch"),
    ],
)
def test_no_state_dict(tmp_path, content, says):
    torch.save(content, tmp_path / "x.pth")
    with pytest.raises(ValueError, match=f"x.pth.*{says}"):
        read_published(tmp_path / "x.pth")


def test_recognise(family, tmp_path):
    def convert_published(state):
        if "theirs.weight" not in state:
            raise ValueError("no theirs.weight")
        return "dummy_small", {"width": 3}, {k.replace("theirs", "first"): state[k] for k in state}

    family.convert_published = convert_published
    net = create_model("dummy_small", width=3)
    theirs = {key.replace("first", "theirs"): value for key, value in net.state_dict().items()}
    torch.save({"state_dict": theirs}, tmp_path / "x.pth")
    stored = recognise(tmp_path / "x.pth")
    assert (stored.name, stored.architecture) == ("dummy_small", {"width": 3})
    assert stored.facts["converted_from"] == "x.pth" and len(stored.facts["sha256"]) == 64

    torch.save({**theirs, "more": torch.ones(1)}, tmp_path / "x.pth")
    with pytest.raises(ValueError, match=r"x.pth: does not fit dummy_small: .*1 surplus \(more\)"):
        recognise(tmp_path / "x.pth")
    torch.save(STATE, tmp_path / "x.pth")
    with pytest.raises(ValueError, match="no model family recognises it: no theirs.weight"):
        recognise(tmp_path / "x.pth")
