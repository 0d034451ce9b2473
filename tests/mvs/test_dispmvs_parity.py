"""DispMVS against outputs of the published program."""

from __future__ import annotations

import importlib.util
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from vizoo.mvs._dispmvs_geometry import (
    _seen,
    depth_to_flow,
    epipolar_lines,
    flow_to_inverse_depth,
    normalize_inverse_depth,
)
from vizoo.mvs._dispmvs_layers import UpdateBlock
from vizoo.mvs.dispmvs import convert_published, source_pyramid
from vizoo.mvs.losses import sequence_loss
from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.weights import load_state
from vizoo.vision.layers import convex_upsample
from vizoo.vision.ops import epipolar_correlation


@pytest.fixture(scope="module")
def read(shared):
    """Reads a case: its description, arrays as tensors, and rebuilt images and weights."""
    path = shared / "golden" / "synthetic_state.py"
    if not path.is_file():
        pytest.skip("the published cases are not on this machine")
    spec = importlib.util.spec_from_file_location("synthetic_state", path)
    synthetic = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(synthetic)
    folder = shared / "golden" / "dispmvs"

    def read_case(name):
        meta = json.loads((folder / f"{name}.json").read_text())
        with np.load(folder / f"{name}.npz") as file:
            arrays = {key: torch.from_numpy(np.asarray(file[key])) for key in file.files}
        state = synthetic.synthetic_state(meta["state_dict"])
        return SimpleNamespace(
            meta=meta, arrays=arrays, state=state, image=synthetic.synthetic_image
        )

    return read_case


def extrinsics(arrays, batched=True):
    turned, shift = arrays["in_rotations"], arrays["in_translations"]
    poses = torch.eye(4).repeat(*turned.shape[:-2], 1, 1)
    poses[..., :3, :3], poses[..., :3, 3:] = turned, shift
    return poses if batched else poses[None]


def network(case):
    arguments = case.meta["arguments"]
    net = create_model(
        "dispmvs",
        coarse_iterations=arguments["iterations_coarse"],
        fine_iterations=arguments["iterations_fine"],
    )
    load_state(net, convert_published(case.state)[2], case.meta["case"])
    return net.eval()


def inputs(case):
    arguments, arrays = case.meta["arguments"], case.arrays
    shape = tuple(case.meta["input_shape"])
    images = torch.stack([case.image(name, shape) for name in case.meta["input_names"]])
    images = images.unflatten(0, (arguments["batch"], arguments["views"]))
    depth_range = torch.stack((arrays["in_depth_min"], arrays["in_depth_max"]), -1)
    cameras = arrays["in_intrinsics"], extrinsics(arrays)
    return images, *cameras, depth_range, arrays["in_initial_depth"]


def relative(found, wanted):
    return ((found - wanted).abs() / wanted.abs()).max().item()


def test_features(read):
    case = read("features_96x128")
    case.state |= {
        name: tensor
        for name, tensor in create_model("dispmvs").state_dict().items()
        if name.startswith("update_block")
    }
    net = create_model("dispmvs").eval()
    load_state(net, convert_published(case.state)[2], "features")
    image = 2 * case.image(case.meta["input_names"][0], (3, 96, 128))[None] - 1
    with torch.inference_mode():
        for part in ("fnet", "cnet"):
            for maps, size in zip(getattr(net, part)(image), ("quarter", "sixteenth"), strict=True):
                wanted = case.arrays[f"out_{part}_{size}"]
                # Relative to the map's largest value: at its zeros the published output is
                # itself 4e-4 away from that of double precision.
                error = (maps[0] - wanted).abs().max()
                assert error < 1e-4 + 1e-4 * wanted.abs().max(), (part, size)


@pytest.mark.parametrize("name, scale", [("geometry_quarter", 4), ("geometry_sixteenth", 16)])
def test_geometry(read, name, scale):
    case = read(name)
    arrays, tolerance = case.arrays, case.meta["tolerance"]
    poses = extrinsics(arrays, batched=False)
    lines = epipolar_lines(arrays["in_intrinsics"][None], poses, arrays["in_base_depth"], scale)
    depth_range = torch.stack((arrays["in_depth_min"], arrays["in_depth_max"]))[None]
    flow = depth_to_flow(lines, arrays["in_other_depth"])
    given = arrays["in_e_flow"][None]
    inverse = normalize_inverse_depth(flow_to_inverse_depth(lines, given), depth_range)
    found = {
        "base": lines.base,
        "direction": lines.direction,
        "axis": lines.axis[:, :, None].float(),
        "projection": _seen(lines.seen_ray, lines.seen_shift, arrays["in_other_depth"]),
        "flow": flow[:, :, None],
        "match": lines.base + given[:, :, None] * lines.direction,
    }
    for key, maps in found.items():
        assert (maps[0] - arrays[f"out_{key}"]).abs().max() < tolerance["pixels"], key
    error = (inverse[0][:, None] - arrays["out_inverse_depth"]).abs().max()
    assert error < tolerance["normalised_inverse_depth"]
    again = 1 / flow_to_inverse_depth(lines, flow)[0][:, None]
    assert relative(again, arrays["out_round_trip"]) < tolerance["round_trip_relative"]


def test_update_blocks(read):
    case = read("update_blocks")
    for stage, block, channels, levels, radius in (
        ("sixteenth", "update_block_4", 128, 4, 4),
        ("quarter", "update_block_2", 96, 2, 2),
    ):
        net = UpdateBlock(channels, 8, levels, radius).eval()
        prefix = f"{block}."
        state = {k.removeprefix(prefix): v for k, v in case.state.items() if k.startswith(prefix)}
        load_state(net, state, block)
        planes = levels * (2 * radius + 1)

        def given(name, count, stage=stage):
            return case.image(f"dispmvs/update_blocks/{stage}/{name}", (count, 12, 14))[None]

        hidden, context = 2 * given("hidden", channels) - 1, 2 * given("context", channels)
        with torch.inference_mode():
            prepared = net.prepare(context)
            flow = 6 * given("flow", 1) - 3
            hidden, delta = net(hidden, prepared, given("cost", planes), flow)
            mask = net.upsampling(hidden)
            large = convex_upsample(delta[:, 1:], mask)
            corner = convex_upsample(delta[:, 1:], net.upsampling(hidden, corner=True))
        torch.testing.assert_close(corner, large[:, :, ::4, ::4])
        found = {"hidden": hidden, "delta": delta, "mask": mask, "upsampled_logit": large[:, 0]}
        for key, maps in found.items():
            wanted = case.arrays[f"out_{stage}_{key}"]
            torch.testing.assert_close(maps[0], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["full_256x320_views3", "full_256x256_views2_batch2"])
def test_depth(read, name):
    case = read(name)
    net, arrays = network(case), case.arrays
    tolerance = case.meta["tolerance"]["depth"]["relative"]
    with torch.inference_mode():
        coarse, fine = net.forward_stages(*inputs(case))
    assert relative(fine[-1][:, 0], arrays["out_depth"]) < tolerance
    assert len(coarse) == arrays["out_coarse_depths"].shape[1]
    for index, depth in enumerate(coarse):
        assert relative(depth[:, 0], arrays["out_coarse_depths"][:, index]) < tolerance, index
    for index in range(len(fine) if "out_fine_depths" in arrays else 0):
        assert relative(fine[index][:, 0], arrays["out_fine_depths"][:, index]) < tolerance
    with torch.inference_mode():
        depth = net(*inputs(case))
    assert relative(depth[:, 0], arrays["out_depth"]) < tolerance


def test_first_iteration(read):
    case = read("full_256x320_views3")
    net, arrays = network(case), case.arrays
    images, intrinsics, poses, depth_range, start = inputs(case)
    with torch.inference_mode():
        features = net._features(2 * images - 1)[1]
        context = net.cnet(2 * images[:, 0] - 1)[1]
        lines = epipolar_lines(intrinsics, poses, start, 16)
        pyramid = source_pyramid(features[:, 1:], 4)
        flow = torch.zeros(1, 2, 16, 20)
        cost = epipolar_correlation(features[:, 0], pyramid, lines.base, lines.direction, flow, 4)
        assert (cost - arrays["out_first_cost"]).abs().max() < 1e-4
        hidden, context = context.chunk(2, 1)
        block = net.update_block_4
        _, delta = block(
            hidden.tanh().expand(2, -1, -1, -1),
            block.prepare(context.relu()),
            cost[0],
            flow[0, :, None],
        )
        assert (delta - arrays["out_first_delta"][0]).abs().max() < 1e-3
        depth = arrays["out_coarse_depths"][:, :1, ::4, ::4]
        second = depth_to_flow(lines, depth)
        assert (second - arrays["out_second_flow_in"]).abs().max() < 1e-3


@pytest.mark.parametrize(
    "checkpointing",
    [False, pytest.param(True, marks=pytest.mark.slow)],  # which changes no gradient, see test_task
)
def test_training(read, checkpointing):
    """Loss and every gradient; norms stay in evaluation mode, as they did there."""
    case = read("train_256x256_views3")
    net, arrays, tolerance = network(case), case.arrays, case.meta["tolerance"]
    if checkpointing:
        net.training = net.checkpointing = True  # the network alone, not its norms
    given = inputs(case)
    coarse, fine = net.forward_stages(*given)
    truth, mask = arrays["in_ground_truth"][None, None], arrays["in_mask"][None, None] > 0
    loss = sequence_loss(coarse, fine, truth, mask, given[3])
    wanted = arrays["out_loss"].item()
    assert loss.item() == pytest.approx(wanted, rel=tolerance["loss_relative"])
    loss.backward()
    names = [name.replace("norm3", "downsample.1") for name in case.meta["arguments"]["parameters"]]
    allowed = tolerance["gradient_norms"]
    for name, wanted in zip(names, arrays["out_gradient_norms"].tolist(), strict=True):
        found = net.get_parameter(name).grad.norm().item()
        if wanted > allowed["absolute"]:
            assert found == pytest.approx(wanted, rel=allowed["relative"]), name
