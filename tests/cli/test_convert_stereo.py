"""`vizoo convert` on files as their authors wrote them, against the outputs that they published."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from vizoo.__main__ import main
from vizoo.nas.supernet import activate, extract
from vizoo.stereo.easnet import convert_published, published_architecture
from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.weights import load_state, load_weights

FADNET = [
    pytest.param("fadnet-128x256", marks=pytest.mark.slow),  # a file of 577 MB
    pytest.param("fadnetpp-slight-128x384", marks=pytest.mark.slow),
    "fadnetpp-tiny-128x256",
]


def converted(state, tmp_path, capsys):
    """The network of a published state, through a file and the command line."""
    torch.save({"epoch": 3, "state_dict": state}, tmp_path / "best.tar")
    target = tmp_path / "net.safetensors"
    assert main(["convert", str(tmp_path / "best.tar"), str(target)]) == 0
    assert str(target) in capsys.readouterr().out
    return load_weights(target)


@pytest.mark.parametrize("case", FADNET)
def test_fadnet(golden, case, tmp_path, capsys):
    folder, synthetic = golden("fadnet")
    meta = json.loads((folder / f"{case}.json").read_text())
    want = np.load(folder / f"{case}.npz")
    net = converted(synthetic.synthetic_state(meta["state_dict"], meta["gain"]), tmp_path, capsys)
    shape = tuple(meta["input_shape"])
    views = [synthetic.synthetic_image(meta["input_names"][s], shape) for s in ("left", "right")]
    with torch.inference_mode():
        found = net(*views)
    expected = torch.from_numpy(want["stage2_0"])
    assert (found - expected).norm() < meta["tolerance"]["relative_l2"] * expected.norm()


def easnet(golden, case):
    folder, synthetic = golden("easnet")
    meta = json.loads((folder / f"easnet-{case}.json").read_text())
    shape = tuple(meta["input_shape"])
    views = [
        synthetic.synthetic_image(f"easnet-{case}-{side}", shape) for side in ("left", "right")
    ]
    state = synthetic.synthetic_state(meta["state_dict"], meta["gain"])
    return meta, np.load(folder / f"easnet-{case}.npz"), views, state


def close(net, views, want, prefix, levels):
    with torch.inference_mode():
        found = net(*views)
    expected = torch.from_numpy(want[f"{prefix}disparity_{levels + 1}"])
    return (found[:, 0] - expected).norm() < 1e-4 * expected.norm()


@pytest.mark.parametrize("case", ["mixed-s3"])
def test_easnet_supernet(golden, case, tmp_path, capsys):
    meta, want, views, state = easnet(golden, case)
    net = converted(state, tmp_path, capsys)
    assert net.architecture == {"name": "easnet", "published_warp": True}
    activate(net, published_architecture(meta["subnet"]))
    assert close(net, views, want, "", meta["subnet"]["s"])


@pytest.mark.parametrize("case", [pytest.param("max", marks=pytest.mark.slow), "mixed-s3"])
def test_easnet_subnet(golden, case, tmp_path, capsys):
    """A file of the published extraction: its names, with the values of our subnet."""
    meta, want, views, state = easnet(golden, case)
    name, arguments, state = convert_published(state)
    supernet = create_model(name, **arguments).eval()
    load_state(supernet, state, case)
    values = extract(supernet, published_architecture(meta["subnet"])).state_dict()
    published = {key: torch.zeros(shape) for key, shape in meta["static_state_dict"].items()}
    ours = {id(tensor): key for key, tensor in convert_published(published)[2].items()}
    state = {
        # Output heads of levels that the subnet lacks are in the file all the same.
        key: values[ours[id(tensor)]] if id(tensor) in ours else tensor
        for key, tensor in published.items()
    }
    net = converted(state, tmp_path, capsys)
    assert {key: v.shape for key, v in net.state_dict().items()} == {
        key: v.shape for key, v in values.items()
    }
    assert close(net, views, want, "static_", meta["subnet"]["s"])
