"""`vizoo search` on the toy supernet."""

import csv
import json
import re
import sys
from pathlib import Path
from unittest import mock

import optuna
import pytest
import torch
import torch.distributed as dist
import toy_supernet
import yaml
from distributed_search import search_command
from matplotlib.axes import Axes
from ranks import context
from torch.utils.data import DataLoader, TensorDataset

from vizoo.__main__ import main
from vizoo.nas.lid import SplitTree
from vizoo.nas.space import Architecture, Choice, SearchSpace
from vizoo.nas.supernet import activate, extract, search_space
from vizoo.vision.configs.task import FitConfig
from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.weights import save_weights
from vizoo.vision.subnets import front
from vizoo.vision.subnets.evaluations import Evaluations


@pytest.fixture(autouse=True)
def toys(monkeypatch, tmp_path):
    toy_supernet.enter(monkeypatch, tmp_path, length=4, counted=30)
    torch.manual_seed(0)
    save_weights(create_model("toy", widths=(4, 8)), "supernet.safetensors")


def search(*words):
    defaults = ("--supernet", "supernet.safetensors", "--data", "toy.yaml", "--out", "front")
    here = ("--metric", "val/error", "--input", "16x24", "--json")
    return main(["search", *defaults, *here, *words])


def check_front(report, tmp_path):
    front = report["front"]
    errors, macs = ([row[name] for row in front] for name in ("error", "macs"))
    assert front and errors == sorted(errors) and macs == sorted(macs, reverse=True)
    with open(tmp_path / "front/front.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["val/error"]) for row in rows] == errors
    assert [int(row["macs"]) for row in rows] == macs
    assert rows[0]["depth"] == str(front[0]["architecture"]["choices"]["depth"])
    assert (tmp_path / "front/front.png").read_bytes().startswith(b"\x89PNG")


def test_by_predictions(capsys, tmp_path):
    words = ("--samples", "10", "--population", "8", "--generations", "2", "--verify", "2")
    assert search(*words) == 0
    report = json.loads(capsys.readouterr().out)
    check_front(report, tmp_path)
    assert report["cost"] == "macs" and 10 <= report["evaluated"] <= 12
    assert report["predictor"]["count"] == 2
    space = search_space(create_model("toy", widths=(4, 8)))
    kept = Evaluations.load("front/evaluations.json", space)
    assert len(kept.errors) == report["evaluated"] and kept.metric == "val/error"

    # What is known is not evaluated again, and `vizoo subnet` can go by it.
    drawn = mock.Mock(wraps=Axes.scatter)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FitConfig, "evaluate", None)
        patch.setattr(Axes, "scatter", lambda axes, *a, **settings: drawn(axes, *a, **settings))
        assert search(*words) == 0
    assert json.loads(capsys.readouterr().out)["front"] == report["front"]
    ((_, costs, errors), _) = drawn.call_args  # the front's are drawn once, at exact costs
    assert len(costs) == len(errors) == report["evaluated"] - len(report["front"])
    words = ("--max-params", "900", "--evaluations", "front/evaluations.json", "--json")
    words += ("--out", "small.safetensors", "--input", "16x24", "--generations", "3")
    assert main(["subnet", "--supernet", "supernet.safetensors", *words]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["objective"].startswith("smallest val/error predicted from 1")

    # Beside the weights they need no word.
    chosen = report["architecture"]
    Path("front/evaluations.json").rename("supernet.evaluations.json")
    words = ("--max-params", "900", "--json", "--out", "small.safetensors", "--input", "16x24")
    assert main(["subnet", "--supernet", "supernet.safetensors", *words, "--generations", "3"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["objective"].startswith("smallest val/error predicted from 1")
    assert report["architecture"] == chosen
    Path("supernet.evaluations.json").write_text('{"format": "vizoo evaluations", "version": 1}')
    assert main(["subnet", "--supernet", "supernet.safetensors", *words]) == 2
    assert "supernet.evaluations.json: damaged evaluations" in capsys.readouterr().err


def test_a_space_as_small_as_the_sample_is_evaluated_whole(capsys, tmp_path):
    save_weights(create_model("toy", widths=(4,)), "small.safetensors")
    small = search_space(create_model("toy", widths=(4,))).restrict({"depth": [1, 2]})
    tree = SplitTree(small)
    tree.checkpoints["root"] = "small.safetensors"
    tree.save("tree.json")
    words = ("--tree", "tree.json", "--data", "toy.yaml", "--out", "front", "--metric", "val/error")
    assert main(["search", *words, "--input", "16x24", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    check_front(report, tmp_path)
    assert report["evaluated"] == small.count() == 6 and report["predictor"] is None


def test_batch_norms_may_stay_as_they_are(capsys, monkeypatch):
    monkeypatch.setattr(FitConfig, "recalibrate", None)
    words = ("--direct", "--population", "4", "--generations", "0", "--val-batches", "1")
    assert search(*words, "--batches", "0", "--cost", "parameters") == 0
    assert json.loads(capsys.readouterr().out)["evaluated"] >= 4


def test_direct(capsys, tmp_path):
    words = ("--direct", "--population", "6", "--generations", "2", "--max-params", "1500")
    assert search(*words, "--cost", "parameters", "--val-batches", "1", "--batches", "1") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["predictor"] is None and 6 <= report["evaluated"] <= 6 + 2 * 6
    assert all(row["parameters"] <= 1500 for row in report["front"])
    assert (
        main(
            [
                "search",
                "--supernet",
                "supernet.safetensors",
                "--data",
                "toy.yaml",
                "--metric",
                "val/error",
                "--out",
                "front",
                "--input",
                "16x24",
            ]
        )
        == 2
    )
    assert "evaluations of another search (val/error, " in capsys.readouterr().err


def shown(path, name):
    backend = optuna.storages.journal.JournalFileBackend(str(path))
    return optuna.load_study(study_name=name, storage=optuna.storages.JournalStorage(backend))


def test_a_storage_mirrors_the_search(capsys):
    words = ("--samples", "10", "--population", "8", "--generations", "2", "--verify", "2")
    words += ("--max-params", "5000")
    assert search(*words, "--mode", "max", "--storage", "runs/journal.log") == 0
    report = json.loads(capsys.readouterr().out)
    space = search_space(create_model("toy", widths=(4, 8)))
    errors = Evaluations.load("front/evaluations.json", space).errors
    study = shown("runs/journal.log", "val/error, macs")
    assert study.metric_names == ["val/error", "macs"]
    assert [d.name for d in study.directions] == ["MAXIMIZE", "MINIMIZE"]
    assert len(study.trials) == report["evaluated"] == len(errors)
    for trial, (architecture, error) in zip(study.trials, errors.items(), strict=True):
        assert space.validate(trial.params) == architecture
        assert trial.values == [-error, trial.user_attrs["macs"]]
        assert trial.user_attrs.keys() == {"parameters", "macs", "memory"}
        over = trial.constraints["0"]
        assert over == pytest.approx(trial.user_attrs["parameters"] / 1e3 - 5, abs=1e-6)
    assert study.user_attrs["limits"] == {"number of parameters": "5 k"}

    # A search that goes on adds what is new, and one that was not mirrored is shown whole.
    words = ("--samples", "14", *words[2:], "--mode", "max", "--storage")
    assert search(*words, "runs/journal.log") == search(*words, "late.log") == 0
    more = Evaluations.load("front/evaluations.json", space).errors
    assert len(more) > len(errors)
    for path in ("runs/journal.log", "late.log"):
        trials = shown(path, "val/error, macs").trials
        assert [space.validate(trial.params) for trial in trials] == list(more)

    save_weights(create_model("toy", widths=(4,)), "supernet.safetensors")
    capsys.readouterr()
    assert search(*words, "late.log", "--out", "other") == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "late.log: its study 'val/error, macs' is of a search with another search space" in said


@pytest.mark.parametrize("source", ["supernet", "tree"])
def test_without_a_table_nothing_runs_in_int8(capsys, source):
    """So no part of the supernet is looked for that would have to stay in float."""
    pytest.importorskip("onnxruntime")
    tree = SplitTree(search_space(create_model("toy", widths=(4, 8))))
    tree.checkpoints["root"] = "supernet.safetensors"
    tree.save("tree.json")
    file = {"supernet": "supernet.safetensors", "tree": "tree.json"}[source]
    line = ["search", f"--{source}", file, "--data", "toy.yaml", "--metric", "val/error", "--json"]
    line += ["--direct", "--population", "4", "--generations", "0", "--out", "front"]
    line += ["--input", "16x24", "--runtime", "onnxruntime", "--precision", "int8"]
    assert main(line) == 0
    assert json.loads(capsys.readouterr().out)["conditions"]["float_parts"] == []
    assert main([*line, "--max-loss", "0.1"]) == 2
    assert "stays in float: nothing runs without a --table" in capsys.readouterr().err


def test_samplers_of_optuna(capsys, monkeypatch):
    words = ("--sampler", "tpe", "--population", "6", "--generations", "3")
    words += ("--max-params", "4000", "--cost", "parameters", "--storage", "journal.log")
    assert search(*words) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["evaluated"] == 6 + 3 * 3 and report["predictor"] is None
    assert all(row["parameters"] <= 4000 for row in report["front"])
    study = shown("journal.log", "val/error, parameters")
    assert len(study.trials) == 15
    assert all(trial.constraints["0"] <= 0 for trial in study.trials)

    with monkeypatch.context() as patch:  # asked again, and told what is known
        patch.setattr(FitConfig, "evaluate", None)
        assert search(*words) == 0
    assert json.loads(capsys.readouterr().out)["front"] == report["front"]
    assert len(shown("journal.log", "val/error, parameters").trials) == 15


@pytest.mark.parametrize(
    ("words", "needs"),
    [(("--sampler", "tpe"), "a sampler"), (("--storage", "a.log"), "the storage of a search")],
)
def test_without_optuna(capsys, monkeypatch, words, needs):
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert search(*words) == 2
    said = capsys.readouterr().err
    assert said == f"vizoo: error: {needs} needs optuna: pip install 'vizoo[optuna]'\n"


def test_all_processes_of_a_job_find_what_one_finds(capsys, tmp_path):
    words = ("--direct", "--population", "6", "--generations", "2")
    assert search(*words) == 0
    alone = json.loads(capsys.readouterr().out)["front"]
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    line = ["search", "--supernet", "supernet.safetensors", "--data", "toy.yaml", "--out", "job"]
    line += ["--metric", "val/error", "--input", "16x24", *words]
    processes = [
        context.Process(target=search_command, args=(rank, store.port, str(tmp_path), line))
        for rank in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert json.loads((tmp_path / "job/front.json").read_text())["front"] == alone


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ("weights", "evaluations of another search (val/error, "),
        ("config", "evaluations by toy.yaml before its model or data were edited"),
    ],
)
def test_evaluations_are_of_these_weights_and_data(changed, message, capsys):
    words = ("--direct", "--population", "4", "--generations", "0")
    assert search(*words) == 0
    if changed == "weights":
        save_weights(create_model("toy", widths=(4, 8)), "supernet.safetensors")
    else:
        config = Path("toy.yaml").read_text()
        Path("toy.yaml").write_text(config.replace("length: 4", "length: 6"))
    capsys.readouterr()
    assert search(*words) == 2
    assert message in capsys.readouterr().err


def test_an_impossible_limit_costs_no_evaluation(capsys, monkeypatch):
    monkeypatch.setattr(FitConfig, "evaluate", None)
    assert search("--max-params", "10") == 2
    assert "the smallest reachable is" in capsys.readouterr().err


class Low:
    """Predicts less of a cost than there is."""

    def __init__(self, costs, factor):
        self.costs, self.factor = costs, factor

    def __call__(self, architecture):
        return self.factor * self.costs(architecture)

    def predict(self, architectures):
        return self.factor * self.costs.predict(architectures)


def predict_low(monkeypatch, factor):
    inner = front.cost_predictors

    def found(*given):
        return {kind: Low(costs, factor) for kind, costs in inner(*given).items()}

    monkeypatch.setattr(front, "cost_predictors", found)


def test_limits_hold_for_exact_counts(capsys, monkeypatch):
    predict_low(monkeypatch, 0.7)
    words = ("--direct", "--population", "12", "--generations", "2", "--cost", "parameters")
    assert search(*words, "--max-params", "1500") == 0
    report = json.loads(capsys.readouterr().out)

    net = create_model("toy", widths=(4, 8))
    errors = Evaluations.load("front/evaluations.json", search_space(net)).errors
    counts = {a: sum(p.numel() for p in extract(net, a).parameters()) for a in errors}
    within = {(errors[a], counts[a]) for a in errors if counts[a] <= 1500}
    front = {p for p in within if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in within)}
    assert {(row["error"], row["parameters"]) for row in report["front"]} == front
    assert 0 < report["left_out"] <= len(errors) - len(within)

    defaults = ("--supernet", "supernet.safetensors", "--data", "toy.yaml", "--out", "front")
    here = ("--metric", "val/error", "--input", "16x24", "--max-params", "1500")
    assert main(["search", *defaults, *here, *words]) == 0
    said = capsys.readouterr().out
    assert f"\n  {report['left_out']} left out: by exact count they are over a limit\n" in said


def test_no_subnet_within_the_limits(capsys, monkeypatch):
    predict_low(monkeypatch, 0.1)
    assert search("--direct", "--population", "4", "--generations", "0", "--max-params", "580") == 2
    said = capsys.readouterr().err
    assert re.search(r"none of \d+ evaluated subnets keeps to the limits: evaluate more, by", said)


def test_an_evaluation_depends_on_nothing_but_the_subnet(monkeypatch):
    def shuffled(self):
        images = torch.rand(16, 3, 16, 24, generator=torch.Generator().manual_seed(0))
        return DataLoader(TensorDataset(images), 4, shuffle=True)

    monkeypatch.setattr(toy_supernet.ToyData, "train_dataloader", shuffled)
    net = create_model("toy", widths=(4, 8)).eval()
    space = search_space(net)
    config = FitConfig.read("toy.yaml")

    def error(architecture):
        activate(net, architecture)
        config.recalibrate(net, 2)
        return config.evaluate(net, "val/error")

    first = error(space.smallest()), error(space.largest())
    assert (error(space.largest()), error(space.smallest())) == (first[1], first[0])


def test_weights_that_the_training_began_from_may_be_gone():
    config = yaml.safe_load(open("toy.yaml"))
    config["model"]["init_args"] = {"init_weights": "gone.safetensors"}
    for name, model in (
        ("plain.yaml", config["model"]),
        ("supernet.yaml", {"class_path": "…", "init_args": {"task": config["model"]}}),
    ):
        with open(name, "w") as file:
            yaml.safe_dump({**config, "model": model}, file)
        assert FitConfig.read(name).module.net is not None


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--metric", "val/epe"), "metric val/epe: ToyTask logs val/error"),
        (("--cost", "latency"), "latency needs --table FILE; `vizoo latency build` makes one"),
        (("--samples", "3"), "--samples 3: must be at least 10"),
        (("--population", "0"), "--population 0: must be at least 4"),
        (("--population", "2"), "--population 2: must be at least 4"),
        (("--out", "toy.yaml"), "toy.yaml is a file; name a folder"),
        (("--out", ""), "--out is empty; name a folder"),
        (("--out", "toy.yaml/front"), "toy.yaml is a file; name a folder"),
        (("--storage", "toy.yaml"), "toy.yaml: no journal of Optuna: name another file"),
        (("--data", "stereo/fadnet"), "stereo/fadnet: no such config here or built in"),
        (("--supernet", "toy_plain"), "toy_plain: no supernet"),
        (("--supernet", "toy"), "toy is not trained: errors of random weights say nothing"),
        (("--max-params", "10", "--direct"), "the smallest reachable is"),
    ],
)
def test_bad_input_is_one_line(capsys, words, says):
    assert search(*words) == 2
    said = capsys.readouterr().err
    assert said.startswith("vizoo: error: ") and says in said and said.count("\n") == 1


@pytest.mark.parametrize("batches", ["0", "2"])
def test_a_config_of_another_task_is_one_line(capsys, monkeypatch, batches):
    def run_on_pairs(self, batch, index):
        return self.net(batch[0], batch[0])

    for step in ("validation_step", "predict_step"):
        monkeypatch.setattr(toy_supernet.ToyTask, step, run_on_pairs)
    assert search("--batches", batches) == 2
    said = capsys.readouterr().err
    assert "error: toy.yaml: ToyTask cannot run this network: Toy.forward() takes 2" in said
    assert said.count("\n") == 1


def test_evaluations_of_another_space(tmp_path):
    space = SearchSpace([Choice("depth", (1, 2))])
    kept = Evaluations(space, "epe", {}, {Architecture({"depth": 1}): 2.0})
    path = kept.save(tmp_path / "kept.json")
    assert Evaluations.load(path, space) == kept
    with pytest.raises(ValueError, match="kept.json: evaluations of architectures of another"):
        Evaluations.load(path, SearchSpace([Choice("depth", (1, 2, 3))]))
    damaged = json.loads(path.read_text())
    damaged["evaluations"][0]["architecture"]["choices"]["depth"] = 5
    path.write_text(json.dumps(damaged))
    with pytest.raises(ValueError, match="kept.json: damaged evaluations of subnets"):
        Evaluations.load(path, space)
    path.write_text("{}")
    with pytest.raises(ValueError, match="kept.json: no evaluations of subnets"):
        Evaluations.load(path, space)
