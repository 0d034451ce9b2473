"""Searching supernets from Python: the best subnet, fronts, rankings, splits."""

import dataclasses
import itertools
import math
import random
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch
import toy_supernet

import vizoo
from vizoo.common.counts import Counts, count_parameters
from vizoo.nas import elastic
from vizoo.nas.distributed.search.executor import Executor, SerialExecutor
from vizoo.nas.efficiency.regressor import CostRegressor
from vizoo.nas.efficiency.table import LatencyTable
from vizoo.nas.lid import Split, Splitter, SplitTree
from vizoo.nas.search.constraints import UnreachableError
from vizoo.nas.space import Choice, SearchSpace
from vizoo.nas.supernet import activate, active, extract, search_space
from vizoo.vision import _export_formats as formats
from vizoo.vision.configs import FitConfig
from vizoo.vision.hub.weights import save_weights
from vizoo.vision.inputs import input_names
from vizoo.vision.subnets import bench as bench_module
from vizoo.vision.subnets import best
from vizoo.vision.subnets.bench import Bench
from vizoo.vision.subnets.evaluations import Evaluations
from vizoo.vision.subnets.leaves import open_supernet, open_tree


@pytest.fixture
def net(monkeypatch, tmp_path):
    toy_supernet.enter(monkeypatch, tmp_path, length=8, counted=24)
    monkeypatch.setitem(best.OWN_TABLE, "samples", 8)
    monkeypatch.setitem(best.OWN_TABLE, "seconds", 0.0)
    return vizoo.create_model("toy").eval()


def test_the_largest_within_a_count(net):
    told = []
    subnet = vizoo.best_subnet(
        net, {"parameters": 2500}, size=(16, 24), report=lambda *step: told.append(step)
    )
    assert subnet.costs["parameters"] <= 2500 and subnet.missed == [] and told[-1] == (24, 24)
    assert sum(p.numel() for p in subnet.network.parameters()) == subnet.costs["parameters"]
    left, right = torch.rand(2, 1, 3, 16, 24)
    activate(net, subnet.architecture)
    inputs = (left, right)[: len(input_names(net))]
    assert torch.equal(net(*inputs), subnet.network.eval()(*inputs)) and subnet.difference == 0


def test_a_network_fresh_from_training(net):
    net.train()
    subnet = vizoo.best_subnet(net, {"parameters": 2500}, size=(16, 24))
    assert subnet.difference == 0 and net.training


def test_a_latency_measures_its_own_table(net):
    largest = vizoo.best_subnet(net, {"latency": "100s"}, size=(16, 24))
    assert largest.architecture == search_space(net).largest()
    assert 0 < largest.latency < 100_000 and largest.limits == {"latency": 100_000.0}
    assert largest.conditions.height == 16 and largest.rounds[0]["found"]["latency"] > 0


class Unnamed(torch.nn.Module):
    """A network of one's own: without a name, and with outputs of two types."""

    def __init__(self):
        super().__init__()
        self.inner = toy_supernet.toy()
        self.architecture = "of its own"

    def forward(self, image):
        field = self.inner(image)
        return {"field": field, "mean": field.mean((2, 3)), "seen": field > 0}


def test_a_network_that_is_not_registered(net):
    own = Unnamed().train()
    smallest = activate(own, search_space(own).smallest())
    subnet = vizoo.best_subnet(own, {"latency": "100s"}, size=(16, 24))
    assert subnet.architecture == search_space(own).largest() and subnet.difference == 0
    assert active(own) == smallest
    settings = {"size": (16, 24), "samples": 4, "held_out": 0, "seconds": 0.0}
    assert vizoo.latency_table(own, **settings).model == {"name": "Unnamed"}
    assert vizoo.benchmark(own, 16, 24, seconds=0)["model"] == "Unnamed"
    with pytest.raises(ValueError, match="Unnamed is no supernet: there is nothing to choose"):
        vizoo.best_subnet(subnet.network, {"macs": "1G"})
    with pytest.raises(ValueError, match="Unnamed has no `architecture` with a name"):
        vizoo.save_weights(own, "own.safetensors")


def test_what_lies_beside_the_weights_is_used(net, monkeypatch):
    """A table of another machine is moved here, and evaluations say which subnet is best."""
    vizoo.save_weights(net, "supernet.safetensors")
    space, rng = search_space(net), random.Random(0)
    errors = {a: 1.0 + a["depth"] for a in [space.sample(rng) for _ in range(30)]}
    Evaluations(space, "val/error", {}, errors).save("supernet.evaluations.json")
    settings = {"size": (16, 24), "samples": 8, "held_out": 0, "seconds": 0.0}
    vizoo.latency_table(net, "supernet.latency.json", **settings)
    monkeypatch.setattr(Bench, "complete", None)  # nothing else is measured
    subnet = vizoo.best_subnet("supernet.safetensors", {"latency": "100s"})
    assert subnet.architecture["depth"] == 1 and subnet.conditions.width == 24
    largest = vizoo.best_subnet(net, {"parameters": 1e9}, size=(16, 24))
    assert largest.architecture["depth"] == 3


def test_a_table_of_another_runtime_serves_that_alone(net, tmp_path):
    pytest.importorskip("openvino")
    settings = {"size": (16, 24), "samples": 3, "held_out": 2, "seconds": 0.0}
    table = vizoo.latency_table(net, tmp_path / "table.json", runtime="openvino", **settings)
    assert table.conditions.runtime == "openvino" and "openvino, float32" in str(table.conditions)
    assert not table.entries and list(table.errors()) == ["regressor"]
    subnet = vizoo.best_subnet(net, {"latency": "100s"}, table=table)  # its conditions hold
    assert subnet.conditions.runtime == "openvino" and subnet.missed == []
    with pytest.raises(ValueError, match="runtime openvino instead of torch"):
        vizoo.best_subnet(net, {"latency": "100s"}, table=table, runtime="torch")
    ready = Bench.here(net, size=(16, 24), runtime="openvino").prepare(subnet.network)
    inputs = torch.rand(len(input_names(net)), 1, 3, 16, 24)
    (output,) = ready(*inputs)
    torch.testing.assert_close(output, subnet.network.eval()(*inputs), atol=1e-5, rtol=1e-5)


def test_a_table_of_several_images_serves_that_many(net):
    vizoo.save_weights(net, "supernet.safetensors")
    settings = {"size": (16, 24), "samples": 4, "held_out": 0, "seconds": 0.0}
    table = vizoo.latency_table(net, "supernet.latency.json", batch=3, **settings)
    assert "input 16x24, batch 3" in str(table.conditions)
    one = vizoo.latency_table(net, **settings)
    macs = [[sample.counts.macs for sample in of.samples] for of in (table, one)]
    assert macs[0] == [3 * value for value in macs[1]]
    for given in (net, Path("supernet.safetensors")):
        how = {"table": table} if given is net else {"batch": 3}
        subnet = vizoo.best_subnet(given, {"latency": "100s"}, **how)
        assert subnet.conditions.batch == 3 and not subnet.missed
    assert best.table_beside("supernet.safetensors", net, search_space(net)) is None
    with pytest.raises(ValueError, match="conditions: batch 3 instead of 1"):
        vizoo.best_subnet(net, {"latency": "100s"}, table=table, batch=1)
    for batch in (0, "3", 1.5):
        with pytest.raises(ValueError, match=f"^batch {batch!r}: give a number of images"):
            vizoo.latency_table(net, batch=batch, **settings)


def test_a_table_of_int8_says_what_stays_in_float(net, tmp_path):
    pytest.importorskip("onnxruntime")
    vizoo.save_weights(net, "supernet.safetensors")
    settings = {"size": (16, 24), "samples": 3, "held_out": 0, "seconds": 0.0}
    how = {"runtime": "onnxruntime", "dtype": "int8"}
    path = "supernet.onnxruntime.int8.latency.json"  # beside the weights
    table = vizoo.latency_table(net, path, float_parts=["head"], **how, **settings)
    assert "onnxruntime, int8 but head in float32" in str(table.conditions)
    assert LatencyTable.load(path).conditions == table.conditions
    with pytest.raises(ValueError, match="holds a table of something else"):
        vizoo.latency_table(net, path, **how, **settings)
    with pytest.raises(ValueError, match="dtype int8 instead of float32"):
        vizoo.best_subnet(net, {"latency": "100s"}, table=table, dtype="float32")
    subnet = vizoo.best_subnet("supernet.safetensors", {"latency": "100s"}, **how)
    assert subnet.conditions.float_parts == ("head",)
    with pytest.raises(ValueError, match="float_parts and mixed are of int8, not of float32"):
        vizoo.latency_table(net, float_parts=["head"], **settings)
    with pytest.raises(ValueError, match="head: in float_parts, and in mixed; take one"):
        vizoo.latency_table(net, float_parts=["head"], mixed={"head": 0.1}, **how, **settings)
    with pytest.raises(ValueError, match="no part heads; it has .*head"):
        vizoo.latency_table(net, float_parts=["heads"], **how, **settings)
    with pytest.raises(ValueError, match="runtime torch has no int8; openvino and onnxrunt"):
        vizoo.latency_table(net, dtype="int8", **settings)


def test_mixed_precision_is_searched_with_the_architecture(net, monkeypatch):
    pytest.importorskip("onnxruntime")
    kept = []
    monkeypatch.setattr(bench_module, "of_one_size", lambda net, *how: kept.append(how[-1]) or net)
    how = {"runtime": "onnxruntime", "dtype": "int8", "size": (16, 24)}
    mixed = {"blocks": 0.01, "head": 0.5}
    settings = {"samples": 8, "held_out": 0, "seconds": 0.0}
    table = vizoo.latency_table(
        net, "table.json", float_parts=["stem"], mixed=mixed, **how, **settings
    )
    assert LatencyTable.load("table.json").mixed == mixed
    again = vizoo.latency_table(
        net,
        "table.json",
        float_parts=["stem"],
        mixed={"blocks": 0.1, "head": 0.2},
        **how,
        **settings,
    )
    assert again.mixed == {"blocks": 0.1, "head": 0.2}
    assert [sample.ratio for sample in again.samples] == [sample.ratio for sample in table.samples]
    assert {("stem",), ("blocks", "head", "stem")} < {*kept}

    def milliseconds(bench, architecture):
        """10, and 5 for each part in float."""
        return 5.0 + 5 * len(bench.under(architecture).float_parts)

    def costs(bench, architecture):
        time = milliseconds(bench, architecture)
        return {"measured": {"median": time}, **bench.counts(architecture).to_json()}

    monkeypatch.setattr(Bench, "costs", costs)
    bench = Bench.here(net, float_parts=["stem"], mixed=mixed, **how)
    chosen = list(itertools.islice(bench.space.enumerate(), 400))
    times = [milliseconds(bench, architecture) for architecture in chosen]
    predictors = {
        **best.cost_predictors(bench, table),
        "latency": CostRegressor.fit(bench.space, chosen, times),
    }
    asked = []

    def error(architectures):
        asked.extend(architectures)
        return [3.0 - a["depth"] / 2 for a in architectures]

    search = {"predictors": predictors, "generations": 8, "population": 32}
    for limit, wanted, objective in [
        (11, (), error),
        (16, ("head",), error),
        (16, ("head",), None),
        (21, ("blocks", "head"), error),
    ]:
        subnet = vizoo.best_subnet(bench, {"latency": limit}, objective=objective, **search)
        assert subnet.conditions.float_parts == (*wanted, "stem") and not subnet.missed
        assert subnet.architecture["depth"] == 3 and subnet.difference == 0
    assert all(a in search_space(net) for a in [*asked, subnet.architecture])
    with pytest.raises(ValueError, match="a table of mixed precision is for `best_subnet`"):
        vizoo.search(net, error, table=table)
    vizoo.save_weights(net, "supernet.safetensors")
    table.save("supernet.onnxruntime.int8.latency.json")  # serves as what lies beside weights
    subnet = vizoo.best_subnet("supernet.safetensors", {"latency": "100s"}, **how)
    assert subnet.conditions.float_parts == ("blocks", "head", "stem")
    plain = search_space(net).smallest()  # one that was named, not searched
    assert best.cut(bench, plain, {}, {}, {}, []).conditions.float_parts == ("stem",)


def test_int8_is_what_is_measured(net, monkeypatch):
    pytest.importorskip("onnxruntime")
    onnx, kept = formats.FORMATS["onnx"], []

    def quantize(source, target, inputs, names):
        kept.extend(names)
        onnx.quantize(source, target, inputs, names)

    form = dataclasses.replace(onnx, quantize=quantize)
    monkeypatch.setitem(formats.FORMATS, "onnx", form)
    how = {"runtime": "onnxruntime", "dtype": "int8", "float_parts": ["blocks"]}
    subnet = extract(net, search_space(net).smallest())
    image = torch.rand(1, 3, 16, 24)
    (output,) = Bench.here(net, size=(16, 24), **how).prepare(subnet)(image)
    wanted = subnet(image)
    assert 0 < (output - wanted).abs().max() < 0.1 * wanted.abs().max()
    assert kept and all(name.startswith("blocks") for name in kept)


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({}, "no limit: give some of latency, parameters"),
        ({"speed": 1}, "unknown limit 'speed'"),
        ({"mac": 1}, "unknown limit 'mac': give some of .*; did you mean 'macs'\\?$"),
        ("2G", "limits '2G': give a mapping, such as {'macs': '2G'}$"),
        ({"latency": "40"}, "give a time such as 40ms"),
        ({"macs": -1}, "must be more than 0"),
        ({"macs": None}, "macs None: give a number, or a text such as '2G'$"),
        ({"parameters": 1}, "the smallest reachable is"),
    ],
)
def test_limits_that_cannot_be(net, limits, says):
    with pytest.raises(ValueError, match=says):
        vizoo.best_subnet(net, limits, size=(16, 24))


@pytest.mark.parametrize(
    ("objective", "says"),
    [
        (lambda architectures: 1.0, r"gave 1\.0 for \d+ architectures: it takes a list"),
        (lambda architectures: [1.0], "gave 1 results for"),
    ],
)
def test_objectives_that_cannot_be(net, objective, says):
    with pytest.raises(ValueError, match=says):
        vizoo.best_subnet(net, {"macs": "2G"}, size=(16, 24), objective=objective)


@pytest.mark.parametrize("size", ["16x24", (-1, 192), (16,), 16, (16.0, 24.0)])
def test_sizes_that_cannot_be(net, size):
    for function in (
        lambda: vizoo.best_subnet(net, {"macs": "2G"}, size=size),
        lambda: vizoo.latency_table(net, size=size),
        lambda: vizoo.search(net, lambda _: 1.0, size=size),
    ):
        with pytest.raises(ValueError, match=r"^size .*: give \(height, width\) in pixels"):
            function()


@pytest.mark.parametrize("gives", [None, "much", torch.ones(2)])
def test_an_error_that_is_no_number(net, gives):
    says = "evaluate gave .* it must return the error as a number$"
    with pytest.raises(ValueError, match=says):
        vizoo.search(net, lambda _: gives, size=(16, 24))
    save_weights(net, "supernet.safetensors")
    leaves, _, space = open_supernet("supernet.safetensors")
    with pytest.raises(ValueError, match=says):
        vizoo.rank(leaves, lambda _: gives, [space.smallest()])
    with pytest.raises(ValueError, match="^evaluate 'val/epe': give a function"):
        vizoo.search(net, "val/epe", size=(16, 24))


def test_arguments_of_another_kind(net, monkeypatch):
    config = FitConfig.read("toy.yaml")
    monkeypatch.setattr(Bench, "counts", None)  # nothing is counted before
    for call, says in (
        (lambda: vizoo.search(net, len, cost="foo"), "cost 'foo' is unknown: choose latency, par"),
        (lambda: vizoo.search("nosuch", len), "net 'nosuch': give a network"),
        (lambda: vizoo.search(net, len, samples=6), "samples 6: a predictor takes 10 or more"),
        (lambda: vizoo.best_subnet(net, {"macs": 1}, table="t.json"), "table 't.json': give what"),
        (lambda: vizoo.best_subnet(net, {"macs": 1}, dtype="bf16"), "dtype 'bf16' is not one of f"),
        (
            lambda: vizoo.best_subnet(net, {"macs": 1}, rounds=0),
            "rounds 0: give a whole number, 1 or more",
        ),
        (lambda: vizoo.latency_table("nosuch"), "net 'nosuch': give a network"),
        (lambda: vizoo.split("nosuch", config), "net 'nosuch': give a network"),
        (lambda: vizoo.split(net, "x.yaml"), "config 'x.yaml': give vizoo.FitConfig.read"),
        (lambda: vizoo.split(net, config, device="tpu"), "device 'tpu' cannot be used here"),
        (lambda: vizoo.split(net, config, {"k": 4}), "splitter {'k': 4}: give a vizoo.nas.lid.Sp"),
        (
            lambda: vizoo.split(net, config, levels="2"),
            "split: levels must be of type int, not '2'",
        ),
        (
            lambda: vizoo.search(net, len, evaluations="x"),
            "evaluations must be of type Evaluations",
        ),
        (lambda: vizoo.search(net, len, executor="x"), "executor must be of type Executor"),
        (lambda: vizoo.search(net, len, samples="20"), "samples must be of type int, not '20'"),
        (lambda: vizoo.search(net, len, verify=-1), "search: verify must be at least 0, not -1"),
        (lambda: vizoo.rank(net, len, [], evaluations={}), "evaluations must be of type Eval"),
        (lambda: vizoo.rank(net, len, None), "rank: architectures must be of type Iterable"),
        (lambda: vizoo.rank(net, len, [{"depth": 9}]), "'depth' cannot be 9"),
        (
            lambda: vizoo.best_subnet(net, {"macs": 1}, predictors={}),
            "predictors: none of macs; give those of cost_predictors",
        ),
        (lambda: vizoo.latency_table(net, held_out=-1), "held_out must be at least 0, not -1"),
        (lambda: vizoo.open_supernet(None), "open_supernet: source must be of type str"),
        (lambda: vizoo.open_tree(None), "open_tree: path must be of type str"),
        (lambda: config.errors("net.safetensors", "val/error"), "leaves must be of type Leaves"),
        (lambda: config.errors(net, "val/error", mode="large"), "'max'], not 'large'"),
    ):
        with pytest.raises(ValueError, match=says):
            call()


class Predictor:
    """Predicts a cost by a function, whatever is counted."""

    error = 0.0

    def __init__(self, predict):
        self.predict = predict

    def __call__(self, architecture):
        return self.predict(architecture)

    def refined(self, more):
        return self


def test_where_predictions_tell_nothing_the_smallest_is_found(net):
    bench = Bench.here(net, size=(16, 24))
    smallest = bench.space.smallest()
    limit = bench.costs(smallest)["parameters"]
    subnet, costs, rounds = best.search_within(
        bench,
        {"parameters": Predictor(lambda _: limit - 1)},
        lambda architectures: [-a["depth"] for a in architectures],
        {"parameters": limit},
        generations=2,
    )
    assert subnet == smallest and costs["parameters"] == limit
    assert [row["found"]["parameters"] for row in rounds] == [limit]


@dataclasses.dataclass
class Scale:
    """A bench of a hundred widths, of which each takes what `true` says, in time and in values."""

    true: Callable[[int], float]
    space = SearchSpace([Choice("width", tuple(range(100)))])
    mixed = ()

    def counts(self, architecture):
        return Counts(int(self.true(architecture["width"])), 1, 1)

    def costs(self, architecture):
        true = self.true(architecture["width"])
        return {"measured": {"median": true}, "parameters": true}


def widest_within(kind, limit, true, predict):
    """The width that the search comes to, and what it found in its rounds."""
    found, _, rounds = best.search_within(
        Scale(true),
        {kind: Predictor(lambda architecture: predict(architecture["width"]))},
        lambda architectures: [-a["width"] for a in architectures],
        {kind: limit},
        generations=4,
    )
    return found["width"], [row["found"][kind] for row in rounds]


def test_what_lies_between_a_hit_and_a_miss_is_searched():
    """Widths from 40 on take more than is predicted, and smaller ones much less."""
    width, found = widest_within(
        "latency", 50, lambda w: (w + 1) * (1.2 if w >= 40 else 0.7), lambda w: w + 1
    )
    assert width == 40 and found == pytest.approx([58.8, 28.0, 52.8, 50.4, 49.2])


def test_the_aim_falls_where_the_smallest_is_not_predicted_to_be_the_cheapest():
    width, found = widest_within(
        "latency", 30, lambda w: 100 + w, lambda w: 60 if w == 0 else w + 1
    )
    assert width == 0 and found == [128, 105, 100]  # nothing keeps to it, and the last is nearest


def test_limits_are_refused_by_counts_not_by_predictions():
    def count(width):
        return 30 + width

    width, found = widest_within("parameters", 35, count, lambda w: 40 + w)  # more than there is
    assert found == [30, 35] and width == 5
    with pytest.raises(UnreachableError, match="of at most 20: the smallest reachable is 30"):
        widest_within("parameters", 20, count, lambda w: 15 if w == 7 else 35 + w)


@pytest.mark.parametrize(
    ("widths", "limit", "share"),
    [
        (3, 300, 0.97),
        (3, 1000, 0.97),
        (3, 2000, 0.9),
        (3, 5000, 0.97),
        (5, 19_000, 0.9),
        (5, 38_000, 0.7),
    ],
)
def test_winners_are_counted_where_choices_multiply(widths, limit, share):
    """What predictions are wrong about is counted, and the rest predicted better by it."""
    choices = [Choice(f"width.{i}", (1, 2, 4, 6)) for i in range(widths)]

    class Product:
        mixed = ()
        space = SearchSpace([*choices, Choice("kernel", (3, 5, 7))])

        def counts(self, architecture):
            *widths, kernel = architecture.values()
            return Counts(math.prod(widths) * kernel**2, math.prod(widths) * kernel**2, 1)

        def costs(self, architecture):
            return {"measured": {"median": 1.0}, **self.counts(architecture).to_json()}

    bench, rng = Product(), random.Random(0)
    space = bench.space
    chosen = list(dict.fromkeys(space.sample(rng) for _ in range(40)))
    costs = [bench.counts(architecture).macs for architecture in chosen]
    predictors = dict.fromkeys(("parameters", "macs"), CostRegressor.fit(space, chosen, costs))
    settings = {"population": 32, "generations": 15}
    _, costs, _ = best.search_within(bench, predictors, None, {"parameters": limit}, **settings)
    possible = [bench.counts(architecture).parameters for architecture in space.enumerate()]
    largest = max(count for count in possible if count <= limit)
    assert share * largest <= costs["parameters"] <= limit


def test_hope_does_not_cost_what_predictions_find():
    """Predictors err by a quarter; multiply-adds are not in proportion to the parameters."""

    class Chain:
        mixed = ()
        space = SearchSpace(
            [
                *(Choice(f"width.{i}", (8, 16, 24, 32, 48)) for i in range(4)),
                *(Choice(f"kernel.{i}", (3, 5, 7)) for i in range(4)),
            ]
        )

        def counts(self, architecture):
            values = list(architecture.values())
            widths, kernels = [8, *values[:4]], values[4:]
            layers = [a * b * k**2 for a, b, k in zip(widths, widths[1:], kernels, strict=False)]
            return Counts(sum(layers), 4 * sum(layers[:3]) + layers[3], 1)

        def costs(self, architecture):
            return {"measured": {"median": 1.0}, **self.counts(architecture).to_json()}

    bench = Chain()
    limit = 0.4 * bench.counts(bench.space.largest()).parameters
    predictors = best.cost_predictors(bench, None)
    settings = {"population": 64, "generations": 15}
    _, costs, _ = best.search_within(bench, predictors, None, {"parameters": limit}, **settings)
    assert 0.9 * limit <= costs["parameters"] <= limit


class _Unwritten(torch.nn.Module):
    def forward(self, features):
        raise NotImplementedError


def test_a_network_with_two_subnets():
    width = Choice("width", (4, 8))
    net = torch.nn.Sequential(elastic.Conv2d(3, width, 3), elastic.Conv2d(width, 1, 3))
    limits = {"macs": 50_000}
    assert vizoo.best_subnet(net, limits, size=(16, 24)).architecture["width"] == 4
    table = vizoo.latency_table(net, size=(16, 24), seconds=0.0)
    assert vizoo.best_subnet(net, {"latency": "9s"}, table=table).architecture["width"] == 8
    says = r"^Sequential does not run on 1x3x2x2: .*; give another size, or the network a method"
    with pytest.raises(ValueError, match=says):
        vizoo.best_subnet(net, limits, size=(2, 2))
    net.append(_Unwritten())
    with pytest.raises(ValueError, match=r"3x16x24: NotImplementedError; give another size"):
        vizoo.best_subnet(net, limits, size=(16, 24))


class Centred(torch.nn.Module):
    """Takes a colour off that is neither a parameter nor a buffer."""

    def __init__(self):
        super().__init__()
        self.colour = torch.rand(3, 1, 1)
        self.layer = elastic.Conv2d(3, Choice("width", (2, 4)), 1)

    def forward(self, image):
        return self.layer(image - self.colour)


def test_subnets_with_a_tensor_that_is_no_buffer():
    bench = Bench.here(Centred(), size=(8, 8))
    assert bench.counts(bench.space.smallest()).macs == 8 * 8 * 3 * 2


def test_subnets_without_layers(monkeypatch):
    monkeypatch.setattr(bench_module, "_SECONDS", 0.0)
    blocks = [torch.nn.Conv2d(3, 3, 1) for _ in range(3)]
    net = elastic.Sequential(*blocks, length=Choice("depth", (0, 1, 2, 3)))
    size = (8, 8)
    assert vizoo.best_subnet(net, {"macs": 1}, size=size).costs["macs"] == 0
    assert vizoo.best_subnet(net, {"parameters": 30}, size=size).architecture["depth"] == 2
    score = [2.0, 1.0, 3.0, math.nan].__getitem__
    objective = lambda architectures: (score(a["depth"]) for a in architectures)  # noqa: E731
    found = vizoo.best_subnet(net, {"macs": "1M"}, size=size, objective=objective)
    assert found.architecture["depth"] == 1
    front = vizoo.search(net, lambda a: -a["depth"], size=size).rows
    assert [row.costs["macs"] for row in front] == [1728, 1152, 576, 0]


def test_a_network_without_choices():
    with pytest.raises(ValueError, match="Conv2d is no supernet: there is nothing to choose"):
        vizoo.best_subnet(torch.nn.Conv2d(3, 3, 1), {"macs": "1G"})


def test_a_table_goes_on_and_serves(net, tmp_path):
    settings = {"size": (16, 24), "samples": 8, "held_out": 2, "seconds": 0}
    table = vizoo.latency_table(net, "table.json", **settings)
    again = vizoo.latency_table(net, "table.json", **settings)
    assert table.complete and len(again.samples) == 10
    for mine, read in zip(table.samples, again.samples, strict=True):  # read, not measured
        assert read.architecture == mine.architecture
        assert read.timing.median == pytest.approx(mine.timing.median, abs=1e-4)
    with pytest.raises(ValueError, match="a table of something else"):
        vizoo.latency_table(net, "table.json", **{**settings, "size": (16, 32)})
    limit = sum(table.of(sample) for sample in table.samples[:2]) / 2
    subnet = vizoo.best_subnet(net, {"latency": limit}, table=table)
    tried = [search_space(net).smallest()]
    front = vizoo.search(
        net, lambda a: tried.append(a) or 1.0, table=table, samples=12, generations=1, verify=0
    )
    predict = table.regressor("latency")
    least = predict(front.rows[0].architecture)  # who that is depends on what was measured
    assert front.cost == "latency" and len(tried) > 12 and least <= min(map(predict, tried)) + 1e-9
    for call in (vizoo.best_subnet, vizoo.search):
        wrong = {"latency": 1.0} if call is vizoo.best_subnet else (lambda _: 1.0)
        with pytest.raises(ValueError, match="measured under other conditions: input 16x24"):
            call(net, wrong, table=table, size=(16, 32))
    with pytest.raises(ValueError, match="a bench has its size"):
        vizoo.best_subnet(Bench.here(net, size=(16, 24)), {"macs": 1e9}, size=(16, 24))
    assert subnet.conditions.width == 24
    # Predicted above it where those that were measured were faster than predicted.
    assert min(subnet.predicted["latency"], subnet.latency) <= limit


def test_where_latency_alone_decides_the_front_alone_is_counted(net, monkeypatch):
    table = vizoo.latency_table(net, size=(16, 24), samples=8, held_out=0, seconds=0.0)
    counted, counts = [], Bench.counts
    monkeypatch.setattr(Bench, "counts", lambda b, a: counted.append(a) or counts(b, a))
    settings = {"samples": 12, "generations": 1, "verify": 0}
    errors = itertools.cycle([5, 4, 3, 2, 1, 0])
    front = vizoo.search(net, lambda _: next(errors), table=table, **settings)
    assert {row.architecture for row in front.rows} <= set(counted)
    assert len(counted) < len(front.evaluations.errors)  # the table's check is among them
    latencies = [row.costs["latency"] for row in front.rows]
    assert latencies == sorted(latencies, reverse=True)


def test_a_storage_with_latencies_is_of_one_machine(net, tmp_path):
    pytest.importorskip("optuna")
    settings = {"size": (16, 24), "samples": 6, "held_out": 0, "seconds": 0.0}
    table = vizoo.latency_table(net, **settings)
    how = {"cost": "macs", "direct": True, "population": 4, "generations": 0}

    def search(name, table=None):
        journal = tmp_path / name
        return vizoo.search(net, lambda _: 1.0, table=table, size=(16, 24), storage=journal, **how)

    search("counted.log")
    search("timed.log", table)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        table.conditions = dataclasses.replace(table.conditions, threads=threads + 1)
        with pytest.raises(ValueError, match="of a search with another threads"):
            search("timed.log", table)
        search("counted.log")
    finally:
        torch.set_num_threads(threads)


def test_a_runtime_is_recorded_whatever_its_distribution_is_called(net, monkeypatch):
    onnxruntime = pytest.importorskip("onnxruntime")

    def version(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", version)
    software = Bench.here(net, size=(16, 24), runtime="onnxruntime").table().software
    assert software["onnxruntime"] == onnxruntime.__version__


def parameters(net, architecture):
    return count_parameters(extract(net, architecture))


def test_a_front_from_errors_alone(net):
    """Errors fall with the parameters, so that the whole range is on the front."""
    space, counts = search_space(net), {}

    def errors(architecture):
        activate(net, architecture)
        return 1e4 / (1 + counts.setdefault(architecture, parameters(net, architecture)))

    front = vizoo.search(net, errors, cost="parameters", direct=True, population=8, generations=2)
    assert active(net) == space.largest()  # which it ran before
    costs = [row.costs["parameters"] for row in front.rows]
    assert costs == sorted(costs, reverse=True) and len(costs) > 2
    assert all(row.error == errors(row.architecture) for row in front.rows)
    assert set(front.evaluations.errors) >= {row.architecture for row in front.rows}
    assert all(space.validate(row.architecture) for row in front.rows)
    with pytest.raises(ValueError, match="needs a table"):
        vizoo.search(net, errors, cost="latency")
    with pytest.raises(ValueError, match="no sampler 'tpo'; there are evolution, tpe, gp, nsga2"):
        vizoo.search(net, errors, sampler="tpo")
    direct = {"direct": True, "population": 4, "generations": 1}
    for how, says in (
        ({"samples": 10}, "error: finite for none of 10 subnets"),
        (direct, r"none of \d+ architectures had finite scores"),
    ):
        with pytest.raises(ValueError, match=says):
            vizoo.search(net, lambda architecture: math.nan, cost="parameters", **how)


def test_too_few_finite_errors_to_learn_from(net):
    asked = []

    def error(architecture):
        asked.append(architecture)
        return math.nan if len(asked) < 4 else 1.0

    with pytest.raises(ValueError, match="finite for 8 of 11 subnets, .* takes 10: give more samp"):
        vizoo.search(net, error, size=(16, 24), samples=11)


def test_where_all_subnets_are_evaluated_none_is_predicted():
    space = SearchSpace([Choice("width", (1, 2))])
    errors = {space.smallest(): 3.0, space.largest(): math.inf}
    objective, named = Evaluations(space, "val/error", {}, errors).objective(0)
    assert objective([space.largest(), space.smallest()]) == [math.inf, 3.0]
    assert named == "smallest val/error of all 2 subnets"


def test_a_front_is_made_by_counts_whatever_was_predicted(net, monkeypatch):
    """Predictions that order subnets the wrong way round keep none of them from it."""
    space, rng = search_space(net), random.Random(0)
    errors = {space.sample(rng): rng.random() for _ in range(40)}
    counts = {a: parameters(net, a) for a in errors}
    limit = sorted(counts.values())[-8]
    inner = best.cost_predictors

    def turned(bench, *rest):
        upside_down = CostRegressor.fit(space, list(counts), [1e8 / n for n in counts.values()])
        return inner(bench, *rest) | {"parameters": upside_down}

    monkeypatch.setattr("vizoo.vision.subnets.front.cost_predictors", turned)
    known = Evaluations(space, "error", {}, dict(errors))
    settings = {"cost": "parameters", "limits": {"parameters": limit}, "evaluations": known}
    found = vizoo.search(net, lambda _: 1.0, direct=True, population=4, generations=0, **settings)
    points = {(errors[a], counts[a]) for a in errors if counts[a] <= limit}
    front = {p for p in points if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in points)}
    assert front <= {(row.error, row.costs["parameters"]) for row in found.rows}
    assert all(row.costs["parameters"] <= limit for row in found.rows)


class Noting(SerialExecutor):
    """Notes how many architectures come at once."""

    def __init__(self, evaluate):
        super().__init__(evaluate)
        self.sizes = []

    def run(self, architectures, done=None):
        self.sizes.append(len(architectures))
        return super().run(architectures, done)


class Elsewhere(Executor):
    """Another executor than the serial one, as that of a cluster."""

    def __init__(self, inner):
        self.inner = inner

    def run(self, architectures, done=None):
        return self.inner.run(architectures, done)


def test_a_sampler_is_asked_for_as_many_as_are_evaluated_at_once(net, tmp_path):
    settings = {"sampler": "nsga2", "population": 8, "generations": 2}
    for wrapped, sizes in ((lambda inner: inner, [1] * 16), (Elsewhere, [4] * 4)):
        serial = Noting(lambda architecture: float(architecture["depth"]))
        storage = tmp_path / f"{len(sizes)}.log"
        front = vizoo.search(
            net, serial.evaluate, executor=wrapped(serial), storage=storage, **settings
        )
        assert serial.sizes == sizes and len(front.evaluations.errors) == 16
        assert storage.read_text().count('"values"') == 16


@pytest.mark.parametrize("source", ["leaf", "tree"])
def test_a_network_keeps_to_the_part_that_its_weights_are_of(net, source):
    whole = search_space(net)
    parts = [whole.restrict({"blocks.0.width": widths}) for widths in ((4,), (16, 64))]
    tree = SplitTree(whole)
    tree.split("root", Split("blocks.0.width", ((4,), (16, 64))))
    for name, part in zip(tree.leaves, parts, strict=True):
        net.subspace = part.to_json()
        save_weights(net, f"{name}.safetensors")
        tree.checkpoints[name] = f"{name}.safetensors"
    tree.save("tree.json")
    opened = open_supernet("0.safetensors") if source == "leaf" else open_tree("tree.json")
    net, space = opened[1:]
    assert space == (parts[0] if source == "leaf" else whole)
    assert Bench.here(net).space == space
    subnet = vizoo.best_subnet(net, {"parameters": "1M"}, size=(16, 24))
    assert subnet.architecture == space.largest() and not hasattr(subnet.network, "subspace")
    front = vizoo.search(net, lambda _: 1.0, direct=True, population=8, generations=0)
    assert all(architecture in space for architecture in front.evaluations.errors)


def test_rank_and_split_by_a_config(net):
    save_weights(net, "supernet.safetensors")
    leaves, net, space = open_supernet("supernet.safetensors")
    config = FitConfig.read("toy.yaml")
    errors = config.errors(leaves, "val/error", batches=1)
    ranking = vizoo.rank(leaves, errors, [space.smallest(), space.largest(), space.smallest()])
    assert len(ranking) == 2 and ranking[0].error <= ranking[1].error < math.inf
    assert {row.leaf for row in ranking} == {leaves.tree.leaves[0]}
    alone = config.errors(net, "val/error", batches=1)  # without a file of its weights
    assert vizoo.rank(net, alone, [space.largest(), space.smallest()]) == ranking
    with pytest.raises(ValueError, match="^net 'supernet.safetensors': give a network"):
        vizoo.rank("supernet.safetensors", errors, [])
    assert active(net) == space.largest()  # which it ran before
    tree = vizoo.split(net, config, Splitter("random", batches=1, batch_size=4))
    assert sum(tree.space_of(leaf).count() for leaf in tree.leaves) == space.count()
    with pytest.raises(ValueError, match="levels 99: 1 to "):
        vizoo.split(net, config, Splitter("random"), levels=99)


def test_rank_leaves_a_tree_on_the_leaf_that_it_had(net):
    tree = SplitTree(search_space(net))
    leaves = tree.split("root", Split("blocks.0.width", ((4,), (16, 64))))
    for number, leaf in enumerate(leaves):
        net.stem.bias.data.fill_(number)
        tree.checkpoints[leaf] = str(save_weights(net, f"{leaf}.safetensors"))
    tree.save("tree.json")
    opened, net, space = open_tree("tree.json")
    chosen = opened.activate(space.smallest())

    def evaluate(architecture):
        opened.activate(architecture)
        return float(net.stem.bias[0])

    ranking = vizoo.rank(opened, evaluate, [space.largest(), space.smallest()])
    assert [row.error for row in ranking] == [0, 1]
    assert active(net) == chosen and net.stem.bias[0] == 0


def test_split_refuses_a_network_of_another_task_at_the_first_batch(net, monkeypatch):
    drawn = []

    def loader(self, seed):
        return (drawn.append(1) or [torch.rand(1, 3, 16, 24)] for _ in range(64))

    monkeypatch.setattr(toy_supernet.ToyData, "loader", loader)
    monkeypatch.setattr(
        toy_supernet.ToyTask, "predict_step", lambda task, batch, _: task.net(*batch, *batch)
    )
    with pytest.raises(ValueError, match="^toy.yaml: ToyTask cannot run this network: Toy.forward"):
        vizoo.split(net, FitConfig.read("toy.yaml"))
    assert drawn == [1]
