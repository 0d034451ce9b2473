"""`PanoramaPredictor`: what it gives for a room whose depth is known, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from vizoo import PanoramaPredictor
from vizoo.panorama.infer import FORMATS
from vizoo.panorama.mesh import spherical_mesh
from vizoo.panorama.sampling import faces_to_equirectangular, pixel_directions
from vizoo.panorama.spheredepth import Prediction, SphereDepthNet
from vizoo.vision.io.exr import read_exr
from vizoo.vision.io.images import read_pixels, write_image
from vizoo.vision.io.pfm import read_pfm
from vizoo.vision.io.ply import read_ply

WALLS = (3.0, 1.5, 2.0)  # of a box around the camera, metres


class Box(nn.Module):
    """Knows the depth of an empty box; colours its faces by where they lie."""

    def __init__(self, level=4, scale=1.0):
        super().__init__()
        looks = torch.tensor(spherical_mesh(level).centroids, dtype=torch.float32)
        self.register_buffer("colours", (looks[None] + 1) / 2)
        self.faces = nn.Parameter(scale * (torch.tensor(WALLS) / looks.abs()).amin(1)[None])

    def predict(self, image):
        depth = faces_to_equirectangular(self.faces[..., None], *image.shape[-2:])
        return Prediction(depth, self.faces, self.colours)


@pytest.fixture(scope="module")
def result():
    """Of an image that is coloured by where it looks, as the faces are."""
    image = (pixel_directions(40, 80).float() + 1) / 2
    return PanoramaPredictor(Box(), "cpu")(image.permute(2, 0, 1))


def test_points_lie_on_the_walls(result):
    points, colours = result.points()
    assert points.shape == colours.shape == (5120, 3) and colours.dtype == np.uint8
    assert np.allclose((np.abs(points) / WALLS).max(1), 1, atol=1e-5)
    # x right, y up, z backward: what is coloured as ahead has a negative z.
    side = np.sign(colours.astype(int) - 127.5)
    assert (side * points * [1, 1, -1] >= -0.05).all()


def test_surface_shows_its_front_to_the_camera(result):
    surface = result.surface()
    corners = surface.vertices.numpy()[surface.triangles.numpy()]
    normals = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    assert ((normals * corners.mean(1)).sum(1) < 0).all()
    assert len(surface.triangles) == 5120
    assert len(result.surface(1.001).triangles) < 5120


def test_files_hold_the_depth(result, tmp_path, small_views):
    files = result.save(tmp_path / "new" / "out", "box")
    assert sorted(files) == sorted((tmp_path / "new" / "out").iterdir())
    assert [f.name.removeprefix("box_") for f in files] == [
        *(f"depth.{suffix}" for suffix in FORMATS),
        "depth_colour.png",
        "cloud.ply",
        "mesh.ply",
        "preview.png",
    ]
    png, npy, exr, pfm = files[:4]
    assert all(
        np.array_equal(x, result.depth) for x in (np.load(npy), read_exr(exr), read_pfm(pfm))
    )
    stored = read_pixels(png)
    assert stored.dtype == np.uint16 and np.abs(stored / 1000 - result.depth).max() <= 0.5e-3 + 1e-6
    points, colours = read_ply(files[5])
    assert np.array_equal(points, result.points()[0])
    assert np.array_equal(colours, result.points()[1])
    vertices, _ = read_ply(files[6])
    assert len(vertices) == len(spherical_mesh(4).vertices)
    assert [f.name for f in result.save(tmp_path, formats=["exr", "exr"])][:2] == [
        "panorama_depth.exr",
        "panorama_depth_colour.png",
    ]


def test_files_of_an_earlier_result_are_named(result, tmp_path, small_views):
    for old in ("box_depth.npy", "box_cloud.ply", "other_depth.png"):
        (tmp_path / old).touch()
    with pytest.warns(UserWarning, match=r"not of this one: \S+box_depth\.npy$") as said:
        result.save(tmp_path, "box", formats=["exr"])
    assert len(said) == 1


def test_preview_looks_ahead(result):
    """The wall ahead in the middle, the right one on the right, the ceiling above."""
    picture = result.preview((60, 80)).astype(int)
    ahead, right, above = picture[30, 40], picture[30, 77], picture[2, 40]
    assert ahead[2] > 230 and abs(ahead[0] - 127) < 20 and abs(ahead[1] - 127) < 20
    assert right[0] > 200 and above[1] > 200


def test_linear_read_back():
    image = torch.rand(3, 64, 128)
    predictor = PanoramaPredictor(Box(), "cpu")
    steps, smooth = (predictor(image, mode).depth for mode in ("nearest", "linear"))
    exact = faces_to_equirectangular(Box().faces[..., None], 64, 128, "linear")[0, 0]
    assert np.array_equal(smooth, exact.detach().numpy()) and not np.array_equal(smooth, steps)
    with pytest.raises(ValueError, match="read-back 'cubic'"):
        predictor(image, "cubic")


def test_too_far_for_a_png(tmp_path, small_views):
    result = PanoramaPredictor(Box(scale=40.0), "cpu")(torch.rand(3, 16, 32))
    with pytest.warns(UserWarning, match=r"ends at 65\.5"):
        files = result.save(tmp_path)
    assert not any(f.name.endswith("depth.png") for f in files) and files[0].suffix == ".npy"
    with pytest.raises(ValueError, match="does not fit.*choose npy"):
        result.save(tmp_path, formats=["png"])
    with pytest.raises(ValueError, match="unknown format 'tif'"):
        result.save(tmp_path, formats=["tif"])


@pytest.mark.parametrize("head", ["mesh", "face"])
def test_a_network(head):
    """Faster form, equal depths; colours of the faces that have depths."""
    torch.manual_seed(0)
    net = SphereDepthNet(
        widths=(4, 4, 4, 4, 4), mesh_level=4, texture_level=1, blocks=1, decoder_convs=1, head=head
    ).eval()
    image = torch.rand(3, 33, 66)
    result = PanoramaPredictor(net, "cpu")(image)
    with torch.inference_mode():
        found = net.predict(image[None])
    np.testing.assert_allclose(result.depth, found.depth[0, 0], rtol=1e-4)
    assert result.faces.shape == found.faces[0].shape == result.colours.shape[:1]
    rough = PanoramaPredictor(net, "cpu", "bfloat16")(image)
    np.testing.assert_allclose(rough.depth, result.depth, rtol=0.05)
    assert any(p.requires_grad for p in net.parameters())


def test_shapes_of_images(tmp_path):
    """Grey, with alpha, 10 of 16 bits; another ratio is said."""
    predictor = PanoramaPredictor(Box(), "cpu")
    for mode, pixels, shown in (
        ("L", (8, 16), 200),
        ("RGBA", (8, 16, 4), 200),
        ("I;16", (8, 16), 50),
    ):
        from PIL import Image

        kind = np.uint16 if mode == "I;16" else np.uint8
        Image.fromarray(np.full(pixels, 200, kind)).save(tmp_path / "image.png")
        image = predictor(tmp_path / "image.png").image
        assert image.shape == (8, 16, 3) and (image == shown).all()
    assert (predictor(np.full((8, 16), 200, np.uint16)).image == 50).all()
    write_image(tmp_path / "odd.png", torch.rand(3, 9, 16))
    with pytest.warns(UserWarning, match="9x16 pixels are not twice as wide as high") as told:
        odd = predictor(tmp_path / "odd.png")
    assert odd.depth.shape == (9, 16) and told[0].filename == __file__
    again = predictor(odd.image[:8])
    assert again != odd and odd in [again, odd]


@pytest.mark.parametrize("size", [(197, 393), (200, 401), (200, 402), (9, 17)])
def test_half_a_per_cent_off_is_a_panorama(size, recwarn):
    assert PanoramaPredictor(Box(), "cpu")(torch.rand(3, *size)).depth.shape == size
    assert not recwarn.list


def test_refuses():
    with pytest.raises(ValueError, match="bfloat16"):
        PanoramaPredictor(Box(), "cpu", "float8")
    broken = Box()
    broken.faces.data[0, 7] = float("nan")
    with pytest.raises(ValueError, match="not finite"):
        PanoramaPredictor(broken, "cpu")(torch.rand(3, 8, 16))
    with pytest.raises(ValueError, match="image"):
        PanoramaPredictor(Box(), "cpu")(torch.rand(8, 16))


def test_cuts_where_depth_jumps(result):
    """A wall before a wall: no triangle joins them, and no vertex is left over."""
    mesh = spherical_mesh(4)
    depth = np.where(mesh.centroids[:, 0] > 0.3, np.float32(1), np.float32(3))
    whole, surface = (replace(result, faces=depth).surface(ratio) for ratio in (None, 1.5))
    assert (whole.triangles.numpy() == mesh.faces).all()
    assert whole.vertices.shape == whole.colours.shape == (len(mesh.vertices), 3)
    assert 0 <= whole.colours.min() and whole.colours.max() <= 1
    assert 5120 > len(surface.triangles) > 4500
    far = surface.vertices.norm(dim=1)[surface.triangles]
    assert (far.amax(1) <= 1.5 * far.amin(1) + 1e-6).all()
    assert surface.triangles.unique().numel() == len(surface.vertices)
    for wrong in (0.5, float("nan")):
        with pytest.raises(ValueError, match=f"max_ratio {wrong}"):
            result.surface(wrong)
