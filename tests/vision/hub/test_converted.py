"""Any registered network as a supernet: the argument `convert`, in files and on the way there."""

from __future__ import annotations

import random

import pytest
import torch
from torch.utils._pytree import tree_leaves

import vizoo
from vizoo.nas.conversion.convert import convert
from vizoo.nas.elastic.base import ElasticModule
from vizoo.nas.supernet import activate, extract, search_space
from vizoo.vision.hub.create import open_model
from vizoo.vision.hub.weights import check_stored, load_weights, read_weights, save_weights
from vizoo.vision.inputs import example_inputs
from vizoo.vision.training import starting_network

SETTINGS = {"backbone": "test_resnet", "classes": 4}
CONVERT = {"size": [64, 64], "kernels": False}


@pytest.fixture(scope="module")
def supernet():
    torch.manual_seed(0)
    return vizoo.create_model("image_classifier", **SETTINGS, convert=CONVERT).eval()


@pytest.fixture
def image():
    return torch.rand(2, 3, 64, 64)


def test_a_supernet_of_any_network(supernet):
    space = search_space(supernet)
    assert space.count() > 100 and not any("kernel" in name for name in space.names)
    assert supernet.architecture["name"] == "image_classifier"


@torch.no_grad()
def test_its_file_brings_the_order_of_its_channels(supernet, image, tmp_path):
    file = save_weights(supernet, tmp_path / "supernet.safetensors")
    torch.manual_seed(1)  # other weights to begin with
    again = load_weights(file)
    check_stored(read_weights(file), file)
    assert search_space(again) == search_space(supernet)
    for net in (again, supernet):
        activate(net, search_space(net).smallest())
    assert torch.equal(again(image), supernet(image))
    assert open_model(file)[1]


@torch.no_grad()
def test_the_file_of_a_subnet(supernet, image, tmp_path):
    small = extract(supernet, search_space(supernet).smallest())
    again = load_weights(save_weights(small, tmp_path / "small.safetensors"))
    assert torch.equal(again(image), small(image))
    assert not any(isinstance(module, ElasticModule) for module in again.modules())


@torch.no_grad()
def test_weights_come_before_the_conversion(image, tmp_path):
    net = vizoo.create_model("image_classifier", **SETTINGS).eval()
    first = next(m for m in net.modules() if isinstance(m, torch.nn.Conv2d))
    important = [1, 5, 6, 9, 10, 12, 13, 15]
    first.weight[important] += 10
    file = save_weights(net, tmp_path / "net.safetensors")
    made = starting_network("image_classifier", {"convert": CONVERT}, str(file)).eval()
    assert torch.equal(made(image), net(image))
    small = extract(made, search_space(made).smallest())
    kept = next(m for m in small.modules() if isinstance(m, torch.nn.Conv2d)).weight
    rows = [i for i, row in enumerate(first.weight) if any(torch.equal(row, k) for k in kept)]
    assert set(rows) <= set(important) or set(important) <= set(rows)


@pytest.mark.parametrize(
    ("convert", "message"),
    [
        ({"widht": 3}, "convert has no architecture argument 'widht'; it takes size, widths"),
        (True, "convert must be a mapping such as"),
        ({"keep": ["nothing"]}, "keep 'nothing': no such module"),
    ],
)
def test_wrong_settings(convert, message):
    with pytest.raises(ValueError, match=message):
        vizoo.create_model("image_classifier", **SETTINGS, convert=convert)


QUICK = ["covidnet3d_tiny", "fadnet_plus_tiny"]
EVERY = [name for name in vizoo.list_models() if name != "image_classifier"]


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(n, marks=pytest.mark.slow) for n in EVERY if n not in QUICK)]
)
@torch.no_grad()
def test_every_model_is_converted(name):
    torch.manual_seed(0)
    net = vizoo.create_model(name).eval()
    if any(isinstance(module, ElasticModule) for module in net.modules()):
        net = extract(net, search_space(net).largest())
    inputs = example_inputs(net, 64, 128)
    made = convert(net, inputs)
    assert same(made.net(*inputs), net(*inputs))
    rng = random.Random(0)
    for architecture in [made.space.smallest(), *(made.space.sample(rng) for _ in range(5))]:
        activate(made.net, architecture)
        assert same(made.net(*inputs), extract(made.net, architecture)(*inputs))


def same(one, other):
    pairs = zip(tree_leaves(one), tree_leaves(other), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)
