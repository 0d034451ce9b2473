"""MBNet, ProxylessNAS and once-for-all MobileNetV3: spaces, counts, supernets."""

from __future__ import annotations

import random

import pytest
import torch
from network_tester import NetworkTester, slow
from supernet_tester import SupernetTester

from vizoo.common.counts import count
from vizoo.nas.lid import named_layers, splittable
from vizoo.nas.supernet import extract, search_space
from vizoo.nas.tabular import mbnet
from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.weights import load_weights, save_weights

SMALL = {
    "mbnet": {},
    "proxyless": {"classes": 10, "width": 0.25},
    "ofa_mobilenet": {"classes": 10, "width": 0.25},
}


class MobileTester(SupernetTester):
    """Images of 32x32."""

    name: str
    architectures = 3
    compiled = slice(1, 2)  # that graphs follow the activation, smaller supernets show
    test_exports_without_the_supernet = slow(SupernetTester.test_exports_without_the_supernet)

    def build(self):
        return create_model(self.name, **SMALL[self.name])

    def inputs(self):
        return (torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(1)),)


class TestMBNet(MobileTester):
    name = "mbnet"


class TestProxyless(MobileTester):
    name = "proxyless"
    test_compiles = slow(SupernetTester.test_compiles)


class TestOFAMobileNet(MobileTester):
    name = "ofa_mobilenet"
    test_compiles = slow(SupernetTester.test_compiles)


def on_meta(name, **arguments):
    with torch.device("meta"):
        return create_model(name, **arguments)


def drawn(name):
    """Arguments of a small network of a space."""
    space = search_space(on_meta(name, **SMALL[name]))
    return {**SMALL[name], "subnet": space.sample(random.Random(3)).to_json()}


class MobileNetworkTester(NetworkTester):
    """A network of the space."""

    size = (64, 64)
    test_exports = slow(NetworkTester.test_exports)


class TestMBNetNetwork(MobileNetworkTester):
    name = "mbnet"
    parameters = 4_221_386
    architecture = drawn("mbnet")


class TestProxylessNetwork(MobileNetworkTester):
    name = "proxyless"
    parameters = 16_034_168
    architecture = drawn("proxyless")
    test_compiles_to_one_graph = slow(NetworkTester.test_compiles_to_one_graph)


class TestOFAMobileNetNetwork(MobileNetworkTester):
    name = "ofa_mobilenet"
    parameters = 10_715_752
    architecture = drawn("ofa_mobilenet")
    test_compiles_to_one_graph = slow(NetworkTester.test_compiles_to_one_graph)


def test_mbnet_is_the_benchmarks(shared):
    table = mbnet(shared / "data/nasbench_mbnet/accuracy.npz")
    net = on_meta("mbnet")
    assert search_space(net) == table.space
    rng = random.Random(0)
    for architecture in (table.space.smallest(), *(table.space.sample(rng) for _ in range(4))):
        counts = count(extract(net, architecture), torch.zeros(1, 3, 32, 32))
        assert counts.parameters == table.look_up(architecture, "params")
        assert counts.macs == table.look_up(architecture, "macs")


def test_published_numbers_of_networks():
    assert search_space(on_meta("proxyless")).count() == 6**6 * 7**15
    net = on_meta("ofa_mobilenet", width=1.0)
    space = search_space(net)
    assert space.count() == (9**2 + 9**3 + 9**4) ** 5
    largest = extract(net, space.largest())
    assert round(sum(p.numel() for p in largest.parameters()) / 1e6, 1) == 7.7


def test_layers_that_nas_lid_profiles():
    proxyless = on_meta("proxyless")
    wanted = ["first", "stages.*.*", "head", "classifier"]
    assert len(named_layers(proxyless, wanted)) == 24
    kernels = splittable(search_space(on_meta("ofa_mobilenet")).restrict({"*.depth": [4]}))
    assert sum(name.endswith("kernel") for name in kernels) == 20


@pytest.mark.parametrize("name", SMALL)
def test_a_subnet_is_a_model_of_its_own(name, tmp_path):
    net = create_model(name, **SMALL[name]).eval()
    plain = extract(net, search_space(net).sample(random.Random(1)))
    image = torch.rand(1, 3, 32, 32)
    save_weights(plain, tmp_path / "net.safetensors")
    with torch.inference_mode():
        assert torch.equal(load_weights(tmp_path / "net.safetensors")(image), plain(image))


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="two classes or more, not 1"):
        create_model("mbnet", classes=1)
    with pytest.raises(ValueError, match="images must be RGB"):
        create_model("mbnet")(torch.zeros(1, 1, 8, 8))
    with pytest.raises(ValueError, match="width 0 must be more than 0"):
        create_model("proxyless", width=0)
    with pytest.raises(ValueError, match="two classes or more, not 0"):
        create_model("ofa_mobilenet", classes=0)
    with pytest.raises(ValueError, match="stem_stride 0 must be more than 0"):
        create_model("ofa_mobilenet", stem_stride=0)


def test_small_images_need_not_be_halved_first():
    net = on_meta("ofa_mobilenet", width=0.25, stem_stride=1)
    assert net.forward_features(torch.zeros(1, 3, 32, 32, device="meta")).shape[2:] == (2, 2)
