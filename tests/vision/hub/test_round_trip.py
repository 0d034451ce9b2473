"""Every registered network is saved, loaded, and predicts the same; a new one by registering."""

import pytest
import torch
from torch.utils._pytree import tree_leaves

from vizoo.common.counts import count_parameters
from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.registry import list_models
from vizoo.vision.hub.weights import load_weights, save_weights
from vizoo.vision.inputs import example_inputs

LARGE = 20_000_000


def on_meta(name):
    with torch.device("meta"):
        return create_model(name)


def marked(name):
    large = count_parameters(on_meta(name)) > LARGE
    return pytest.param(name, marks=pytest.mark.slow if large else ())


@pytest.mark.parametrize("name", [marked(name) for name in list_models()])
def test_save_and_load_keep_the_output(name, tmp_path):
    torch.manual_seed(0)
    net = create_model(name).eval()
    for key, value in net.state_dict().items():
        if key.endswith("running_mean"):
            value.add_(0.01)  # as after training
    loaded = load_weights(save_weights(net, tmp_path / "net.safetensors"))
    assert loaded.architecture == {"name": name} and not loaded.training
    inputs = example_inputs(net, 128, 256)
    with torch.inference_mode():
        found, wanted = (tree_leaves(each(*inputs)) for each in (loaded, net))
    assert wanted and all(map(torch.equal, found, wanted))
