"""SphereDepth's supernet: its choices, its subnets, and the commands that work on it."""

from __future__ import annotations

import json

import pytest
import supernet_tester
import torch
from network_tester import slow
from supernet_tester import SupernetTester, run, same

from vizoo.__main__ import main
from vizoo.common.counts import count, on_meta
from vizoo.nas.space import Choice
from vizoo.nas.supernet import activate, extract, search_space
from vizoo.panorama.layers import Ring
from vizoo.panorama.spheredepth import SphereDepthNet
from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.weights import load_weights, save_weights
from vizoo.vision.inference import optimize

SMALL = {"width": 1, "sample_level": 6}


class TestSupernet(SupernetTester):
    name = "spheredepth_elastic"
    test_compiles = slow(SupernetTester.test_compiles)
    test_exports_without_the_supernet = slow(SupernetTester.test_exports_without_the_supernet)

    def build(self):
        return create_model(self.name, **SMALL)

    def inputs(self):
        torch.manual_seed(1)
        return (torch.rand(1, 3, 16, 32),)

    def trained_outputs(self, net):
        return net.forward_stages(*self.inputs())

    def test_optimized_equals_activated(self, net, samples):
        for architecture in samples[:2]:
            activate(net, architecture)
            assert same(run(optimize(net), self.inputs()), run(net, self.inputs()), 1e-3)

    def test_extraction_owns_its_storage(self, net, subnets, monkeypatch):
        """Its weights; the tables of the mesh are one set for all networks of a process."""
        monkeypatch.setattr(supernet_tester, "tensors", lambda net: [*net.state_dict().values()])
        super().test_extraction_owns_its_storage(net, subnets)


@pytest.fixture(scope="module")
def net():
    return create_model("spheredepth_elastic", **SMALL).eval()


def with_values(net, **values):
    space = search_space(net)
    return space.restrict({k.replace("__", "."): [v] for k, v in values.items()}).largest()


def test_choices(net):
    """Width, depth, kernel with dilation, and mesh level."""
    kinds = {choice.name.split(".")[-1]: choice.values for choice in search_space(net)}
    assert kinds["mesh_level"] == (4, 5) and kinds["depth"] == (1, 2)
    assert kinds["pattern"] == ("1", "3", "3d2", "3d3", "5")
    assert len([c for c in search_space(net) if c.name.startswith("width.")]) == 5
    with torch.device("meta"):
        wide = create_model("spheredepth_elastic")
    assert (wide.mesh_level, wide.texture_level) == (6, 1)


def test_the_level_costs_and_moves_no_weight(net):
    image = torch.rand(1, 3, 16, 32, device="meta")
    fine, coarse = (extract(net, with_values(net, mesh_level=level)) for level in (5, 4))
    assert (fine.texture_level, coarse.texture_level) == (1, 2)
    macs = [count(on_meta(subnet), image).macs for subnet in (fine, coarse)]
    assert macs[0] > 1.1 * macs[1]
    state = coarse.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in fine.state_dict().items())
    assert {name.split(".")[1] for name in state.keys() - fine.state_dict().keys()} == {"steps"}


def test_patterns_share_one_weight(net):
    """An extracted kernel is the plain layer of that kernel; other tables than its own are gone."""
    for pattern, kernel, dilation in (("1", 1, 1), ("3", 3, 1), ("3d2", 3, 2), ("5", 5, 1)):
        subnet = extract(net, with_values(net, encoder__0__pattern=pattern))
        conv = subnet.encoder[0][1].first.conv
        assert (conv.kernel, conv.dilation) == (kernel, dilation) and conv.normalize
        assert torch.equal(conv.weight, net.encoder[0][1].first.conv.weight)
        rings = {ring for ring in subnet.tables.rings if ring.level == 4 and ring.stride == 1}
        assert (Ring(4, kernel, dilation) in rings) == (pattern != "1")
        assert (Ring(4, 3, 2) in rings) == (pattern == "3d2")


def test_a_subnet_by_name(net):
    architecture = search_space(net).smallest()
    again = create_model("spheredepth_elastic", **SMALL, subnet=architecture.to_json())
    again.load_state_dict(extract(net, architecture).state_dict())
    image = torch.rand(1, 3, 16, 32)
    assert same(run(again.eval(), (image,)), run(extract(net, architecture), (image,)))


def test_refuses():
    level = Choice("mesh_level", (4, 5))
    for arguments, message in (
        ({"texture_level": 1}, r"must be one number.*\[5, 6\]"),
        ({"texture_level": 5 - level}, "at least 1"),
        ({"texture_level": 6 - level, "stem": "concat"}, "stem and head"),
    ):
        with pytest.raises(ValueError, match=message):
            SphereDepthNet(mesh_level=level, **arguments)
    with pytest.raises(ValueError, match="blocks must be one number or 4, not 3"):
        SphereDepthNet(blocks=(1, 2, 1))
    with pytest.raises(ValueError, match="sample_level 4"):
        create_model("spheredepth_elastic", sample_level=4)


def test_costs_do_not_depend_on_what_was_counted_before(net):
    subnet = on_meta(extract(net, search_space(net).smallest()))
    image = torch.rand(1, 3, 24, 50, device="meta")
    assert count(subnet, image) == count(subnet, image)


def test_commands(tmp_path, capsys, monkeypatch, small_views):
    """A table is measured, a subnet cut out within a limit, and that one infers."""
    from vizoo.vision.io.images import write_image

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("vizoo.vision.subnets.bench._SECONDS", 0.0)
    monkeypatch.setattr("vizoo.vision.subnets.bench._REPETITIONS", 1)
    threads = torch.get_num_threads()
    save_weights(
        create_model("spheredepth_elastic", width=1, sample_level=5), "supernet.safetensors"
    )
    here = ("--model", "supernet.safetensors", "--input", "16x32", "--threads", "1")
    few = ("--samples", "8", "--held-out", "2", "--seconds", "0")
    try:
        assert main(["latency", "build", *here, *few, "--out", "table.json"]) == 0
        capsys.readouterr()
        words = ("--supernet", "supernet.safetensors", "--table", "table.json", "--json")
        limits = ("--max-latency", "3600s", "--max-params", "60k")
        quick = ("--population", "4", "--generations", "1")
        assert main(["subnet", *words, *limits, *quick, "--out", "small.safetensors"]) == 0
    finally:
        torch.set_num_threads(threads)
    report = json.loads(capsys.readouterr().out)
    assert report["met"] and report["parameters"] <= 60e3 and report["difference_to_supernet"] == 0
    small = load_weights("small.safetensors")
    assert sum(p.numel() for p in small.parameters()) == report["parameters"]
    write_image("room.png", torch.rand(3, 16, 32))
    words = ("room.png", "--model", "small.safetensors", "--out", "out", "--format", "npy")
    assert main(["infer", "panorama", *words, "--device", "cpu"]) == 0
