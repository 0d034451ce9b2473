"""EASNet and FADNet++ as supernets: the checks of every supernet, choices, published files."""

from __future__ import annotations

import pytest
import torch
from network_tester import StereoNetworkTester, slow
from supernet_tester import StereoSupernetTester

from vizoo.nas.space import Architecture
from vizoo.nas.supernet import activate, extract, search_space
from vizoo.stereo._easnet_layers import peak_argmin
from vizoo.stereo.easnet import convert_published, published_architecture
from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.weights import load_state
from vizoo.vision.inference import optimize


class TestExtendedSupernet(StereoSupernetTester):
    """With the modules and choices of `easnet`, and more."""

    name = "easnet_extended"

    test_compiles = slow(StereoSupernetTester.test_compiles)  # for light is


def test_three_levels_have_no_fourth():
    net = create_model("easnet_extended", levels=3, max_disparity=96).eval().double()
    views = torch.rand(2, 1, 3, 48, 96, dtype=torch.double).unbind()
    for architecture in (search_space(net).smallest(), search_space(net).largest()):
        activate(net, architecture)
        with torch.inference_mode():
            torch.testing.assert_close(net(*views), extract(net, architecture).eval()(*views))
    assert [choice for choice in search_space(net) if choice.name == "scale"][0].values == (2, 3)
    assert not any("stages.3" in name for name in net.state_dict())


class TestFADNetPlusSupernet(StereoSupernetTester):
    name = "fadnet_plus_elastic"
    size = (64, 128)

    test_compiles = slow(StereoSupernetTester.test_compiles)  # for FADNet++ micro and light are


class TestNetwork(StereoNetworkTester):
    name = "easnet"
    parameters = 5_078_506
    trains_at_any_size = True
    multiple = 24
    architecture = {"subnet": published_architecture({"ks": 7, "e": 2, "d": 4, "s": 4}).to_json()}
    exported = {"subnet": published_architecture({"ks": 3, "e": 2, "d": 2, "s": 2}).to_json()}

    test_exports = slow(StereoNetworkTester.test_exports)  # for EASNet light and elastic are

    @classmethod
    def build(cls, arguments):
        """Random weights whose outputs do not saturate and so do not magnify rounding."""
        net = super().build(arguments)
        with torch.no_grad():
            for layer in (*net.heads, *(refinement.final_conv for refinement in net.refinement)):
                layer.weight *= 0.01
        return net


class TestSmall(TestNetwork):
    name = "easnet_small"
    parameters = 323_525
    architecture = exported = {"max_disparity": 48}

    # Of EASNet's modules.
    test_compiles_to_one_graph = slow(StereoNetworkTester.test_compiles_to_one_graph)


@pytest.fixture(scope="module")
def supernet():
    return create_model("easnet").eval()


def test_published_space(supernet):
    space = search_space(supernet)
    assert space.count() == 22_608**2 + 22_608**3 + 22_608**4
    setting = {"ks": 5, "e": [4] * 16, "d": [2, 3, 4, 2], "s": 3}
    architecture = space.validate(published_architecture(setting))
    assert architecture["stages.1.depth"] == 3
    assert architecture["stages.3.depth"] is None  # beyond the scale


@pytest.mark.parametrize(
    "setting, message",
    [
        ({"ks": 3, "e": 2, "d": 2}, "has ks, e, d and s"),
        ({"ks": [3], "e": 2, "d": 2, "s": 2}, "ks must have 16 values, not 1"),
    ],
)
def test_malformed_setting(setting, message):
    with pytest.raises(ValueError, match=message):
        published_architecture(setting)


def test_architecture_of_another_space():
    other = search_space(create_model("fadnet_plus_elastic")).smallest()
    with pytest.raises(ValueError, match="encoder.0"):
        create_model("easnet", subnet=other.to_json())
    unknown = published_architecture({"ks": 9, "e": 2, "d": 2, "s": 2})
    with pytest.raises(ValueError, match=r"kernel.*9.*3, 5, 7"):
        create_model("easnet", subnet=unknown.to_json())


@pytest.mark.parametrize("levels", [1, 2])
def test_predictions_at_every_scale(levels):
    net = create_model("easnet_extended").eval()
    space = search_space(net).restrict({"refinement.levels": [levels], "scale": [3]})
    activate(net, space.smallest())
    views = torch.rand(2, 1, 3, 48, 96).unbind()
    with torch.inference_mode():
        (predictions,) = net.forward_stages(*views)
    sizes = [tuple(prediction.shape[-2:]) for prediction in predictions]
    assert sizes == [(48, 96), (24, 48), (16, 32), (8, 16), (4, 8)]
    if levels == 1:  # the full size is the half size, enlarged
        enlarged = torch.nn.functional.interpolate(predictions[1], (48, 96), mode="bilinear")
        torch.testing.assert_close(predictions[0], enlarged)


def test_a_second_peak_does_not_pull_the_disparity():
    chances = torch.full((1, 40, 1, 2), 1e-6)
    chances[:, [10, 12, 30]] = torch.tensor([0.33, 0.32, 0.35]).view(1, 3, 1, 1)
    chances[:, 30, :, 1] = 0
    disparity, share = peak_argmin(chances.log(), step=3)
    assert disparity[0, 0, 0, 0].item() == pytest.approx(90, abs=0.01)
    assert share[0, 0, 0, 0].item() == pytest.approx(0.35, abs=1e-3)
    assert disparity[0, 0, 0, 1].item() == pytest.approx(3 * (3.3 + 3.84) / 0.65, abs=0.01)
    assert share[0, 0, 0, 1].item() == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("candidates", [1, 3, 4, 5, 9])
def test_a_peak_at_the_end_of_the_candidates(candidates):
    scores = torch.zeros(2, candidates, 1, 1)
    scores[0, 0], scores[1, -1] = 20, 20
    disparity, share = peak_argmin(scores)
    assert disparity.flatten().tolist() == pytest.approx([0, candidates - 1], abs=1e-4)
    assert share.flatten().tolist() == pytest.approx([1, 1], abs=1e-4)


def test_a_peak_has_as_many_neighbours_on_either_side():
    scores = torch.randn(1, 12, 6, 7, dtype=torch.float64)
    disparity, share = peak_argmin(scores)
    mirrored, same = peak_argmin(scores.flip(1))
    torch.testing.assert_close(mirrored, 11 - disparity)
    torch.testing.assert_close(same, share)


def test_shifted_texture_is_warped_onto_itself():
    """The right warp reads where it says: no error at a constant true disparity."""
    left = torch.rand(1, 3, 24, 60)
    right = left.roll(-6, 3)
    errors = {}
    for published in (False, True):
        refine = create_model("easnet", published_warp=published).refinement[1].eval()
        seen = []
        refine.conv1.register_forward_pre_hook(lambda _, args, seen=seen: seen.append(args[0]))
        refine(torch.full((1, 1, 24, 60), 6.0), left, right)
        errors[published] = seen[0][:, :3, :, 8:-8].abs().max().item()
    assert errors[False] < 1e-4 < 0.01 < errors[True]


@pytest.fixture(scope="module")
def published(supernet):
    """Our supernet's tensors by their published names."""
    names = {
        ".expand.": ".conv.inverted_bottleneck.conv.conv.",
        ".expand_norm.": ".conv.inverted_bottleneck.bn.bn.",
        ".depthwise.matrix_7to5": ".conv.depth_conv.conv.7to5_matrix",
        ".depthwise.matrix_5to3": ".conv.depth_conv.conv.5to3_matrix",
        ".depthwise.": ".conv.depth_conv.conv.conv.",
        ".depthwise_norm.": ".conv.depth_conv.bn.bn.",
        ".squeeze.fc1.": ".conv.depth_conv.se.fc.reduce.",
        ".squeeze.fc2.": ".conv.depth_conv.se.fc.expand.",
        ".project.": ".conv.point_linear.conv.conv.",
        ".project_norm.": ".conv.point_linear.bn.bn.",
    }
    state = {}
    for key, tensor in supernet.state_dict().items():
        parts = key.split(".")
        if parts[0] == "features":
            number = 4 * int(parts[2]) + int(parts[3])
            rest = "." + ".".join(parts[4:])
            for ours, theirs in names.items():
                if rest.startswith(ours):
                    rest = rest.replace(ours, theirs, 1)
                    break
            key = f"feature_extractor.{number}{rest}"
        elif parts[0] == "heads":
            key = f"aggregation.final_conv.{'.'.join(parts[1:])}"
        elif parts[0] == "aggregation" and parts[2] == "branches":
            rest = ".".join(parts[4:])
            if "offsets" in rest or int(parts[1]) > 2 and rest == "conv2.weight":
                rest = rest.replace("offsets", "offset_conv")
                rest = rest.replace("conv2.weight", "conv2.deform_conv.weight")
            key = f"aggregation.fusions.{parts[1]}.branches.{parts[3]}.0.{rest}"
        elif parts[0] == "aggregation":
            key = f"aggregation.fusions.{parts[1]}.fuse_layers.{'.'.join(parts[3:])}"
        state[key] = tensor
    return state


def test_published_supernet_is_read(published):
    name, arguments, state = convert_published(published)
    assert (name, arguments) == ("easnet", {"published_warp": True})
    load_state(create_model(name, **arguments), state, "file")


def test_published_supernet_without_elastic_kernels_gets_identities(published):
    rest = {k: v for k, v in published.items() if not k.endswith("_matrix")}
    name, arguments, state = convert_published(rest)
    net = create_model(name, **arguments)
    load_state(net, state, "file")
    matrix = net.features.stages[1][2].depthwise.matrix_7to5
    assert torch.equal(matrix, torch.eye(25))


def test_older_names_are_read(published):
    older = {
        key.replace(".conv.inverted", ".mobile_inverted_conv.inverted"): value
        for key, value in published.items()
    }
    name, arguments, state = convert_published(older)
    load_state(create_model(name, **arguments), state, "file")


def test_refuses_foreign_weights():
    with pytest.raises(ValueError, match="not the weights of EASNet"):
        convert_published({"layer.weight": torch.zeros(1)})


def test_maximum_disparity_must_fit_the_levels():
    with pytest.raises(ValueError, match="multiple of 24, not 100"):
        create_model("easnet", max_disparity=100)


def test_subnet_must_be_an_architecture(supernet):
    with pytest.raises(ValueError):
        create_model("easnet", subnet={"ks": 3})
    assert Architecture.from_json(search_space(supernet).largest().to_json())


def test_optimized_in_bfloat16_stays_near():
    net = TestNetwork.build(TestNetwork.exported)
    views = torch.rand(2, 1, 3, 48, 96).unbind()
    with torch.inference_mode():
        wanted, found = net(*views), optimize(net, torch.bfloat16)(*views)
    assert found.dtype == torch.float32
    assert (found - wanted).norm() < 0.05 * wanted.norm()
