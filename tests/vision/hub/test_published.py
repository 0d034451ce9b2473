"""Published checkpoints: unwrapping, and which family they belong to."""

import io
import pickle
import tarfile
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from vizoo.vision.hub._pickles import load_pickle
from vizoo.vision.hub.published import read_published, recognise

STATE = {"a.weight": torch.ones(2), "module.b": torch.zeros(1)}


@pytest.mark.parametrize(
    "content",
    [
        STATE,
        {"epoch": 3, "state_dict": STATE},
        {"model": {"state_dict": STATE, "arch": "x"}},
        {"state_dict": {f"module.{key}": value for key, value in STATE.items()}},
        {f"module.module.{key}": value for key, value in STATE.items()},
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
        ({"module.a": torch.eye(2).to_sparse(), "b": torch.ones(1)}, r"not dense.*: module.a$"),
    ],
)
def test_no_state_dict(tmp_path, content, says):
    torch.save(content, tmp_path / "x.pth")
    with pytest.raises(ValueError, match=f"x.pth.*{says}"):
        read_published(tmp_path / "x.pth")


class Runs:
    """Would write a file if it were unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("kind", ["zip", "legacy", "bare"])
def test_what_a_pickle_would_run_is_named_and_not_run(tmp_path, kind, protocol):
    path, written = tmp_path / "x.tar", tmp_path / "written"
    content = {"state_dict": STATE, "more": {"deep": [({"down": Runs(written)},)]}}
    if kind == "bare":
        path.write_bytes(pickle.dumps({"a": Runs(written)}, protocol))
    else:
        options = {"pickle_protocol": protocol, "_use_new_zipfile_serialization": kind == "zip"}
        torch.save(content, path, **options)
    with pytest.raises(ValueError, match=r"x.tar: refused, .* more than tensors need: \w+\.open;"):
        read_published(path)
    assert not written.exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\x80\x04\x8c\x05a\nb\x1b[\x8c\x04evil\x93.", r"need: 'a\\nb\\x1b\[\.evil';"),
        (b"(S'true'\nios\nsystem\n.", "need: os.system;"),
        (b"\x80\x02(" + b"".join(b"cmod%d\nf\n" % i for i in range(50)) + b"t.", "… 38 more;"),
        (b"<!DOCTYPE html><title>Virus scan", "a web page, not the file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS, not the file"),
        (b"", r"not a checkpoint, or damaged \(it ends too early\)"),
        (b"junk\n", r"damaged \(its bytes do not decode\)"),  # the first four name a missing key
    ],
)
def test_files_that_are_no_checkpoint(tmp_path, content, says):
    (tmp_path / "x.pth").write_bytes(content)
    with pytest.raises(ValueError, match=f"x.pth: .*{says}") as caught:
        read_published(tmp_path / "x.pth")
    assert str(caught.value).isprintable()
    if b"\x80" not in content:
        (tmp_path / "x.safetensors").write_bytes(content)
        with pytest.raises(ValueError, match=says if "not the file" in says else "cut short"):
            read_published(tmp_path / "x.safetensors")


def test_the_other_half_of_an_openvino_file(tmp_path):
    for name in ("fast.bin", "fast.xml"):
        (tmp_path / name).write_bytes(b"junk")
    with pytest.raises(ValueError, match=r"fast.bin: .* OpenVINO file, .* other half, fast.xml"):
        read_published(tmp_path / "fast.bin")


@pytest.mark.parametrize("entry", ["data.pkl", "data/0"])
def test_an_archive_that_swells_is_not_unpacked(tmp_path, entry):
    torch.save(STATE, tmp_path / "whole.pth")
    with (
        zipfile.ZipFile(tmp_path / "whole.pth") as whole,
        zipfile.ZipFile(tmp_path / "x.pth", "w", zipfile.ZIP_DEFLATED) as x,
    ):
        for name in whole.namelist():
            swollen = b"\0" * 10_000_000 if name.endswith(entry) else whole.read(name)
            x.writestr(name, swollen)
    with pytest.raises(ValueError, match=r"x.pth: not a checkpoint: it is compressed"):
        read_published(tmp_path / "x.pth")


def test_an_archive_that_swells_is_not_hidden(tmp_path):
    """Neither in a folder called code below others nor from Python's own reader of archives."""
    torch.save(STATE, tmp_path / "x.pth")
    whole = (tmp_path / "x.pth").read_bytes()
    with zipfile.ZipFile(tmp_path / "x.pth", "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/data/code/0", b"\0" * 10_000_000)
    with pytest.raises(ValueError, match=r"x.pth: not a checkpoint: it is compressed"):
        read_published(tmp_path / "x.pth")
    entry = whole.index(b"PK\1\2") + 6  # the version of the format that the entry needs
    (tmp_path / "y.pth").write_bytes(whole[:entry] + b"\x46\0" + whole[entry + 2 :])
    with pytest.raises(ValueError, match=r"y.pth: .*its list of contents cannot be read"):
        read_published(tmp_path / "y.pth")


def test_archives_write_nothing(tmp_path):
    """Neither a zip nor a tar with entries that lead elsewhere is unpacked."""
    folder = tmp_path / "deep/er"
    folder.mkdir(parents=True)
    torch.save(STATE, folder / "whole.pth")
    with (
        zipfile.ZipFile(folder / "whole.pth") as whole,
        zipfile.ZipFile(folder / "x.pth", "w") as x,
    ):
        for name in whole.namelist():
            x.writestr(name, whole.read(name))
        x.writestr("../../escaped", "x")
        x.writestr(str(tmp_path / "absolute"), "x")
    with tarfile.open(folder / "x.tar", "w") as archive:
        for name in ("pickle", "../../escaped", str(tmp_path / "absolute")):
            archive.addfile(tarfile.TarInfo(name))
        archive.add(folder / "whole.pth", "whole.pth")
    for name in ("x.pth", "x.tar"):
        with pytest.raises(ValueError, match=f"{name}: not a checkpoint, or damaged") as caught:
            read_published(folder / name)
        assert len(str(caught.value)) < 300
    assert {path.name for path in tmp_path.rglob("*")} == {
        *("deep", "er", "whole.pth", "x.pth", "x.tar"),
    }


def test_recognise(theirs, tmp_path):
    _, state = theirs
    torch.save({"state_dict": state}, tmp_path / "x.pth")
    stored = recognise(tmp_path / "x.pth")
    assert (stored.name, stored.architecture) == ("dummy_small", {"width": 3})
    assert stored.facts["converted_from"] == "x.pth" and len(stored.facts["sha256"]) == 64

    torch.save({**state, "more": torch.ones(1)}, tmp_path / "x.pth")
    with pytest.raises(ValueError, match=r"x.pth: does not fit dummy_small: .*1 surplus \(more\)"):
        recognise(tmp_path / "x.pth")
    torch.save(STATE, tmp_path / "x.pth")
    with pytest.raises(ValueError, match="no model family recognises it: no theirs.weight"):
        recognise(tmp_path / "x.pth")
