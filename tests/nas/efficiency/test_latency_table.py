"""Building, keeping and questioning a latency table; time is made up, so that figures are exact."""

import json
import random
from functools import partial

import pytest
import torch
import toy_supernet

from vizoo.common.counts import Counts, count
from vizoo.common.timing import Timing
from vizoo.nas import elastic
from vizoo.nas.efficiency import build as building
from vizoo.nas.efficiency import operators
from vizoo.nas.efficiency.build import _spread_sample, build, plan
from vizoo.nas.efficiency.operators import add_operators, operators_of
from vizoo.nas.efficiency.provenance import Conditions, software
from vizoo.nas.efficiency.table import LatencyTable, Sample
from vizoo.nas.space import Choice, SearchSpace
from vizoo.nas.supernet import extract, search_space

CONDITIONS = Conditions("cpu", "a processor", "float32", 2, 16, 24)


@pytest.fixture
def net():
    return toy_supernet.toy().eval()


@pytest.fixture
def images():
    return [torch.rand(1, 3, 16, 24)]


@pytest.fixture
def made_up_time(monkeypatch):
    """A network takes 1 ms and 1 ms for every million multiply-adds, on a machine that drifts."""
    drift = random.Random(0)

    def measure_against(call, reference, device, **options):
        times = [
            1 + call.func.macs / 1e6,
            1 + reference.__closure__[0].cell_contents.macs / 1e6,
        ]
        slow = drift.uniform(1, 1.5)
        mine, other = (Timing(slow * t, slow * t, slow * t, 5) for t in times)
        return mine, other, times[0] / times[1]

    monkeypatch.setattr(building, "measure_against", measure_against)

    def prepare(network, _architecture):
        network.macs = count(network, torch.rand(1, 3, 16, 24)).macs
        return network

    return prepare


def make(net, **changes):
    model = {"name": "toy"}
    return LatencyTable(
        **{
            "model": model,
            "space": search_space(net),
            "conditions": CONDITIONS,
            "software": software(),
            **changes,
        }
    )


def test_plan_is_repeatable_and_reaches_the_ends():
    space = SearchSpace([Choice(f"choice{i}", range(4)) for i in range(12)])
    chosen = plan(space, 60, 20, seed=0)
    assert chosen == plan(space, 60, 20, seed=0) != plan(space, 60, 20, seed=1)
    assert len({architecture for architecture, _ in chosen}) == 80
    assert sum(left_out for _, left_out in chosen) == 20
    assert chosen[:2] == [(space.smallest(), False), (space.largest(), False)]
    sizes = [sum(architecture.values()) for architecture, _ in chosen]
    assert min(sizes[2:]) < 6 and max(sizes[2:]) > 30
    rng = random.Random(0)
    assert all(_spread_sample(space, rng) in space for _ in range(20))


def test_a_small_space_is_planned_whole():
    space = SearchSpace([Choice("depth", (1, 2, 3)), Choice("width", (1, 2))])
    chosen = plan(space, 100, 20, seed=0)
    assert {architecture for architecture, _ in chosen} == set(space.enumerate())
    assert sum(left_out for _, left_out in chosen) == 3
    # Nearly all of it: the last few are found all the same.
    assert len(plan(space, 3, 2, seed=0)) == 5


def test_build_predicts(net, images, made_up_time, tmp_path):
    told = []
    table = build(
        make(net),
        lambda architecture: extract(net, architecture),
        made_up_time,
        images,
        torch.float32,
        path=tmp_path / "table.json",
        samples=90,
        held_out=10,
        progress=lambda done, total: told.append((done, total)),
    )
    assert table.complete and len(table.seen) == 90 and len(table.held_out) == 10
    assert told[0] == (0, 100) and told[-1] == (100, 100)
    errors = table.errors()
    assert errors["regressor"].spearman > 0.97
    assert errors["regressor"].median_relative_error < 0.05
    assert set(errors) == {"regressor", "operators"}
    # The machine's drift is not in the figures, only a factor common to all.
    sample = table.seen[1]
    assert table.of(sample) / table.reference == pytest.approx(sample.ratio)
    assert table.of(sample, "macs") == sample.counts.macs
    known, rng = {s.architecture for s in table.samples}, random.Random(1)
    unseen = [a for _ in range(40) if (a := table.space.sample(rng)) not in known][:10]
    macs = [count(extract(net, architecture), *images).macs for architecture in unseen]
    assert table.regressor("macs").predict(unseen) == pytest.approx(macs, rel=0.2)
    with pytest.raises(ValueError, match="'colour' is not in the table; it has latency"):
        table.regressor("colour")

    again = LatencyTable.load(tmp_path / "table.json")
    assert again.samples[3].architecture == table.samples[3].architecture
    assert again.entries == table.entries and again.space == table.space
    assert again.errors()["regressor"].spearman == pytest.approx(errors["regressor"].spearman)
    largest = table.space.largest()
    assert again.regressor()(largest) == pytest.approx(table.regressor()(largest), rel=1e-3)
    written = json.loads((tmp_path / "table.json").read_text())["errors"]["regressor"]
    assert written["spearman"] == pytest.approx(errors["regressor"].spearman)


def test_counts_of_a_small_space_are_known_whole(made_up_time):
    width = Choice("width", (4, 11, 13, 32))
    net = torch.nn.Sequential(elastic.Conv2d(3, width, 1), elastic.Conv2d(width, 1, 1))
    image, cut = [torch.rand(1, 3, 16, 24)], partial(extract, net)
    settings = {"path": None, "samples": 40, "held_out": 4}
    table = build(make(net), cut, made_up_time, image, torch.float32, **settings)
    assert len(table.held_out) == 1
    macs = table.regressor("macs")
    assert [macs(a) for a in table.space.enumerate()] == [1536 * w for w in width.values]


def test_parameters_are_those_of_the_network_before_it_is_prepared(net, images):
    def prepare(subnet, architecture):
        for parameter in subnet.parameters():
            parameter.data = parameter.data[:0]  # as where they become constants of a program
        return lambda x: x

    settings = {"path": None, "samples": 2, "held_out": 1, "seconds": 0}
    table = build(make(net), lambda a: extract(net, a), prepare, images, None, **settings)
    for sample in table.samples:
        subnet = extract(net, sample.architecture)
        assert sample.counts.parameters == sum(p.numel() for p in subnet.parameters()) > 0


def test_an_interrupted_build_goes_on(net, images, made_up_time, tmp_path):
    path = tmp_path / "table.json"
    measured = []

    def network(architecture, stop=None):
        measured.append(architecture)
        if stop is not None and len(measured) > stop:
            raise KeyboardInterrupt
        return extract(net, architecture)

    settings = {"path": path, "samples": 14, "held_out": 4}
    with pytest.raises(KeyboardInterrupt):
        build(make(net), lambda a: network(a, 9), made_up_time, images, torch.float32, **settings)
    half = LatencyTable.load(path)
    assert not half.complete and 5 <= len(half.samples) < 18 and half.planned == 18
    with pytest.raises(ValueError, match=r"t.json: unfinished, \d+ of 18 subnets"):
        half.check({"name": "toy"}, half.space, CONDITIONS, half.samples[0].counts, "t.json")
    measured.clear()
    whole = build(half, network, made_up_time, images, torch.float32, **settings)
    assert whole.complete and len(measured) == 1 + 18 - 5
    architectures = [sample.architecture for sample in whole.samples]
    assert architectures == [architecture for architecture, _ in plan(whole.space, 14, 4, 0)]
    more = build(whole, network, made_up_time, images, torch.float32, **{**settings, "samples": 20})
    assert len(more.seen) == 20 and len(more.held_out) == 4
    assert more.errors() == LatencyTable.load(path).errors()  # of predictors that know them all
    measured.clear()
    with pytest.raises(KeyboardInterrupt):
        other = {**settings, "seed": 1}
        build(more, lambda a: network(a, 8), made_up_time, images, torch.float32, **other)
    assert 18 < more.planned and not LatencyTable.load(path).complete
    assert build(more, network, made_up_time, images, torch.float32, **other).complete
    assert len(more.samples) == more.planned


def test_an_operator_whose_measurement_is_interrupted_is_measured_again(net, images, monkeypatch):
    entries, (found, _) = {}, operators_of(net, images)
    measured = []

    def measure(call, *rest, **settings):
        measured.append(call)
        if len(measured) == 3:
            raise KeyboardInterrupt
        return Timing(1.0, 1.0, 1.0, 5)

    monkeypatch.setattr(operators, "measure", measure)
    with pytest.raises(KeyboardInterrupt):
        add_operators(entries, found, "cpu", torch.float32)
    assert list(entries.values()) == [1.0, 1.0]
    add_operators(entries, found, "cpu", torch.float32)
    assert entries.keys() == {operator.key for operator in found} and None not in entries.values()


@pytest.mark.parametrize(
    ("layer", "shape", "layout"),
    [
        (torch.nn.Conv2d, (1, 3, 8, 8), torch.channels_last),
        (torch.nn.Conv3d, (1, 1, 6, 8, 8), torch.channels_last_3d),
    ],
)
def test_operators_are_measured_in_channels_last_memory(layer, shape, layout):
    """As in inference: what comes in, what layers hand on, weights."""
    net = torch.nn.Sequential(layer(shape[1], 4, 3), torch.nn.ReLU(), layer(4, 2, 3))
    entries, (found, _) = {}, operators_of(net, [torch.rand(shape)])
    tensors = [x for op in found for x in op.args if isinstance(x, torch.Tensor) and x.dim() > 1]
    assert len(tensors) == 5
    assert all(x.is_contiguous(memory_format=layout) for x in tensors)
    assert tensors[0].stride(1) == 1  # told where one channel leaves it open
    add_operators(entries, found, "cpu", torch.float32)
    assert len(entries) == 3 and all(entries.values())


def test_memory_is_followed_through_padding_slices_and_1x1_convolutions():
    """Whose weights leave it open how the result lies: its input tells."""

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.convolutions = torch.nn.ModuleList(torch.nn.Conv2d(c, 8, 1) for c in (3, 8, 4))

        def forward(self, x):
            x = torch.nn.functional.pad(x, (1, 1, 1, 1), mode="replicate")
            x = self.convolutions[0](x)
            x = self.convolutions[1](x[:, :, ::2, ::2])
            return self.convolutions[2](x[:, 4:]).relu()

    image = torch.rand(1, 3, 8, 8)
    found = [op for op in operators_of(Net(), [image])[0] if op.args[0].dim() == 4]
    assert len(found) == 5 and all(operator.args[0].stride(1) == 1 for operator in found)
    assert Net()(image.contiguous(memory_format=torch.channels_last)).stride(1) == 1


def test_check_refuses_what_is_of_something_else(net):
    table, counts, timing = make(net, planned=1), Counts(100, 1000, 10), Timing(1, 1, 1, 5)
    table.samples = [Sample(table.space.smallest(), timing, 1.0, 1.0, counts, 1.0)]
    table.check({"name": "toy"}, table.space, CONDITIONS, counts, "t.json")
    model = {"name": "toy", "range": 9}
    with pytest.raises(ValueError, match=r"a table of toy\(\), whose .* of toy\(range=9\); build"):
        table.check(model, table.space, CONDITIONS, Counts(100, 999, 10), "t.json")
    other = Conditions("cpu", "a processor", "bfloat16", 4, 32, 24)
    with pytest.raises(ValueError) as caught:
        table.check({"name": "toy"}, table.space, other, counts, "t.json")
    assert str(caught.value) == (
        "t.json: measured under other conditions: dtype float32 instead of bfloat16, "
        "input 16x24 instead of 32x24, threads 2 instead of 4; "
        "build one for these (`vizoo latency build`)"
    )
    space = SearchSpace([Choice("depth", (1, 2))])
    with pytest.raises(ValueError, match="a table of toy, whose search space is not that of easy"):
        table.check({"name": "easy"}, space, CONDITIONS, counts, "t.json")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "not a latency table: this is not valid JSON"),
        ("[]", "not a latency table"),
        ('{"format": "other"}', "not a latency table"),
        ('{"format": "vizoo latency table", "version": 9}', "version 9; this vizoo reads 1"),
        ('{"format": "vizoo latency table", "version": 1}', "a damaged latency table"),
    ],
)
def test_load_refuses(tmp_path, content, says):
    path = tmp_path / "table.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=says) as caught:
        LatencyTable.load(path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)
    with pytest.raises(FileNotFoundError, match="no such file"):
        LatencyTable.load(tmp_path / "none.json")


@pytest.mark.parametrize("name", ["ratio", "reference"])
def test_a_sample_without_a_figure_is_damage(net, name):
    table, counts, timing = make(net, planned=1), Counts(100, 1000, 10), Timing(1, 1, 1, 5)
    table.samples = [Sample(table.space.smallest(), timing, 1.0, 1.0, counts, 1.0)]
    content = table.to_json()
    content["samples"][0][name] = None
    with pytest.raises(ValueError, match="a damaged latency table"):
        LatencyTable.from_json(content)
