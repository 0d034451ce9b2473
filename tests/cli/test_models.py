"""`vizoo models`: the figures of the FADNet specification, from the meta device."""

import fnmatch
import hashlib
import json
import re

import pytest
from loopback import Plain, serving

from vizoo.__main__ import main
from vizoo.vision.hub import registry
from vizoo.vision.hub.record import WeightsRecord

# Parameters; multiply-adds in 10^9 at 576x960 and at 384x1280.
FIGURES = {
    "fadnet": (144_303_840, 181.30, 161.15),
    "fadnet_plus_x": (497_077_376, 392.89, 349.24),
    "fadnet_plus_full": (124_381_856, 101.24, 89.99),
    "fadnet_plus_mobile": (31_151_792, 26.82, 23.84),
    "fadnet_plus_slight": (7_816_184, 7.46, 6.63),
    "fadnet_plus_tiny": (1_645_984, 1.58, 1.41),
    "fadnet_plus_micro": (499_226, 0.75, 0.67),
}


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("VIZOO_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.parametrize(
    ("pattern", "size", "column"), [("fadnet*", "576x960", 1), ("fadnet_plus_m*", "384x1280", 2)]
)
def test_figures(capsys, pattern, size, column):
    assert main(["models", f"stereo/{pattern}", "--size", size, "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows.keys() == {*fnmatch.filter([*FIGURES, "fadnet_plus_elastic"], pattern)}
    for name in rows.keys() & FIGURES.keys():
        figures = FIGURES[name]
        assert rows[name]["parameters"] == figures[0]
        assert round(rows[name]["macs"] / 1e9, 2) == figures[column], name


def test_table(capsys):
    assert main(["models", "fadnet_plus_micro"]) == 0
    said = capsys.readouterr().out
    assert "fadnet_plus_micro" in said and "499,226" in said and "0.75" in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nothing*"], "no model matches 'nothing\\*'; there are .*fadnet_plus_tiny"),
        (["easnet_smal"], "no model is called .easnet_smal.; did you mean easnet_small"),
        (["--size", "0x4"], "give height and width as in --size 384x1280"),
        (["--sise", "4x4"], "did you mean --size"),
    ],
)
def test_errors(capsys, words, says):
    assert main(["models", *words]) == 2
    assert re.search(says, capsys.readouterr().err)


@pytest.fixture
def weights(tmp_path, monkeypatch):
    """Two sets of weights of `fadnet_plus_micro`, on a server; yields the server."""
    monkeypatch.setenv("VIZOO_HOME", str(tmp_path))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("VIZOO_OFFLINE", raising=False)
    entry = registry.model_info("fadnet_plus_micro")
    registry.list_models()  # what is imported later would be forgotten with the copy
    monkeypatch.setattr(registry, "_ENTRIES", {**registry._ENTRIES})
    with serving(Plain()) as server:
        records = {}
        for tag, licence in (("one", "Apache-2.0"), ("two", "MIT")):
            content = server.files[f"/{tag}.safetensors"] = tag.encode() * 500_000
            records[tag] = WeightsRecord(
                (server.url(f"/{tag}.safetensors"),),
                hashlib.sha256(content).hexdigest(),
                len(content),
                licence,
                "generated scenes",
                metrics={"cones": {"epe": 0.75}},
                command="vizoo test --config x.yaml",
            )
        registry.register_model(task="stereo", weights=records)(entry.function)
        yield server


def test_weights_are_shown(weights, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["models", "fadnet_plus_micro"]) == 0
    said = capsys.readouterr().out
    assert ".one 1.5 MB, Apache-2.0, to download" in said and ".two 1.5 MB, MIT" in said
    assert main(["models", "fadnet_plus_micro*", "--pretrained", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert [w["name"] for w in row["weights"]] == ["fadnet_plus_micro.one", "fadnet_plus_micro.two"]
    assert row["weights"][0]["path"] is None and not weights.requests


def test_one_record(weights, capsys):
    assert main(["models", "fadnet_plus_micro.two", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["model"], row["tag"], row["task"]) == ("fadnet_plus_micro", "two", "stereo")
    record = registry.model_info("fadnet_plus_micro.two").record
    assert WeightsRecord.from_json(row["record"]) == record
    assert main(["models", "fadnet_plus_micro.two"]) == 0
    said = capsys.readouterr().out
    assert "fadnet_plus_micro.two: stereo, 1.5 MB, MIT" in said and "epe 0.75" in said
    assert record.sha256 in said and "no; downloaded on first use" in said


def test_fetch(weights, capsys, monkeypatch):
    assert main(["models", "fadnet_plus_micro.two", "--fetch", "--json"]) == 0
    out, said = capsys.readouterr()
    path = json.loads(out)["path"]
    assert open(path, "rb").read() == b"two" * 500_000 and len(weights.requests) == 1
    assert said.endswith("vizoo: trained weights: 1 downloaded, 0 here before\n")
    assert main(["models", "fadnet_plus_micro*", "--pretrained", "--fetch"]) == 0
    assert len(weights.requests) == 2
    assert "vizoo: trained weights: 1 downloaded, 1 here before\n" in capsys.readouterr().err
    weights.files.clear()
    monkeypatch.setenv("VIZOO_HOME", "/proc/none")
    assert main(["models", "fadnet_plus_micro.one", "--fetch"]) == 2
    assert re.fullmatch(
        r"vizoo: error: fadnet_plus_micro.one: .*HTTP 404.*\n|vizoo: error: /proc/none.*\n",
        capsys.readouterr().err,
    )
    assert main(["models", "easnet", "--fetch"]) == 2
    assert "no model that matches 'easnet' has trained weights" in capsys.readouterr().err


def test_wrong_tag(weights, capsys):
    assert main(["models", "fadnet_plus_micro.onne"]) == 2
    assert "did you mean fadnet_plus_micro.one?" in capsys.readouterr().err
