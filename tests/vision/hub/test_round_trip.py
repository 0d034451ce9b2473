"""Every registered network is saved, loaded, and predicts the same; a new one by registering."""

import pytest
import torch
from torch.utils._pytree import tree_leaves

from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.registry import list_models
from vizoo.vision.hub.weights import load_weights, save_weights
from vizoo.vision.inputs import example_inputs


@pytest.mark.slow  # one of each family does so in its own tests, see NetworkTester
@pytest.mark.parametrize("name", list_models())
def test_save_and_load_keep_the_output(name, tmp_path):
    torch.manual_seed(0)
    net = create_model(name).eval()
    for key, value in net.state_dict().items():
        if key.endswith("running_mean"):
            value.add_(0.01)  # as after training
    loaded = load_weights(save_weights(net, tmp_path / "net.safetensors"))
    assert loaded.architecture == {"name": name} and not loaded.training
    inputs = example_inputs(net, 32, 64)
    with torch.inference_mode():
        found, wanted = (tree_leaves(each(*inputs)) for each in (loaded, net))
    assert wanted and all(map(torch.equal, found, wanted))
