"""SphereDepth as a network: any size, symmetry, levels, variants, stages, training."""

from __future__ import annotations

import pytest
import torch
from network_tester import ExportTester, NetworkTester, slow
from sphere import moves, rotations

from vizoo.common.counts import count, count_parameters
from vizoo.panorama.mesh import level_of
from vizoo.panorama.spheredepth import SphereDepthNet
from vizoo.vision.export import export, weight_bytes
from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.registry import list_models
from vizoo.vision.hub.weights import load_state
from vizoo.vision.inference import optimize

TINY = {"widths": (4, 6, 8, 8, 10), "blocks": 1, "decoder_convs": 1}


class TestTiny(NetworkTester):
    name = "spheredepth_tiny"
    parameters = 208_740
    exported = {"texture_level": 0}  # half the nodes
    size = (32, 64)
    formats = ("torchscript",)

    @pytest.mark.slow  # as long as a quarter of this folder's tests
    def test_exports_to_onnx(self, tmp_path):
        self.check_export(tmp_path / "net.onnx", "onnx")

    def trained_outputs(self, net):
        return net.forward_stages(*self.inputs(net, batch=2))


class TestSmall(TestTiny):
    name = "spheredepth_small"
    parameters = 1_633_796
    architecture = exported = {"texture_level": 0}

    test_compiles_to_one_graph = slow(NetworkTester.test_compiles_to_one_graph)
    test_exports = slow(NetworkTester.test_exports)


@pytest.mark.slow
def test_tables_of_every_pixel_are_not_written(tmp_path):
    """A file of one size is hardly larger than the weights, or `export` refuses it."""
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    net = create_model("spheredepth_tiny")
    exported = export(net, tmp_path / "net.onnx", to="onnx", size=(256, 512))
    assert exported.bytes < weight_bytes(net) + (1 << 21)


class TestPublishedSize(TestTiny):
    name = "spheredepth_r18_l5"
    parameters = 6_516_644
    architecture = exported = {"texture_level": 0}

    test_compiles_to_one_graph = slow(NetworkTester.test_compiles_to_one_graph)
    test_exports = slow(NetworkTester.test_exports)


@pytest.mark.slow
class TestLevel6(ExportTester):
    name = "spheredepth_r18_l6"
    architecture = {"texture_level": 0}
    size = (32, 64)
    formats = ("torchscript",)


@pytest.mark.slow
class TestLevel7(TestLevel6):
    name = "spheredepth_r18_l7"


@pytest.mark.slow
class TestConcat(ExportTester):
    name = "spheredepth_tiny"
    architecture = {"stem": "concat", "head": "concat", "texture_level": 0, "kernel": 5}
    size = (32, 64)
    formats = ("torch-export",)


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return spread(SphereDepthNet(mesh_level=4, texture_level=1, **TINY))


def spread(net):
    """In evaluation mode, with depths that differ from face to face."""
    net.train()
    with torch.no_grad():
        net.head.last.weight.mul_(10)
        for _ in range(3):
            net.forward_stages(torch.rand(2, 3, 32, 64))
    return net.eval()


def test_registered_variants():
    assert list_models("panorama/*") == [
        "spheredepth_elastic",
        "spheredepth_r18_l5",
        "spheredepth_r18_l6",
        "spheredepth_r18_l7",
        "spheredepth_small",
        "spheredepth_tiny",
    ]
    with torch.device("meta"):
        for name in ("spheredepth_r18_l5", "spheredepth_r18_l6"):
            assert count_parameters(create_model(name)) == 6_516_644
        macs = [
            count(
                create_model(
                    f"spheredepth_r18_l{level}",
                    texture_level=7 - level,
                    stem="concat",
                    head="concat",
                ),
                torch.rand(1, 3, 512, 1024),
            ).macs
            for level in (7, 6, 5)
        ]
    assert [round(x / 1e9, 1) for x in macs] == [58.6, 14.7, 3.7]


@pytest.mark.parametrize("size", [(32, 64), (33, 65), (17, 90), (2, 1), (1, 1)])
def test_any_size(net, size):
    with torch.inference_mode():
        depth = net(torch.rand(2, 3, *size))
    assert depth.shape == (2, 1, *size)
    assert depth.isfinite().all() and (depth > 0).all() and (depth < 10).all()


def test_outputs_belong_together(net):
    image = torch.rand(2, 3, 32, 64)
    with torch.inference_mode():
        depth, faces, colours = net.predict(image)
        stages = net.forward_stages(image)
        assert torch.equal(depth, net(image))
    assert faces.shape == (2, 20480) and colours.shape == (2, 20480, 3)
    assert set(depth.flatten().tolist()) <= set(faces.flatten().tolist())
    assert torch.equal(stages[0], faces) and faces.std() > 0.01
    assert [x.shape[1] for x in stages] == [20480, 1280, 320, 80]


@pytest.mark.parametrize("kind", ["mesh", "mesh, kernel 5", "concat"])
def test_turning_the_faces_turns_the_depth(kind):
    torch.manual_seed(0)
    some = rotations()[torch.randperm(60)[:3]]
    arguments = {
        "mesh": {"texture_level": 1},
        "mesh, kernel 5": {"texture_level": 0, "kernel": 5},
        "concat": {"texture_level": 1, "stem": "concat", "head": "concat"},
    }[kind]
    net = spread(SphereDepthNet(mesh_level=4, **arguments, **TINY))
    level = 4 + arguments["texture_level"]
    texture = torch.rand(1, 20 * 4**level, 3)
    with torch.inference_mode():
        depth = net.forward_faces(texture)
        largest = 0.0
        for index in range(len(some)):
            moved = torch.empty_like(texture)
            moved[:, moves(some, level)[index]] = texture
            for found, want in zip(net.forward_faces(moved), depth, strict=True):
                turned = found[:, moves(some, level_of(want.shape[1]))[index]]
                largest = max(largest, (turned - want).abs().max().item())
    assert (largest > 1e-2) if kind == "concat" else (largest < 1e-4)


def test_rotated_sampling_equals_a_rotated_image(net):
    image = torch.rand(2, 3, 32, 64)
    half = torch.diag(torch.tensor([-1.0, 1, -1]))
    with torch.inference_mode():
        one, other = net.forward_stages(image, half), net.forward_stages(image.roll(32, 3))
        assert all((a - b).abs().max() < 1e-3 for a, b in zip(one, other, strict=True))
        upright = net.forward_stages(image, torch.eye(3).expand(2, 3, 3))
        assert (upright[0] - net.forward_stages(image)[0]).abs().max() < 1e-3


def test_levels_share_one_state():
    coarse = SphereDepthNet(mesh_level=4, texture_level=1, **TINY)
    fine = SphereDepthNet(mesh_level=5, texture_level=1, **TINY)
    load_state(fine, coarse.state_dict(), "coarse")
    assert not any("tables" in name for name in coarse.state_dict())
    image = torch.rand(1, 3, 64, 128)
    with torch.inference_mode():
        assert fine.eval()(image).shape == coarse.eval()(image).shape


@pytest.mark.parametrize(
    "arguments",
    [
        {"texture_level": 0, "head": "concat"},
        {"texture_level": 2, "stem": "concat", "head": "concat"},
        {"head": "face"},
        {"kernel": 1, "blocks": 2, "decoder_convs": 2},
        {"kernel": 5, "normalize": True},
        {"dilation": 2, "symmetric": True},
        {"dilation": 3},
    ],
)
def test_other_networks(arguments):
    net = SphereDepthNet(mesh_level=4, **{**TINY, **arguments})
    image = torch.rand(2, 3, 16, 32)
    stages = net.forward_stages(image)
    level = 4 if arguments.get("head") == "face" else 4 + arguments.get("texture_level", 1)
    assert stages[0].shape == (2, 20 * 4**level)
    assert len(stages) == 4
    sum(x.mean() for x in stages).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
    assert net(image).shape == (2, 1, 16, 32)


@pytest.mark.parametrize("dtype, allowed", [(torch.float32, 1e-4), (torch.bfloat16, 0.1)])
def test_optimized_is_close(net, dtype, allowed):
    image = torch.rand(1, 3, 32, 64)
    with torch.inference_mode():
        wanted, found = net(image), optimize(net, dtype)(image)
    assert found.dtype == torch.float32
    assert (found - wanted).norm() < allowed * wanted.norm()


def test_double(net):
    import copy

    exact = copy.deepcopy(net).double()
    image = torch.rand(1, 3, 32, 64)
    with torch.inference_mode():
        assert (exact(image.double()) - net(image)).abs().max() < 1e-2


def test_gradients_of_the_whole_network():
    """Against differences, along a random direction of all parameters."""
    net = SphereDepthNet(mesh_level=4, texture_level=1, **TINY).double()
    texture = torch.rand(1, 20480, 3, dtype=torch.float64)
    total = lambda: sum(x.square().mean() for x in net.forward_faces(texture))  # noqa: E731
    total().backward()
    ways = [torch.randn_like(p) for p in net.parameters()]
    slope = sum((p.grad * way).sum() for p, way in zip(net.parameters(), ways, strict=True))
    values = []
    with torch.no_grad():
        for step in (1e-7, -2e-7):
            for p, way in zip(net.parameters(), ways, strict=True):
                p += step * way
            values.append(total())
    torch.testing.assert_close((values[0] - values[1]) / 2e-7, slope, rtol=1e-3, atol=1e-4)


def test_learns_a_room():
    """Distance to the walls of a box, from colours that tell the direction."""
    torch.manual_seed(0)
    net = SphereDepthNet(mesh_level=4, texture_level=0, **TINY)
    from vizoo.panorama.losses import multiscale_loss
    from vizoo.panorama.mesh import spherical_mesh

    looks = torch.tensor(spherical_mesh(4).centroids, dtype=torch.float32)
    depth = (torch.tensor([3.0, 1.5, 2.0]) / looks.abs()).amin(1)[None]
    texture = (looks[None] + 1) / 2
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    for _ in range(40):
        loss = multiscale_loss(net.forward_faces(texture), depth, depth > 0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.inference_mode():
        found = net.forward_faces(texture)[0]
    error = ((found - depth).abs() / depth).mean()
    assert error < 0.5 * ((depth.mean() - depth).abs() / depth).mean()


def test_refuses(net):
    with pytest.raises(ValueError, match=r"RGB.*\(1, 1, 8, 16\)"):
        net(torch.rand(1, 1, 8, 16))
    for arguments, message in (
        ({"mesh_level": 3}, "mesh_level 3"),
        ({"mesh_level": 8}, "0 to 8, not 9"),
        ({"texture_level": -1}, "texture_level -1"),
        ({"stem": "image"}, "stem 'image'"),
        ({"head": "vertex"}, "head 'vertex'"),
        ({"widths": (4, 4)}, "widths must be 5"),
        ({"blocks": 0}, "at least 1"),
        ({"kernel": 7}, "kernel 7"),
    ):
        with pytest.raises(ValueError, match=message):
            SphereDepthNet(**arguments)
