"""Released folders, and repositories of a Hub on the loopback."""

import json
import re

import pytest
import torch
import yaml
from released import read_record
from safetensors.torch import load_file, save_file

from vizoo.vision.hub._http import SourceError
from vizoo.vision.hub._huggingface import NoFileError, obtain
from vizoo.vision.hub.create import create_model, open_model
from vizoo.vision.hub.download import DownloadError
from vizoo.vision.hub.record import Source
from vizoo.vision.hub.sharing import from_pretrained, push_to_hub, save_pretrained
from vizoo.vision.hub.weights import _KEY, load_weights, save_weights

FACTS = {
    "licence": "Apache-2.0",
    "trained_on": "generated scenes",
    "metrics": {"playground": {"epe": 0.25, "bad2": 1.5}, "cones": {"epe": 0.75}},
    "command": "vizoo test --config x.yaml",
    "input": {"mean": [0.5, 0.5, 0.5], "max_disparity": 192},
}


@pytest.fixture
def net(family):
    return create_model("dummy_small", width=3).eval()


@pytest.fixture
def folder(net, tmp_path):
    save_pretrained(net, tmp_path / "release", **FACTS)
    return tmp_path / "release"


def same(net, other):
    pairs = zip(net.state_dict().items(), other.state_dict().items(), strict=True)
    return all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


def test_round_trip(net, folder):
    for source in (folder, str(folder), f"local-dir:{folder}"):
        again = from_pretrained(source)
        assert same(net, again) and not again.training
        assert again.architecture == {"name": "dummy_small", "width": 3}
    assert same(net, create_model(f"local-dir:{folder}"))
    assert same(net, create_model("dummy_small", weights=f"local-dir:{folder}"))
    for source in (folder, str(folder), f"local-dir:{folder}"):
        assert same(net, open_model(source)[0])
    assert {p.name for p in folder.iterdir()} == {"model.safetensors", "config.json", "README.md"}


def test_the_config_is_the_record(folder):
    record = read_record(folder)
    assert record.metrics["playground"]["epe"] == 0.25 and record.sources == ()
    assert record.size == (folder / "model.safetensors").stat().st_size
    assert record.arguments == {"width": 3}


def test_defaults_of_today_are_kept(family, tmp_path):
    save_pretrained(create_model("dummy_small"), tmp_path, **FACTS)
    assert read_record(tmp_path).architecture == {"width": 2}
    assert from_pretrained(tmp_path).architecture == {"name": "dummy_small", "width": 2}


def test_the_card(folder):
    text = (folder / "README.md").read_text()
    header = yaml.safe_load(text.split("---\n")[1])
    assert header == {
        "license": "apache-2.0",
        "library_name": "vizoo",
        "tags": ["vizoo", "toy", "dummy_small"],
    }
    assert "| data | epe | bad2 |\n|---|---:|---:|\n| playground | 0.25 | 1.5 |" in text
    assert "| cones | 0.75 |  |" in text and "vizoo test --config x.yaml" in text
    assert "input: max_disparity | `192`" in text and read_record(folder).sha256 in text


def test_the_reach_is_kept(net, tmp_path):
    save_pretrained(net, tmp_path / "given", **FACTS, reach=72)
    again = create_model(f"local-dir:{tmp_path / 'given'}")
    assert again.reach == 72
    assert "| reach | disparities up to 72 pixels |" in (tmp_path / "given/README.md").read_text()
    save_pretrained(again, tmp_path / "once more", **FACTS)
    assert read_record(tmp_path / "once more").reach == 72
    file = save_weights(again, tmp_path / "net.safetensors")
    assert load_weights(file).reach == 72
    save_pretrained(net, tmp_path / "none", **FACTS)
    assert read_record(tmp_path / "none").reach is None
    assert "reach" not in (tmp_path / "none/README.md").read_text()


def test_a_licence_the_hub_does_not_know(net, tmp_path):
    facts = {**FACTS, "licence": "research only: ask"}
    save_pretrained(net, tmp_path, **facts)
    header = yaml.safe_load((tmp_path / "README.md").read_text().split("---\n")[1])
    assert (header["license"], header["license_name"]) == ("other", "research only: ask")


def test_half_the_size(net, tmp_path):
    record = save_pretrained(net, tmp_path, dtype=torch.float16, **FACTS)
    stored = load_file(tmp_path / "model.safetensors")
    assert stored["first.weight"].dtype == torch.float16
    assert stored["first.bias"].dtype == torch.float32
    again = from_pretrained(tmp_path)
    assert again.first.weight.dtype == torch.float32 and record.size > 0
    assert torch.equal(again.first.weight, net.first.weight.half().float())


def rewritten(folder, change):
    """The weight file with its tensors changed, but its metadata kept."""
    from safetensors import safe_open

    path = folder / "model.safetensors"
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.pop("rest.0.bias"), r"1 missing \(rest\.0\.bias\)"),
        (lambda t: t.update(more=torch.zeros(1)), r"1 surplus \(more\)"),
        (lambda t: t.update({"first.bias": torch.zeros(9)}), "misshapen .first.bias 9 instead of"),
        (lambda t: t.update({"first.bias": torch.ones(3)}), "its SHA-256 is .* as config.json"),
    ],
)
def test_a_changed_file_is_an_error_that_names_it(folder, change, says):
    rewritten(folder, change)
    for load in (from_pretrained, open_model, lambda f: create_model(f"local-dir:{f}")):
        with pytest.raises(ValueError, match=says) as caught:
            load(folder)
        assert "\n" not in str(caught.value) and "model.safetensors" in str(caught.value)


def edited(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    config |= changes
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    "file",
    ["../x.safetensors", "/etc/x.safetensors", "a/b.safetensors", "..", "", 3, None, "x.pth"]
    + ["..\\x.safetensors", ".hidden.safetensors", "x\n.safetensors", "C:x.safetensors"],
)
def test_file_names_never_leave_the_folder(folder, file, tmp_path):
    (tmp_path / "x.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    edited(folder, file=file)
    with pytest.raises(ValueError, match=r"config.json: .* no plain name of a .safetensors file"):
        from_pretrained(folder)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"library": "timm"}, "not of save_pretrained"),
        ({"format": 2}, "of format 2, and this vizoo reads 1: pip install --upgrade"),
        ({"model": None}, "names no model"),
        ({"model": "dummy_smal"}, "config.json: no model is called 'dummy_smal'; did you mean"),
        ({"model": "hf-hub:evil/net"}, "config.json: 'hf-hub:evil/net' is not registered here"),
        ({"model": "dummy_deep"}, "holds weights of dummy_small instead of dummy_deep"),
        ({"record": {}}, "the record lacks licence"),
        ({"file": "other.safetensors"}, "other.safetensors: missing, though config.json names it"),
    ],
)
def test_wrong_configs(folder, changes, says):
    edited(folder, **changes)
    with pytest.raises((ValueError, OSError), match=says):
        from_pretrained(folder)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"classes": 3}, "config.json: classes are names, a list of strings, not 3"),
        ({"future": 1}, "config.json: the record has unknown future"),
        ({"architecture": {"width": "3"}}, "holds width 3 instead of '3': the record is wrong"),
        ({"architecture": {"width": 3, "depth": 1}}, "no architecture argument 'depth'; it takes"),
        ({"size": 3}, r"model.safetensors: has [\d,]+ bytes instead of 3 as config.json says"),
        ({"sources": ["package:../x"]}, "config.json: .* must stay in its folder"),
    ],
)
def test_wrong_records(folder, changes, says):
    config = json.loads((folder / "config.json").read_text())
    edited(folder, record=config["record"] | changes)
    with pytest.raises(ValueError, match=says) as caught:
        from_pretrained(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\xfe", b"[" * 200_000, b'{"a": 1'])
def test_damaged_configs(folder, content):
    (folder / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"config.json: (no JSON, or damaged|not of save_pre)"):
        from_pretrained(folder)


@pytest.mark.parametrize("model", ["hf-hub:evil/net", "local-dir:/x", "dummy_small.tag"])
def test_a_file_cannot_name_another_place(folder, model, monkeypatch):
    """The name in a file's metadata is a registered one, never one that downloads."""
    path = folder / "model.safetensors"
    header = {"name": model, "architecture": {}}
    save_file(load_file(path), path, {_KEY: json.dumps(header)})
    with pytest.raises(ValueError, match="model.safetensors: "):
        open_model(path)


def test_no_such_folder(tmp_path, family, monkeypatch):
    with pytest.raises(FileNotFoundError, match="nothing: no such folder"):
        create_model(f"local-dir:{tmp_path / 'nothing'}")
    with pytest.raises(FileNotFoundError, match="config.json: missing"):
        from_pretrained(tmp_path)
    (tmp_path / "x.safetensors").touch()
    with pytest.raises(FileNotFoundError, match="is a file; load it with load_weights"):
        create_model(f"local-dir:{tmp_path / 'x.safetensors'}")
    with pytest.raises(FileNotFoundError, match="^~nobody_at_all/x: no such folder"):
        create_model("local-dir:~nobody_at_all/x")
    with pytest.raises(ValueError, match="neither a folder nor ORG/NAME"):
        from_pretrained("just_a_word")
    monkeypatch.chdir(tmp_path.parent)  # the file's path could be a repository's name
    with pytest.raises(FileNotFoundError, match="is a file; load it with load_weights"):
        from_pretrained(f"{tmp_path.name}/x.safetensors")
    with pytest.raises(ValueError, match="a folder has no revisions"):
        from_pretrained(tmp_path, revision="main")


def test_what_is_not_released(net, tmp_path):
    with pytest.raises(ValueError, match="metrics need"):
        save_pretrained(net, tmp_path / "x", **{**FACTS, "command": ""})
    with pytest.raises(ValueError, match="is of integers; weights need a floating-point one"):
        save_pretrained(net, tmp_path / "x", dtype=torch.int8, **FACTS)
    net.first.bias.data[0] = float("inf")
    with pytest.raises(ValueError, match=r"first\.bias: values that are not finite"):
        save_pretrained(net, tmp_path / "x", **FACTS)
    with pytest.raises(ValueError, match="build it by create_model"):
        save_pretrained(torch.nn.Linear(1, 1), tmp_path / "x", **FACTS)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"dtype": "float16"}, "dtype must be of type torch.dtype | None, not 'float16'"),
        ({"classes": "abc"}, "classes must be of type Sequence[str] | None, not 'abc'"),
        ({"classes": ["a", "b"]}, "image_classifier: 3 outputs, but 2 names of classes"),
    ],
)
def test_facts_that_do_not_fit_the_network_are_refused(tmp_path, wrong, said):
    net = create_model("image_classifier", backbone="test_resnet", classes=3)
    with pytest.raises(ValueError, match=re.escape(said)):
        save_pretrained(net, tmp_path / "x", **{**FACTS, **wrong})
    assert not (tmp_path / "x").exists()


@pytest.fixture
def published(hub, folder):
    """The folder as the repository org/net, in two commits of which the first is empty."""
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    hub.repositories["org/net"] = [("a" * 40, {}), ("b" * 40, files)]
    return hub


def test_from_the_hub(net, published):
    assert same(net, from_pretrained("org/net"))
    for name in ("hf-hub:org/net", "hf-hub:org/net@main", f"hf-hub:org/net@{'b' * 40}"):
        assert same(net, create_model(name))
    assert same(net, open_model("hf-hub:org/net")[0])
    assert same(net, create_model("dummy_small", weights="hf-hub:org/net"))
    assert same(net, from_pretrained("org/net", revision="main"))


def test_the_hub_is_asked_for_a_file_once(net, published, monkeypatch):
    from_pretrained("org/net")
    first = [path for path, _ in published.requests if "model.safetensors" in path]
    assert first and all("b" * 40 in path for path in first)
    monkeypatch.setenv("VIZOO_OFFLINE", "1")
    published.requests.clear()
    assert same(net, from_pretrained("org/net")) and not published.requests


def test_a_cut_on_the_hub_is_continued(net, published):
    published.cuts["model.safetensors"] = [100]
    assert same(net, from_pretrained("org/net"))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("hf-hub:org/none", "no repository org/none at .*`hf auth login`"),
        ("hf-hub:org/net@v9", "no revision 'v9' in org/net"),
        (f"hf-hub:org/net@{'a' * 40}", "no file config.json in org/net@a"),
        ("hf-hub:org/gated", "gated: accept its terms"),
        ("hf-hub:org/net@../x", "ORG/NAME|no revision|no file|HTTP 40"),
        ("hf-hub:../net", "is spelled hf-hub:ORG/NAME"),
        ("hf-hub:net", "is spelled hf-hub:ORG/NAME"),
        ("hf-hub:org/..", "is spelled hf-hub:ORG/NAME"),
        ("hf-hub:-org/net", "is spelled hf-hub:ORG/NAME"),
        ("hf-hub:org/net/model.safetensors", "is spelled hf-hub:ORG/NAME"),
        ("hf-hub:org/a--b", "hf-hub:org/a--b: config.json: .*'org/a--b'"),
    ],
)
def test_failures_of_the_hub_are_one_line(published, name, says):
    published.repositories["org/gated"] = published.repositories["org/net"]
    published.gated.add("org/gated")
    with pytest.raises((OSError, ValueError), match=says) as caught:
        create_model(name)
    assert "\n" not in str(caught.value) and name in str(caught.value)


def test_a_hub_that_is_down(published, monkeypatch, closed):
    published.broken = True
    with pytest.raises(DownloadError, match="hf-hub:org/net: config.json: .*503"):
        create_model("hf-hub:org/net")
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{closed}")
    with pytest.raises(DownloadError, match=f"cannot reach http://127.0.0.1:{closed}"):
        create_model("hf-hub:org/net")
    for flag in ("VIZOO_OFFLINE", "HF_HUB_OFFLINE"):
        with monkeypatch.context() as patch:
            patch.setenv(flag, "1")
            with pytest.raises(DownloadError, match=f"{flag}=1 forbids to download it: unset"):
                create_model("hf-hub:org/net")


def test_a_hub_that_went_down_is_not_missed(net, published, monkeypatch, closed):
    assert same(net, create_model("hf-hub:org/net"))
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{closed}")
    assert same(net, create_model("hf-hub:org/net"))


def test_a_private_repository(net, published, monkeypatch):
    published.private.add("org/net")
    with pytest.raises(DownloadError, match="no repository org/net at .* or a private one"):
        create_model("hf-hub:org/net")
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert same(net, create_model("hf-hub:org/net"))


def test_a_record_on_the_hub(net, published, folder):
    from dataclasses import replace

    from vizoo.vision.hub.download import fetch

    record = replace(read_record(folder), sources=("hf-hub:org/net@main/model.safetensors",))
    path = fetch(record)
    assert path.read_bytes() == (folder / "model.safetensors").read_bytes()
    # A damaged copy in the Hub's cache is fetched again.
    path.resolve().write_bytes(b"x" * record.size)
    assert fetch(record).read_bytes() == (folder / "model.safetensors").read_bytes()
    wrong = replace(record, sha256="0" * 64)
    with pytest.raises(DownloadError, match=r"hf-hub:org/net@main/model.safetensors: .*SHA-256"):
        fetch(wrong, "net.tag")
    gone = replace(record, sources=("hf-hub:org/net@main/none.safetensors",))
    with pytest.raises(DownloadError, match="no file none.safetensors in org/net@main"):
        fetch(gone)


def test_a_missing_file_is_told_from_a_hub_that_is_down(published, monkeypatch, closed):
    with pytest.raises(NoFileError, match="no file none.bin in org/net@main"):
        obtain(Source("hf-hub", "none.bin", "org/net"))
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{closed}")
    with pytest.raises(SourceError, match="cannot reach") as caught:
        obtain(Source("hf-hub", "none.bin", "org/net"))
    assert not isinstance(caught.value, NoFileError)


def test_push(net, hub, folder, monkeypatch):
    with pytest.raises(DownloadError, match="not pushed: .*hf auth login"):
        push_to_hub(folder, "org/new")
    source = push_to_hub(folder, "org/new", token="secret")
    commit = re.fullmatch(r"hf-hub:org/new@([0-9a-f]{40})/model.safetensors", source)[1]
    assert commit == hub.repositories["org/new"][-1][0]
    assert set(hub.repositories["org/new"][-1][1]) == {p.name for p in folder.iterdir()}
    assert same(net, from_pretrained("org/new", revision=commit))
    push_to_hub(net, "org/other", token="secret", **FACTS)
    assert same(net, create_model("hf-hub:org/other"))
    with pytest.raises(ValueError, match="has its facts already"):
        push_to_hub(folder, "org/new", token="secret", licence="x")
    with pytest.raises(ValueError, match="is spelled ORG/NAME"):
        push_to_hub(folder, "new", token="secret")
    monkeypatch.setenv("VIZOO_OFFLINE", "1")
    with pytest.raises(DownloadError, match="VIZOO_OFFLINE=1; unset it"):
        push_to_hub(folder, "org/new", token="secret")


@pytest.mark.parametrize(
    ("status", "says"),
    [(403, "HTTP 403 .*`hf auth login` with"), (413, "HTTP 413"), (200, "does not answer as the")],
)
def test_a_push_that_the_hub_refuses_is_one_line(hub, folder, monkeypatch, status, says):
    answer = hub.RequestHandlerClass.do_POST

    def refuse(self):
        if "/commit/" not in self.path:
            return answer(self)
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(status, b"<html>no</html>")

    monkeypatch.setattr(hub.RequestHandlerClass, "do_POST", refuse)
    with pytest.raises(DownloadError, match=f"^org/new: not pushed: .*{says}") as caught:
        push_to_hub(folder, "org/new", token="secret")
    assert "\n" not in str(caught.value) and hub.repositories["org/new"] == [("0" * 40, {})]


def test_a_damaged_folder_is_not_pushed(hub, folder):
    rewritten(folder, lambda tensors: tensors.pop("rest.0.bias"))
    with pytest.raises(ValueError, match=r"missing \(rest.0.bias\)"):
        push_to_hub(folder, "org/new", token="secret")
    assert not hub.repositories
