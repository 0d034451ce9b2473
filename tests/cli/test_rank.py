"""`vizoo rank` against the accuracies of networks trained alone."""

from __future__ import annotations

import csv
import itertools
import json
import os
import shutil
import signal

import numpy as np
import pytest

from vizoo import create_model
from vizoo.__main__ import main
from vizoo.classification.task import ClassificationTask
from vizoo.nas import search_space, tabular
from vizoo.nas.lid import Split, SplitTree, compare
from vizoo.nas.supernet import active, extract
from vizoo.vision.configs.task import FitConfig
from vizoo.vision.hub.weights import save_weights
from vizoo.vision.subnets.evaluations import Evaluations

GENERATED = "search/nas_lid_nasbench201_generated.yaml"
EVALUATE = FitConfig.evaluate
COLUMNS = ("cifar10_test", "cifar100_test", "imagenet16_120_test")


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """The file of a table of all cells with drawn accuracies, and the table."""
    path = tmp_path_factory.mktemp("drawn") / "truth.npz"
    codes = np.array(list(itertools.product(range(5), repeat=6)))
    accuracies = np.random.default_rng(0).uniform(10, 95, (3, len(codes)))
    np.savez(path, arch=codes, **dict(zip(COLUMNS, accuracies, strict=True)))
    return path, tabular.nasbench201(path)


@pytest.fixture
def cells(drawn, tmp_path, monkeypatch):
    """The table in the working folder, and a tree of 25 of its cells in two leaves.

    What is measured of a cell is its accuracy on another data set of the table.
    """
    monkeypatch.chdir(tmp_path)
    path, table = drawn
    shutil.copy(path, tmp_path)
    net = create_model("nasbench201", classes=4, channels=2, cells=1)
    save_weights(net, "cells.safetensors")
    space = search_space(net)
    space = space.restrict({name: ["nor_conv_3x3"] for name in space.names[2:]})
    tree = SplitTree(space)
    values = space.choices["edges.0_1"].values
    tree.split("root", Split("edges.0_1", (values[:2], values[2:])))
    tree.checkpoints["root"] = "cells.safetensors"
    tree.save("tree.json")
    monkeypatch.setattr(FitConfig, "recalibrate", lambda *_: None)
    monkeypatch.setattr(
        FitConfig, "evaluate", lambda self, net, *_: table.look_up(active(net), "cifar100_test")
    )
    return table, tree, net


def rank(*words):
    where = ("--tree", "tree.json", "--data", GENERATED, "--metric", "val/accuracy")
    truth = ("--benchmark", "nasbench201", "--truth", "truth.npz", "--out", "ranking")
    return main(["rank", *where, *truth, *words])


def test_rankings_and_parameters_are_compared_with_the_truth(capsys, cells):
    table, tree, net = cells
    assert rank("--samples", "0", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["truth"] == {"benchmark": "nasbench201", "column": "cifar10_test"}
    every = list(tree.space.enumerate())
    best = sorted(every, key=lambda cell: -table.look_up(cell, "cifar10_test"))[:2]
    assert set(report["comparisons"]) == {"all", "true best 1 %"} and len(every) == 25
    nets = {cell: extract(net, cell) for cell in every}
    parameters = {cell: sum(p.numel() for p in one.parameters()) for cell, one in nets.items()}
    for name, group in (("all", every), ("true best 1 %", best)):
        truth = [table.look_up(cell, "cifar10_test") for cell in group]
        scores = [table.look_up(cell, "cifar100_test") for cell in group]
        sizes = [parameters[cell] for cell in group]
        found = report["comparisons"][name]
        for who, figures in (("supernet", scores), ("parameters", sizes)):
            wanted = json.loads(json.dumps(compare(figures, truth).to_json()))
            assert found[who] == wanted, (name, who)
    assert set(report["comparisons"]["all"]["supernet"]["precision"]) == {"5", "10"}

    with open("ranking/rank.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    figures = [float(row["val/accuracy"]) for row in rows]
    assert figures == sorted(figures, reverse=True) and len(rows) == 25
    for row in rows:
        cell = tree.space.validate({name: row[name] for name in tree.space.names})
        assert float(row["cifar10_test"]) == table.look_up(cell, "cifar10_test")
        assert row["leaf"] == tree.leaf_of(cell)
        assert int(row["parameters"]) == parameters[cell]


def test_another_column_and_lines(capsys, cells):
    assert rank("--samples", "12", "--column", "cifar100_test") == 0
    said = capsys.readouterr().out
    assert "12 drawn (12), against cifar100_test:" in said and "true best 1 % (2)" in said
    assert said.count("supernet     kendall 1.000, spearman 1.000") == 2
    assert rank("--column", "cifar") == 2
    assert "--column cifar: truth.npz has cifar10_test, cifar100_test, " in capsys.readouterr().err


def test_what_is_evaluated_is_kept_and_not_written_after_each(capsys, cells, monkeypatch):
    """Of thousands each writing takes longer than an evaluation."""
    table, tree, net = cells
    evaluate, saves, save = FitConfig.evaluate, [], Evaluations.save
    monkeypatch.setattr(Evaluations, "save", lambda self, p: saves.append(0) or save(self, p))
    monkeypatch.setattr("vizoo.cli.rank._SAVE_EVERY", 3600)

    def failing(self, net, *rest):
        if len(evaluated) == 20:
            raise KeyboardInterrupt
        evaluated.append(0)
        return evaluate(self, net, *rest)

    evaluated = []
    monkeypatch.setattr(FitConfig, "evaluate", failing)
    assert rank("--samples", "0") == 130
    assert len(Evaluations.load("ranking/evaluations.json", tree.space).errors) == 20
    assert len(saves) == 2
    monkeypatch.setattr(FitConfig, "evaluate", evaluate)
    assert rank("--samples", "0") == 0
    assert len(Evaluations.load("ranking/evaluations.json", tree.space).errors) == 25


def test_sigterm_ends_it_and_what_is_evaluated_is_kept(cells, monkeypatch):
    """Lightning notes it within a validation, and goes on where that is in its last batch."""
    step, batches = ClassificationTask.validation_step, []

    def terminated(*args):
        batches.append(0)
        if len(batches) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(*args)

    monkeypatch.setattr(FitConfig, "evaluate", EVALUATE)
    monkeypatch.setattr(ClassificationTask, "validation_step", terminated)
    handler = signal.getsignal(signal.SIGTERM)
    assert rank("--samples", "5") == 143 and len(batches) == 3
    assert len(Evaluations.load("ranking/evaluations.json", cells[1].space).errors) == 2
    assert signal.getsignal(signal.SIGTERM) == handler


def test_a_benchmark_of_another_space_is_refused(capsys, cells):
    codes = np.array(list(itertools.product(range(3), repeat=8)))
    runs = {"cifar10_test": np.ones((6561, 3)), "params": np.ones(6561), "macs": np.ones(6561)}
    np.savez("blocks.npz", arch=codes, **runs)
    assert rank("--benchmark", "mbnet", "--truth", "blocks.npz") == 2
    refused = "vizoo: error: --benchmark mbnet: its networks are not of this supernet\n"
    assert capsys.readouterr().err.endswith(refused)
