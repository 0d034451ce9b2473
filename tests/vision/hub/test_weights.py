"""Weight files: what is written is what comes back, and nothing else is accepted."""

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import vizoo
from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.published import read_published
from vizoo.vision.hub.weights import (
    load_state,
    load_weights,
    names_its_model,
    read_weights,
    save_weights,
)


@pytest.fixture
def saved(family, tmp_path):
    net = create_model("dummy_small", width=3)
    path = save_weights(net, tmp_path / "deep/net.safetensors", trained_on="nothing", epe=1.5)
    return net, path


def test_round_trip(saved):
    net, path = saved
    again = load_weights(path)
    assert again.architecture == {"name": "dummy_small", "width": 3} and not again.training
    for key, value in net.state_dict().items():
        assert torch.equal(again.state_dict()[key], value)
    stored = read_weights(path)
    assert stored.facts == {"trained_on": "nothing", "epe": 1.5}
    with safe_open(path, "pt") as file:
        assert json.loads(file.metadata()["vizoo"])["version"] == vizoo.__version__
    assert [p.name for p in path.parent.iterdir()] == ["net.safetensors"]


def test_the_same_weights_are_the_same_bytes(saved):
    """So that a SHA-256 says whether they are."""
    net, path = saved
    facts = {"trained_on": 'für "mich"\n', "epe": 1.5}
    assert len({save_weights(net, path, **facts).read_bytes() for _ in range(12)}) == 1
    assert read_weights(path).facts == facts


def test_a_compiled_network_is_saved_as_itself(saved, tmp_path):
    net, path = saved
    plain = save_weights(net, path).read_bytes()
    assert save_weights(torch.compile(net, backend="eager"), path).read_bytes() == plain
    net.first = torch.compile(net.first, backend="eager")
    vizoo.save_pretrained(net, tmp_path / "release", licence="MIT", trained_on="nothing")
    again = create_model(f"local-dir:{tmp_path}/release")
    assert torch.equal(again.first.weight, net.first.weight)


def test_a_slice_is_saved_without_its_storage(family, tmp_path):
    net = create_model("dummy_small", width=2)
    net.first.weight = torch.nn.Parameter(torch.zeros(2, 3, 3, 3).expand(2, 3, 3, 3))
    net.first.weight.data = torch.zeros(4000, 3, 3, 3)[:2].transpose(2, 3)
    path = save_weights(net, tmp_path / "net.safetensors")
    assert path.stat().st_size < 10_000
    load_weights(path)


def test_create_with_weights(saved):
    net, path = saved
    assert create_model("dummy_small", weights=path).architecture["width"] == 3
    with pytest.raises(ValueError, match="holds weights of dummy_small, not of dummy_deep"):
        create_model("dummy_deep", weights=path)
    with pytest.raises(ValueError, match=r"misshapen .*first\.weight 3x3x3x3 instead of 2x3x3x3"):
        create_model("dummy_small", weights=path, width=2)


def test_a_path_is_never_taken_for_a_name(saved):
    with pytest.raises(FileNotFoundError, match="^dummy_small: no such weight file"):
        create_model("dummy_small", weights=Path("dummy_small"))


def test_a_suffix_may_be_in_capitals(family, tmp_path):
    path = save_weights(create_model("dummy_small"), tmp_path / "NET.SAFETENSORS")
    assert names_its_model(path) and read_weights(path).name == "dummy_small"
    assert read_published(path).keys() == read_weights(path).state.keys()


def test_what_cannot_be_saved(family, tmp_path):
    net = create_model("dummy_small")
    with pytest.raises(ValueError, match="written as .safetensors"):
        save_weights(net, tmp_path / "net.pth")
    with pytest.raises(ValueError, match="must be JSON values"):
        save_weights(net, tmp_path / "net.safetensors", when=object())
    with pytest.raises(ValueError, match="build it by create_model"):
        save_weights(torch.nn.Linear(1, 1), tmp_path / "net.safetensors")
    assert not list(tmp_path.iterdir())


def test_misfits_are_listed_and_change_nothing(family):
    net = create_model("dummy_deep")
    before = {key: value.clone() for key, value in net.state_dict().items()}
    state = {f"other.{i}": torch.zeros(1) for i in range(6)}
    state["first.weight"] = torch.zeros(1, 2)
    with pytest.raises(ValueError) as caught:
        load_state(net, state, "file.pth")
    said = str(caught.value)
    assert said.startswith("file.pth: does not fit dummy_deep: tensors 7 missing (first.bias, ")
    assert "6 surplus (other.0, other.1, other.2, other.3, … 2 more)" in said
    assert "1 misshapen (first.weight 1x2 instead of 4x3x3x3)" in said and "\n" not in said
    assert all(torch.equal(net.state_dict()[key], value) for key, value in before.items())


@pytest.mark.parametrize(
    ("dtype", "fits"),
    [(torch.float16, True), (torch.float64, True), (torch.int32, False), (torch.complex64, False)],
)
def test_only_the_precision_may_differ(family, dtype, fits):
    net = create_model("dummy_small")
    state = net.state_dict()
    state["first.bias"] = torch.ones(2, dtype=dtype)
    if fits:
        load_state(net, state, "x.pth")
        assert net.first.bias.dtype == torch.float32 and bool((net.first.bias == 1).all())
        return
    kind = str(dtype).removeprefix("torch.")
    with pytest.raises(ValueError, match=rf"1 of another type \(first\.bias {kind} instead of f"):
        load_state(net, state, "x.pth")
    assert not (net.first.bias == 1).any()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"format": 2}, "of format 2, and this vizoo reads 1: pip install --upgrade vizoo"),
        ({"facts": [1]}, "metadata is damaged: name, architecture or facts of a wrong type"),
        ({"facts": {"classes": 5}}, "its 'classes' is of a wrong type, int"),
        ({"facts": {"input": [1]}}, "its 'input' is of a wrong type, list"),
        ({"facts": {"subspace": "x"}}, "its 'subspace' is of a wrong type, str"),
        ({"architecture": {"width": "3"}}, "dummy_small: width must be of type .*int.*, not '3'"),
        (None, "metadata is damaged: maximum recursion depth"),
    ],
)
def test_metadata_of_another_form(saved, changes, says):
    _, path = saved
    with safe_open(path, "pt") as file:
        header = json.loads(file.metadata()["vizoo"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    text = "[" * 200_000 if changes is None else json.dumps(header | changes)
    save_file(tensors, path, {"vizoo": text})
    with pytest.raises(ValueError, match=f"net.safetensors: .*{says}") as caught:
        load_weights(path)
    assert "\n" not in str(caught.value)


def broken(kind, path):
    path = path / (
        "x.ckpt" if kind in ("text.ckpt", "pickle", "plain", "other") else "x.safetensors"
    )
    match kind:
        case "missing":
            return path, "no such weight file"
        case "folder":
            path.mkdir()
            return path, "is a folder"
        case "text" | "text.ckpt":
            path.write_text("hello")
            return path, "not a safetensors file" if kind == "text" else "not a checkpoint"
        case "cut":
            save_file({"a": torch.zeros(100)}, path)
            path.write_bytes(path.read_bytes()[:-50])
            return path, "not a safetensors file, or cut short"
        case "bare":
            save_file({"a": torch.zeros(1)}, path)
            return path, "has no 'vizoo' metadata.*vizoo convert"
        case "damaged":
            save_file({"a": torch.zeros(1)}, path, {"vizoo": '{"name": 3}'})
            return path, "metadata is damaged"
        case "unknown":
            header = {"name": "dummy_smol", "architecture": {}}
            save_file({"a": torch.zeros(1)}, path, {"vizoo": json.dumps(header)})
            return path, "x.safetensors: no model is called 'dummy_smol'; did you mean dummy_small"
        case "argument":
            header = {"name": "dummy_small", "architecture": {"depth": 3}}
            save_file({"a": torch.zeros(1)}, path, {"vizoo": json.dumps(header)})
            return path, "no architecture argument 'depth'; it takes width"
        case "pickle":
            torch.save({"state_dict": Evil()}, path)
            return path, "refused.*Evil"
        case "plain":
            path.write_bytes(pickle.dumps(Evil()))
            return path, "refused.*Evil"
        case _:
            torch.save({"state_dict": {}}, path)
            return path, "nor a Lightning checkpoint.*vizoo convert.*; a state dict does not"


class Evil:
    """Stands for whatever a pickle could run."""


KINDS = "missing folder text text.ckpt cut bare damaged unknown argument pickle plain other"


@pytest.mark.parametrize("kind", KINDS.split())
def test_bad_files_are_one_line(family, tmp_path, kind):
    path, says = broken(kind, tmp_path)
    kinds = FileNotFoundError if kind == "missing" else ValueError
    with pytest.raises(kinds, match=says) as caught:
        load_weights(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("part", ["", "_orig_mod."])
def test_lightning_checkpoint(family, tmp_path, part):
    net = create_model("dummy_small", width=3)
    state = {f"net.{part}{key}": value for key, value in net.state_dict().items()}
    content = {
        "pytorch-lightning_version": "2.6.6",
        "hyper_parameters": {"model": "dummy_small", "model_args": {"width": 3}},
        "state_dict": {**state, "metric.total": torch.zeros(1)},
        "epoch": 4,
    }
    torch.save(content, tmp_path / "last.ckpt")
    again = load_weights(tmp_path / "last.ckpt")
    assert torch.equal(again.first.weight, net.first.weight)
    assert read_weights(tmp_path / "last.ckpt").facts == {"epoch": 4}
    content["hyper_parameters"] = {"lr": 1.0}
    torch.save(content, tmp_path / "last.ckpt")
    with pytest.raises(ValueError, match=r"name no model.*by vizoo\.create_model.*gister_model"):
        load_weights(tmp_path / "last.ckpt")
    with pytest.raises(ValueError, match=r"name no model.*vizoo\.save_weights\(task\.net, FILE\)"):
        load_weights(tmp_path / "last.ckpt")


def test_weights_of_a_diverged_training_are_refused(saved, tmp_path):
    net, _ = saved
    net.first.bias.data[0] = float("nan")
    path = save_weights(net, tmp_path / "diverged.safetensors")
    with pytest.raises(
        ValueError, match=r"1 tensors hold .* not finite \(first\.bias\): .*diverged"
    ):
        load_weights(path)
