"""Commands on a leaf's weights stay in its part; which metrics are good when they are large."""

import csv
import json
import math

import pytest
import torch
import toy_supernet

from vizoo.__main__ import main
from vizoo.nas.lid import SplitTree
from vizoo.nas.space import Architecture
from vizoo.nas.supernet import active, extract, search_space
from vizoo.vision.configs.task import FitConfig
from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.sharing import save_pretrained
from vizoo.vision.hub.weights import load_weights, save_weights
from vizoo.vision.subnets.bench import load_supernet

SIZE = ("--input", "16x24")


@pytest.fixture(scope="module")
def leaves(tmp_path_factory):
    """Two trained leaves: the widths of the first block are parted."""
    folder = tmp_path_factory.mktemp("leaves")
    with pytest.MonkeyPatch.context() as patch:
        toy_supernet.register(patch)
        return toy_supernet.train_leaves(folder)


@pytest.fixture(autouse=True)
def toys(monkeypatch, tmp_path):
    toy_supernet.enter(monkeypatch, tmp_path, length=8, counted=12)


def run(name, *words, metric="val/error"):
    where = ("--data", "toy.yaml", "--metric", metric, "--batches", "1", "--out", name)
    return main([name, *where, "--json", *words])


def evaluated(name):
    rows = json.loads(open(f"{name}/evaluations.json").read())["evaluations"]
    return [Architecture.from_json(row["architecture"]) for row in rows]


def part_of(leaves, node="1"):
    space = SplitTree.load(leaves / "tree.json").space_of(node)
    return space, str(leaves / f"{node}.ckpt")


def test_commands_stay_in_the_part_of_a_leaf(capsys, leaves):
    space, file = part_of(leaves)
    assert run("rank", "--supernet", file, "--samples", "8") == 0
    direct = ("--direct", "--population", "4", "--generations", "1", *SIZE)
    assert run("search", "--supernet", file, *direct) == 0
    found = [*evaluated("rank"), *evaluated("search")]
    assert len(found) >= 12 and all(item in space for item in found)

    out = ("--out", "small.safetensors", "--json", *SIZE)
    limit = ("--max-params", "1M", "--generations", "2")
    for which, words in (("largest", ("--architecture", "largest")), ("searched", limit)):
        capsys.readouterr()
        assert main(["subnet", "--supernet", file, *words, *out]) == 0, which
        report = json.loads(capsys.readouterr().out)
        assert Architecture.from_json(report["architecture"]) in space, which

    words = ("--criterion", "random", "--data", "toy.yaml", "--out", "further.json")
    assert main(["split", "--supernet", file, *words]) == 0
    assert SplitTree.load("further.json").space == space
    assert run("rank", "--tree", "further.json", "--samples", "4", "--out", "further") == 0
    assert all(item in space for item in evaluated("further"))


def test_what_a_leaf_does_not_hold_is_refused(capsys, leaves):
    space, file = part_of(leaves)
    whole = search_space(create_model("toy"))
    outside = next(item for item in whole.enumerate() if item not in space)
    with open("given.json", "w") as given:
        json.dump([outside.to_json(), space.largest().to_json()], given)
    assert run("rank", "--supernet", file, "--architectures", "given.json") == 2
    assert "given.json: " in capsys.readouterr().err


def test_weights_of_a_leaf_that_are_saved_anew_keep_its_part(leaves):
    space, file = part_of(leaves, "0")
    net = load_weights(file)
    save_weights(net, "leaf.safetensors")
    save_pretrained(net, "released", licence="MIT", trained_on="noise")
    for source in ("leaf.safetensors", "local-dir:released"):
        assert load_supernet(source)[1] == space, source
    for again in (net, load_weights("leaf.safetensors")):
        assert active(again) == space.largest() != search_space(net).largest()
    save_weights(extract(net, space.largest()), "small.safetensors")
    with pytest.raises(ValueError, match=r"^small.safetensors: a subnet: there is nothing to cho"):
        load_supernet("small.safetensors")


@pytest.fixture
def measured(monkeypatch):
    """The figures of evaluations, which are drawn."""
    save_weights(create_model("toy"), "supernet.safetensors")
    values = {}

    def evaluate(self, net, *_):
        drawn = torch.rand(1, generator=torch.Generator().manual_seed(len(values))).item()
        return values.setdefault(active(net), drawn)

    monkeypatch.setattr(FitConfig, "evaluate", evaluate)
    monkeypatch.setattr(FitConfig, "recalibrate", lambda *_: None)
    return values


@pytest.mark.parametrize(
    ("metric", "words", "best"),
    [
        ("val/accuracy", (), max),
        ("val/macro_auc", (), max),
        ("val/within_2%", (), max),
        ("val/loss", (), min),
        ("val/epe", (), min),
        ("val/d1", ("--mode", "max"), max),
        ("val/accuracy", ("--mode", "min"), min),
    ],
)
def test_the_best_is_by_what_the_metric_means(capsys, measured, metric, words, best):
    source = ("--supernet", "supernet.safetensors", *words)
    assert run("rank", *source, "--samples", "6", metric=metric) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["best"][metric] == best(measured.values())
    with open("rank/rank.csv", newline="") as file:
        found = [float(row[metric]) for row in csv.DictReader(file)]
    assert found == sorted(measured.values(), reverse=best is max)

    direct = ("--direct", "--population", "4", "--generations", "0", *SIZE)
    measured.clear()
    assert run("search", *source, *direct, metric=metric) == 0
    with open("search/front.csv", newline="") as file:
        assert float(next(csv.DictReader(file))[metric]) == best(measured.values())


def test_a_metric_of_two_meanings_needs_a_mode(capsys, measured):
    assert run("rank", "--supernet", "supernet.safetensors", metric="val/d1") == 2
    assert "say which by --mode min or --mode max" in capsys.readouterr().err
    assert not measured


@pytest.mark.parametrize("metric", ["val/accuracy", "val/loss"])
@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_comes_last_and_is_named(capsys, monkeypatch, measured, metric, broken):
    inner, seen = FitConfig.evaluate, []

    def evaluate(self, net, *_):
        seen.append(active(net))
        return broken if len(seen) == 3 else inner(self, net)

    monkeypatch.setattr(FitConfig, "evaluate", evaluate)
    source = ("--supernet", "supernet.safetensors", "--samples", "6")
    assert run("rank", *source, metric=metric) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["not_finite"] == [seen[2].to_json()]
    with open("rank/rank.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row[metric] == "" for row in rows] == [False] * (len(rows) - 1) + [True]

    words = ("--data", "toy.yaml", "--metric", metric, "--batches", "1", "--out", "rank")
    assert main(["rank", *source, *words]) == 0
    assert f"1 without a finite {metric} come last, such as: " in capsys.readouterr().out
