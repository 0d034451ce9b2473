"""The trained weights that come with the package."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
import torch

import vizoo
from vizoo.__main__ import main
from vizoo.datasets.stereo import GeneratedStereo
from vizoo.nas.efficiency.table import LatencyTable
from vizoo.nas.space import Architecture
from vizoo.nas.supernet import extract
from vizoo.stereo import DEFAULT_MODEL
from vizoo.stereo.guided import FUSION, guidance
from vizoo.stereo.infer import StereoPredictor
from vizoo.stereo.metrics import DisparityMetrics
from vizoo.vision.hub.create import create_model, load_network
from vizoo.vision.hub.registry import list_models, model_info
from vizoo.vision.subnets.bench import load_supernet
from vizoo.vision.subnets.best import table_beside

SHIPPED = [
    name
    for name in list_models("stereo/*", pretrained=True)
    if model_info(name).record.sources[0].startswith("package:")
]


@pytest.fixture(scope="module")
def unseen():
    scenes = GeneratedStereo(4, 192, 384, seed=71, max_disparity=48, clutter=0.3)
    return [scenes[index] for index in range(4)]


@pytest.mark.parametrize("name", SHIPPED)
def test_they_need_no_network_and_know_unseen_scenes(name, unseen, monkeypatch):
    """The error is far below the best constant's, which nothing untrained reaches."""
    assert model_info(name).record.size <= 8e6

    def refuse(*args, **arguments):
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "create_connection", refuse)
    predictor = StereoPredictor(name, device="cpu")
    found, constant = DisparityMetrics(), DisparityMetrics()
    for scene in unseen:
        truth, valid = scene["disparity"][None], scene["valid"][None]
        result = predictor(scene["left"], scene["right"], scale=1, check=False)
        disparity = torch.from_numpy(result.disparity)
        found.update(disparity[None, None], truth, valid)
        constant.update(truth[valid].median().expand_as(truth), truth, valid)
    share = 0.6 if name.startswith("fadnet") else 0.25
    assert found.compute()["epe"] < share * constant.compute()["epe"]


def test_the_fusion_leaves_what_is_right():
    """It takes little of what semi-global matching says otherwise."""
    scene = GeneratedStereo(1, 128, 256, seed=4, max_disparity=32)[0]
    truth, valid = scene["disparity"][None], scene["valid"][None]
    with torch.inference_mode():
        views = scene["left"][None], scene["right"][None]
        fused = load_network(FUSION, "stereo-fusion")(
            *guidance(truth, torch.zeros_like(truth), *views)
        )
    assert ((fused - truth).abs()[valid] > 1).float().mean() < 0.13


@pytest.mark.parametrize("name", SHIPPED)
def test_they_say_how_far_they_were_measured_to_see(name, capsys):
    predictor = StereoPredictor(name, device="cpu", guided=False)
    reach = model_info(name).record.reach
    assert predictor.reach == reach and 0 < reach < predictor.max_disparity
    assert main(["models", name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["record"]["reach"] == reach
    assert main(["models", name]) == 0
    assert f"disparities up to {reach} px" in capsys.readouterr().out


def test_some_are_shipped():
    assert {"easnet_small.generated", "fadnet_plus_tiny.generated"} <= set(SHIPPED)


TABLES = sorted((Path(vizoo.__file__).parent / "stereo/weights").glob("*.latency.json"))


@pytest.mark.parametrize("file", TABLES, ids=lambda file: file.name)
def test_latency_tables_are_of_what_their_names_say(file):
    supernet, *kind = file.name.removesuffix(".latency.json").split(".")
    table = LatencyTable.load(file)
    how = {"runtime": table.conditions.runtime, "dtype": table.conditions.dtype}
    assert kind == [name for name in how.values() if name not in ("torch", "float32")]
    net, space, _ = load_supernet(supernet)
    assert table_beside(supernet, net, space, **how) == table
    assert table.errors()["regressor"].spearman > 0.9


def test_the_default_is_a_subnet_of_the_supernet():
    """Its convolutions are kept in half as many bits."""
    net, supernet = (create_model(name) for name in (DEFAULT_MODEL, "easnet_scaled.worlds"))
    chosen = Architecture(net.architecture["subnet"]["choices"])
    whole = extract(supernet, chosen).state_dict()
    assert net.state_dict().keys() == whole.keys()
    for name, values in net.state_dict().items():
        torch.testing.assert_close(values, whole[name], rtol=1e-3, atol=1e-6)
