"""NASBench-201: published outputs, counts and dimensions; what every network and supernet does."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from network_tester import NetworkTester, slow
from supernet_tester import SupernetTester

from vizoo.classification.spaces.nasbench201 import convert_published
from vizoo.common.counts import count
from vizoo.nas.lid import named_layers, profile
from vizoo.nas.supernet import activate, extract, search_space
from vizoo.nas.tabular import CELL_OPERATIONS, cell_architecture, nasbench201
from vizoo.vision.hub.create import create_model

BEST = (
    "|nor_conv_3x3~0|+|nor_conv_3x3~0|nor_conv_3x3~1|+"
    "|skip_connect~0|nor_conv_3x3~1|nor_conv_1x1~2|"
)
SMALL = {"channels": 4, "cells": 1}


class TestNetwork(NetworkTester):
    name = "nasbench201"
    parameters = 1_699_546
    architecture = {**SMALL, "cell": BEST}
    size = (32, 32)

    # The supernet is compiled, and its subnet exported.
    test_compiles_to_one_graph = slow(NetworkTester.test_compiles_to_one_graph)
    test_exports = slow(NetworkTester.test_exports)


class TestSupernet(SupernetTester):
    compiled = slice(1, 2)  # that graphs follow the activation, smaller supernets show

    def build(self):
        return create_model("nasbench201", **SMALL)

    def inputs(self):
        return (torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(1)),)


@pytest.fixture(scope="module")
def published(golden):
    folder, synthetic = golden("nas")
    case = json.loads((folder / "nb201_supernet.json").read_text())
    arrays = np.load(folder / "nb201_supernet.npz", allow_pickle=False)
    name, arguments, state = convert_published(synthetic.synthetic_state(case["state_shapes"]))
    net = create_model(name, **arguments)
    have = net.state_dict()
    # The case lists only operations with weights, which are all there are.
    assert {k: v.shape for k, v in state.items()} == {k: v.shape for k, v in have.items()}
    net.load_state_dict(state)
    image = synthetic.synthetic_image(case["image_name"], case["image_shape"])
    return net.eval(), case, arrays, image


def test_published_outputs_and_dimensions(published):
    net, case, arrays, image = published
    layers = named_layers(net, ["cells.*"])
    for index, text in enumerate(case["archs"]):
        activate(net, cell_architecture(text))
        seen = []
        hooks = [
            m.register_forward_hook(lambda *a, seen=seen: seen.append(a[-1]))
            for m in layers.values()
        ]
        with torch.no_grad():
            logits = net(image).numpy()
        for hook in hooks:
            hook.remove()
        wanted = arrays[f"logits_{index}"]
        assert abs(logits - wanted).max() < 1e-4 * abs(wanted).max()
        means, deviations = arrays[f"feature_mean_{index}"], arrays[f"feature_std_{index}"]
        assert np.allclose([x.mean() for x in seen], means, rtol=1e-3, atol=1e-4)
        assert np.allclose([x.std() for x in seen], deviations, rtol=1e-3)
        found = profile(net, image, layers, running_statistics=True).numpy()
        assert np.allclose(found, arrays[f"lid_exact_{index}"], rtol=1e-4)
        assert np.allclose(found, arrays[f"lid_official_{index}"], rtol=5e-3)


def test_published_dimensions_of_every_candidate(published):
    net, case, arrays, image = published
    base, layers = cell_architecture(case["base_arch"]), named_layers(net, ["cells.*"])
    for edge, rows in zip(case["edges"], arrays["edge_lid"], strict=True):
        for operation, wanted in zip(case["candidate_order"], rows, strict=True):
            activate(net, base.replace({f"edges.{edge}": operation}))
            found = profile(net, image, layers, running_statistics=True).numpy()
            assert np.allclose(found, wanted, rtol=1e-4)


@pytest.mark.parametrize(("classes", "size"), [(10, 32), (100, 32), (120, 16)])
def test_published_counts(golden, classes, size):
    folder, _ = golden("nas")
    cases = json.loads((folder / "nb201_counts.json").read_text())["cases"]
    with torch.device("meta"):
        net = create_model("nasbench201", classes=classes)
    for case in cases:
        plain = extract(net, cell_architecture(case["arch"]))
        assert sum(p.numel() for p in plain.parameters()) == case[f"params_{classes}"]
        if case in cases[:2]:
            counts = count(plain, torch.zeros(1, 3, size, size))
            assert counts.macs == case[f"conv_linear_macs_{classes}"]


def test_its_space_is_the_benchmarks(shared):
    table = nasbench201(shared / "data/nasbench201/accuracy.npz")
    with torch.device("meta"):
        net = create_model("nasbench201")
        assert search_space(net) == table.space
        for text in (BEST, BEST.replace("nor_conv_3x3", "nor_conv_1x1")):
            alone = create_model("nasbench201", cell=text)
            found = sum(p.numel() for p in alone.parameters())
            assert found == table.look_up(cell_architecture(text), "params")


def test_other_weights_and_arguments_are_refused():
    with pytest.raises(ValueError, match="not the weights of NASBench-201"):
        convert_published({"a": torch.zeros(1)})
    with pytest.raises(ValueError, match="either a cell or a subnet"):
        create_model("nasbench201", cell=BEST, subnet={})
    with pytest.raises(ValueError, match="names no cell"):
        create_model("nasbench201", cell="|none~0|")
    for cells in (0, 101, 100_001):
        with pytest.raises(ValueError, match=f"cells {cells}: give .* 1 to 100 cells"):
            create_model("nasbench201", cells=cells)
    with pytest.raises(ValueError, match="images must be RGB"):
        create_model("nasbench201", **SMALL)(torch.zeros(1, 1, 8, 8))


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        ([], "0 of 5 cells or more"),
        (["cells.0.layers.1.0.ops.5.op.1.weight"], "cells.0.layers.1.0.ops.5.op.1.weight is no"),
        (["cells.0"], "cells.0 is no tensor of its cells"),
        (["cells.first.conv_a.op.1.weight"], "cells.first.conv_a.op.1.weight is no tensor"),
    ],
)
def test_damaged_weights_are_refused(cells, says):
    whole = ("lastact.0.weight", "stem.0.weight", "classifier.bias")
    state = {name: torch.zeros(4) for name in (*whole, *cells)}
    with pytest.raises(ValueError, match=f"not the weights of NASBench-201: {says}"):
        convert_published(state)
    with pytest.raises(ValueError, match="NASBench-201: no classifier.bias"):
        convert_published({name: state[name] for name in whole[:2]})


def test_an_edge_of_none_gives_zeros():
    net = create_model("nasbench201", **SMALL, cell=BEST.replace("nor_conv_3x3", "none"))
    assert CELL_OPERATIONS[0] == "none"
    cell = net.cells[0]
    cell.edges["0_3"] = cell.edges["0_1"]
    assert not cell(torch.rand(2, 4, 8, 8)).any()
