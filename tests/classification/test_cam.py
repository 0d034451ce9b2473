"""Class activation maps: published ones, their properties, images and volumes alike."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import timm
import torch
from torch import nn

from vizoo.classification.cam import cam, class_activation, explain, grad_cam, scaled
from vizoo.classification.covidnet3d import convert_published
from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.weights import load_state


class Spots(nn.Module):
    """Two channels, the input and its negative; class k reads channel k."""

    def __init__(self, axes):
        super().__init__()
        conv = nn.Conv2d if axes == 2 else nn.Conv3d
        self.conv = conv(1, 2, 1, bias=False)
        self.conv.weight.data.copy_(torch.tensor([1.0, -1.0]).view_as(self.conv.weight))
        self.fc = nn.Linear(2, 2)
        self.fc.weight.data.copy_(torch.eye(2))
        self.fc.bias.data.zero_()

    def forward_features(self, x):
        return self.conv(x).relu()

    def get_classifier(self):
        return self.fc

    def forward(self, x):
        return self.fc(self.forward_features(x).flatten(2).mean(2))


@pytest.mark.parametrize("name", ["tiny", "small"])
def test_published(golden, name):
    folder, synthetic = golden("nas")
    cases = json.loads((folder / "covidnet3d.json").read_text())["cases"]
    case = next(case for case in cases if case["name"] == name)
    want = np.load(folder / "covidnet3d.npz")
    state = synthetic.synthetic_state(case["state_shapes"])
    with pytest.warns() if name == "small" else pytest.MonkeyPatch.context():
        model, arguments, state = convert_published(state)
    net = create_model(model, **{**arguments, "encoding": case["arch"]})
    load_state(net, state, name)
    volume = synthetic.synthetic_image(case["image_name"], tuple(case["image_shape"]))
    classes = torch.full((len(volume),), int(want[f"{name}_cam_class"]))
    found = cam(net, volume, classes)
    expected = torch.from_numpy(want[f"{name}_cam_raw"])
    assert (found.raw[0] - expected).abs().max() < 1e-4 * expected.abs().max()
    assert found.values.shape == (len(volume), *volume.shape[2:])
    assert found.values.amin() >= 0 and found.values.amax() <= 1
    bias = net.classifier.bias[classes]
    logit = found.logits.gather(1, classes[:, None])[:, 0]
    torch.testing.assert_close(found.raw.mean((1, 2, 3)) + bias, logit, rtol=1e-4, atol=1e-4)
    assert net.training and all(module.training for module in net.modules())


@pytest.mark.parametrize("axes", [2, 3])
def test_finds_what_it_saw(axes):
    net, image = Spots(axes), torch.zeros(2, 1, *(8, 9, 10)[-axes:])
    bright, dark = (3,) * axes, (6,) * axes
    image[0, 0][bright], image[1, 0][dark] = 1, -1
    for found in (cam(net, image), grad_cam(net, image, "conv")):
        assert found.classes.tolist() == [0, 1]
        for values, place in zip(found.values, (bright, dark), strict=True):
            assert values[place] == 1 and values.sum() == pytest.approx(1)
    # What speaks for the other class is not there.
    assert not cam(net, image, torch.tensor([1, 0])).values.any()


def test_timm_network():
    net = timm.create_model("resnet18", pretrained=False, num_classes=4).eval()
    images = torch.rand(2, 3, 64, 96)
    found = cam(net, images)
    assert found.values.shape == (2, 64, 96) and "2x3" in found.method
    logits = found.raw.mean((1, 2)) + net.fc.bias[found.classes]
    torch.testing.assert_close(logits, found.logits.amax(1), rtol=1e-4, atol=1e-5)
    # At the last stage Grad-CAM of a linear head is the positive part of CAM, up to a factor.
    same = grad_cam(net, images, "layer4").raw
    torch.testing.assert_close(same * 6, found.raw.relu(), rtol=1e-3, atol=1e-4)


def test_grad_cam_at_an_earlier_stage():
    net = create_model("covidnet3d_tiny", encoding=[0, 0, 0, 0, 0]).requires_grad_(False)
    found = grad_cam(net, torch.rand(1, 1, 16, 32, 24), "stages.0", torch.tensor([1]))
    assert found.raw.shape == (1, 4, 8, 6) and found.values.shape == (1, 16, 32, 24)
    assert found.method == "Grad-CAM at stages.0, 4x8x6 cells"
    assert not net.stages[0]._forward_hooks


def test_maps_that_are_made_at_once():
    class Beside(Spots):
        def forward_features(self, x):
            if threading.current_thread() is threading.main_thread():
                with ThreadPoolExecutor(1) as pool:
                    pool.submit(self, -x).result()
            return super().forward_features(x)

    image = torch.linspace(-1, 2, 64).view(1, 1, 8, 8)
    alone, beside = (explain(net, image, method="grad-cam") for net in (Spots(2), Beside(2)))
    assert beside.method == alone.method and torch.equal(beside.raw, alone.raw)


@pytest.mark.parametrize("axes", [2, 3])
def test_grad_cam_before_an_activation_in_place(axes):
    """It is the map of the same network whose activation makes a copy."""
    torch.manual_seed(0)
    conv = nn.Conv2d if axes == 2 else nn.Conv3d
    found = []
    parts = conv(1, 4, 3), nn.Flatten(), nn.Linear(4 * 4**axes, 2)
    parts[2].weight.data.abs_()  # so that something speaks for each class
    for inplace in (False, True):
        net = nn.Sequential(parts[0], nn.ReLU(inplace), *parts[1:])
        found.append(grad_cam(net, torch.linspace(-1, 1, 6**axes).view(1, 1, *(6,) * axes), "0"))
    assert found[0].raw.any() and torch.equal(found[0].raw, found[1].raw)


def test_windows_tell_slices_apart():
    net = create_model("covidnet3d_s", encoding=[8] * 21)
    volume = torch.zeros(1, 1, 32, 32, 32)
    volume[:, :, 24:] = torch.rand(8, 32, 32)
    whole = cam(net, volume).values
    assert (whole == whole[:, :1]).all()  # one cell in depth
    found = cam(net, volume, torch.tensor([0]), depth_window=8)
    assert found.method == "CAM, mean of windows of 8 slices"
    assert found.values.shape == (1, 32, 32, 32)
    assert (found.raw[0, :20] == found.raw[0, :1]).all()
    assert (found.raw[0, 24:] != found.raw[0, 0]).any()
    all_at_once = cam(net, volume, torch.tensor([0]), depth_window=32)
    torch.testing.assert_close(
        all_at_once.raw.mean(), cam(net, volume, torch.tensor([0])).raw.mean()
    )


def test_the_method_is_chosen_by_what_tells_slices_apart():
    deep = create_model("covidnet3d_s", encoding=[8] * 21)
    volume = torch.rand(1, 1, 32, 32, 32)
    assert explain(deep, volume).method == "Grad-CAM at stages.1, 4x4x4 cells"
    assert explain(deep, volume[:, :, :8]).method == "Grad-CAM at stages.0, 2x8x8 cells"
    assert explain(deep, volume, layer="stages.0").method == "Grad-CAM at stages.0, 8x8x8 cells"
    assert explain(deep, volume, method="cam").method == "CAM, 1x1x1 cells"
    assert explain(deep, volume, method="windows").method == "CAM, mean of windows of 8 slices"
    assert explain(Spots(3), volume).method == "CAM, 32x32x32 cells"
    assert not any(module._forward_hooks for module in deep.modules())


@pytest.mark.parametrize("axes", [2, 3])
def test_mirror_images_are_turned_back(axes):
    """A bright dot stays where it is; a mirrored input has the mirrored map."""
    net, image = Spots(axes), torch.zeros(1, 1, *(8, 9, 10)[-axes:])
    image[0, 0][(3, 2, 1)[:axes]] = 1
    found = explain(net, image, mirrors=True)
    assert f"mean of {2**axes} mirror images" in found.method
    assert found.values[0][(3, 2, 1)[:axes]] == 1 and found.values.sum() == pytest.approx(1)
    net = create_model("covidnet3d_tiny", encoding=[0, 8, 1, 8, 0]) if axes == 3 else net
    image, classes = torch.rand(1, 1, *(16, 32, 24)[-axes:]), torch.tensor([1])
    values = explain(net, image, classes, mirrors=True).values
    other = explain(net, image.flip(3), classes, mirrors=True).values
    torch.testing.assert_close(other, values.flip(2), atol=1e-4, rtol=1e-4)


def test_images_too():
    images = torch.rand(1, 3, 128, 128)
    plain = timm.create_model("resnet18", pretrained=False, num_classes=4).eval()
    assert explain(plain, images).method == "CAM, 4x4 cells"
    mobile = timm.create_model("mobilenetv3_small_050", pretrained=False).eval()
    assert explain(mobile, images).method == "Grad-CAM at blocks, 4x4 cells"


def test_scaling():
    maps = torch.tensor([[[1.0, 3.0], [1.0, 3.0]], [[5.0, 5.0], [5.0, 5.0]]])
    found = scaled(maps, (2, 4))
    assert found[0, 0].tolist() == [0, 0.25, 0.75, 1] and not found[1].any()
    features, weight = torch.rand(1, 3, 2, 2), torch.rand(2, 3)
    wanted = (features[0] * weight[1].view(3, 1, 1)).sum(0)
    torch.testing.assert_close(class_activation(features, weight, torch.tensor([1]))[0], wanted)


def test_what_does_not_fit_is_named():
    net, image = Spots(2), torch.rand(1, 1, 4, 4)
    with pytest.raises(ValueError, match="class 2 is unknown: there are 2"):
        cam(net, image, torch.tensor([2]))
    with pytest.raises(ValueError, match="1 classes from 0"):
        cam(net, image, torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="Conv2d has no forward_features.*take grad_cam"):
        cam(net.conv, image)
    with pytest.raises(ValueError, match="no layer 'stages.1'; it has conv, fc"):
        grad_cam(net, image, "stages.1")
    with pytest.raises(ValueError, match=r"no layer 'conv'; it has 0\.conv$"):
        grad_cam(torch.nn.Sequential(net), image, "conv")
    with pytest.raises(ValueError, match=r"'fc' gives \(1, 2\)"):
        grad_cam(net, image, "fc")
    with pytest.raises(ValueError, match="window of 8 slices does not fit"):
        cam(net, image, depth_window=8)
    with pytest.raises(ValueError, match="method 'lime' is none of auto, cam"):
        explain(net, image, method="lime")
    with pytest.raises(ValueError, match="layer 'fc' is for grad-cam, not for cam"):
        explain(net, image, method="cam", layer="fc")
    mobile = timm.create_model("mobilenetv3_small_050", pretrained=False)
    with pytest.raises(ValueError, match="not linear in its averaged features.*take grad_cam"):
        cam(mobile, torch.rand(1, 3, 32, 32))
