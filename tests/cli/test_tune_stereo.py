"""`vizoo tune stereo`: files on an improvement alone, one line for whatever is wrong."""

import json

import pytest
import torch

from vizoo.__main__ import main
from vizoo.datasets.stereo import generate_scenes
from vizoo.stereo import tuning
from vizoo.stereo.tuning import TuningReport
from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.weights import read_weights
from vizoo.vision.io.images import to_bytes, write_image

MEASURES = {"agreement": 0.5, "matched": 0.4, "generated_epe": 1.0}


@pytest.fixture
def pairs(tmp_path, monkeypatch):
    """The current folder, with left/ and right/ of three pairs."""
    monkeypatch.chdir(tmp_path)
    scenes = generate_scenes(3, 128, 256, seed=7, max_disparity=20, clutter=0.2)
    for side in ("left", "right"):
        for index, view in enumerate(scenes[side]):
            write_image(tmp_path / side / f"{index}.png", to_bytes(view))
    return tmp_path


@pytest.fixture
def tuned(monkeypatch):
    """What `tune` is called with; it says whether there is an improvement and what was skipped."""
    calls = {"improved": True, "skipped": {}}

    def stand_in(base, images, **settings):
        calls.update(settings, base=base, images=images)
        report = TuningReport(
            network=create_model("fadnet_plus_micro"),
            improved=calls["improved"],
            verdict=f"{'an' if calls['improved'] else 'no'} improvement: of held-out pixels …",
            before=MEASURES,
            after={**MEASURES, "matched": 0.45},
            checks=[],
            base={"weights": base, "sha256": None},
            pairs=2,
            held_out=1,
            labelled=0.5,
            skipped=calls["skipped"],
            steps=3,
            seconds=1.0,
            settings={},
        )
        settings["report"]("training", 3, 3)
        return report

    monkeypatch.setattr(tuning, "tune", stand_in)
    return calls


def call(*words: str) -> int:
    return main(["tune", "stereo", "left", "right", "--out", "out/mine.safetensors", *words])


def test_an_improvement_is_written(pairs, tuned, capsys):
    assert call("--from", "easnet_small.worlds", "--steps", "7", "--seed", "3") == 0
    assert tuned["base"] == "easnet_small.worlds" and tuned["steps"] == 7 and tuned["seed"] == 3
    assert [str(left) for left, _ in tuned["images"]] == [f"left/{i}.png" for i in range(3)]
    facts = read_weights("out/mine.safetensors").facts
    assert facts["tuning"]["base"]["weights"] == "easnet_small.worlds"
    report = json.loads((pairs / "out/mine.json").read_text())
    assert report["improved"] and report["before"] == MEASURES and "network" not in report
    said = capsys.readouterr()
    assert "2 pairs learned from, 1 held out" in said.out and "40.00    45.00 %" in said.out
    assert said.out.splitlines()[-2:] == ["out/mine.safetensors", "out/mine.json"]
    assert said.err == ""


def test_no_improvement_is_not_written(pairs, tuned, capsys):
    tuned["improved"] = False
    assert call("--report", "said.json", "--json") == 1
    assert not (pairs / "out").exists()
    assert json.loads((pairs / "said.json").read_text())["improved"] is False
    said = capsys.readouterr()
    assert json.loads(said.out)["verdict"].startswith("no improvement")
    (line,) = said.err.splitlines()
    assert line.startswith("vizoo: warning: out/mine.safetensors: not written: no improvement: ")


def test_skipped_pairs_are_said(pairs, tuned, capsys):
    tuned["skipped"] = {"left/1.png": "left/1.png: damaged", "left/2.png": "left and right …"}
    assert call() == 0
    assert capsys.readouterr().err.splitlines() == [
        "vizoo: warning: skipped: left/1.png: damaged",
        "vizoo: warning: skipped: left/2.png: left and right …",
    ]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--out", "mine.pth"], "--out mine.pth: choose a name that ends in .safetensors"),
        (["--out", "left/0.png/m.safetensors"], "left/0.png is a file"),
        (["--out", "left", "--report", "r.json"], "ends in .safetensors"),
        (["--report", "left/0.png"], "--report left/0.png: choose a name that ends in .json"),
        (["--from", "easnet_smal"], "easnet_small"),
        (["--from", "none.safetensors"], "none.safetensors: no such weight file"),
        (["--from", "out/mine.safetensors"], "would overwrite the weights to tune"),
        (["--from", "dispmvs"], "not for stereo"),
        (["--steps", "0"], "--steps 0: must be at least 1"),
        (["--minutes", "0"], "must be above 0"),
        (["--minutes", "nan"], "must be above 0"),
        (["--steps", "2", "--minutes", "2"], "not allowed with"),
        (["--list", "pairs.txt"], "not both"),
    ],
)
def test_what_is_wrong_is_one_line(pairs, capsys, words, says):
    assert call(*words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("vizoo: error: ") and says in line
    assert {path.name for path in pairs.iterdir()} == {"left", "right"}


def test_nothing_named(capsys):
    assert main(["tune", "stereo", "--out", "mine.safetensors"]) == 2
    assert "see vizoo tune stereo --help" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written(pairs, tuned, monkeypatch, capsys):
    """Full or gone by then: one line, and nothing half written."""

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vizoo.vision.hub.weights.save_file", full)
    assert call() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "vizoo: error: out/mine.safetensors: No space left on device"
    assert list((pairs / "out").iterdir()) == []


def test_an_interruption_leaves_nothing(pairs, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(tuning._Learner, "step", interrupted)
    monkeypatch.setattr(tuning, "_measures", lambda *_: MEASURES)
    assert call("--steps", "1") == 130
    assert {path.name for path in pairs.iterdir()} == {"left", "right"}


def test_the_whole_way(pairs, monkeypatch, capsys):
    """From files to weights that are loaded again, where the measure is told to be better."""
    rows = [MEASURES, {**MEASURES, "matched": 0.45}]
    monkeypatch.setattr(tuning, "_measures", lambda *_: dict(rows.pop(0)))
    (pairs / "left/1.png").write_bytes(b"no image")
    assert call("--steps", "1", "--device", "cpu") == 0
    assert "left/1.png" in capsys.readouterr().err
    words = ["infer", "stereo", "left/0.png", "right/0.png", "--out", "result", "--model"]
    assert main([*words, "out/mine.safetensors"]) == 0
    facts = read_weights("out/mine.safetensors").facts
    assert facts["tuning"]["pairs"] == 1 and "left/1.png" in facts["tuning"]["skipped"]
    assert len(facts["tuning"]["base"]["sha256"]) == 64
    state = read_weights("out/mine.safetensors").state
    before = create_model("easnet_small", pretrained=True).state_dict()
    assert any(not torch.equal(before[name], value) for name, value in state.items())
