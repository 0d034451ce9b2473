"""Every registered network is saved, loaded, and predicts the same; a new one by registering."""

import pytest
import torch
from torch.utils._pytree import tree_leaves

from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.registry import list_models
from vizoo.vision.hub.weights import load_weights, save_weights
from vizoo.vision.inputs import example_inputs

# More than 20 million parameters, or a mesh of 300,000 faces. To count them here would take every
# run of any test seconds.
LARGE = {"spheredepth_r18_l7"}
LARGE |= {"covidnet3d_l", "covidnet3d_s", "resnet3d_101"}
LARGE |= {"fadnet", "fadnet_plus_full", "fadnet_plus_mobile", "fadnet_plus_x"}


def marked(name):
    return pytest.param(name, marks=pytest.mark.slow if name in LARGE else ())


@pytest.mark.parametrize("name", [marked(name) for name in list_models()])
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
