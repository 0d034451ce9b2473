"""`vizoo subnet` on the toy supernet."""

import copy
import dataclasses
import json

import pytest
import torch
import toy_supernet
import yaml

from vizoo.__main__ import main
from vizoo.cli import _errors
from vizoo.nas.efficiency.table import LatencyTable
from vizoo.nas.space import Architecture
from vizoo.nas.supernet import extract, search_space
from vizoo.vision.configs import builtin as configs
from vizoo.vision.configs import task as _task
from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.weights import load_weights, read_weights, save_weights
from vizoo.vision.subnets import best

BOTH = ("before", "after")
HERE = ("--input", "16x24", "--threads", "1")
BRIEF = ("--population", "8", "--generations", "3")
SMALLEST = ("--architecture", "smallest", *HERE)  # where how it is found does not matter


@pytest.fixture(autouse=True)
def toys(monkeypatch, tmp_path):
    threads = torch.get_num_threads()
    toy_supernet.register(monkeypatch)
    monkeypatch.setattr("vizoo.vision.subnets.bench._SECONDS", 0.0)
    monkeypatch.setattr("vizoo.vision.subnets.bench._REPETITIONS", 3)
    monkeypatch.setattr("vizoo.vision.subnets.best._COUNTED", 24)
    monkeypatch.setitem(best.OWN_TABLE, "seconds", 0.0)
    monkeypatch.chdir(tmp_path)
    config = {
        "model": {"class_path": "toy_supernet.ToyTask"},
        "data": {"class_path": "toy_supernet.ToyData", "init_args": {"length": 8}},
        "trainer": {"max_epochs": 3, "devices": 64},
    }
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(config))
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def supernet():
    net = create_model("toy")
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_()
    save_weights(net, "supernet.safetensors")
    return net.eval()


_measured: list[bytes] = []


@pytest.fixture
def table(supernet, tmp_path, monkeypatch):
    toy_supernet.exact_times(monkeypatch)
    path = tmp_path / "table.json"
    if not _measured:
        words = ("--samples", "30", "--held-out", "4", "--seconds", "0", "--out", "table.json")
        assert main(["latency", "build", "--model", "toy", *HERE, *words]) == 0
        _measured.append(path.read_bytes())
    path.write_bytes(_measured[0])
    return LatencyTable.load(path)


def subnet(*words):
    defaults = ("--supernet", "supernet.safetensors", "--out", "small.safetensors", "--json")
    return main(["subnet", *defaults, *BRIEF, *words])


def read(capsys):
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def exact(monkeypatch):
    """Predictors that are good enough for subnets near a limit."""
    monkeypatch.setattr(best, "_COUNTED", 40)


def test_parameters(supernet, exact, capsys):
    words = ("--population", "16", "--generations", "6")
    assert subnet("--max-params", "2500", *HERE, *words) == 0
    report = read(capsys)
    assert report["met"] and report["difference_to_supernet"] == 0.0
    assert 2500 * 0.8 < report["parameters"] <= 2500
    small = load_weights("small.safetensors")
    assert sum(p.numel() for p in small.parameters()) == report["parameters"]
    architecture = Architecture.from_json(report["architecture"])
    wanted = extract(supernet, architecture)
    image = torch.rand(1, 3, 16, 24)
    assert torch.equal(small(image), wanted(image))
    written = json.loads(open("small.json").read())
    assert written["architecture"] == report["architecture"] == small.architecture["subnet"]
    assert written["measured"]["median"] > 0 and "date" in written["software"]
    again = create_model("toy", subnet=written["architecture"], weights="small.safetensors")
    assert torch.equal(again.eval()(image), wanted(image))


def test_it_is_the_largest_within_the_limit(exact, capsys):
    """Among all architectures none that keeps to the limit has more multiply-adds."""
    from vizoo.common.counts import count

    supernet = create_model("toy", widths=(4, 64)).eval()
    save_weights(supernet, "supernet.safetensors")
    image = torch.rand(1, 3, 16, 24)
    space = search_space(supernet)
    macs = [count(extract(supernet, a), image).macs for a in space.enumerate()]
    assert subnet("--max-macs", "2M", *HERE, "--population", "64", "--generations", "20") == 0
    report = read(capsys)
    allowed = [value for value in macs if value <= 2e6]
    assert 0.95 * max(allowed) <= report["macs"] <= 2e6


def test_latency_with_a_table(table, capsys):
    low, high = (table.of(table.samples[i]) for i in (0, 1))
    limit = (low + high) / 2
    capsys.readouterr()
    assert subnet("--max-latency", f"{limit:.4f}ms", "--table", "table.json") == 0
    report = read(capsys)
    assert report["conditions"]["threads"] == 1 and report["conditions"]["height"] == 16
    assert report["met"] and report["limits"] == {"latency": pytest.approx(limit, abs=1e-3)}
    assert report["measured"]["median"] == pytest.approx(1 + 1e-6 * report["macs"], abs=1e-3)
    assert 0.8 * limit < report["measured"]["median"] <= limit


def test_latency_without_a_table(supernet, capsys, tmp_path, monkeypatch):
    """The times are this machine's own, so that nothing but a limit beyond them all is sure."""
    monkeypatch.setitem(best.OWN_TABLE, "samples", 8)
    assert subnet("--max-latency", "1000s", "--device", "cpu", *HERE) == 0
    report = read(capsys)
    assert Architecture.from_json(report["architecture"])["depth"] == 3
    assert LatencyTable.load(tmp_path / "small.latency.json").complete
    assert report["table"] == "small.latency.json"


@pytest.mark.parametrize(
    "other",
    [("--input", "16x32", "--threads", "1"), ("--supernet", "wide.safetensors", *HERE)],
    ids=["size", "supernet"],
)
def test_a_table_of_something_else_is_not_measured_over(
    supernet, capsys, tmp_path, monkeypatch, other
):
    monkeypatch.setitem(best.OWN_TABLE, "samples", 8)
    save_weights(create_model("toy", widths=(4, 64)), "wide.safetensors")
    assert subnet("--max-latency", "1000s", *HERE) == 0
    before = (tmp_path / "small.latency.json").read_bytes()
    capsys.readouterr()
    assert subnet("--max-latency", "1000s", *other) == 2
    said = capsys.readouterr().err
    assert "small.latency.json: a latency table of another supernet, size or machine; nam" in said
    assert (tmp_path / "small.latency.json").read_bytes() == before


@pytest.fixture
def shipped(table, tmp_path):
    """A table of a machine three times as slow, beside the weights."""
    content = json.loads((tmp_path / "table.json").read_text())
    content["conditions"] |= {"device_name": "Abacus", "threads": 7}
    for sample in content["samples"]:
        sample["reference"] *= 3
    path = tmp_path / "supernet.latency.json"
    path.write_text(json.dumps(content))
    return path


def test_the_table_beside_the_weights_is_moved_here(shipped, table, capsys, monkeypatch):
    def build(*_, **__):
        raise AssertionError("measured a table")

    monkeypatch.setattr("vizoo.vision.subnets.bench.Bench.complete", build)
    before = shipped.read_bytes()
    limit = sum(table.of(table.samples[end]) for end in (0, 1)) / 2
    words = ("--max-latency", f"{limit:.4f}ms", "--threads", "1")
    capsys.readouterr()
    assert subnet(*words) == 0
    report = read(capsys)
    assert report["met"] and 0.8 * limit < report["measured"]["median"] <= limit
    # The processor that was made up keeps the ratios, so moving the table gives the true one.
    architecture = Architecture.from_json(report["architecture"])
    assert report["predicted"]["latency"] == pytest.approx(
        table.regressor()(architecture), rel=1e-3
    )
    assert report["conditions"]["height"] == 16 and report["table"] is None
    assert "Abacus" in report["table_moved_from"] and shipped.read_bytes() == before
    again = ("--supernet", "supernet.safetensors", "--out", "again.safetensors")
    assert main(["subnet", *again, *BRIEF, *words]) == 0
    assert "by a table of cpu (Abacus), moved here" in capsys.readouterr().out


@pytest.mark.parametrize("other", [{"height": 24}, {"dtype": "bfloat16"}])
def test_a_table_beside_the_weights_of_other_conditions_is_left(
    shipped, capsys, other, monkeypatch
):
    monkeypatch.setitem(best.OWN_TABLE, "samples", 10)
    content = json.loads(shipped.read_text())
    content["conditions"] |= other
    shipped.write_text(json.dumps(content))
    capsys.readouterr()
    subnet("--max-latency", "1000s", *HERE, "--dtype", "float32")
    report = read(capsys)
    assert report["table"] == "small.latency.json" and report["table_moved_from"] is None


def test_only_the_machine_may_differ_where_a_table_is_moved(table):
    here = table.conditions
    moved = table.moved(dataclasses.replace(here, device_name="Abacus", threads=9), 5.0)
    assert moved.reference == 5.0 and moved.samples[0].ratio == table.samples[0].ratio
    assert moved.of(moved.samples[0]) == 5.0 * table.samples[0].ratio
    first, factor = moved.samples[0], 5.0 / table.reference
    assert first.timing.median == pytest.approx(factor * table.samples[0].timing.median)
    assert first.operators == pytest.approx(factor * table.samples[0].operators)
    with pytest.raises(ValueError, match="of input 16x24 instead of 16x32 serves no other"):
        table.moved(dataclasses.replace(here, width=32), 5.0)


def test_a_limit_that_measurements_break(supernet, table, capsys, monkeypatch):
    """Predictions promise too much: the limit is missed in every round, and said to be.

    It is not refused: that the smallest misses it too may be the fault of a busy machine.
    """
    from vizoo.common.timing import Timing

    low = table.of(table.samples[0])
    capsys.readouterr()
    slow = Timing(900.0, 900.0, 900.0, 15)
    monkeypatch.setattr("vizoo.vision.subnets.bench.measure", lambda *a, **b: slow)
    limit = 3 * low
    assert subnet("--max-latency", f"{limit:.4f}ms", "--table", "table.json") == 1
    report = read(capsys)
    assert report["missed"] == ["latency"] and not report["met"]
    predicted = [row["predicted"]["latency"] for row in report["rounds"]]
    assert predicted == sorted(predicted, reverse=True)
    smallest = table.regressor()(search_space(supernet).smallest())
    assert predicted[-1] == pytest.approx(smallest)


def test_recalibration(supernet, capsys):
    assert subnet(*SMALLEST) == 0
    before = load_weights("small.safetensors")
    capsys.readouterr()
    assert subnet(*SMALLEST, "--recalibrate", "toy.yaml") == 0
    report = read(capsys)
    assert report["recalibrated"] == {"config": "toy.yaml", "batches": 2, "samples": 8}
    after = load_weights("small.safetensors")
    images = toy_supernet.ToyData(8).loader(0).dataset.tensors[0]
    seen = []
    after.blocks[0].norm1.register_forward_pre_hook(lambda _, x: seen.append(x[0]))
    after(images)
    assert torch.allclose(seen[0].mean((0, 2, 3)), after.blocks[0].norm1.running_mean, atol=1e-5)
    assert not torch.equal(before.blocks[0].norm1.running_mean, after.blocks[0].norm1.running_mean)
    weights = zip(before.parameters(), after.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in weights)


@pytest.mark.parametrize("task", ["StepTask", "OutputsTask"])
def test_a_task_of_ones_own_recalibrates(supernet, capsys, tmp_path, task):
    config = {
        "model": {"class_path": f"toy_supernet.{task}"},
        "data": {"class_path": "toy_supernet.ToyData"},
    }
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(config))
    assert subnet(*SMALLEST, "--recalibrate", "own.yaml", "--evaluate", "own.yaml") == 0
    report = read(capsys)
    assert report["recalibrated"] == {"config": "own.yaml", "batches": 2, "samples": 8}
    assert report["errors"]["subnet"]["after"]["val/error"] > 0
    ours = load_weights("small.safetensors").state_dict()
    assert subnet(*SMALLEST, "--recalibrate", "toy.yaml", "--no-evaluate") == 0
    theirs = load_weights("small.safetensors").state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("inner", [False, True])
def test_a_checkpoint_of_a_task_that_names_its_network_itself(capsys, inner):
    task = "toy_supernet.OutputsTask"
    if inner:
        task = {"class_path": task}
        task = json.dumps(
            {"class_path": "vizoo.nas.training.SupernetTask", "init_args": {"task": task}}
        )
    words = ("--model", task, "--data", "toy_supernet.ToyData", "--trainer.max_epochs", "1")
    assert main(["fit", *words, "--trainer.logger=false"]) == 0
    capsys.readouterr()
    last = "checkpoints/last.ckpt"
    assert subnet("--supernet", last, "--architecture", "smallest", *HERE, "--no-evaluate") == 0
    assert read(capsys)["trained"]
    net, state = load_weights(last), torch.load(last, weights_only=True)["state_dict"]
    prefix = "task.net." if inner else "net."
    assert net.architecture == {"name": "toy", "widths": [4, 8]}
    assert all(torch.equal(value, state[prefix + name]) for name, value in net.state_dict().items())


def validated(monkeypatch):
    """Note the states of the networks that are validated."""
    seen = []
    whole = _task.FitConfig.metrics

    def metrics(self, net, *rest):
        seen.append(copy.deepcopy(net.state_dict()))
        return whole(self, net, *rest)

    monkeypatch.setattr(_task.FitConfig, "metrics", metrics)
    return seen


def test_errors_beside_those_of_the_largest(supernet, capsys, monkeypatch):
    """Before and after the batch norms are estimated anew; the weights keep what they had."""
    seen = validated(monkeypatch)
    assert subnet("--max-params", "2500", *HERE, "--evaluate", "toy.yaml") == 0
    report = read(capsys)
    errors = report["errors"]
    images = toy_supernet.ToyData(8).loader(1).dataset.tensors[0]
    wanted = images.mean(1, keepdim=True)
    measured = [errors[whose][when] for whose in ("largest", "subnet") for when in BOTH]
    for state, found in zip(seen, measured, strict=True):
        net = create_model("toy") if found in measured[:2] else load_weights("small.safetensors")
        net.load_state_dict(state)
        error = torch.nn.functional.mse_loss(net.eval()(images), wanted).item()
        assert found == {"val/error": pytest.approx(error, rel=1e-4)}
    assert len({found["val/error"] for found in measured}) == 4
    assert errors["config"] == errors["recalibrated_on"] == "toy.yaml"
    assert report["recalibrated"] is None
    small = load_weights("small.safetensors").state_dict()
    assert all(torch.equal(small[name], value) for name, value in seen[2].items())
    assert read_weights("small.safetensors").facts["errors"] == errors


def test_errors_by_a_config_that_is_typed(supernet, capsys, monkeypatch):
    """However long: none is taken for a path."""
    validated(monkeypatch)
    with open("toy.yaml") as file:
        typed = json.dumps(yaml.safe_load(file)).ljust(300)
    assert subnet(*SMALLEST, "--evaluate", typed) == 0
    assert read(capsys)["errors"]["largest"]


def test_errors_of_what_is_written(supernet, capsys, monkeypatch):
    seen = validated(monkeypatch)
    words = (*SMALLEST, "--evaluate", "toy.yaml", "--recalibrate", "toy.yaml")
    words = ("--supernet", "supernet.safetensors", "--out", "small.safetensors", *words)
    assert main(["subnet", *words]) == 0
    said = capsys.readouterr().out
    assert "val/error" in said and "with batch norms estimated anew" in said
    assert "; the largest subnet" in said and "(toy.yaml)" in said
    small = load_weights("small.safetensors").state_dict()
    assert all(torch.equal(small[name], value) for name, value in seen[3].items())


def test_errors_by_a_built_in_config_of_the_task(supernet, capsys, monkeypatch, tmp_path):
    """Of trained weights alone; a task without such a config is told how."""
    monkeypatch.setenv("VIZOO_HOME", str(tmp_path / "home"))
    words = SMALLEST
    assert subnet(*words) == 0
    assert read(capsys)["errors"] is None
    listed = [*configs.list_configs(), "evaluate/toy.yaml"]
    monkeypatch.setattr(configs, "list_configs", lambda: listed)
    resolve = configs.resolve_config
    monkeypatch.setattr(
        configs, "resolve_config", lambda name: resolve(name.replace("evaluate/toy", "toy"))
    )
    assert subnet(*words) == 0
    assert read(capsys)["errors"]["config"] == "evaluate/toy.yaml"
    # The largest subnet's errors are remembered; of other weights they are measured.
    seen = validated(monkeypatch)
    assert subnet(*words) == 0
    assert len(seen) == 2 and set(read(capsys)["errors"]["largest"]) == set(BOTH)
    (kept,) = (tmp_path / "home/evaluations").iterdir()
    kept.write_text("{")
    assert subnet(*words) == 0
    assert len(seen) == 6 and read(capsys)["errors"]["largest"]["before"]
    with torch.no_grad():
        next(supernet.parameters()).mul_(2)
    save_weights(supernet, "supernet.safetensors")
    assert subnet(*words) == 0
    assert len(seen) == 10
    capsys.readouterr()
    for more in (("--no-evaluate",), ("--supernet", "toy")):
        assert subnet(*words, *more) == 0
        assert read(capsys)["errors"] is None
    assert main(["subnet", "--supernet", "toy", *words, "--out", "small.safetensors"]) == 0
    assert "errors are not measured: --evaluate CONFIG|FOLDER does" in capsys.readouterr().out


def test_what_was_measured_of_the_supernet_is_not_said_of_a_subnet(supernet, capsys):
    supernet.reach = 56
    save_weights(supernet, "supernet.safetensors")
    assert load_weights("supernet.safetensors").reach == 56
    assert subnet(*SMALLEST) == 0
    assert not hasattr(load_weights("small.safetensors"), "reach")


def test_a_folder_of_a_task_that_takes_none(supernet, capsys, tmp_path):
    assert subnet("--max-params", "2500", *HERE, "--evaluate", str(tmp_path)) == 2
    assert "of toy a config is taken, no folder" in capsys.readouterr().err


def test_a_config_without_validation_is_refused_before_the_search(supernet, capsys, monkeypatch):
    monkeypatch.setattr("vizoo.vision.subnets.best.search_within", None)
    monkeypatch.setattr(toy_supernet.ToyTask, "validation_step", lambda *_: None)
    assert subnet("--max-params", "2500", *HERE, "--evaluate", "toy.yaml") == 2
    said = capsys.readouterr().err
    assert "toy.yaml: its validation measures nothing; give it `val` data" in said


def log_not_a_number(monkeypatch, of):
    """Let the validation of networks with as many parameters as `of` says measure NaN."""
    validate = toy_supernet.ToyTask.validation_step

    def step(self, batch, index):
        if of(sum(p.numel() for p in self.net.parameters())):
            self.log("val/error", torch.tensor(torch.nan))
        else:
            validate(self, batch, index)

    monkeypatch.setattr(toy_supernet.ToyTask, "validation_step", step)


def test_data_without_truth_are_refused_before_the_search(supernet, capsys, monkeypatch):
    monkeypatch.setattr("vizoo.vision.subnets.best.search_within", None)
    log_not_a_number(monkeypatch, lambda parameters: True)
    assert subnet("--max-params", "2500", *HERE, "--evaluate", "toy.yaml") == 2
    assert capsys.readouterr().err == (
        "vizoo: error: toy.yaml: val/error of the largest subnet is not finite: give data with a "
        "known truth, or --no-evaluate\n"
    )


def test_a_subnet_whose_error_is_not_finite_is_written_all_the_same(supernet, capsys, monkeypatch):
    log_not_a_number(monkeypatch, lambda parameters: parameters <= 2500)
    words = ["--supernet", "supernet.safetensors", "--out", "small.safetensors"]
    words += [*SMALLEST, "--evaluate", "toy.yaml"]
    assert main(["subnet", *words]) == 0
    said = capsys.readouterr().out
    assert "val/error -, with batch norms estimated anew -; the largest subnet 0." in said
    written = json.loads(open("small.json").read())["errors"]["subnet"]
    assert written == {when: {"val/error": None} for when in BOTH}


@pytest.mark.parametrize("form", ["word", "architecture", "report", "patterns"])
def test_an_architecture_of_ones_own(supernet, capsys, tmp_path, form):
    """The smallest in each spelling; limits are checked, not searched for."""
    smallest = search_space(supernet).smallest()
    content = {
        "word": None,
        "architecture": smallest.to_json(),
        "report": {"architecture": smallest.to_json(), "met": True},
        "patterns": {
            "depth": [1],
            "*.width": [search_space(supernet).choices["blocks.0.width"].smallest],
            "*.kernel": [3],
        },
    }[form]
    (tmp_path / "mine.json").write_text(json.dumps(content))
    (tmp_path / "smallest").mkdir()  # where earlier results lie, say
    which = "smallest" if form == "word" else "mine.json"
    words = ["subnet", "--supernet", "supernet.safetensors", "--architecture", which, *HERE]
    assert main([*words, "--max-params", "1", "--out", "small.safetensors", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert Architecture.from_json(report["architecture"]) == smallest
    assert report["missed"] == ["parameters"] and report["rounds"] == []
    images = torch.rand(1, 3, 16, 24)
    wanted = extract(supernet, smallest).eval()
    with torch.inference_mode():
        assert torch.equal(load_weights("small.safetensors")(images), wanted(images))
    assert main([*words, "--out", "small.safetensors"]) == 0
    assert "as was asked for" in capsys.readouterr().out


def test_lines(supernet, capsys):
    words = ["subnet", "--supernet", "toy", "--max-params", "2500", *HERE, *BRIEF]
    assert main([*words, "--out", "small.safetensors"]) == 0
    said = capsys.readouterr().out
    assert "small.safetensors: subnet of toy (random weights: the supernet is not trained)" in said
    assert "limit on parameters: 2.5 k, met with " in said and "equals the supernet bit for" in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "give a limit: --max-latency, --max-params, --max-macs or --max-memory"),
        (("--max-latency", "40"), "--max-latency 40: give a time such as 40ms or 0.04s"),
        (
            ("--max-params", "10", *HERE),
            "no architecture has a number of parameters of at most 10: the smallest reachable is",
        ),
        (("--max-params", "2k", "--out", "a.pth"), "--out a.pth: weights are written as .saf"),
        (
            ("--max-params", "2k", "--out", "dir.safetensors"),
            "dir.safetensors: is a folder; name a",
        ),
        (("--max-params", "2k", "--out", "toy.yaml/a.safetensors"), "toy.yaml is a file; name a"),
        (("--architecture", "biggest"), "'biggest' names no subnet: choose largest, middle, sm"),
        (("--architecture", "no.json"), "no.json: no such file"),
        (("--architecture", "toy.yaml"), "toy.yaml: not an architecture"),
        (("--max-params", "2k", "--supernet", "toy_plain"), "toy_plain: no supernet"),
        (("--max-params", "2k", "--supernet", "no.ckpt"), "no.ckpt: no such weight file"),
        (("--max-params", "2k", "--batches", "0"), "--batches 0: must be at least 1"),
        (("--max-params", "2k", "--table", "no.json"), "no.json: no such file"),
        (("--max-params", "2k", "--recalibrate", "no.yaml"), "no.yaml: no such config here"),
        (("--max-params", "2k", "--evaluations", "no.json", *HERE), "no.json: no such file"),
    ],
)
def test_bad_input_is_one_line(supernet, capsys, tmp_path, words, says):
    (tmp_path / "dir.safetensors").mkdir()
    assert subnet(*words) == 2
    said = capsys.readouterr().err
    assert said.startswith("vizoo: error: ") and says in said and said.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--dtype", "bfloat16"), "dtype float32 instead of bfloat16"),
        (("--input", "32x24"), "input 16x24 instead of 32x24"),
        (("--threads", "2"), "threads 1 instead of 2"),
    ],
)
def test_a_table_of_other_conditions(table, capsys, words, says):
    capsys.readouterr()
    assert subnet("--max-latency", "1s", "--table", "table.json", *words) == 2
    said = capsys.readouterr().err
    assert f"table.json: measured under other conditions: {says}; build one" in said


def test_a_table_of_another_processor(table, capsys, tmp_path):
    content = json.loads((tmp_path / "table.json").read_text())
    content["conditions"]["device_name"] = "abacus"
    (tmp_path / "table.json").write_text(json.dumps(content))
    capsys.readouterr()
    assert subnet("--max-latency", "1s", "--table", "table.json") == 2
    assert "device cpu (abacus) instead of cpu (" in capsys.readouterr().err


def test_a_table_of_another_space(table, capsys):
    save_weights(create_model("toy", widths=(4, 8)), "supernet.safetensors")
    capsys.readouterr()
    assert subnet("--max-latency", "1s", "--table", "table.json") == 2
    assert (
        "table.json: a table of toy, whose search space is not that of" in capsys.readouterr().err
    )


def test_a_table_of_the_same_space_but_other_sizes(table, capsys):
    save_weights(create_model("toy", outputs=4), "supernet.safetensors")
    capsys.readouterr()
    assert subnet("--max-latency", "1s", "--table", "table.json") == 2
    said = capsys.readouterr().err
    assert "table.json: a table of toy(), whose subnets cost other than those of toy(out" in said


@pytest.mark.parametrize("option", ["--supernet", "--table", "--evaluations"])
def test_what_is_read_is_not_overwritten(supernet, capsys, tmp_path, option):
    name = "supernet.safetensors" if option == "--supernet" else "kept.json"
    out = name.replace(".json", ".safetensors")
    assert subnet("--max-params", "2500", option, name, "--out", str(tmp_path / out)) == 2
    said = capsys.readouterr().err
    assert f"{out}: would overwrite {name}; choose another name" in said


def test_evaluations_that_are_not_there_cost_nothing(supernet, capsys, tmp_path):
    assert subnet("--max-latency", "1s", "--evaluations", "no.json", *HERE) == 2
    assert "no.json: no such file" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.latency.json"))


def test_an_impossible_latency(table, capsys, monkeypatch):
    """Found by the table, before the largest subnet is evaluated."""
    low = table.of(table.samples[0])
    monkeypatch.setattr(_errors.Errors, "of_largest", lambda *_, **__: pytest.fail("evaluated"))
    capsys.readouterr()
    words = ("--table", "table.json", "--evaluate", "toy.yaml")
    assert subnet("--max-latency", f"{low / 100:.6f}ms", *words) == 2
    said = capsys.readouterr().err
    assert "no architecture has a latency of at most" in said and "smallest reachable is" in said


def test_weights_that_do_not_fit(supernet, capsys):
    from vizoo.vision.hub.weights import read_weights, write_weights

    stored = read_weights("supernet.safetensors")
    stored.state.pop("head.bias")
    write_weights(stored, "supernet.safetensors")
    assert subnet("--max-params", "2k") == 2
    said = capsys.readouterr().err
    assert "supernet.safetensors: does not fit toy: tensors 1 missing (head.bias)" in said


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"model": {"class_path": "toy_supernet.ToyTask"}}, "the config has no `data`"),
        ({"model": {"class_path": "toy_supernet.Nothing"}, "data": {}}, "Nothing"),
        (
            {
                "model": {"class_path": "lightning.pytorch.demos.boring_classes.BoringModel"},
                "data": {"class_path": "toy_supernet.ToyData"},
            },
            "BoringModel has no network named `net`",
        ),
    ],
)
def test_a_config_that_will_not_do(supernet, capsys, tmp_path, content, says):
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump(content))
    assert subnet("--max-params", "2k", "--recalibrate", "bad.yaml") == 2
    said = capsys.readouterr().err
    assert "bad.yaml: " in said and says in said and said.count("\n") == 1
