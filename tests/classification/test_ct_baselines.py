"""Networks that CovidNet3D is compared with: their sizes, and that they are what they say."""

from __future__ import annotations

import pytest
import torch
from network_tester import ExportTester, NetworkTester, slow
from torch import nn
from torchvision.models import densenet121

from vizoo.classification.ct_baselines import _inflated
from vizoo.common.counts import count_parameters
from vizoo.vision.hub.create import create_model
from vizoo.vision.inference import optimize


class TestMC3(NetworkTester):
    name = "mc3_18"
    parameters = 11_491_266
    size = (32, 32)

    test_exports = slow(NetworkTester.test_exports)  # for CovidNet3D, of volumes too, is


@pytest.mark.slow
class TestDenseNet3D(ExportTester):
    name = "densenet3d_121"
    size = (32, 32)


@pytest.mark.slow
class TestResNet3D(ExportTester):
    name = "resnet3d_101"
    size = (32, 32)


@pytest.mark.parametrize(
    ("name", "classes", "parameters"),
    [
        ("resnet3d_101", 3, 85_251_267),
        ("densenet3d_121", 2, 11_288_578),
        ("mc3_18", 3, 11_491_779),
    ],
)
def test_published_sizes(name, classes, parameters):
    with torch.device("meta"):
        assert count_parameters(create_model(name, classes=classes)) == parameters


def test_inflation_is_the_image_network_in_each_slice():
    """With each kernel's middle slice alone, and nothing that halves depth, slices stay apart."""
    torch.manual_seed(0)
    flat = densenet121(weights=None).features.eval()
    volumes = _inflated(densenet121(weights=None).features).eval()
    state = flat.state_dict()
    for name, module in volumes.named_modules():
        if isinstance(module, nn.Conv3d):
            weight = torch.zeros_like(module.weight)
            weight[:, :, weight.shape[2] // 2] = state[f"{name}.weight"]
            state[f"{name}.weight"] = weight
            module.stride = (1, *module.stride[1:])
        if isinstance(module, nn.MaxPool3d | nn.AvgPool3d):
            # One slice at a time, which has no pair.
            size = module.kernel_size
            module.kernel_size, module.stride = (1, size, size), (1, 2, 2)
            module.padding = (0, module.padding, module.padding)
    volumes.load_state_dict(state)
    x = torch.rand(1, 3, 2, 32, 32)
    with torch.inference_mode():
        found = volumes(x)
        for index in range(2):
            torch.testing.assert_close(found[:, :, index], flat(x[:, :, index]))


def test_small_volumes_are_named():
    net = create_model("densenet3d_121").eval()
    with pytest.raises(ValueError, match="29 or more in each axis, not 16x32x32"):
        net(torch.zeros(1, 1, 16, 32, 32))
    with torch.inference_mode():
        assert net(torch.zeros(1, 1, 29, 29, 29)).shape == (1, 2)


def test_optimized():
    net = create_model("mc3_18").eval()
    x = torch.rand(1, 1, 5, 24, 24)
    with torch.inference_mode():
        torch.testing.assert_close(optimize(net)(x), net(x), rtol=1e-3, atol=1e-4)
