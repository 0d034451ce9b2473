"""Between image and mesh: reference numbers, seam, poles, symmetry, labels, round trip."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sphere import find, public, room_depth

from vizoo.panorama.layers import pool_faces
from vizoo.panorama.mesh import spherical_mesh
from vizoo.panorama.sampling import (
    equirectangular_to_faces,
    face_labels,
    faces_to_equirectangular,
    pixel_directions,
    sample_equirectangular,
    vertex_values,
    vertex_weights,
)

F64, CPU = torch.float64, torch.device("cpu")


@pytest.mark.parametrize("size", [(16, 32), (9, 31), (1, 1)])
def test_pixels(size):
    looks = pixel_directions(*size)
    assert looks.shape == (*size, 3)
    torch.testing.assert_close(looks.norm(dim=-1), torch.ones(size, dtype=F64))


class Looks(torch.nn.Module):
    def forward(self, image):
        return pixel_directions(*image.shape[2:])


def test_pixels_in_onnx_are_as_exact(tmp_path):
    """Else those whose centre is near an edge are of another face than in PyTorch."""
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    image, axes = torch.rand(1, 3, 16, 32), {2: "height", 3: "width"}
    program = torch.onnx.export(
        Looks().eval(), (image,), dynamo=True, dynamic_shapes=(axes,), verbose=False
    )
    program.save(str(tmp_path / "looks.onnx"))
    session = runtime.InferenceSession(tmp_path / "looks.onnx")
    for size in ((16, 32), (9, 31)):
        (looks,) = session.run(None, {"image": np.zeros((1, 3, *size), np.float32)})
        np.testing.assert_allclose(looks, pixel_directions(*size).numpy(), rtol=0, atol=1e-15)


def test_constants_stay():
    image = torch.full((1, 2, 6, 11), 3.0, dtype=F64)
    for level in (0, 3):
        faces = equirectangular_to_faces(image, level)
        assert faces.shape == (1, 20 * 4**level, 2)
        torch.testing.assert_close(faces, torch.full_like(faces, 3.0))
        for mode in ("nearest", "linear"):
            back = faces_to_equirectangular(faces, 6, 11, mode)
            torch.testing.assert_close(back, image)


def test_pixel_centres_give_the_pixels():
    image, looks = torch.rand(2, 3, 8, 16, dtype=F64), pixel_directions(8, 16).flatten(0, 1)
    for mode in ("bilinear", "nearest"):
        found = sample_equirectangular(image, 2.5 * looks, mode).mT.view_as(image)
        torch.testing.assert_close(found, image)


@pytest.mark.parametrize("width", [16, 15])
def test_no_seam_and_no_step_across_the_poles(width):
    image = torch.rand(1, 2, 8, width, dtype=F64)
    height = torch.linspace(-1, 1, 41, dtype=F64)[1:-1]
    radius = (1 - height**2).sqrt()
    sides = [torch.stack((side * 1e-13 * radius, height, -radius), -1) for side in (-1.0, 1.0)]
    both = [sample_equirectangular(image, side) for side in sides]
    assert (both[0] - both[1]).abs().max() < 1e-10
    if width % 2:  # half a turn away there is no pixel's centre
        return
    turn = torch.linspace(0, 2 * math.pi, 32, dtype=F64)
    for pole in (1.0, -1.0):
        near = torch.stack((1e-9 * turn.sin(), torch.full_like(turn, pole), 1e-9 * turn.cos()), -1)
        found = sample_equirectangular(image, near)
        opposite = sample_equirectangular(image, near * torch.tensor([-1.0, 1, -1], dtype=F64))
        assert (found - opposite).abs().max() < 1e-6


@pytest.mark.parametrize("width", [16, 15])
def test_a_mirror_image_is_mirrored_up_to_the_poles(width):
    """Beyond a pole lies what is half a turn away: with an odd width between two pixels."""
    image, looks = torch.rand(1, 2, 8, width, dtype=F64), pixel_directions(40, 36).flatten(0, 1)
    mirrored = sample_equirectangular(image.flip(3), looks * torch.tensor([-1.0, 1, 1], dtype=F64))
    assert (mirrored - sample_equirectangular(image, looks)).abs().max() < 1e-10


@pytest.mark.parametrize(
    "change, axes",
    [
        (lambda x: x.flip(3), (-1, 1, 1)),
        (lambda x: x.flip(2), (1, -1, 1)),
        (lambda x: x.roll(x.shape[3] // 2, 3), (-1, 1, -1)),
    ],
)
def test_changes_of_the_image_are_symmetries_of_the_mesh(change, axes):
    image, level = torch.rand(1, 2, 16, 32, dtype=F64), 3
    centres = spherical_mesh(level).centroids
    move = find(centres * np.array(axes), centres)
    plain, changed = (equirectangular_to_faces(x, level) for x in (image, change(image)))
    assert (changed[:, move] - plain).abs().max() < 1e-12
    turned = equirectangular_to_faces(image, level, rotation=torch.diag(torch.tensor(axes)))
    assert (turned - changed).abs().max() < 1e-12


def test_each_image_may_have_its_own_rotation():
    image = torch.rand(2, 3, 8, 16, dtype=F64)
    half = torch.diag(torch.tensor([-1.0, 1, -1], dtype=F64))
    both = torch.stack((torch.eye(3, dtype=F64), half))
    found = equirectangular_to_faces(image, 2, rotation=both)
    torch.testing.assert_close(found[:1], equirectangular_to_faces(image[:1], 2))
    torch.testing.assert_close(found[1:], equirectangular_to_faces(image[1:].roll(8, 3), 2))


def test_labels_ignore_what_is_not_valid():
    depth = torch.rand(2, 1, 32, 64) + 1
    valid = torch.rand(2, 1, 32, 64) > 0.3
    spoilt = torch.where(valid, depth, torch.tensor(float("nan")))
    labels, known = face_labels(spoilt, valid, 2)
    assert labels.shape == known.shape == (2, 320) and labels.isfinite().all()
    assert (labels[~known] == 0).all() and (labels[known] >= 1).all()
    every, all_known = face_labels(depth, torch.ones_like(valid), 2)
    assert all_known.all() and (labels[known].unique().numel() > 1)
    assert torch.equal(labels[known], every[known])
    assert set(every.flatten().tolist()) <= set(depth.flatten().tolist())


def test_labels_are_what_rays_along_the_centroids_find():
    depth = room_depth(pixel_directions(256, 512))[None, None]
    labels, known = face_labels(depth, depth > 0, 5)
    exact = room_depth(torch.tensor(spherical_mesh(5).centroids))
    assert known.all() and (labels[0] - exact).abs().median() < 1e-2


@pytest.mark.parametrize("level", range(5))
def test_vertex_weights(level):
    mesh = spherical_mesh(level)
    faces, weights = (table.numpy() for table in vertex_weights(level, CPU))
    assert np.abs(weights.sum(1) - 1).max() < 1e-13
    assert weights[np.arange(6) < mesh.incident[1][:, None]].min() > 0.12
    assert weights.max() < 0.211
    axis = mesh.vertices[:, None]
    centres = mesh.centroids[faces]
    centres = centres / (centres * axis).sum(-1, keepdims=True)
    assert np.abs((centres * weights[..., None]).sum(1) - axis[:, 0]).max() < 1e-12


def test_read_back_keeps_to_the_values_and_joins_at_the_seam():
    values = torch.rand(1, 320, 1, dtype=F64)
    at_vertices = vertex_values(values)
    for width in (64, 256):
        image = faces_to_equirectangular(values, width // 2, width, "linear")
        assert at_vertices.min() <= image.min() and image.max() <= at_vertices.max()
        assert (image[..., 0] - image[..., -1]).abs().max() < 12 / width


def test_read_back_gets_gradients():
    values = torch.rand(1, 80, 2, dtype=F64, requires_grad=True)
    with torch.inference_mode():  # tables that were first made here serve later too
        faces_to_equirectangular(values, 5, 9), faces_to_equirectangular(values, 5, 9, "linear")
    for mode in ("nearest", "linear"):
        faces_to_equirectangular(values, 5, 9, mode).sum().backward()
    assert (values.grad.sum((0, 1)) - 90).abs().max() < 1e-9


def test_refuses():
    image, looks = torch.rand(1, 3, 4, 8), torch.rand(5, 3)
    for call, message in (
        (lambda: sample_equirectangular(image[0], looks), r"\(3, 4, 8\)"),
        (lambda: sample_equirectangular(image, looks[0]), r"\(M, 3\) or"),
        (lambda: sample_equirectangular(image, looks, "cubic"), "'cubic'"),
        (lambda: faces_to_equirectangular(torch.rand(1, 80), 4, 8), r"\(1, 80\)"),
        (lambda: faces_to_equirectangular(torch.rand(1, 81, 1), 4, 8), "81 faces"),
        (lambda: faces_to_equirectangular(torch.rand(1, 80, 1), 4, 8, "cubic"), "'cubic'"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


class TestGolden:
    @pytest.fixture
    def case(self, golden):
        return {k: torch.from_numpy(np.asarray(v)) for k, v in golden("erp").items()}

    @pytest.fixture
    def own(self, golden):
        return find(golden("mesh_level3")["centroid"], spherical_mesh(3).centroids)

    def test_pixels(self, case):
        assert (pixel_directions(16, 32) - case["direction"]).abs().max() < 1e-14

    def test_bilinear(self, case):
        found = sample_equirectangular(case["image"][None], case["query"])[0]
        assert (found - case["bilinear"]).abs().max() < 1e-11

    def test_faces(self, case, own):
        found = equirectangular_to_faces(case["image"][None], 3)[0, own]
        assert (found - case["face_from_erp_k0"]).abs().max() < 1e-11
        found = pool_faces(equirectangular_to_faces(case["image"][None], 4))[0, own]
        assert (found - case["face_from_erp_k1_mean"]).abs().max() < 1e-11

    def test_location(self, case):
        from vizoo.panorama.sampling import barycentric

        face, shares = barycentric(case["dir"], 3)
        mesh = spherical_mesh(3)
        assert np.abs(mesh.centroids[face] - case["dir_face_centroid"].numpy()).max() < 1e-12
        assert (shares.sum(1) - 1).abs().max() < 1e-14 and shares.min() >= 0
        at_vertices = 1 + mesh.vertices @ np.array([2.0, -1, 3])
        found = (at_vertices[mesh.faces[face]] * shares.numpy()).sum(1)
        assert np.abs(found - case["dir_interp"].numpy()).max() < 1e-12

    def test_read_back(self, case, own):
        values = torch.empty(1, 1280, 1, dtype=F64)
        values[0, own, 0] = case["face_function_at_centroid"]
        found = faces_to_equirectangular(values, 16, 32)[0, 0]
        assert torch.equal(found, case["erp_nearest"])
        found = faces_to_equirectangular(values, 16, 32, "linear")[0, 0]
        assert (found - case["erp_barycentric_linear"]).abs().max() < 1e-12

    @pytest.mark.parametrize("level", range(5))
    def test_vertices(self, golden, level):
        mesh, want = spherical_mesh(level), golden(f"mesh_level{level}")
        own = find(want["vertex"], mesh.vertices)
        values = torch.from_numpy(public(mesh.centroids))[None, :, None]
        found = vertex_values(values)[0, own, 0].numpy()
        assert np.abs(found - want["vertex_value_linear"]).max() < 1e-12
        weights = vertex_weights(level, CPU)[1].numpy()
        least = weights[np.arange(6) < mesh.incident[1][:, None]].min()
        assert np.abs([least, weights.max()] - want["vertex_weight_range_linear"]).max() < 1e-12

    @pytest.mark.parametrize(
        "height", [64, *(pytest.param(height, marks=pytest.mark.slow) for height in (256, 512))]
    )
    def test_round_trip(self, golden, height):
        want = golden("roundtrip")
        columns = want["columns"].tolist()
        for row in want["table"]:
            row = dict(zip(columns, row, strict=True))
            level = int(row["level"])
            if row["H"] != height:
                continue
            looks = pixel_directions(height, 2 * height)
            truth = torch.from_numpy(public(looks.numpy()))
            faces = equirectangular_to_faces(truth[None, None], level)
            exact = public(spherical_mesh(level).centroids)
            error = (faces[0, :, 0] - torch.from_numpy(exact)).abs().max()
            assert error == pytest.approx(row["face_value_max_error"], rel=0.01)
            share = (1 - looks[..., 1] ** 2).sqrt()
            for mode in ("nearest", "linear"):
                error = faces_to_equirectangular(faces, height, 2 * height, mode)[0, 0] - truth
                rmse = ((error**2 * share).sum() / share.sum()).sqrt()
                assert rmse == pytest.approx(row[f"{mode}_rmse"], rel=0.01)
                assert error.abs().max() == pytest.approx(row[f"{mode}_max"], rel=0.01)


def test_error_falls_by_four_a_level():
    """Of the exact vertex weights, from exact values on the faces."""
    looks = pixel_directions(128, 256)
    share, truth = (1 - looks[..., 1] ** 2).sqrt(), torch.from_numpy(public(looks.numpy()))
    found = []
    for level in (3, 4, 5):
        values = torch.from_numpy(public(spherical_mesh(level).centroids))[None, :, None]
        error = faces_to_equirectangular(values, 128, 256, "linear")[0, 0] - truth
        found.append(((error**2 * share).sum() / share.sum()).sqrt().item())
    assert all(3.3 <= a / b <= 4.5 for a, b in zip(found, found[1:], strict=False)), found
