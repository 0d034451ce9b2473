"""`vizoo latency` and `vizoo subnet` on DispMVS's supernet."""

import json

import pytest
import torch

from vizoo.__main__ import main
from vizoo.common.timing import measure_against
from vizoo.nas.supernet import extract, search_space
from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.weights import load_weights, save_weights
from vizoo.vision.inputs import example_inputs

HERE = ("--input", "128x128", "--threads", "1")


@pytest.fixture(autouse=True)
def supernet(monkeypatch, tmp_path):
    """Its weights lie in `supernet.safetensors`; features are narrow to be quick."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("vizoo.vision.subnets.bench._SECONDS", 0.0)
    monkeypatch.setattr("vizoo.vision.subnets.bench._REPETITIONS", 3)
    threads = torch.get_num_threads()
    torch.manual_seed(0)
    net = create_model("dispmvs_elastic", feature_width=1).eval()
    save_weights(net, "supernet.safetensors")
    yield net
    torch.set_num_threads(threads)


def subnet(*words):
    words = ("--supernet", "supernet.safetensors", *HERE, *words, "--out", "small.safetensors")
    assert main(["subnet", *words]) == 0
    return load_weights("small.safetensors").eval()


def test_a_subnet_stands_alone(supernet):
    small = subnet("--architecture", "smallest")
    wanted = extract(supernet, search_space(supernet).smallest()).eval()
    inputs = example_inputs(wanted, 128, 128)
    assert inputs[0].shape[1] == 2  # views
    with torch.inference_mode():
        torch.testing.assert_close(small(*inputs), wanted(*inputs))


def once(call, reference, device, **how):
    return measure_against(call, reference, device, warmup=0, repetitions=1)


@pytest.mark.slow
def test_the_largest_that_is_fast_enough(capsys, monkeypatch):
    monkeypatch.setattr("vizoo.nas.efficiency.build.measure_against", once)
    table = ("--samples", "8", "--held-out", "2", "--seconds", "0", "--out", "table.json")
    assert main(["latency", "build", "--model", "supernet.safetensors", *HERE, *table]) == 0
    assert "8 subnets, 2 more held out" in capsys.readouterr().out
    assert main(["latency", "show", "table.json", "--json"]) == 0
    low, high = json.loads(capsys.readouterr().out)["ranges"]["parameters"]
    search = ("--table", "table.json", "--generations", "2", "--population", "8")
    small = subnet(*search, "--max-params", str((low + high) // 2))
    assert low <= sum(p.numel() for p in small.parameters()) <= (low + high) // 2
    subnet(*search, "--max-latency", "3600s")
