"""`vizoo split`, `vizoo rank` and `vizoo search --tree` on the toy supernet."""

import csv
import json
from pathlib import Path

import pytest
import torch
import toy_supernet

from vizoo.__main__ import main
from vizoo.nas.lid import SplitTree
from vizoo.nas.supernet import activate, search_space
from vizoo.vision.configs.task import FitConfig
from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.weights import load_weights, save_weights

DATA = ("--data", "toy.yaml")


@pytest.fixture(autouse=True)
def toys(monkeypatch, tmp_path):
    toy_supernet.enter(monkeypatch, tmp_path, length=8, counted=12)
    torch.manual_seed(0)
    save_weights(create_model("toy"), "supernet.safetensors")


def split(*words, small=("--k", "4", "--batch-size", "8")):
    where = ("--supernet", "supernet.safetensors", *DATA, "--out", "tree.json")
    return main(["split", *where, *small, "--json", *words])


def rank(*words, out="ranking"):
    settings = ("--metric", "val/error", "--batches", "1", "--json", "--out", out)
    return main(["rank", *DATA, *settings, *words])


@pytest.fixture
def leaves(tmp_path):
    return toy_supernet.train_leaves(tmp_path)


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (lambda net, image: net.stages(image), "'Heir' object has no attribute 'stages'"),
        (lambda net, image: net(image, image), "Toy.forward() takes 2 positional arguments"),
    ],
)
def test_a_config_of_another_task_is_one_line(capsys, monkeypatch, run, says):
    class Heir(toy_supernet.Toy):
        pass

    def step(self, batch, index):
        self.net.__class__ = Heir
        return run(self.net, batch[0])

    monkeypatch.setattr(toy_supernet.ToyTask, "training_step", step)
    assert split("--criterion", "gradient", small=()) == 2
    said = capsys.readouterr().err
    assert f"error: toy.yaml: ToyTask cannot run this network: {says}" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("criterion", "small"),
    [("lid", ("--k", "4", "--batch-size", "8")), ("gradient", ("--batch-size", "8"))]
    + [("random", ())],
)
def test_split(capsys, criterion, small):
    assert split("--criterion", criterion, "--levels", "2", small=small) == 0
    report = json.loads(capsys.readouterr().out)
    tree = SplitTree.load("tree.json", search_space(create_model("toy")))
    assert tree.leaves == ("00", "01", "10", "11") and report["splits"] == json.loads(
        json.dumps(tree.to_json()["splits"])
    )
    assert sum(report["leaves"].values()) == tree.space.count()
    assert tree.checkpoints["root"] == tree.about["supernet"] == "supernet.safetensors"
    assert tree.about["data"] == "toy.yaml" and report["samples"] in (0, 8)
    first = (tree.splits["root"].choice, tree.splits["root"].groups)
    assert split("--criterion", criterion, small=small) == 0
    again = SplitTree.load("tree.json").splits["root"]
    assert (again.choice, again.groups) == first


def test_dimensions_by_two_neighbours_need_no_others(capsys):
    """Which an epoch of 8 samples has for no other estimator."""
    assert split("--estimator", "two_nn", "--k", "20") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["about"]["splitter"]["estimator"] == "two_nn"
    assert split("--k", "20", "--batch-size", "30") == 2


def test_means_are_printed(capsys):
    """Of pairs, as the gap is, whatever the number of values; a choice of two has none inside."""
    where = ("--supernet", "supernet.safetensors", *DATA, "--out", "tree.json", "--batches", "1")
    assert main(["split", *where, "--k", "4", "--batch-size", "8"]) == 0
    said = [line.split() for line in capsys.readouterr().out.splitlines()]
    split = SplitTree.load("tree.json").splits["root"]
    assert any(line[0] == "root:" and " ".join(line[1:]) == str(split) for line in said)
    rows = {line[0]: line[1:] for line in said if line[0] in split.scores}
    assert rows.keys() == split.scores.keys()
    for choice, (gap, inside, across) in rows.items():
        if len(search_space(create_model("toy")).choices[choice].values) == 2:
            assert inside == "-"
        else:
            assert float(gap) == pytest.approx(float(inside) - float(across), abs=2e-4)


def test_a_tree_moves_with_its_folder(capsys, tmp_path, monkeypatch):
    """Paths are from the tree, wherever the command ran and however they were typed."""
    (tmp_path / "here/trees").mkdir(parents=True)
    Path("supernet.safetensors").rename("here/supernet.safetensors")
    where = ("--supernet", str(tmp_path / "here/supernet.safetensors"), *DATA)
    settings = ("--k", "4", "--batches", "1", "--out", "here/trees/tree.json")
    assert main(["split", *where, *settings]) == 0
    assert "by batches of 8 samples: the data have no 128" in capsys.readouterr().out
    Path("here").rename("there")
    tree = SplitTree.load("there/trees/tree.json")
    assert tree.checkpoints["root"] == tree.about["supernet"] == "../supernet.safetensors"
    assert tree.about["data"] == "../../toy.yaml"
    assert str(tmp_path) not in Path("there/trees/tree.json").read_text()
    assert rank("--tree", "there/trees/tree.json", "--samples", "1") == 0


def test_split_of_chosen_choices(capsys):
    assert split("--choices", "blocks.0.*", "--layers", "blocks.*", "head") == 0
    scores = json.loads(capsys.readouterr().out)["splits"]["root"]["scores"]
    assert set(scores) == {"blocks.0.width", "blocks.0.kernel"}


def test_rank_by_leaves(capsys, leaves, monkeypatch):
    assert rank("--tree", str(leaves / "tree.json"), "--samples", "12") == 0
    report = json.loads(capsys.readouterr().out)
    with open("ranking/rank.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    errors = [float(row["val/error"]) for row in rows]
    assert len(rows) == report["evaluated"] == 12 and errors == sorted(errors)
    tree = SplitTree.load(leaves / "tree.json")
    for row in rows:
        part = tree.splits["root"].groups[int(row["leaf"])]
        assert int(row["blocks.0.width"]) in part

    # Each has the weights of its own leaf: alone it has the same error.
    config = FitConfig.read("toy.yaml")
    for row in (rows[0], rows[-1]):
        net = load_weights(leaves / f"{row['leaf']}.ckpt")
        given = {name: int(row[name]) for name in tree.space.names if row[name]}
        activate(net, given)
        config.recalibrate(net, 1)
        assert config.evaluate(net, "val/error") == pytest.approx(float(row["val/error"]))

    monkeypatch.setattr(FitConfig, "evaluate", None)  # all is known
    assert rank("--tree", str(leaves / "tree.json"), "--samples", "12") == 0


def test_rank_of_one_supernet_and_given_architectures(capsys):
    space = search_space(create_model("toy"))
    given = [space.largest().to_json(), dict(space.smallest())]
    with open("given.json", "w") as file:
        json.dump(given, file)
    words = ("--supernet", "supernet.safetensors", "--architectures", "given.json")
    assert rank(*words, "--mode", "max") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["evaluated"] == 2 and report["truth"] is None


@pytest.mark.parametrize("given", [[1, 2], ["a", "b"], [None, {}], {"a": 1}, [{"depth": 1}]])
def test_what_is_no_list_of_architectures_is_refused(capsys, given):
    Path("given.json").write_text(json.dumps(given))
    words = ("--supernet", "supernet.safetensors", "--architectures", "given.json")
    assert rank(*words) == 2
    said = capsys.readouterr().err
    assert "given.json: wanted a JSON list of two architectures or more" in said


def test_search_by_leaves(capsys, leaves):
    words = ("--tree", str(leaves / "tree.json"), *DATA, "--metric", "val/error", "--direct")
    words += ("--population", "4", "--generations", "1", "--input", "16x24", "--batches", "1")
    assert main(["search", *words, "--out", "front", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["front"] and report["evaluated"] >= 4


def test_checkpoints_of_another_part_are_refused(capsys, leaves):
    content = json.loads((leaves / "tree.json").read_text())
    content["checkpoints"]["0"] = "1.ckpt"
    (leaves / "tree.json").write_text(json.dumps(content))
    assert rank("--tree", str(leaves / "tree.json"), "--samples", "12") == 2
    assert "1.ckpt: weights of another part of the space than '0'" in capsys.readouterr().err


def test_a_leaf_whose_file_is_gone_is_told_before_any_is_evaluated(capsys, leaves, monkeypatch):
    monkeypatch.setattr(FitConfig, "evaluate", None)
    content = (leaves / "1.ckpt").read_bytes()
    (leaves / "1.ckpt").write_bytes(content[: len(content) // 2])
    assert rank("--tree", str(leaves / "tree.json")) == 2
    assert f"{leaves}/1.ckpt: not a checkpoint, or damaged" in capsys.readouterr().err
    (leaves / "1.ckpt").unlink()
    Path("1.ckpt").write_bytes(content)  # of another tree, here
    assert rank("--tree", str(leaves / "tree.json")) == 2
    assert f"{leaves}/1.ckpt: no such weight file" in capsys.readouterr().err


def test_parts_above_the_leaves_need_no_files(capsys, leaves):
    (leaves / "root.ckpt").unlink()
    assert rank("--tree", str(leaves / "tree.json"), "--samples", "1") == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--choices", "blocks.0.widht"), "did you mean 'blocks.0.width'"),
        (("--layers", "block.*"), "no layer is called 'block.*'"),
        (("--k", "1"), "k 1: the paper estimator needs 2 neighbours or more"),
        (("--batches", "0"), "batches 0 and batch_size 8 must be at least 1"),
        (("--criterion", "gradient"), "--k is not for --criterion gradient: leave it out"),
        (("--batch-size", "5"), "batch_size 5: 4 neighbours need batches of 6 samples"),
        (
            ("--k", "7", "--batch-size", "9"),
            "8 samples are too few for 7 neighbours: give a batch of 9",
        ),
        (("--levels", "0"), "--levels 0: must be at least 1"),
        (("--levels", "-1"), "--levels -1: must be at least 1"),
        (("--levels", "4"), "levels 4: 1 to 3, by the values of depth, blocks.0.width, blocks"),
        (("--levels", "2", "--choices", "depth"), "levels 2: 1 to 1, by the values of depth"),
        (("--min-group", "3"), "nothing to split: no choice of * has 6 values"),
        (("--out", "tree.txt"), "--out tree.txt: a tree is written as .json"),
        (("--out", "dir.json"), "--out dir.json: is a folder; name a file"),
        (("--out", "toy.yaml/tree.json"), "toy.yaml is a file; name a folder"),
        (("--supernet", "toy_plain"), "error: toy_plain: no supernet"),
    ],
)
def test_bad_splits_are_one_line(capsys, words, says):
    Path("dir.json").mkdir()
    assert split(*words) == 2
    said = capsys.readouterr().err
    assert said.startswith("vizoo: error: ") and says in said and said.count("\n") == 1
    assert not list(Path().glob("tree.*"))


@pytest.mark.parametrize("option", ["measure", "layers", "estimator", "rule", "method", "batches"])
def test_what_a_criterion_does_not_look_at_is_refused(capsys, option):
    values = {"measure": "cosine", "estimator": "two_nn", "rule": "released_code"}
    value = {**values, "method": "spectral", "layers": "*", "batches": "2"}[option]
    for criterion in ("gradient", "random"):
        if criterion == "random" or option in ("measure", "layers", "estimator"):
            assert split("--criterion", criterion, f"--{option}", value, small=()) == 2
            refused = f"--{option} is not for --criterion {criterion}: leave it out"
            assert refused in capsys.readouterr().err


def test_more_levels_than_choices_allow_are_refused_before_the_data_are_read(capsys, monkeypatch):
    monkeypatch.setattr(FitConfig, "training_batches", None)
    assert split("--levels", "1000000") == 2
    assert "levels 1000000: 1 to 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "one of the arguments --supernet --tree is required"),
        (("--supernet", "toy"), "toy is not trained"),
        (("--tree", "gone.json"), "gone.json: no such file"),
        (("--tree", "toy.yaml"), "toy.yaml: not a tree of splits: this is not valid JSON"),
        (("--supernet", "supernet.safetensors", "--truth", "a.npz"), "go together"),
        (("--supernet", "supernet.safetensors", "--samples", "-1"), "--samples -1: must be"),
        (
            ("--supernet", "supernet.safetensors", "--truth", "a", "--benchmark", "mbnet"),
            "a: no such file to read a table of accuracies",
        ),
        (
            ("--supernet", "supernet.safetensors", "--architectures", "toy.yaml"),
            "toy.yaml: not architectures",
        ),
        (("--supernet", "gone.ckpt", "--column", "a"), "--column is of the truth: leave it out"),
        *(
            (
                ("--supernet", "gone.ckpt", "--architectures", "toy.yaml", f"--{option}", "0"),
                f"--{option} is of a sample: leave it out with --architectures",
            )
            for option in ("samples", "seed")
        ),
    ],
)
def test_bad_rankings_are_one_line(capsys, words, says):
    assert rank(*words) == 2
    said = capsys.readouterr().err
    assert said.startswith("vizoo: error: ") and says in said and said.count("\n") == 1


def test_a_tree_without_weights_ranks_nothing(capsys):
    assert (
        main(
            [
                "split",
                "--supernet",
                "toy",
                *DATA,
                "--k",
                "4",
                "--batch-size",
                "8",
                "--batches",
                "1",
                "--out",
                "bare.json",
            ]
        )
        == 0
    )
    assert "random weights: the supernet is not trained" in capsys.readouterr().out
    assert rank("--tree", "bare.json") == 2
    assert "bare.json: a tree without weights" in capsys.readouterr().err
