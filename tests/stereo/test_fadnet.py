"""FADNet and FADNet++: the checks of every network, variants, published files."""

from __future__ import annotations

import pytest
import torch
from network_tester import ExportTester, StereoNetworkTester, slow

from vizoo.stereo.fadnet import convert_published
from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.weights import load_state


class TestFADNetPlusMicro(StereoNetworkTester):
    name = "fadnet_plus_micro"
    parameters = 499_226
    formats = ("torchscript",)  # as ONNX it is tested in tests/vision/test_exported.py


class TestFADNetPlusTiny(StereoNetworkTester):
    name = "fadnet_plus_tiny"
    parameters = 1_645_984
    architecture = {"max_disparity": 64, "normalization": "instance"}

    # Micro has the same forward pass.
    test_compiles_to_one_graph = slow(StereoNetworkTester.test_compiles_to_one_graph)
    test_exports = slow(StereoNetworkTester.test_exports)


@pytest.mark.slow
class TestFADNet(StereoNetworkTester):
    name = "fadnet"
    parameters = 144_303_840


@pytest.mark.slow
class TestFADNetPlusSlight(ExportTester):
    name = "fadnet_plus_slight"


@pytest.mark.slow
class TestFADNetPlusMobile(ExportTester):
    name = "fadnet_plus_mobile"


@pytest.mark.slow
class TestFADNetPlusFull(ExportTester):
    name = "fadnet_plus_full"


@pytest.mark.slow
class TestFADNetPlusX(ExportTester):
    name = "fadnet_plus_x"


@pytest.mark.parametrize(
    "name, parameters",
    [
        ("fadnet", 144_303_840),
        ("fadnet_plus_x", 497_077_376),
        ("fadnet_plus_full", 124_381_856),
        ("fadnet_plus_mobile", 31_151_792),
        ("fadnet_plus_slight", 7_816_184),
    ],
)
def test_parameter_counts(name, parameters):
    with torch.device("meta"):
        net = create_model(name)
    assert sum(p.numel() for p in net.parameters()) == parameters


@pytest.mark.parametrize("name, entries", [("fadnet", 416), ("fadnet_plus_micro", 414)])
def test_state_entries(name, entries):
    with torch.device("meta"):
        assert len(create_model(name).state_dict()) == entries


def test_one_weight_file_serves_any_maximum_disparity():
    wide = create_model("fadnet_plus_micro", max_disparity=400)
    narrow = create_model("fadnet_plus_micro", max_disparity=64)
    narrow.load_state_dict(wide.state_dict())
    views = torch.rand(2, 1, 3, 64, 640).unbind()
    with torch.inference_mode():
        assert wide.eval()(*views).shape == narrow.eval()(*views).shape


@pytest.mark.parametrize("disparity", [0, -1, 408])
def test_maximum_disparity_out_of_range(disparity):
    with pytest.raises(ValueError, match=f"1 to 407 pixels, not {disparity}"):
        create_model("fadnet_plus_micro", max_disparity=disparity)


def _published(name):
    """A state dict with the names and shapes of the published file."""
    state = {
        key: value.transpose(0, 1) if ".iconv" in key and value.dim() == 4 else value
        for key, value in create_model(name).state_dict().items()
    }
    if name == "fadnet":
        swap = {"extract_network.": "dispnetc.", "cunet.": "dispnetc."}
        for ours, theirs in swap.items():
            state = {key.replace(ours, theirs, 1): value for key, value in state.items()}
    return state


@pytest.mark.parametrize("name", ["fadnet_plus_tiny", "fadnet_plus_micro"])
def test_recognises_published_variants(name):
    found, arguments, state = convert_published(_published(name))
    assert (found, arguments) == (name, {})
    load_state(create_model(found), state, "file")


def test_recognises_files_from_before_the_split():
    state = {
        key.replace("extract_network.", "dispnetc.", 1).replace("cunet.", "dispnetc.", 1): value
        for key, value in _published("fadnet_plus_micro").items()
    }
    found, _, renamed = convert_published(state)
    assert found == "fadnet_plus_micro"
    load_state(create_model(found), renamed, "file")


def test_refuses_foreign_weights():
    with pytest.raises(ValueError, match="not the weights of FADNet"):
        convert_published({"layer.weight": torch.zeros(1)})


def test_refuses_unknown_ratios():
    state = dict(_published("fadnet_plus_micro"))
    state["extract_network.conv1.0.weight"] = torch.zeros(6, 3, 7, 7)
    with pytest.raises(ValueError, match=r"ratios \(3, 1\)"):
        convert_published(state)


def test_strict_about_missing_and_surplus_tensors():
    net = create_model("fadnet_plus_micro")
    state = net.state_dict()
    del state["cunet.conv4.bn1.weight"]
    state["cunet.conv9.weight"] = torch.zeros(1)
    with pytest.raises(ValueError, match=r"(?s)cunet\.conv4\.bn1\.weight.*cunet\.conv9\.weight"):
        load_state(net, state, "file.pth")
