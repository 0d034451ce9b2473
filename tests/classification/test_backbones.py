"""timm's networks as image classifiers: in the hub, any name, normalised inside, explained."""

from __future__ import annotations

import dataclasses
import time
from urllib.error import URLError

import pytest
import timm
import torch
from network_tester import NetworkTester
from timm.data import resolve_model_data_config
from timm.optim import create_optimizer_v2

from vizoo.classification.backbones import ImageClassifier
from vizoo.classification.cam import cam, explain
from vizoo.classification.detectors import ImageDetector
from vizoo.classification.members import ImageMember
from vizoo.datasets.images import ImagePreset
from vizoo.vision.hub._http import SourceError
from vizoo.vision.hub._huggingface import NoFileError
from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.weights import load_weights, save_weights
from vizoo.vision.inference import optimize
from vizoo.vision.inputs import example_inputs
from vizoo.vision.training import starting_network

# What the skin disease paper's years had, as timm calls them.
NAMES = (
    "resnet18 resnet50 resnet152 resnext50_32x4d resnext101_64x4d seresnext50_32x4d "
    "seresnext101_32x4d legacy_senet154 densenet121 densenet161 densenet201 inception_v3 "
    "inception_v4 inception_resnet_v2 nasnetalarge pnasnet5large dpn68 dpn92 dpn131 "
    "mobilenetv2_100 efficientnet_b0 efficientnet_b4 legacy_xception xception41"
).split()


class TestImageClassifier(NetworkTester):
    name = "image_classifier"
    architecture = {"backbone": "test_resnet", "classes": 3}
    parameters = 11_177_538  # of ResNet-18 with two classes
    backend = "aot_eager"
    size = (64, 64)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_says_how_it_wants_images(name):
    preset = ImagePreset(backbone=name)
    assert min(preset.size) >= 224 and 0.8 < preset.crop <= 1
    own = ImagePreset((64, 64), backbone=name)
    assert own.size == (64, 64) and own.crop == preset.crop


def test_former_and_unknown_names():
    assert ImagePreset(backbone="xception").size == (299, 299)
    with pytest.raises(ValueError, match="no network 'densnet121'; did you mean densenet121"):
        ImagePreset(backbone="densnet121")
    with pytest.raises(ValueError, match="no network 'resnet-18'; did you mean resnet18"):
        create_model("image_classifier", backbone="resnet-18")
    with pytest.raises(ValueError, match="two classes or more, not 1"):
        create_model("image_classifier", backbone="test_resnet", classes=1)


@pytest.mark.parametrize("name", ["test_resnet", "test_efficientnet"])
def test_it_is_timms_network_on_normalised_images(name):
    net = create_model("image_classifier", backbone=name, classes=4).eval()
    plain = timm.create_model(name, pretrained=False, num_classes=4).eval()
    plain.load_state_dict(net.body.state_dict())
    config = resolve_model_data_config(plain)
    mean, std = (torch.tensor(config[key]).view(3, 1, 1) for key in ("mean", "std"))
    images = torch.rand(2, 3, 48, 40)
    with torch.inference_mode():
        torch.testing.assert_close(net(images), plain((images - mean) / std))
        torch.testing.assert_close(optimize(net)(images), net(images), rtol=1e-3, atol=1e-4)


def test_it_fits_small_images(tmp_path):
    given = {"backbone": "resnet10t", "classes": 3, "settings": {"channels": [8, 8, 16, 24]}}
    image = torch.rand(1, 3, 32, 32)
    plain, small = (create_model("image_classifier", **given, unhalved=n).eval() for n in (0, 2))
    assert plain.forward_features(image).shape == (1, 24, 1, 1)
    assert small.forward_features(image).shape == (1, 24, 4, 4)
    save_weights(small, tmp_path / "small.safetensors")
    again = load_weights(tmp_path / "small.safetensors").eval()
    assert torch.equal(again(image), small(image))
    with pytest.raises(ValueError, match="takes no such settings: .*colour"):
        create_model("image_classifier", backbone="test_resnet", settings={"colour": 1})
    with pytest.raises(ValueError, match="unhalved 9: test_resnet has . layers that halve"):
        create_model("image_classifier", backbone="test_resnet", unhalved=9)
    message = r"unhalved 3: resnet10t then fails on images of 176x176 \(.+\), as where a block"
    with pytest.raises(ValueError, match=message):
        create_model("image_classifier", **given, unhalved=3)
    # This one of timm's asserts, without a word.
    with pytest.raises(ValueError, match=r"unhalved 1: coat_tiny then fails .* \(AssertionError\)"):
        create_model("image_classifier", backbone="coat_tiny", unhalved=1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("checkpoint_path", "evil.pth"),
        ("pretrained_cfg", {"file": "evil.pth"}),
        ("pretrained_cfg_overlay", {"file": "evil.pth"}),
        ("cache_dir", "elsewhere"),
        ("features_only", True),
    ],
)
def test_settings_of_a_file_of_weights_make_timm_open_nothing(name, value, tmp_path, monkeypatch):
    net = create_model("image_classifier", backbone="test_resnet", classes=2)
    net.architecture["settings"] = {name: value}
    save_weights(net, tmp_path / "net.safetensors")
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("opened a file"))
    with pytest.raises(ValueError, match=f"settings of test_resnet: {name}: none of the network's"):
        load_weights(tmp_path / "net.safetensors")


def test_a_network_of_one_size_says_it():
    net = create_model("image_classifier", backbone="test_vit", classes=3).eval()
    (image,) = example_inputs(net, 64, 64)
    assert image.shape[2:] == (160, 160) and net(image).shape == (1, 3)
    with pytest.raises(ValueError, match="takes images of 160x160 pixels, not 64x64"):
        net(torch.rand(1, 3, 64, 64))
    with pytest.raises(ValueError, match=r"RGB.*\(1, 1, 160, 160\)"):
        net(torch.rand(1, 1, 160, 160))


@pytest.mark.parametrize(
    "name", ["test_resnet", "test_efficientnet", "densenet121", "test_vit", "test_convnext"]
)
def test_layers_learn_the_slower_the_deeper_they_lie(name):
    net = create_model("image_classifier", backbone=name, classes=3)
    groups = create_optimizer_v2(net, "adamw", lr=1.0, layer_decay=0.5).param_groups
    scale = {id(p): group["lr_scale"] for group in groups for p in group["params"]}
    names = {key: scale[id(p)] for key, p in net.named_parameters()}
    first, last = next(iter(names)), f"body.{net.body.pretrained_cfg['classifier']}.weight"
    assert len(names) == len(scale) and names[last] == 1 == max(names.values())
    assert names[first] == min(names.values()) < 0.3


def test_weights_keep_classes_and_backbone(tmp_path):
    net = create_model("image_classifier", backbone="test_efficientnet", classes=2)
    facts = {"classes": ["a", "b"], "input": {"size": [64, 64]}}
    save_weights(net, tmp_path / "net.safetensors", **facts)
    loaded = load_weights(tmp_path / "net.safetensors")
    assert loaded.backbone == "test_efficientnet" and loaded.classes == ("a", "b")


@pytest.mark.parametrize("name", ["test_resnet", "levit_128s"])  # of one last layer, of two
def test_pretrained_weights_are_timms_but_for_the_head(name, monkeypatch):
    """What would be fetched is made here."""
    made = timm.create_model

    def fetched(name, pretrained=False, **given):
        torch.manual_seed(7)
        return made(name, pretrained=False, **given)

    monkeypatch.setattr(timm, "create_model", fetched)
    monkeypatch.setattr("vizoo.classification.backbones.obtain", lambda source: source.path)
    arguments = {"backbone": name, "classes": 5}
    net = starting_network("image_classifier", arguments, "pretrained")
    want = fetched(name, num_classes=5).state_dict()
    assert all(torch.equal(value, want[key]) for key, value in net.body.state_dict().items())

    def offline(name, pretrained=False, **given):
        if pretrained:
            raise RuntimeError("no\nnetwork")
        return made(name, pretrained=False, **given)

    monkeypatch.setattr(timm, "create_model", offline)
    with pytest.raises(OSError, match=rf"weights of {name} \(.*: no network;.*: null\)"):
        starting_network("image_classifier", arguments, "pretrained")
    with pytest.raises(ValueError, match="covidnet3d_tiny brings no pretrained weights"):
        starting_network("covidnet3d_tiny", None, "pretrained")


@pytest.mark.parametrize("reached", [True, False])
def test_weights_that_the_hub_has_as_a_pickle_alone(reached, tmp_path, monkeypatch):
    """Asked for where there is no other file; from the cache where the Hub cannot be reached."""
    made = timm.create_model("test_resnet")
    torch.save(made.state_dict(), tmp_path / "pytorch_model.bin")
    asked = []

    def obtain(source, *, local=False):
        asked.append((source.path, local))
        if (file := tmp_path / source.path).exists() and local is not reached:
            return file
        raise (NoFileError if reached else SourceError)(f"no {source.path}")

    monkeypatch.setattr("vizoo.classification.backbones.obtain", obtain)
    net = ImageClassifier("test_resnet", 2)
    net.load_pretrained()
    torch.testing.assert_close(net.body.layer1.state_dict(), made.layer1.state_dict())
    assert asked == [("model.safetensors", False), ("pytorch_model.bin", not reached)]
    (tmp_path / "pytorch_model.bin").unlink()
    last = "pytorch_model.bin" if reached else "model.safetensors"
    with pytest.raises(OSError, match=f"no {last};"):
        net.load_pretrained()


@pytest.mark.parametrize(
    "net",
    [lambda: ImageClassifier("resnet18", 2), lambda: ImageDetector("fcos", 2, "resnet18")],
    ids=["timm", "torchvision"],
)
def test_without_a_network_one_line_says_what_to_do(net, tmp_path, monkeypatch, capfd):
    """Within seconds: a server that does not answer is asked once."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))

    def refuse(*_, **__):
        raise URLError("no network")

    monkeypatch.setattr("torch.hub.urlopen", refuse)
    started = time.monotonic()
    with pytest.raises(OSError) as error:
        net().load_pretrained()
    assert time.monotonic() - started < 20
    said = str(error.value)
    assert "\n" not in said and "init_weights: null" in said and said.endswith("~/.cache here")
    assert "Retrying" not in capfd.readouterr().err


@pytest.mark.parametrize("name", ["test_resnet", "test_efficientnet", "densenet121"])
def test_cam_holds_for_linear_heads(name):
    net = create_model("image_classifier", backbone=name, classes=3)
    images = torch.rand(2, 3, 64, 96)
    found = cam(net, images)
    assert found.values.shape == (2, 64, 96)
    bias = net.get_classifier().bias[found.classes]
    torch.testing.assert_close(
        found.raw.mean((1, 2)) + bias, found.logits.amax(1), rtol=1e-3, atol=1e-4
    )


def test_grad_cam_where_cam_does_not_hold():
    net = create_model("image_classifier", backbone="mobilenetv3_small_050", classes=3)
    images = torch.rand(1, 3, 128, 128)
    with pytest.raises(ValueError, match="take grad_cam"):
        cam(net, images)
    found = explain(net, images)
    assert found.method.startswith("Grad-CAM at body.blocks") and "x" in found.method
    assert found.values.shape == (1, 128, 128)


@pytest.mark.parametrize("layer", [None, "body.stages.2"])
def test_channels_that_come_last_have_no_map(layer):
    """Sums over what are rows there would look like a map."""
    net = create_model("image_classifier", backbone="test_mambaout", classes=2)
    net.classes, net.input = ("a", "b"), dataclasses.asdict(ImagePreset((64, 64), 1.0))
    member = ImageMember(net, device="cpu")
    with pytest.raises(ValueError, match="no map of image_classifier test_mambaout"):
        member.explain(torch.rand(1, 3, 64, 64), ["a"], layer=layer)
