"""FADNet and FADNet++ against outputs of the published programs."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from vizoo.stereo.fadnet import convert_published
from vizoo.stereo.losses import multiscale_loss
from vizoo.stereo.metrics import DisparityMetrics
from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.weights import load_state

CASES = ["fadnet-128x256", "fadnetpp-slight-128x384", "fadnetpp-tiny-128x256"]
ROUNDS = [
    [0.32, 0.16, 0.08, 0.04, 0.02, 0.01, 0.005],
    [0.6, 0.32, 0.08, 0.04, 0.02, 0.01, 0.005],
    [0.8, 0.16, 0.04, 0.02, 0.01, 0.005, 0.0025],
    [1, 0, 0, 0, 0, 0, 0],
]


@pytest.fixture(scope="module", params=CASES)
def case(request, golden):
    """One published case: its description, its arrays, the network and the two views."""
    folder, synthetic = golden("fadnet")
    meta = json.loads((folder / f"{request.param}.json").read_text())
    state = synthetic.synthetic_state(meta["state_dict"], meta["gain"])
    published = list(state)
    state = {name.removeprefix("module."): tensor for name, tensor in state.items()}
    name, arguments, state = convert_published(state)
    ours = dict(zip(published, state, strict=True))
    with torch.device("meta"):
        net = create_model(name, **arguments).eval()
    assert dict(net.named_buffers()).keys() <= state.keys()  # all is read: nothing is left empty
    load_state(net.to_empty(device="cpu"), state, request.param)
    shape = tuple(meta["input_shape"])
    views = [synthetic.synthetic_image(meta["input_names"][s], shape) for s in ("left", "right")]
    targets = {
        "dense": 220
        * synthetic.synthetic_image(f"{request.param}-gt", (shape[0], 1, *shape[2:])) ** 2
    }
    known = synthetic.synthetic_image(f"{request.param}-valid", (shape[0], 1, *shape[2:])) > 0.45
    targets["sparse"] = torch.where(known, targets["dense"], 0)
    return meta, np.load(folder / f"{request.param}.npz"), net, ours, views, targets


def test_outputs(case):
    meta, want, net, _, (left, right), _ = case
    with torch.inference_mode():
        stages = net.forward_stages(left, right)
    for stage, predictions in enumerate(stages, 1):
        for scale, prediction in enumerate(predictions):
            expected = torch.from_numpy(want[f"stage{stage}_{scale}"])
            error = (prediction - expected).norm() / expected.norm()
            assert error < meta["tolerance"]["relative_l2"], (stage, scale, error)


def test_parameter_count(case):
    meta, _, net, *_ = case
    assert sum(p.numel() for p in net.parameters()) == meta["parameters"]


def test_losses_and_gradients(case):
    meta, _, net, ours, views, targets = case
    want = meta["loss"]
    stages = net.forward_stages(*views)
    for kind, target in targets.items():
        for weights, expected in zip(ROUNDS, want["values"][kind], strict=True):
            loss = multiscale_loss(stages, target, target > 0, weights)
            assert loss.item() == pytest.approx(expected, rel=1e-4)
    net.zero_grad()
    multiscale_loss(stages, targets["dense"], targets["dense"] > 0, ROUNDS[0]).backward()
    for name, expected in want["gradient_norms_round1_dense"].items():
        gradient = net.get_parameter(ours[name]).grad
        # A rounding that turns a ReLU over moves the small gradients of FADNet by up to 0.8 %.
        assert gradient.norm().item() == pytest.approx(expected, rel=1e-2), name


def test_metrics(case):
    meta, want, *_, targets = case
    for kind, target in targets.items():
        metrics = DisparityMetrics()
        metrics.update(torch.from_numpy(want["stage2_0"]), target, target > 0)
        got = metrics.compute()
        assert got["epe"].item() == pytest.approx(meta["metrics_stage2_0"][kind]["epe"], rel=1e-4)
        assert got["d1"].item() == pytest.approx(meta["metrics_stage2_0"][kind]["d1"], rel=1e-4)
