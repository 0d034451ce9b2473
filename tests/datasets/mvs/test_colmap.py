"""COLMAP models: text and binary say the same, damage is named, ETH3D's true depth is found."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vizoo.datasets.draws import Draws
from vizoo.datasets.mvs import open_scene, write_scene
from vizoo.datasets.mvs.colmap import _distort, _rotation_of
from vizoo.datasets.mvs.colmap_model import Camera, _quaternion_of, read_model

CAMERAS = "# comment\n1 PINHOLE 64 48 70.5 71 32 24\n2 SIMPLE_RADIAL 64 48 70 32 24 0\n"
IMAGES = "# comment\n1 1 0 0 0 0 0 0 1 b.png\n1.5 2 7 3 4 -1\n2 1 0 0 0 -1 0 0 2 a name.png\n\n"
POINTS = "# comment\n7 0.5 0.25 4 255 0 0 0.1 1 0\n9 0 0 5 0 0 0 0.1\n"
TEXTS = {"cameras.txt": CAMERAS, "images.txt": IMAGES, "points3D.txt": POINTS}


def write_texts(folder, **changes):
    for name, text in TEXTS.items():
        (folder / name).write_text(changes.get(name.split(".")[0], text))
    return folder


def test_text(tmp_path):
    model = read_model(write_texts(tmp_path))
    assert [p.name for p in model.photographs] == ["a name.png", "b.png"]  # sorted
    assert model.photographs[1].points.tolist() == [7]
    assert model.cameras[2].model == "SIMPLE_RADIAL"
    assert model.point_ids.tolist() == [7, 9] and model.points[0].tolist() == [0.5, 0.25, 4]


def test_text_of_a_large_reconstruction(tmp_path):
    """It may fill more bytes than any other text file that is read."""
    comment = "#" + " " * (1 << 26) + "\n"
    model = read_model(write_texts(tmp_path, images=comment + IMAGES))
    assert len(model.photographs) == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cameras": "1 PINHOLE 64 48 70 71 32\n"}, "cameras.txt, line 1: 6 words, want 7"),
        ({"cameras": "1 FISH 64 48 70\n"}, "line 1: no camera model is called 'FISH'"),
        ({"cameras": "1 PINHOLE 64 48 70 71 x 24\n"}, "line 1: 'x' is not a number"),
        ({"images": "1 1 0 0 0 0 0 0 1\n\n"}, "images.txt, line 1: the image has no name"),
        ({"images": "1 1 0 0 0 0 0 0 1 a.png\n1 2\n"}, "line 2: want 'x y point'"),
        (
            {"images": "1 1 0 0 0 0 0 0 5 a.png\n\n"},
            "a.png is of camera 5, which cameras.txt lacks",
        ),
        ({"images": "# nothing\n"}, "images.txt: the model has no image"),
        ({"images": "1 nan 0 0 0 0 0 0 1 a.png\n\n"}, "line 1: a number is not finite"),
        ({"images": f"1 1 0 0 0 0 0 0 1 a.png\n1 2 {10**400}\n"}, "line 2: .* or too large"),
        ({"cameras": " \n"}, "cameras.txt: the COLMAP file is empty"),
        ({"points3D": "7 1 2\n"}, "points3D.txt, line 1: 3 words, want 4"),
    ],
)
def test_damaged_text_is_named(tmp_path, changes, said):
    with pytest.raises(ValueError, match=said):
        read_model(write_texts(tmp_path, **changes))


def test_binary_is_the_text(scene, tmp_path):
    text = read_model(write_scene(scene, tmp_path / "t", "colmap") / "sparse")
    binary = read_model(write_scene(scene, tmp_path / "b", "colmap_binary") / "sparse")
    assert text.cameras == binary.cameras and binary.suffix == ".bin"
    assert np.array_equal(text.points, binary.points) and len(text.points) > 100
    for a, b in zip(text.photographs, binary.photographs, strict=True):
        assert a[:4] == b[:4] and np.array_equal(a.points, b.points) and len(a.points)


@pytest.mark.parametrize("kind", ["cameras", "images", "points3D"])
def test_binary_cut_anywhere(scene, tmp_path, kind):
    folder = write_scene(scene, tmp_path, "colmap_binary") / "sparse"
    file = folder / f"{kind}.bin"
    whole = file.read_bytes()
    for cut in (3, 9, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match=rf"{kind}.bin: cut short.* at byte \d+"):
            read_model(folder)
    file.write_bytes(whole + b"\0")
    with pytest.raises(ValueError, match="1 bytes too many"):
        read_model(folder)


@given(data=st.data(), name=st.sampled_from([*TEXTS, "images.bin"]))
def test_any_damage_is_one_clear_line(tmp_path_factory, data, name):
    folder = write_texts(tmp_path_factory.mktemp("model"))
    if name == "images.bin":
        (folder / "cameras.bin").write_bytes(bytes(8))
        (folder / name).write_bytes(data.draw(st.binary(max_size=200)))
    else:
        whole = TEXTS[name]
        start = data.draw(st.integers(0, len(whole)))
        end = data.draw(st.integers(start, min(len(whole), start + 20)))
        text = whole[:start] + data.draw(st.text(max_size=20)) + whole[end:]
        (folder / name).write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        read_model(folder)
    except ValueError as error:
        assert str(folder) in str(error) and "\n" not in str(error)


def test_distortion_and_quaternions_are_refused(scene, tmp_path):
    path = write_scene(scene, tmp_path, "colmap")
    cameras = path / "sparse/cameras.txt"
    good = cameras.read_text()
    cameras.write_text(good.replace("1 PINHOLE 64 48", "1 SIMPLE_RADIAL 64 48", 1))
    with pytest.raises(ValueError, match="camera 1 is distorted .SIMPLE_RADIAL.; undistort first"):
        open_scene(path)
    newer = write_scene(scene, tmp_path / "newer", "colmap_binary")
    file = newer / "sparse/cameras.bin"
    content = file.read_bytes()
    file.write_bytes(content[:12] + (15).to_bytes(4, "little") + content[16:])
    with pytest.raises(ValueError, match="cameras.bin: camera 1 is distorted .FISHEYE.; undistort"):
        open_scene(newer)
    cameras.write_text(good.replace(" 64 48 ", " 65 48 "))
    said = "00000000.jpg: 48x64 pixels, but its camera in .* 48x65 "
    said += r"\(height x width\): give the photographs that"
    with pytest.raises(ValueError, match=said):
        open_scene(path).sample(0, [1])
    cameras.write_text(good)
    images = path / "sparse/images.txt"
    images.write_text(images.read_text().replace("\n1 ", "\n1 9", 1))
    with pytest.raises(ValueError, match="images.txt: 00000000.jpg: the quaternion is not a rot"):
        open_scene(path)


def test_quaternions_there_and_back():
    draws = Draws("quaternions")
    turns = [draws.rotation() for _ in range(50)]
    turns += [np.diag(signs) for signs in ((1, 1, 1), (1, -1, -1), (-1, 1, -1), (-1, -1, 1))]
    for turn in turns:
        turn = torch.from_numpy(np.array(turn, dtype=float))
        torch.testing.assert_close(_rotation_of(_quaternion_of(turn), ""), turn)


def test_principal_points_are_half_a_pixel_apart(tmp_path, scene):
    path = write_scene(scene, tmp_path, "colmap")
    words = (path / "sparse/cameras.txt").read_text().splitlines()[1].split()
    assert float(words[6]) == pytest.approx(scene.views[0].intrinsics[0, 2].item() + 0.5)


def test_photographs_lie_as_they_are_stored(tmp_path, scene):
    """COLMAP does not look at the orientation that a camera notes: its cameras are of these."""
    path = write_scene(scene, tmp_path, "colmap", lossless=True)
    exif = Image.Exif()
    exif[0x0112] = 8
    for file in (path / "images").iterdir():
        Image.open(file).save(file, exif=exif)
    turned = open_scene(path)
    assert turned.size(0) == (48, 64)
    assert (turned.image(0) - scene.image(0)).abs().max() < 0.01


def test_a_range_beyond_the_sparse_points_is_said(scene, tmp_path):
    scene = open_scene(write_scene(scene, tmp_path, "colmap"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        least, greatest = scene.with_range(*scene.depth_range(0)[0]).depth_range(0)[0]
    with pytest.warns(UserWarning, match="sparse points lie at .*; is it in the cameras' unit"):
        scene.with_range(1000 * least, 1000 * greatest)


@pytest.mark.parametrize("first", ["colmap", "colmap_binary"])
def test_the_model_written_last_is_read(tmp_path, scene, first):
    last = {"colmap": "colmap_binary", "colmap_binary": "colmap"}[first]
    write_scene(scene, tmp_path, first)
    views = [replace(view, intrinsics=view.intrinsics * 1.0) for view in scene.views]
    for view in views:
        view.intrinsics[0, 0] += 5
    changed = replace(scene, views=views)
    again = open_scene(write_scene(changed, tmp_path, last))
    assert again.views[0].intrinsics[0, 0] == pytest.approx(views[0].intrinsics[0, 0].item())
    assert len({file.suffix for file in (tmp_path / "sparse").iterdir()}) == 1


class TestETH3D:
    def test_without_truth_and_without_its_calibration(self, scene, tmp_path):
        path = write_scene(scene, tmp_path, "eth3d")
        (path / "ground_truth_depth").rename(path / "elsewhere")
        assert not open_scene(path).has_truth

    def test_points_of_the_distorted_photographs_are_not_read(self, scene, tmp_path):
        path = write_scene(scene, tmp_path, "eth3d")
        (path / "dslr_calibration_jpg/points3D.txt").write_text("none\n")
        assert open_scene(path).has_truth

    def test_truth_of_another_size(self, scene, tmp_path):
        path = write_scene(scene, tmp_path, "eth3d")
        file = path / "ground_truth_depth/dslr_images/00000002.JPG"
        file.write_bytes(file.read_bytes()[:-4])
        with pytest.raises(ValueError, match="00000002.JPG: 3071 values, .* 48x64 pixels"):
            open_scene(path).depth(2)

    def test_unknown_depth_is_infinite(self, scene, tmp_path):
        path = write_scene(scene, tmp_path, "eth3d")
        file = path / "ground_truth_depth/dslr_images/00000002.JPG"
        depth = np.fromfile(file, "<f4")
        depth[:5] = np.inf
        depth.tofile(file)
        assert (~open_scene(path).depth(2)[1]).sum() == 5

    def test_depth_is_looked_up_through_the_fisheye(self, scene, tmp_path):
        """A map of the fisheye's columns gives every undistorted pixel its distorted column."""
        path = write_scene(scene, tmp_path, "eth3d")
        cameras = path / "dslr_calibration_jpg/cameras.txt"
        lines = cameras.read_text().splitlines()
        focal = [float(word) for word in lines[1].split()[4:]]
        bend = "0.01 -0.002 0.001 -0.001 0.003 0.0 0.0005 -0.0005"
        lines[1] = "1 THIN_PRISM_FISHEYE 64 48 " + " ".join(map(str, focal)) + " " + bend
        cameras.write_text("\n".join(lines))
        columns = np.broadcast_to(np.arange(1, 65, dtype="<f4"), (48, 64))
        columns.tofile(path / "ground_truth_depth/dslr_images/00000000.JPG")
        depth, valid = open_scene(path).depth(0)
        camera = Camera("THIN_PRISM_FISHEYE", 64, 48, (*focal, *map(float, bend.split())))
        x = (np.arange(64) + 0.5 - focal[2]) / focal[0]
        u, _ = _distort(camera, x, np.zeros(64), "")
        row = round(focal[3])
        found = depth[0, row].numpy()
        assert valid[0, row].all() and np.abs(found - 0.5 - u).max() < 0.7
        assert np.abs(u - (np.arange(64) + 0.5)).max() > 0.5  # the fisheye matters

    def test_fisheye_of_the_axis_and_far_from_it(self):
        camera = Camera("THIN_PRISM_FISHEYE", 100, 80, (50.0, 60.0, 49.0, 39.0, *[0.0] * 8))
        u, v = _distort(camera, np.array([0.0, 1.0, 0.0]), np.array([0.0, 0.0, 1.0]), "")
        assert u.tolist() == pytest.approx([49, 49 + 50 * np.pi / 4, 49])
        assert v.tolist() == pytest.approx([39, 39, 39 + 60 * np.pi / 4])
