"""Trained weights by name and tag: registered records, from the package, the Hub or a server."""

import hashlib
from pathlib import Path

import pytest
import torch

from vizoo.vision.hub import registry
from vizoo.vision.hub.create import beside_weights, create_model, open_model
from vizoo.vision.hub.record import WeightsRecord
from vizoo.vision.hub.registry import list_models, model_info
from vizoo.vision.hub.weights import load_weights, save_weights


def described(path, *sources, **facts):
    content = Path(path).read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    return WeightsRecord(sources, digest, len(content), "Apache-2.0", "nothing", **facts)


def register(family, name, weights):
    """Give a registered model trained weights."""
    function = registry._ENTRIES[name].function
    registry.register_model(task="toy", weights=weights)(function)


@pytest.fixture
def trained(family, server, tmp_path):
    """`dummy_small.one` (width 3) and `dummy_small.two`, on a server; the networks by tag."""
    nets, records = {}, {}
    for tag, width in (("one", 3), ("two", 2)):
        nets[tag] = create_model("dummy_small", width=width)
        path = save_weights(nets[tag], tmp_path / f"{tag}.safetensors")
        server.files[f"/{tag}.safetensors"] = path.read_bytes()
        url = server.url(f"/{tag}.safetensors")
        records[tag] = described(path, url, architecture={"width": width})
    register(family, "dummy_small", records)
    return nets


def same(net, other):
    states = net.state_dict(), other.state_dict()
    return states[0].keys() == states[1].keys() and all(
        torch.equal(states[0][key], states[1][key]) for key in states[0]
    )


def test_tags(trained, server):
    assert list_models("toy/*", pretrained=True) == ["dummy_small.one", "dummy_small.two"]
    assert list_models("*.two", pretrained=True) == ["dummy_small.two"]
    assert list_models("toy/*.two", pretrained=True) == ["dummy_small.two"]
    assert list_models("dummy_deep", pretrained=True) == []
    info = model_info("dummy_small.two")
    assert (info.name, info.tag, info.record.arguments) == ("dummy_small", "two", {"width": 2})
    assert model_info("dummy_small").record is model_info("dummy_small.one").record
    assert model_info("dummy_deep").record is None and not server.requests


def test_a_tag_brings_its_weights_and_architecture(trained, server):
    net = create_model("dummy_small.two")
    assert same(net, trained["two"]) and net.architecture == {"name": "dummy_small", "width": 2}
    assert net.training
    assert same(create_model("dummy_small", pretrained=True), trained["one"])
    assert same(create_model("dummy_small.one", pretrained=True), trained["one"])
    assert same(create_model("dummy_small", weights="dummy_small.two"), trained["two"])
    assert len(server.requests) == 2
    assert not same(create_model("dummy_small", width=3), trained["one"])


def test_arguments_beside_a_tag_hold(trained):
    with pytest.raises(ValueError, match=r"dummy_small.two: does not fit .*instead of 5x3x3x3"):
        create_model("dummy_small.two", width=5)
    with pytest.raises(ValueError, match="no architecture argument 'widht'"):
        create_model("dummy_small.two", widht=5)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("dummy_small.twoo", "has no weights called 'twoo'; did you mean dummy_small.two"),
        ("dummy_small.zzz", "there are one, two"),
        ("dummy_deep.one", "it has no trained weights"),
        ("dummy_smal.one", "no model is called 'dummy_smal.one'; did you mean dummy_small.one"),
        ("dummy_small.", "no weights called ''"),
    ],
)
def test_wrong_tags_give_the_nearest(trained, name, says):
    for function in (create_model, model_info, open_model):
        with pytest.raises(ValueError, match=says):
            function(name)


def test_two_kinds_of_weights_at_once(trained):
    for name in ("dummy_small.one", "local-dir:x", "hf-hub:org/x"):
        with pytest.raises(ValueError, match="brings its weights or weights=…, not both"):
            create_model(name, weights="x.safetensors")
    with pytest.raises(ValueError, match="dummy_deep, not of dummy_small|of dummy_small, not of"):
        create_model("dummy_deep", weights="dummy_small.one")
    with pytest.raises(ValueError, match=r"there are: dummy_small.one, dummy_small.two"):
        create_model("dummy_deep", pretrained=True)


def test_open_model(trained, tmp_path, monkeypatch):
    assert same(open_model("dummy_small")[0], trained["one"])
    assert same(open_model("dummy_small.two", task="toy")[0], trained["two"])
    net, has_weights = open_model(tmp_path / "two.safetensors")
    assert same(net, trained["two"]) and has_weights and not net.training
    assert open_model("dummy_deep", untrained=True)[1] is False
    with pytest.raises(ValueError, match=r"dummy_deep has no trained weights \(there are: dummy_s"):
        open_model("dummy_deep")
    for source in ("dummy_small.two", str(tmp_path / "two.safetensors")):
        with pytest.raises(ValueError, match="is a model for toy, not for stereo"):
            open_model(source, task="stereo")
    # A folder that bears a model's name, such as one of results, is not what was meant.
    monkeypatch.chdir(tmp_path)
    Path("dummy_small.two").mkdir()
    assert same(open_model("dummy_small.two")[0], trained["two"])
    with pytest.raises(FileNotFoundError, match="org/net: no such weight file.*'hf-hub:org/net'"):
        open_model("org/net")


def test_a_record_that_is_wrong_about_its_file(family, server, tmp_path):
    path = save_weights(create_model("dummy_small", width=3), tmp_path / "x.safetensors")
    server.files["/x.safetensors"] = path.read_bytes()
    url = server.url("/x.safetensors")
    register(family, "dummy_small", {"bad": described(path, url, architecture={"width": 2})})
    with pytest.raises(ValueError, match="holds width 3 instead of 2: the record is wrong"):
        create_model("dummy_small.bad")
    register(family, "dummy_deep", {"bad": described(path, url)})
    with pytest.raises(ValueError, match="holds weights of dummy_small instead of dummy_deep"):
        create_model("dummy_deep.bad")


def test_weights_as_their_authors_published_them(family, theirs, server, tmp_path):
    net, state = theirs
    path = tmp_path / "theirs.pth"
    torch.save({"state_dict": state}, path)
    server.files["/theirs.pth"] = path.read_bytes()
    record = described(path, server.url("/theirs.pth"), architecture={"width": 3})
    register(family, "dummy_small", {"published": record})
    assert same(create_model("dummy_small.published"), net)


def test_a_training_that_began_from_a_tag_is_read_without_it(trained, server, tmp_path):
    content = {
        "pytorch-lightning_version": "2.6.6",
        "hyper_parameters": {"model": "dummy_small.one"},
        "state_dict": {f"net.{k}": v for k, v in trained["one"].state_dict().items()},
    }
    torch.save(content, tmp_path / "last.ckpt")
    net = load_weights(tmp_path / "last.ckpt")
    assert same(net, trained["one"]) and net.architecture["name"] == "dummy_small"
    assert not server.requests


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        ({"Big": {}}, "a tag has small letters"),
        ({"pth": {}}, "no file's ending"),
        ({"a.b": {}}, "a tag has"),
        ({"ok": {"sources": ()}}, "dummy_small.ok: its record has no sources"),
        (
            {"ok": {"architecture": {"widht": 3}}},
            "dummy_small.ok has no architecture argument 'widht'",
        ),
        ({"ok": {"subnet": {"a": 3}}}, "has no architecture argument 'subnet'"),
    ],
)
def test_what_cannot_be_registered(family, weights, says):
    base = {"sources": ("package:x",), "sha256": "0" * 64, "size": 1}
    base |= {"licence": "x", "trained_on": "y"}
    records = {tag: WeightsRecord(**{**base, **facts}) for tag, facts in weights.items()}
    with pytest.raises(ValueError, match=says):
        register(family, "dummy_small", records)


def test_every_registered_record_is_here_or_says_how_to_get_it(monkeypatch, tmp_path):
    """On a machine without a network, which this one may be."""
    monkeypatch.setenv("VIZOO_OFFLINE", "1")
    monkeypatch.setenv("VIZOO_HOME", str(tmp_path))
    for name in list_models(pretrained=True):
        record = model_info(name).record
        if any(source.startswith("package:") for source in record.sources):
            assert not create_model(name).architecture["name"].count(".")
        else:
            with pytest.raises(OSError, match="unset VIZOO_OFFLINE, or put a copy"):
                create_model(name)


def test_what_lies_beside_a_folder_has_its_whole_name(tmp_path, monkeypatch):
    """Folders of two versions do not share it, and the working folder has a name as well."""
    for name in ("net-1.0", "net-1.1"):
        (tmp_path / name).mkdir()
        wanted = tmp_path / f"{name}.latency.json"
        assert beside_weights(f"local-dir:{tmp_path / name}", ".latency.json") == wanted
        monkeypatch.chdir(tmp_path / name)
        assert beside_weights("local-dir:.", ".latency.json") == wanted
    assert beside_weights("net-1.0.safetensors", ".csv") == Path("net-1.0.csv")
