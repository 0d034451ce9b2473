"""Inference from Python: any image, metric results, files that can be read again."""

import sys
import warnings
from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch
from stereo_fixtures import BlockMatcher, small_clouds  # noqa: F401
from torch import nn

import vizoo
from vizoo.datasets.stereo.calibration import StereoCalibration, write_calibration
from vizoo.vision.io.disparity import read_disparity
from vizoo.vision.io.images import read_pixels, write_image
from vizoo.vision.io.ply import read_ply

CAMERA = StereoCalibration(100.0, 0.5, cx=23.5, cy=15.5, width=48, height=32)


class Ramp(nn.Module):
    """Stands in for a network: disparity grows from 2 px at the top to 12 px at the bottom."""

    def __init__(self, low=2.0, high=12.0):
        super().__init__()
        self.low, self.high = low, high

    def forward(self, left, right):
        rows = torch.linspace(self.low, self.high, left.shape[2], device=left.device)
        return rows[:, None].expand(len(left), 1, -1, left.shape[3]).contiguous()


def shifted(disparity, width=600, height=120):
    """A pair of a smooth texture, tensors, with one disparity everywhere."""
    noise = np.random.default_rng(1).random((height, width + disparity, 3), dtype=np.float32)
    texture = torch.from_numpy(cv2.GaussianBlur(noise, (0, 0), 2.0)).permute(2, 0, 1)
    texture = (texture - texture.min()) / (texture.max() - texture.min())
    return texture[:, :, :width], texture[:, :, disparity:]


@pytest.fixture
def pair(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (2, 32, 48, 3), dtype=np.uint8)
    for image, name in zip(images, ("l.png", "r.png"), strict=True):
        write_image(tmp_path / name, image)
    return tmp_path / "l.png", tmp_path / "r.png"


def test_three_lines(pair, tmp_path):
    predictor = vizoo.StereoPredictor(Ramp())
    result = predictor(*pair)
    written = result.save(tmp_path / "out")
    assert [file.name for file in written] == [
        "l_disparity.pfm",
        "l_disparity.png",
        "l_disparity.npy",
        "l_disparity_colour.png",
        "l_confidence.pfm",
        "l_confidence.png",
    ]
    assert result.disparity.shape == (32, 48) and result.disparity.dtype == np.float32
    np.testing.assert_array_equal(result.image, read_pixels(pair[0]))
    for file, error in zip(written[:3], (0, 1 / 512, 0), strict=True):
        read, valid = read_disparity(file)
        assert valid.all() and np.abs(read[0].numpy() - result.disparity).max() <= error


def test_the_given_network_stays_as_it_is(pair):
    net = vizoo.create_model("fadnet_plus_micro").train()
    vizoo.StereoPredictor(net)
    assert net.training and all(p.requires_grad for p in net.parameters())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_any_size_and_type(dtype):
    predictor = vizoo.StereoPredictor(vizoo.create_model("fadnet_plus_micro"), "cpu", dtype)
    images = torch.rand(2, 3, 37, 71)
    result = predictor(*images)
    assert result.disparity.shape == (37, 71) and result.disparity.dtype == np.float32


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "error"), [("float32", 0.01), ("float16", 0.1)])
def test_gpu_agrees_with_cpu(dtype, error, monkeypatch):
    monkeypatch.delenv("VIZOO_OPS", raising=False)  # kernels alone would refuse the CPU
    net = vizoo.create_model("fadnet_plus_micro")
    images = torch.rand(2, 3, 64, 128)
    wanted = vizoo.StereoPredictor(net, "cpu")(*images).disparity
    found = vizoo.StereoPredictor(net, "cuda", dtype)(*images).disparity
    assert np.abs(found - wanted).mean() <= error * np.abs(wanted).mean()


def test_paths_arrays_and_tensors_agree(pair):
    predictor = vizoo.StereoPredictor(Ramp())
    arrays = [read_pixels(path) for path in pair]
    tensors = [torch.from_numpy(a).permute(2, 0, 1) / 255 for a in arrays]
    for images in (pair, [str(p) for p in pair], arrays, tensors):
        result = predictor(*images)
        np.testing.assert_array_equal(result.image, arrays[0])
    grey = [array[..., 0] for array in arrays]
    for images in (grey, [view.astype(np.uint16) << 4 | 15 for view in grey]):  # of 12 bits
        shown = predictor(*images).image
        assert np.abs(shown - grey[0][..., None].astype(int)).max() <= 1


def test_with_calibration(pair, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "open3d", None)  # a cloud is written without it
    result = vizoo.StereoPredictor(Ramp())(*pair)
    written = result.save(tmp_path / "out", "scene", calibration=CAMERA, formats="npy")
    assert [file.name for file in written] == [
        "scene_disparity.npy",
        "scene_disparity_colour.png",
        "scene_confidence.pfm",
        "scene_confidence.png",
        "scene_depth.npy",
        "scene_depth_colour.png",
        "scene_cloud.png",
        "scene_cloud.ply",
    ]
    depth = np.load(tmp_path / "out" / "scene_depth.npy")
    np.testing.assert_allclose(depth, 50 / result.disparity, rtol=1e-6)
    assert {file.name for file in (tmp_path / "out").iterdir()} == {file.name for file in written}


def test_points(pair):
    result = vizoo.StereoPredictor(Ramp())(*pair)
    points, colours = result.points(CAMERA)
    assert points.shape == colours.shape == (32 * 48, 3) and colours.dtype == np.uint8
    np.testing.assert_allclose(points[0], [-23.5 * 25 / 100, -15.5 * 25 / 100, 25], rtol=1e-5)
    near, _ = result.points(CAMERA, max_depth=10)
    assert 0 < len(near) < len(points) and near[:, 2].max() <= 10
    unknown_centre = StereoCalibration(100.0, 0.5)
    np.testing.assert_allclose(result.points(unknown_centre)[0], points, rtol=1e-5)


def test_of_a_large_cloud_the_picture_shows_a_part(pair, tmp_path, monkeypatch):
    def picture(points, colours, **source):
        shown.append((len(points), len(colours), source))
        return np.zeros((4, 4, 3), np.uint8)

    shown = []
    monkeypatch.setattr("vizoo.stereo.result.cloud_picture", picture)
    monkeypatch.setattr("vizoo.stereo.result._SHOWN", 500)
    vizoo.StereoPredictor(Ramp())(*pair).save(tmp_path, "scene", calibration=CAMERA)
    assert shown == [(384, 384, {"source_focal": 25.0, "source_size": (8, 12)})]
    assert len(read_ply(tmp_path / "scene_cloud.ply")[0]) == 32 * 48


def test_calibration_of_another_size(pair):
    result = vizoo.StereoPredictor(Ramp())(*pair)
    double = StereoCalibration(200.0, 0.5, cx=47.5, cy=31.5, width=96, height=64)
    np.testing.assert_allclose(result.depth(double), result.depth(CAMERA))
    with pytest.raises(ValueError, match=r"480x640 \(height x width\), these have 32x48"):
        result.depth(StereoCalibration(200.0, 0.5, width=640, height=480))


def test_large_disparities_and_the_png(pair, tmp_path):
    result = vizoo.StereoPredictor(Ramp(2, 300))(*pair)
    with pytest.warns(UserWarning, match="no 16-bit PNG"):
        written = result.save(tmp_path / "out")
    assert "l_disparity.png" not in [file.name for file in written]
    with pytest.raises(ValueError, match="300.00 px does not fit"):
        result.save(tmp_path / "out", formats=["png"])
    with pytest.raises(ValueError, match="unknown format 'tiff'"):
        result.save(tmp_path / "out", formats=["tiff"])


def test_nothing_near(pair, tmp_path):
    result = vizoo.StereoPredictor(Ramp(0.1, 0.5))(*pair)
    with pytest.warns(UserWarning, match="nothing within 50 m"):
        result.save(tmp_path / "out", calibration=CAMERA)
    with pytest.warns(UserWarning, match=r"no disparity plus doffs \(-9 px\) is above 0"):
        result.save(tmp_path / "out", calibration=replace(CAMERA, doffs=-9))


def test_refused(pair, tmp_path):
    predictor = vizoo.StereoPredictor(Ramp())
    write_image(tmp_path / "small.png", np.zeros((8, 8, 3), np.uint8))
    with pytest.raises(ValueError, match=r"l.png 32x48 against .*small.png 8x8"):
        predictor(pair[0], tmp_path / "small.png")
    with pytest.raises(FileNotFoundError, match="no such file"):
        predictor(pair[0], tmp_path / "none.png")
    with pytest.raises(ValueError, match=r"right: an image is .* got ndarray of float64 \(8, 8\)"):
        predictor(pair[0], np.zeros((8, 8)))
    with pytest.raises(ValueError, match="output is not finite"):
        vizoo.StereoPredictor(Ramp(float("nan")))(*pair)


@pytest.mark.parametrize("scale", [255.0, -1.0, float("nan")])
def test_tensors_in_another_range(scale):
    image = torch.linspace(0, 1, 3 * 8 * 8).view(3, 8, 8)
    predictor = vizoo.StereoPredictor(Ramp())
    predictor(image * 1.004, image)  # what interpolation leaves
    with pytest.raises(
        ValueError, match=r"right: values from .* to .*; a float tensor holds 0 to 1"
    ):
        predictor(image, image * scale)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float8"}, "dtype 'float8' is not one of"),
        ({"dtype": "float16", "device": "cpu"}, "float16 needs a GPU"),
        ({"device": "tpu"}, "device 'tpu' cannot be used here"),
        ({"device": "cuda:99"}, "device 'cuda:99' cannot be used here"),
    ],
)
def test_device_and_dtype(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        vizoo.StereoPredictor(Ramp(), **options)
    assert "\n" not in str(caught.value)


def test_models_without_weights(tmp_path):
    with pytest.raises(ValueError, match="did you mean fadnet_plus_tiny"):
        vizoo.StereoPredictor("fadnet_plus_tyny")
    with pytest.raises(FileNotFoundError, match="no such weight file"):
        vizoo.StereoPredictor(tmp_path / "none.safetensors")
    (tmp_path / "a.safetensors").write_bytes(b"broken")
    with pytest.raises(ValueError, match=r"a\.safetensors"):
        vizoo.StereoPredictor(tmp_path / "a.safetensors")


def test_weight_file_of_a_real_network(pair, tmp_path):
    net = vizoo.create_model("fadnet_plus_micro").eval()
    vizoo.save_weights(net, tmp_path / "micro.safetensors")
    result = vizoo.StereoPredictor(tmp_path / "micro.safetensors", device="cpu")(*pair, scale=1)
    images = [torch.from_numpy(read_pixels(p)).permute(2, 0, 1)[None] / 255 for p in pair]
    with torch.no_grad():
        wanted = net(*images)[0, 0].numpy()
    np.testing.assert_allclose(result.disparity, wanted, rtol=1e-3, atol=1e-3)


def test_a_network_says_how_far_it_reaches():
    reach = {"easnet_small": 96, "fadnet_plus_micro": 192}
    found = {name: vizoo.StereoPredictor(vizoo.create_model(name)).max_disparity for name in reach}
    assert found == reach
    net = vizoo.create_model("easnet_small", max_disparity=48)
    assert vizoo.StereoPredictor(net).max_disparity == 48
    assert vizoo.StereoPredictor(Ramp()).max_disparity is None


def test_a_small_pair_is_looked_at_as_it_is(monkeypatch):
    predictor, seen = vizoo.StereoPredictor(BlockMatcher(30)), []
    maps = predictor.maps

    def counted(left, right, *rest, **more):
        seen.append(tuple(left.shape[-2:]))
        return maps(left, right, *rest, **more)

    monkeypatch.setattr(predictor, "maps", counted)
    predictor(*shifted(4, width=256, height=96))
    assert seen and set(seen) == {(96, 256)}


def test_what_is_too_near_is_matched_smaller():
    views = shifted(48)
    predictor = vizoo.StereoPredictor(BlockMatcher(30))
    assert predictor.reach == 30 and predictor.max_disparity is None
    with pytest.warns(
        UserWarning, match="about 48 px, beyond the network's 30 px: .* matched at 0.48 of its size"
    ) as said:
        result = predictor(*views)
    assert said[0].filename == __file__
    assert result.scale == 0.48 and result.disparity.shape == (120, 600)
    assert np.median(np.abs(result.disparity[:, 60:] - 48)) < 0.1
    small = predictor(*views, scale=0.25)
    assert small.scale == 0.25 and np.median(np.abs(small.disparity[:, 60:] - 48)) < 4
    with pytest.warns(UserWarning, match="comes out wrong; take the scale 0.48 or auto"):
        kept = predictor(*views, scale=1)
    assert kept.scale == 1 and kept.disparity.max() < 30


def test_what_is_within_reach_stays_as_it_is():
    predictor = vizoo.StereoPredictor(BlockMatcher(60))
    views = shifted(48)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = predictor(*views)
    assert result.scale == 1
    np.testing.assert_array_equal(result.disparity, predictor(*views, scale=1).disparity)


class Brightness(nn.Module):
    """Stands in for a network: what is bright is 20 px away, what is dark 5."""

    def forward(self, left, right):
        return torch.where(left.mean(dim=1, keepdim=True) > 0.5, 20.0, 5.0)


@pytest.mark.parametrize("edge", [40, 41, 42, 43])
def test_edges_stay_where_the_picture_has_them(edge):
    """Matched at a smaller scale, near and far meet without anything between them."""
    left = torch.full((3, 60, 97), 0.1)
    left[:, 7:, edge:] = 0.9
    predictor = vizoo.StereoPredictor(Brightness())
    disparity = predictor(left, left.roll(-4, -1), scale=0.4, check=False).disparity
    far, near = disparity.min(), disparity.max()
    assert near == pytest.approx(4 * far)
    assert np.minimum(disparity - far, near - disparity).max() < 0.5 / 0.4 + 0.1
    rows, columns = np.nonzero(disparity > 30)
    assert abs(rows.min() - 7) <= 1 and abs(columns.min() - edge) <= 1
    assert len(rows) == (60 - rows.min()) * (97 - columns.min()), "the corner is square"


def test_slopes_are_enlarged_smoothly():
    left = torch.rand(3, 64, 96, generator=torch.Generator().manual_seed(0))
    ramp = vizoo.StereoPredictor(Ramp(2, 6))
    rows = ramp(left, left.roll(-4, -1), scale=0.5, check=False).disparity[:, 0]
    steps = np.diff(rows[1:-1])
    assert steps.min() > 0.5 * steps.max() > 0


def test_a_pair_of_one_column_is_looked_at():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = vizoo.StereoPredictor(BlockMatcher(60))(*torch.rand(2, 3, 40, 1))
    assert result.disparity.shape == (40, 1)


@pytest.mark.parametrize("scale", [0, 1.5, -1, "half", None])
def test_scales_that_are_none(pair, scale):
    with pytest.raises(ValueError, match="scale is above 0 and at most 1, or 'auto', not"):
        vizoo.StereoPredictor(Ramp())(*pair, scale=scale)


def test_a_scale_of_numpy(pair):
    assert vizoo.StereoPredictor(Ramp())(*pair, scale=np.float32(0.5)).scale == 0.5


def test_a_real_network_gets_near_things_back():
    """Its own disparities end far below these."""
    left, right = shifted(130)
    predictor = vizoo.StereoPredictor("easnet_small", device="cpu")
    assert predictor.reach == vizoo.model_info("easnet_small").record.reach
    wanted = 130
    with pytest.warns(UserWarning, match="disparities reach about 1[23]"):
        found = predictor(left, right, check=False).disparity
    with pytest.warns(UserWarning, match="comes out wrong"):
        kept = predictor(left, right, scale=1).disparity
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predictor(left, right, scale=1, check=False)
    assert np.median(np.abs(found[:, wanted:] - wanted)) < 3
    assert np.median(np.abs(kept[:, wanted:] - wanted)) > 20


def test_a_swapped_pair_is_said():
    left, right = shifted(20)
    predictor = vizoo.StereoPredictor(Ramp())
    with pytest.warns(UserWarning, match="left and right look swapped"):
        predictor(right, left)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predictor(right, left, check=False)
        predictor(left, right)


def test_matches_beyond_the_right_image_are_said(pair):
    """Where keypoints are too few to tell that a pair is swapped; of a small one that it is."""
    said = r"edge of the right image: 32x48 pixels are too few to match \(128x256 are enough\), or "
    with pytest.warns(UserWarning, match=f"75% of the pixels are matched beyond the {said}"):
        vizoo.StereoPredictor(Ramp(36, 36))(*pair)
    with pytest.warns(UserWarning, match=r"the right image: are left and right swapped, or"):
        vizoo.StereoPredictor(Ramp(400, 400))(*shifted(20, height=128))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vizoo.StereoPredictor(Ramp(36, 36))(*pair, check=False)


def test_no_disparity_is_looked_for_beyond_the_width(pair):
    near = Ramp(500, 500)
    near.reach = 24
    with pytest.warns(UserWarning, match="disparities reach about 48 px"):
        vizoo.StereoPredictor(near)(*pair)
    far = vizoo.StereoPredictor(near)(*pair, max_disparity=1e5, check=False)
    assert far.scale == 0.5


def test_there_is_nothing_to_match(pair):
    predictor = vizoo.StereoPredictor(Ramp())
    with pytest.raises(ValueError, match="left and right are the same picture"):
        predictor(pair[0], pair[0])
    grey = np.full((32, 48, 3), 90, np.uint8)
    with pytest.raises(ValueError, match="the right image is all of one colour: .* to match"):
        predictor(pair[0], grey)
    with pytest.raises(ValueError, match="the left image is all of one colour"):
        predictor(grey, grey)


def test_names_of_results(pair):
    predictor = vizoo.StereoPredictor(Ramp())
    assert predictor(*pair).name == predictor(str(pair[0]), str(pair[1])).name == "l"
    assert predictor(*map(read_pixels, pair)).name == "pair"


def test_results_are_told_apart(pair):
    predictor = vizoo.StereoPredictor(Ramp())
    first, second = predictor(*pair), predictor(*pair)
    assert first != second and second in [first, second] and len({first, second}) == 2


def test_a_calibration_by_its_file(pair, tmp_path):
    write_calibration(tmp_path / "calib.txt", CAMERA)
    result = vizoo.StereoPredictor(Ramp())(*pair)
    for file in (tmp_path / "calib.txt", str(tmp_path / "calib.txt")):
        np.testing.assert_allclose(result.depth(file), result.depth(CAMERA), rtol=1e-6)
        np.testing.assert_allclose(result.points(file)[0], result.points(CAMERA)[0], rtol=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Open3D may be missing
        written = result.save(tmp_path / "out", calibration=str(tmp_path / "calib.txt"))
    assert "l_depth.npy" in {file.name for file in written}
    with pytest.raises(FileNotFoundError, match="none.txt: no such calibration file"):
        result.save(tmp_path / "out", calibration="none.txt")


def test_time_is_estimated_by_size():
    predictor = vizoo.StereoPredictor(BlockMatcher(8), device="cpu")
    assert 0 < predictor.estimate(64, 128) < predictor.estimate(6000, 8000)


def test_a_scale_that_leaves_nothing(pair):
    predictor = vizoo.StereoPredictor(Ramp(), "cpu")
    left, right = pair
    with pytest.raises(ValueError, match=r"at 0.01 of \d+x\d+ pixels .* take 0\.\d+ at least"):
        predictor(left, right, scale=0.01, check=False)
