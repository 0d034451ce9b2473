"""EASNet against outputs of the published program."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from vizoo.nas.recalibration import recalibrate
from vizoo.nas.sorting import sort_channels
from vizoo.nas.supernet import activate, extract
from vizoo.stereo.easnet import convert_published, published_architecture
from vizoo.stereo.losses import upsampled_loss
from vizoo.stereo.metrics import DisparityMetrics
from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.weights import load_state
from vizoo.vision.layers import normalize_images

CASES = ["max", "min", "mixed-s3", "recalibrated", "sorted"]
WEIGHTS = (1 / 3, 2 / 3, 1)


@pytest.fixture(scope="module", params=CASES)
def case(request, golden):
    """One published case: description, arrays, the supernet made ready, views, stages, keys."""
    folder, synthetic = golden("easnet")
    name = f"easnet-{request.param}"
    meta = json.loads((folder / f"{name}.json").read_text())
    state = synthetic.synthetic_state(meta["state_dict"], meta["gain"])
    published = list(state)
    model, arguments, state = convert_published(state)
    ours = dict(zip(published, state, strict=True))
    with torch.device("meta"):
        net = create_model(model, **arguments).eval()
    load_state(net.to_empty(device="cpu"), state, name)
    shape = tuple(meta["input_shape"])
    architecture = activate(net, published_architecture(meta["subnet"]))
    operation = (meta["operation"] or {}).get("kind")
    if operation == "sort_channels":
        sort_channels(net)
    elif operation == "recalibrate":
        images = (meta["operation"]["batch_size"], *shape[1:])
        batches = [
            [
                synthetic.synthetic_image(f"{name}-calibration{b}-{side}", images)
                for side in ("left", "right")
            ]
            for b in range(meta["operation"]["batches"])
        ]
        recalibrate(net, batches)
    views = [synthetic.synthetic_image(f"{name}-{side}", shape) for side in ("left", "right")]
    truth = 220 * synthetic.synthetic_image(f"{name}-disp", (shape[0], 1, *shape[2:]))
    with torch.inference_mode():
        stages = net.forward_stages(*views)
    return meta, np.load(folder / f"{name}.npz"), net, architecture, views, stages, truth, ours


def test_supernet_and_its_extraction(case):
    meta, want, net, architecture, (left, right), stages, *_ = case
    alone = extract(net, architecture).eval()
    with torch.inference_mode():
        found = (("", stages), ("static_", alone.forward_stages(left, right)))
    for prefix, (stage,) in found:
        predictions = stage[::-1]
        assert len(predictions) == meta["subnet"]["s"] + 2
        for index, prediction in enumerate(predictions):
            expected = torch.from_numpy(want[f"{prefix}disparity_{index}"])
            own = prediction[:, 0] * expected.shape[-1] / left.shape[-1]
            assert (own - expected).abs().max() < meta["tolerance_absolute"]["disparity"], index
            assert (own - expected).norm() < 1e-4 * expected.norm()


def test_intermediate_maps(case):
    meta, want, net, _, (left, right), *_ = case
    tolerance = meta["tolerance_absolute"]
    with torch.inference_mode():
        features = [net.features(normalize_images(view)) for view in (left, right)]
        costs = net.cost_volumes(*features)
        heads = zip(net.heads, net.aggregation(costs), strict=True)
        found = {"feature_left": features[0], "cost": costs, "aggregated": [h(c) for h, c in heads]}
    for kind, maps in found.items():
        assert len(maps) == meta["subnet"]["s"]
        for level, values in enumerate(maps):
            expected = torch.from_numpy(want[f"{kind}_{level}"])
            assert (values - expected).abs().max() < tolerance[kind.split("_")[0]], (kind, level)


def test_loss_and_metrics(case):
    meta, *_, stages, truth, _ = case
    numbers = meta["numbers"]
    valid = (truth > 0) & (truth < 192)
    assert valid.sum() == numbers["valid_pixels"]
    loss = upsampled_loss(stages, truth, valid, WEIGHTS)
    assert loss.item() == pytest.approx(numbers["loss"], rel=1e-4)
    metrics = DisparityMetrics()
    metrics.update(stages[0][0], truth, valid)
    got = metrics.compute()
    for name in ("epe", "d1", "bad1", "bad2", "bad3"):
        assert got[name].item() == pytest.approx(numbers[name], rel=1e-4), name


def test_parameter_counts(case):
    meta, _, net, architecture, *_ = case
    count = sum(p.numel() for p in net.parameters())
    assert count == meta["parameters"]["supernet"]
    extracted = sum(p.numel() for p in extract(net, architecture).parameters())
    idle = meta["parameters"]["of_which_unused_final_heads"]
    assert extracted == meta["parameters"]["extracted"] - idle


def test_recalibrated_statistics(case):
    meta, want, net, *_, ours = case
    if "recalibrated_statistics" not in meta:
        pytest.skip("no statistics in this case")
    state = net.state_dict()
    for key, (total, absolute) in meta["recalibrated_statistics"].items():
        values = state[ours[key]].double()
        assert values.sum().item() == pytest.approx(total, rel=1e-4, abs=1e-4 * absolute), key
        assert values.abs().sum().item() == pytest.approx(absolute, rel=1e-4), key
    for key in meta["operation"]["store"]:
        expected = torch.from_numpy(want[f"statistics/{key}"])
        torch.testing.assert_close(state[ours[key]], expected, rtol=1e-4, atol=1e-5)


def test_extracted_names_and_shapes(case):
    """What the published extraction writes reads as a subnet of ours."""
    meta, _, net, architecture, *_ = case
    state = {
        key: torch.zeros(shape, dtype=torch.long if key.endswith("tracked") else torch.float32)
        for key, shape in meta["static_state_dict"].items()
    }
    name, arguments, state = convert_published(state)
    with torch.device("meta"):
        subnet = create_model(name, **arguments)
    load_state(subnet.to_empty(device="cpu"), state, "extraction")
    want = extract(net, architecture).state_dict()
    assert {k: v.shape for k, v in subnet.state_dict().items()} == {
        k: v.shape for k, v in want.items()
    }
