"""`vizoo tune stereo`: files on an improvement alone, one line for whatever is wrong."""

import json
import shutil

import pytest
import torch

from vizoo.__main__ import main
from vizoo.datasets.stereo import GeneratedStereo, generate_scenes
from vizoo.stereo import tuning
from vizoo.stereo._tuning_exam import Exam, _Marks
from vizoo.stereo.tuning import TuningReport
from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.weights import read_weights
from vizoo.vision.io.images import to_bytes, write_image

MEASURES = {"disagreement": 0.4, "generated_epe": 1.0}
GAINS = {"gain": 0.1, "gain_error": 0.02, "generated_gain": 0.0, "generated_gain_error": 0.01}


@pytest.fixture(scope="module")
def rendered(tmp_path_factory):
    """A folder with left/ and right/ of three pairs."""
    folder = tmp_path_factory.mktemp("rendered")
    scenes = generate_scenes(3, 128, 256, seed=7, max_disparity=20, clutter=0.2)
    for side in ("left", "right"):
        for index, view in enumerate(scenes[side]):
            write_image(folder / side / f"{index}.png", to_bytes(view))
    return folder


@pytest.fixture
def pairs(rendered, tmp_path, monkeypatch):
    """The current folder, with the pairs."""
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(rendered, tmp_path, dirs_exist_ok=True)


@pytest.fixture
def small(monkeypatch):
    """Two scenes to measure on, and a small part of each."""
    monkeypatch.setattr(tuning, "_VALIDATION", 2)

    def part(count, height, width, **settings):
        return GeneratedStereo(count, height // 4, width // 4, **settings)

    monkeypatch.setattr(tuning, "GeneratedStereo", part)


@pytest.fixture
def tuned(monkeypatch):
    """What `tune` is called with; it says whether there is an improvement and what was skipped."""
    calls = {"improved": True, "skipped": {}, "stopped": ""}

    def stand_in(base, images, **settings):
        calls.update(settings, base=base, images=images)
        report = TuningReport(
            network=create_model("fadnet_plus_micro"),
            improved=calls["improved"],
            verdict=f"{'an' if calls['improved'] else 'no'} improvement: held-out pairs gain …",
            before=MEASURES,
            after={**MEASURES, "disagreement": 0.3, **GAINS},
            checks=[],
            base={"weights": base, "sha256": None},
            pairs=2,
            held_out=1,
            labelled=0.5,
            skipped=calls["skipped"],
            stopped=calls["stopped"],
            steps=3,
            seconds=1.0,
            settings={},
        )
        for pair in calls["skipped"].items():
            settings["skip"](*pair)
        settings["report"]("training", 3, 3)
        if calls["stopped"] == "early":
            raise KeyboardInterrupt
        return report

    monkeypatch.setattr(tuning, "tune", stand_in)
    return calls


def call(*words: str) -> int:
    return main(["tune", "stereo", "left", "right", "--out", "out/mine.safetensors", *words])


def test_an_improvement_is_written(pairs, tuned, capsys):
    words = ["--steps", "7", "--seed", "3", "--out", "out/my own.safetensors"]
    assert call("--from", "easnet_small.worlds", *words) == 0
    assert tuned["base"] == "easnet_small.worlds" and tuned["steps"] == 7 and tuned["seed"] == 3
    assert [str(left) for left, _ in tuned["images"]] == [f"left/{i}.png" for i in range(3)]
    facts = read_weights("out/my own.safetensors").facts
    assert facts["tuning"]["base"]["weights"] == "easnet_small.worlds"
    report = json.loads((pairs / "out/my own.json").read_text())
    assert report["improved"] and report["before"] == MEASURES and "network" not in report
    said = capsys.readouterr()
    assert (
        "2 pairs learned from, 1 held out" in said.out
        and "0.400    0.300    0.100 ± 0.020 px" in said.out
    )
    assert said.out.splitlines()[-3:] == [
        "out/my own.safetensors",
        "  vizoo infer stereo LEFT RIGHT --model 'out/my own.safetensors' --guided --out DIR",
        "out/my own.json",
    ]
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


def test_a_refusal_leaves_what_stands_there(pairs, tuned, capsys):
    """Weights and their report; its own stands beside them. Better ones replace both."""
    assert call() == 0
    before = {path: path.read_bytes() for path in (pairs / "out").iterdir()}
    tuned["improved"] = False
    assert call() == 1
    assert {path: path.read_bytes() for path in before} == before
    assert json.loads((pairs / "out/mine.refused.json").read_text())["improved"] is False
    said = capsys.readouterr()
    assert "out/mine.safetensors: is replaced if better weights are found; --from" in said.err
    assert said.out.splitlines()[-1] == "out/mine.refused.json"


def test_what_ended_it_is_said(pairs, tuned, capsys):
    tuned["stopped"] = "interrupted"
    assert call() == 130 and (pairs / "out/mine.json").is_file()
    says = (
        "interrupted: these are the weights of the best check; --from out/mine.safetensors goes on"
    )
    assert capsys.readouterr().err == f"vizoo: warning: {says}\n"
    tuned["stopped"] = "step 3: the loss is not finite"
    assert call() == 0


def test_ctrl_c_before_anything_better(pairs, tuned, capsys):
    tuned["stopped"] = "early"
    assert call() == 130 and not (pairs / "out").exists()
    assert "not written: nothing better was found yet; started again" in capsys.readouterr().err


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
        (["--report", "left/0.png/r.json"], "--report left/0.png: "),
        (["--from", "easnet_smal"], "easnet_small"),
        (["--from", "nosuch"], "no model is called 'nosuch'; there are easnet, easnet_elastic, "),
        (["--from", "none.safetensors"], "none.safetensors: no such weight file"),
        (["--from", "out/mine.safetensors"], "would overwrite the weights to tune"),
        (["--from", "dispmvs"], "not for stereo"),
        (["--steps", "0"], "--steps 0: must be at least 1"),
        (["--minutes", "0"], "must be above 0"),
        (["--minutes", "inf"], "minutes inf: must be above 0, and finite"),
        (["--seed", "-1"], "--seed -1: must be at least 0"),
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


def test_an_interruption_leaves_nothing(pairs, small, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(tuning._Learner, "step", interrupted)
    monkeypatch.setattr(Exam, "marks", lambda *_: None)
    assert call("--steps", "1") == 130
    assert {path.name for path in pairs.iterdir()} == {"left", "right"}


def test_the_whole_way(pairs, small, monkeypatch, capsys):
    """From files to weights that are loaded again, where the measure is told to be better."""
    rows = [_Marks([torch.full((64, 64), value)], [1.0, 1.0]) for value in (0.4, 0.3)]
    monkeypatch.setattr(Exam, "marks", lambda *_: rows.pop(0))
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
