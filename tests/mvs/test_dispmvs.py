"""DispMVS as a network: any size, odd cameras, starts, supernet, published files."""

from __future__ import annotations

import functools

import pytest
import torch
from network_tester import NetworkTester, slow
from supernet_tester import SupernetTester, run, same

from vizoo.mvs._dispmvs_layers import UpdateBlock
from vizoo.mvs.dispmvs import DispMVS, convert_published, source_pyramid
from vizoo.nas.space import Choice
from vizoo.nas.supernet import activate, extract, search_space
from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.published import recognise
from vizoo.vision.hub.weights import load_state
from vizoo.vision.inference import optimize
from vizoo.vision.inputs import example_inputs


class TestTiny(NetworkTester):
    name = "dispmvs_tiny"
    parameters = 2_654_646
    architecture = {"coarse_iterations": 2, "fine_iterations": 1}
    exported = {"coarse_iterations": 1, "fine_iterations": 1}
    size = (128, 160)

    test_exports = slow(NetworkTester.test_exports)

    def trained_outputs(self, net):
        return net.forward_stages(*self.inputs(net, batch=2))


class TestPublished(TestTiny):
    name = "dispmvs"
    parameters = 10_444_838
    architecture = {"coarse_iterations": 1, "fine_iterations": 1}

    # For those of the tiny one, of the same modules, are.
    test_compiles_to_one_graph = slow(NetworkTester.test_compiles_to_one_graph)
    test_batch_of_two_equals_two_of_one = slow(NetworkTester.test_batch_of_two_equals_two_of_one)
    test_gradients_reach_every_parameter = slow(NetworkTester.test_gradients_reach_every_parameter)
    test_bfloat16_is_close = slow(NetworkTester.test_bfloat16_is_close)


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return create_model("dispmvs_tiny", coarse_iterations=2, fine_iterations=1).eval()


@pytest.mark.parametrize("size", [(128, 144), (61, 200), (130, 97), (16, 16), (1, 1)])
@torch.inference_mode()
def test_any_size(net, size):
    images, *cameras, depth_range, start = example_inputs(net, *size, batch=2)
    depth = net(images, *cameras, depth_range, start)
    assert depth.shape == (2, 1, *size)
    near, far = depth_range[0]
    assert (depth >= near - 1e-4).all() and (depth <= far + 1e-3).all()


@pytest.mark.parametrize("views", [2, 4])
@torch.inference_mode()
def test_any_number_of_views(net, views):
    images, *others, depth_range, start = example_inputs(net, 128, 128)
    images, *cameras = (torch.cat((x, x), 1)[:, :views] for x in (images, *others))
    assert net(images, *cameras, depth_range, start).isfinite().all()


@torch.inference_mode()
def test_start_is_seeded(net):
    *given, start = example_inputs(net, 128, 128)
    depth = net(*given)
    assert torch.equal(depth, net(*given))  # the same whatever was drawn before
    assert torch.equal(depth, net(*given, None))
    one, again, other = (
        net(*given, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(one, again) and not torch.equal(one, other)


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["epipole", "same place", "behind", "on the point"])
def test_odd_cameras_give_numbers(net, kind):
    images, intrinsics, poses, depth_range, start = example_inputs(net, 128, 128)
    intrinsics[..., :2, 2] = 64.0  # an epipole on a pixel of the stages
    poses = torch.eye(4).repeat(1, 3, 1, 1)
    if kind == "epipole":
        poses[:, 1:, 2, 3] = 0.5
    elif kind == "behind":
        poses[:, 1:, 0, 0] = poses[:, 1:, 2, 2] = -1
        poses[:, 1:, 0, 3] = 0.2
    elif kind == "on the point":
        poses[:, 1:, 2, 3] = -2.0
        start = torch.full_like(start, 2.0)
    assert net(images, intrinsics, poses, depth_range, start).isfinite().all()


@torch.inference_mode()
def test_huge_flow_in_float16():
    block = UpdateBlock(16, 1, 2, 1).half().eval()
    hidden, prepared = (
        torch.zeros(1, 16, 6, 7).half(),
        block.prepare(torch.rand(1, 16, 6, 7).half()),
    )
    flow = torch.full((1, 1, 6, 7), 1e12)
    hidden, change = block(hidden, prepared, torch.rand(1, 6, 6, 7).half(), flow)
    assert hidden.isfinite().all() and change.isfinite().all()


def test_gradients_stay_numbers_at_an_epipole(net):
    images, intrinsics, _, depth_range, start = example_inputs(net, 128, 128)
    intrinsics[..., :2, 2] = 64.0
    poses = torch.eye(4).repeat(1, 3, 1, 1)
    coarse, fine = net.forward_stages(images, intrinsics, poses, depth_range, start)
    sum(depth.mean() for depth in (*coarse, *fine)).backward()
    assert all(p.grad.isfinite().all() for p in net.parameters())
    net.zero_grad()


@torch.inference_mode()
def test_a_moved_world_changes_nothing(net):
    images, intrinsics, poses, depth_range, start = example_inputs(net, 128, 128)
    turn = torch.linalg.qr(torch.randn(3, 3)).Q
    turn *= torch.linalg.det(turn)
    world = torch.eye(4)
    world[:3, :3], world[:3, 3] = turn, torch.tensor([3.0, -2.0, 5.0])
    wanted = net(images, intrinsics, poses, depth_range, start)
    found = net(images, intrinsics, poses @ world, depth_range, start)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)


@torch.inference_mode()
def test_last_depth_of_the_stages_is_the_output(net):
    inputs = example_inputs(net, 128, 160)
    coarse, fine = net.forward_stages(*inputs)
    assert [tuple(depth.shape[-2:]) for depth in (*coarse, *fine)] == [(32, 40)] * 2 + [(128, 160)]
    torch.testing.assert_close(net(*inputs), fine[-1], rtol=1e-4, atol=1e-4)


def test_wrong_inputs_are_named(net):
    images, intrinsics, poses, depth_range, start = example_inputs(net, 128, 160)
    with pytest.raises(ValueError, match="1 view: depth needs at least 2"):
        net(images[:, :1], intrinsics[:, :1], poses[:, :1], depth_range, start)
    with pytest.raises(ValueError, match=r"RGB.*\(3, 3, 128, 160\)"):
        net(images[0], intrinsics, poses, depth_range, start)
    with pytest.raises(ValueError, match=r"intrinsics must be \(1, 3, 3, 3\)"):
        net(images, intrinsics[:, :2], poses, depth_range, start)
    with pytest.raises(ValueError, match=r"depth_range must be \(1, 2\), not \(2,\)"):
        net(images, intrinsics, poses, depth_range[0], start)
    with pytest.raises(ValueError, match=r"start must be \(1, 1, 8, 10\) for images of 128x160"):
        net(images, intrinsics, poses, depth_range, start[..., 1:])
    with pytest.raises(ValueError, match="multiples of 16, not 128x150"):
        net.forward_stages(images[..., :150], intrinsics, poses, depth_range, start)
    with pytest.raises(ValueError, match="coarse_iterations must be at least 1, not 0"):
        create_model("dispmvs", coarse_iterations=0)


@pytest.mark.parametrize("dtype, allowed", [(torch.float32, 1e-4), (torch.bfloat16, 0.1)])
def test_optimized_is_close(net, dtype, allowed):
    inputs = example_inputs(net, 128, 160)
    with torch.inference_mode():
        wanted, found = net(*inputs), optimize(net, dtype)(*inputs)
    assert found.dtype == torch.float32
    assert (found - wanted).norm() < allowed * wanted.norm()


@functools.cache
def whole():
    """The supernet, to ask what it takes."""
    return TestSupernet().build()


class TestSupernet(SupernetTester):
    """All choices of `dispmvs_elastic`, with fewer channels, iterations and views."""

    name = "dispmvs_elastic"
    architectures = 3
    test_compiles = slow(SupernetTester.test_compiles)
    test_exports_without_the_supernet = slow(SupernetTester.test_exports_without_the_supernet)

    def build(self):
        return DispMVS(
            feature_width=1,
            coarse_width=Choice("coarse.width", (1, 2)),
            fine_width=Choice("fine.width", (1, 2)),
            coarse_iterations=Choice("coarse.iterations", (1, 2)),
            fine_iterations=Choice("fine.iterations", (1, 2)),
            coarse_radius=Choice("coarse.radius", (2, 3, 4)),
            fine_radius=Choice("fine.radius", (1, 2)),
            views=Choice("views", (2, 3)),
        )

    def inputs(self):
        net = whole()
        torch.manual_seed(1)  # of where the search starts, too
        return example_inputs(net, 128, 128)

    def trained_outputs(self, net):
        return net.forward_stages(*self.inputs())

    def test_optimized_equals_activated(self, net, samples):
        for architecture in samples[:2]:
            activate(net, architecture)
            assert same(run(optimize(net), self.inputs()), run(net, self.inputs()), 1e-3)


def test_largest_subnet_takes_the_networks_weights():
    supernet = create_model("dispmvs_elastic")
    assert [choice.name for choice in search_space(supernet)] == [
        choice.name for choice in search_space(whole())
    ]
    largest = extract(supernet, search_space(supernet).largest())
    load_state(largest, create_model("dispmvs").state_dict(), "dispmvs")


def test_smallest_subnet_runs_as_in_the_registered_supernet():
    supernet = create_model("dispmvs_elastic", feature_width=1).eval()
    smallest = activate(supernet, search_space(supernet).smallest())
    inputs = example_inputs(supernet, 128, 128)
    assert len(inputs[0][0]) == 2
    assert same(run(supernet, inputs), run(extract(supernet, smallest), inputs))


def published(older=False):
    """Published names for our tensors, with the shortcut's norm under both of its names."""
    state = {}
    for name, tensor in create_model("dispmvs").state_dict().items():
        if name.startswith("cnet.") and ".downsample.1." in name:
            state[name.replace(".downsample.1.", ".norm3.")] = torch.zeros_like(tensor)
        if older:
            name = name.replace(".conv_offset.", "_offset.")
        state[name] = tensor
    return state


def test_source_pyramid_has_its_channels_last():
    """As the lookup reads them, so that no level is copied in each iteration."""
    features = torch.randn(2, 3, 8, 17, 24)
    levels = source_pyramid(features, 3)
    for level, size in zip(levels, ((17, 24), (8, 12), (4, 6)), strict=True):
        assert level.shape == (2, 3, 8, *size)
        assert level.movedim(2, 4).is_contiguous()
    mean = features[..., :16, :].unflatten(4, (12, 2)).unflatten(3, (8, 2)).mean((4, 6))
    torch.testing.assert_close(levels[1], mean)


@pytest.mark.parametrize("older", [False, True])
def test_published_file_is_read(older, tmp_path):
    state = published(older)
    assert len(state) == 317
    torch.save(state, tmp_path / "15_0.2.pt")
    stored = recognise(tmp_path / "15_0.2.pt")
    assert (stored.name, stored.architecture) == ("dispmvs", {})
    net = create_model("dispmvs")
    load_state(net, stored.state, "file")
    norm = net.cnet.layer2[0].downsample[1]
    assert torch.equal(norm.weight, state["cnet.layer2.0.downsample.1.weight"])


def test_either_name_of_a_norm_will_do():
    state = {k: v for k, v in published().items() if ".downsample.1." not in k}
    load_state(create_model("dispmvs"), convert_published(state)[2], "file")


def test_refuses_foreign_weights():
    with pytest.raises(ValueError, match="not the weights of DispMVS: no fnet.conv1.weight"):
        convert_published({"layer.weight": torch.zeros(1)})
