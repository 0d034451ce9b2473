"""Layouts: what is written is what is opened; what is missing or wrong is named."""

from __future__ import annotations

import functools
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mvs_fixtures import small_scene

from vizoo.datasets.draws import rotation_matrix
from vizoo.datasets.mvs import open_scene, write_scene
from vizoo.datasets.mvs.cameras import camera_centre
from vizoo.datasets.mvs.dtu import open_dtu_training
from vizoo.datasets.mvs.layouts import LAYOUTS
from vizoo.datasets.mvs.scene import near_origin
from vizoo.datasets.mvs.writers import WRITERS
from vizoo.vision.io.images import write_image
from vizoo.vision.io.pfm import read_pfm, write_pfm

SMALL = sorted(set(WRITERS) - {"dtu_training"})
WITH_TRUTH = {"blendedmvs", "dtu_training", "eth3d", "folder"}


def written(scene, folder, layout):
    return write_scene(scene, folder / "scan1", layout, lossless=True)


@functools.cache
def _folder_of_two(base):
    scene = small_scene(views=2, height=16, width=32)
    return write_scene(scene, Path(base) / "two", "folder", lossless=True)


def check_round_trip(scene, path, layout):
    opened = open_scene(path)
    assert opened.layout == {"tanks": "dtu", "colmap_binary": "colmap"}.get(layout, layout)
    assert len(opened) == len(scene)
    for index in range(len(scene)):
        a, b = scene.views[index], opened.views[index]
        assert torch.equal(a.intrinsics, b.intrinsics)
        torch.testing.assert_close(a.extrinsics, b.extrinsics, rtol=0, atol=1e-6)
        torch.testing.assert_close(scene.image(index), opened.image(index), rtol=0, atol=1e-6)
        assert opened.size(index) == scene.size(index)
        assert opened.sources(index)[0] == scene.sources(index)[0]
        if layout in WITH_TRUTH:
            depth, valid = opened.depth(index)
            assert torch.equal(depth, scene.depth(index)[0]) and valid.all()
        else:
            assert opened.depth(index) is None
        least, greatest = opened.depth_range(index)[0]
        known = scene.depth(index)[0]
        if layout in ("colmap", "colmap_binary", "eth3d"):
            assert known.min() * 0.99 < least < greatest < known.max() * 1.01
        else:
            assert (least, greatest) == pytest.approx(a.depth_range)
    sample = opened.sample(1, opened.sources(1, 2))
    assert sample["images"].shape[0] == 3 and sample["valid"].all() == (layout in WITH_TRUTH)


@pytest.mark.parametrize("layout", SMALL)
def test_round_trip(scene, tmp_path, layout):
    check_round_trip(scene, written(scene, tmp_path, layout), layout)


def test_round_trip_of_dtu_training(scene_of_dtu_size, dtu):
    path = dtu / "Rectified" / "scan7_train"
    check_round_trip(scene_of_dtu_size, path, "dtu_training")
    camera = (dtu / "Cameras_1/scan7_train/00000000_cam.txt").read_text().splitlines()
    quarter = scene_of_dtu_size.views[0].intrinsics[0, 0].item() / 4
    assert float(camera[7].split()[0]) == pytest.approx(quarter)
    bright, dark = (open_dtu_training(dtu, "scan7", [light]).image(0) for light in (6, 0))
    assert bright.mean() > 1.5 * dark.mean()
    with pytest.raises(ValueError, match=r"is opened by scan: .*scan7_train"):
        open_scene(dtu)
    with pytest.raises(ValueError, match=r"lights \[7\]"):
        open_dtu_training(dtu, "scan7", [7])
    # As MVSNet itself lays it out: one set of cameras for all scans.
    shutil.move(dtu / "Cameras_1/scan7_train", dtu / "Cameras/train")
    check_round_trip(scene_of_dtu_size, path, "dtu_training")
    (dtu / "Depths/scan7/depth_map_0001.pfm").unlink()
    with pytest.raises(FileNotFoundError, match="1 of 3 depth maps missing, first .*map_0001.pfm"):
        open_dtu_training(dtu, "scan7")


def test_dtu_masks_restrict_and_sizes_are_checked(dtu):
    path = dtu / "Rectified" / "scan7_train"
    mask = np.full((1200, 1600), 255, np.uint8)
    mask[88:288] = 0  # of the photograph the first hundred rows
    write_image(dtu / "Depths/scan7/depth_visual_0000.png", mask)
    depth, valid = open_scene(path).depth(0)
    assert not valid[:, :100].any() and valid[:, 100:].all() and not depth[:, :100].any()
    write_image(dtu / "Depths/scan7/depth_visual_0000.png", mask[:600])
    with pytest.raises(ValueError, match="depth_visual_0000.png: 600x1600 pixels, want 1200x1600"):
        open_scene(path).depth(0)


def test_jpeg_is_near(scene, tmp_path):
    opened = open_scene(write_scene(scene, tmp_path, "dtu"))
    assert opened.views[0].image.endswith("00000000.jpg")
    assert (opened.image(0) - scene.image(0)).abs().mean() < 0.02


@pytest.mark.parametrize("layout", ["dtu", "blendedmvs"])
@pytest.mark.parametrize("lossless", [True, False])
def test_the_photographs_written_last_are_read(scene, tmp_path, layout, lossless):
    dark = replace(scene, views=[replace(v, image=0.1 * v.image) for v in scene.views])
    write_scene(scene, tmp_path, layout, lossless=not lossless)
    opened = open_scene(write_scene(dark, tmp_path, layout, lossless=lossless))
    assert opened.views[0].image.endswith(".png" if lossless else ".jpg")
    assert (opened.image(0) - dark.image(0)).abs().mean() < 0.02


def test_each_scan_has_its_list_and_leaves_that_of_all(scene_of_dtu_size, dtu):
    pairs = [[(index - 1 if index else 2, 1.0)] for index in range(3)]
    black = [replace(view, image=torch.zeros(3, 512, 640)) for view in scene_of_dtu_size.views]
    other = replace(scene_of_dtu_size, name="scan8", views=black, pairs=pairs)
    before = (dtu / "Cameras/pair.txt").read_bytes()
    opened = open_scene(write_scene(other, dtu, "dtu_training"))
    assert (dtu / "Cameras/pair.txt").read_bytes() == before
    assert torch.equal(opened.views[2].extrinsics, other.views[2].extrinsics)
    assert opened.sources(0) == other.sources(0) != scene_of_dtu_size.sources(0)
    assert open_scene(dtu / "Rectified/scan7_train").sources(0) == scene_of_dtu_size.sources(0)
    fewer = replace(other, views=other.views[:2], pairs=[[(1, 1.0)], [(0, 1.0)]])
    fewer.name = "scan9"
    assert len(open_scene(write_scene(fewer, dtu, "dtu_training"))) == 2
    # The published data set has the list of all scans alone.
    for scan in ("scan7", "scan8"):
        (dtu / f"Cameras_1/{scan}_train/pair.txt").unlink()
        again = open_scene(dtu / f"Rectified/{scan}_train")
        assert again.sources(0) == scene_of_dtu_size.sources(0)
    # A scan that is alone brings its own list.
    shutil.rmtree(dtu / "Rectified")
    write_scene(fewer, dtu, "dtu_training")
    assert (dtu / "Cameras/pair.txt").read_text().startswith("2\n")


def test_a_layout_that_cannot_hold_the_scene(scene, tmp_path):
    with pytest.raises(ValueError, match="48x64 pixels, but DTU's training layout"):
        write_scene(scene, tmp_path, "dtu_training")
    bare = open_scene(write_scene(scene, tmp_path / "a", "dtu"))
    with pytest.raises(ValueError, match="no true depth, which this layout holds"):
        write_scene(bare, tmp_path / "b", "blendedmvs")
    with pytest.raises(ValueError, match="layout 'nerf' is none of dtu_training"):
        write_scene(scene, tmp_path, "nerf")
    again = open_scene(write_scene(bare, tmp_path / "c", "colmap"))
    assert again.sources(0) and "guessed" in again.depth_range(0)[1]


def test_a_layout_that_would_not_be_read_is_refused(scene, tmp_path):
    """Beside another one that readers take first."""
    for layout in ("dtu", "folder", "folder", "blendedmvs"):
        assert open_scene(written(scene, tmp_path, layout)).layout == layout
    with pytest.raises(ValueError, match="scan1: holds a scene of the layout blendedmvs, which"):
        written(scene, tmp_path, "tanks")


def test_unknown_and_stated_layouts(scene, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere: no such scene"):
        open_scene(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="no scene of a known layout; looked for dtu_training"):
        open_scene(tmp_path)
    with pytest.raises(ValueError, match="layout 'nerf' is none of"):
        open_scene(tmp_path, "nerf")
    write_image(tmp_path / "0.png", torch.rand(3, 8, 8))
    with pytest.raises(ValueError, match="of photographs without cameras COLMAP finds these"):
        open_scene(tmp_path)
    path = written(scene, tmp_path, "dtu")
    with pytest.raises(ValueError, match="no scene, but its folders are scenes: scan1$"):
        open_scene(tmp_path)
    assert open_scene(path).layout == "dtu" and open_scene(path, "tanks").layout == "tanks"
    with pytest.raises(FileNotFoundError, match="no model; expected .*cameras.bin"):
        open_scene(path, "colmap")
    for layout in LAYOUTS:
        with pytest.raises((FileNotFoundError, ValueError)):
            open_scene(tmp_path, layout)


@pytest.mark.parametrize(
    ("layout", "file", "said"),
    [
        ("dtu", "cams_1/00000002_cam.txt", "1 of 4 cameras missing, first .*00000002_cam.txt"),
        ("dtu", "images/00000001.png", "1 of 4 photographs missing, first .*00000001.jpg"),
        ("dtu", "pair.txt", "pair.txt: no such pair file"),
        ("blendedmvs", "rendered_depth_maps/00000003.pfm", "1 of 4 depth maps missing"),
        ("blendedmvs", "cams/pair.txt", "pair.txt: no such pair file"),
        ("colmap", "sparse/images.txt", "images.txt: no such file of a COLMAP model"),
        ("colmap", "images/00000001.png", "1 of 4 photographs missing, first .*00000001.png"),
        ("eth3d", "dslr_calibration_jpg/cameras.txt", "the distorted photographs"),
        ("folder", "depth/00000000.pfm", "1 of 4 depth maps missing, first .*00000000.pfm"),
    ],
)
def test_missing_files_are_named(scene, tmp_path, layout, file, said):
    path = written(scene, tmp_path, layout)
    (path / file).unlink()
    with pytest.raises(FileNotFoundError, match=said):
        open_scene(path)


class TestNumberedLayout:
    """What users get wrong in the layout that most of this family's programs read."""

    def test_pairs_name_an_absent_view(self, scene, tmp_path):
        path = written(scene, tmp_path, "dtu")
        (path / "pair.txt").write_text("2\n0\n1 9 0.5\n1\n1 0 0.5\n")
        with pytest.raises(ValueError, match=r"pair.txt: view 0 lists source 9, which is none of"):
            open_scene(path)

    def test_a_single_view(self, scene, tmp_path):
        path = written(scene, tmp_path, "dtu")
        (path / "pair.txt").write_text("1\n0\n0\n")
        with pytest.raises(ValueError, match="scan1: 1 view; multi-view stereo needs two"):
            open_scene(path)

    def test_a_wrong_range_form(self, scene, tmp_path):
        path = written(scene, tmp_path, "dtu")
        file = path / "cams_1/00000001_cam.txt"
        lines = file.read_text().splitlines()
        file.write_text("\n".join([*lines[:-1], "425 2.5"]) + "\n")
        assert open_scene(path).views[1].depth_range == (425, 902.5)
        with pytest.raises(
            ValueError, match="00000001_cam.txt: depth range 425 to 2.5: .*range_form"
        ):
            open_scene(path, range_form="max")
        file.write_text("\n".join([*lines[:-1], "-1 2.5"]) + "\n")
        with pytest.raises(ValueError, match="00000001_cam.txt: depth range -1 to 2.5"):
            open_scene(path)
        with pytest.raises(ValueError, match="range form 'metres' is none of"):
            open_scene(path, range_form="metres")

    def test_no_range_is_derived(self, scene, tmp_path):
        path = written(scene, tmp_path, "dtu")
        for file in (path / "cams_1").iterdir():
            file.write_text(file.read_text().rsplit("\n", 2)[0] + "\n")
        (least, greatest), source = open_scene(path).depth_range(0)
        depth = scene.depth(0)[0]
        assert least < depth.min() and depth.max() < greatest and "guessed" in source

    def test_not_a_rotation(self, scene, tmp_path):
        path = written(scene, tmp_path, "dtu")
        file = path / "cams_1/00000002_cam.txt"
        lines = file.read_text().splitlines()
        lines[1] = "5 0 0 0"
        file.write_text("\n".join(lines))
        with pytest.raises(ValueError, match="00000002_cam.txt: .*not a rotation"):
            open_scene(path)

    def test_mismatched_sizes(self, scene, tmp_path):
        path = written(scene, tmp_path, "dtu")
        write_image(path / "images/00000001.png", scene.image(1)[:, :40])
        opened = open_scene(path)
        with pytest.raises(
            ValueError, match="00000001.png: 40x64 pixels, but .*00000000.png has 48x64"
        ):
            opened.sample(0, [1])
        sample = opened.sample(0, [1], size=(24, 32))
        assert sample["images"].shape == (2, 3, 24, 32)
        halved = scene.views[0].intrinsics[:2] / 2
        halved[:, 2] -= 0.25  # a pixel centre moves with the pixels that become one
        torch.testing.assert_close(sample["intrinsics"][0, :2], halved)
        assert sample["intrinsics"][1, 1, 1] == pytest.approx(scene.views[1].intrinsics[1, 1] * 0.6)

    def test_no_image(self, scene, tmp_path):
        path = written(scene, tmp_path, "dtu")
        (path / "images/00000001.png").write_bytes(b"")
        with pytest.raises(ValueError, match="00000001.png: the file is empty"):
            open_scene(path).sample(0, [1])


class TestDepthMaps:
    def test_empty(self, scene, tmp_path):
        path = written(scene, tmp_path, "folder")
        write_pfm(path / "depth/00000001.pfm", np.zeros((48, 64), np.float32))
        opened = open_scene(path)
        with pytest.raises(ValueError, match="00000001.pfm: empty depth map"):
            opened.sample(1, [0])
        assert opened.sample(0, [1])["valid"].all()

    def test_of_another_size(self, scene, tmp_path):
        path = written(scene, tmp_path, "folder")
        write_pfm(path / "depth/00000001.pfm", np.ones((24, 64), np.float32))
        with pytest.raises(
            ValueError, match="00000001.pfm: 24x64 pixels, but its image .* has 48x64"
        ):
            open_scene(path).sample(1, [0])

    def test_unknown_pixels_are_zero(self, scene, tmp_path):
        path = written(scene, tmp_path, "blendedmvs")
        file = path / "rendered_depth_maps/00000001.pfm"
        depth = read_pfm(file).copy()
        depth[0, :3] = [np.nan, 1e6, 0.1]  # the others are out of the view's range
        write_pfm(file, depth)
        sample = open_scene(path).sample(1, [0])
        assert (~sample["valid"]).sum() == 3 and not sample["depth"][0, 0, :3].any()


class TestFolder:
    def edit(self, scene, tmp_path, change):
        path = written(scene, tmp_path, "folder")
        content = json.loads((path / "cameras.json").read_text())
        change(content)
        (path / "cameras.json").write_text(json.dumps(content))
        return path

    def test_short_forms(self, scene, tmp_path):
        def change(content):
            content["depth_range"] = [2, 4.2]
            for view in content["views"]:
                k = view["intrinsics"]
                view["intrinsics"] = [k[0][0], k[1][1], k[0][2], k[1][2]]
                pose = np.linalg.inv(np.array(view.pop("extrinsics")))
                view["camera_to_world"] = pose[:3].tolist()
                del view["depth_range"], view["sources"]

        opened = open_scene(self.edit(scene, tmp_path, change) / "cameras.json")
        assert opened.views[2].depth_range == (2, 4.2)
        for a, b in zip(scene.views, opened.views, strict=True):
            assert torch.equal(a.intrinsics, b.intrinsics)
            torch.testing.assert_close(a.extrinsics, b.extrinsics, rtol=1e-5, atol=1e-3)
        assert opened.sources(0)[0] == scene.sources(0)[0]

    def test_a_rig_whose_cameras_number_their_pictures_alike(self, scene, tmp_path):
        root = tmp_path / "scan1"

        def change(content):
            for number, view in enumerate(content["views"]):
                moved = f"cam{number % 2}/{number // 2}.png"
                (root / moved).parent.mkdir(exist_ok=True)
                (root / view["image"]).rename(root / moved)
                view |= {"image": moved, "sources": [f"cam{1 - number % 2}/0"]}

        opened = open_scene(self.edit(scene, tmp_path, change))
        assert [view.name for view in opened.views[:3]] == ["cam0/0", "cam1/0", "cam0/1"]
        assert opened.sources(0) == [1] and opened.sources(1) == [0]

    def test_sources_without_scores_and_a_mask(self, scene, tmp_path):
        def change(content):
            content["views"][0]["sources"] = ["00000003", "00000001"]
            content["views"][1]["mask"] = "mask.png"

        path = self.edit(scene, tmp_path, change)
        mask = np.zeros((48, 64), np.uint8)
        mask[:10] = 1
        write_image(path / "mask.png", mask)
        opened = open_scene(path)
        assert opened.sources(0) == [3, 1]
        assert opened.depth(1)[1].sum() == 640 and opened.depth(0)[1].all()
        write_image(path / "mask.png", mask[:5])
        with pytest.raises(ValueError, match="mask.png: not of the size"):
            opened.depth(1)

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (lambda c: c["views"][1].pop("image"), "view 1: 'image' is missing"),
            (lambda c: c["views"][1].pop("intrinsics"), "view 1: 'intrinsics' is missing"),
            (lambda c: c["views"][1].pop("extrinsics"), "view 1: want either 'extrinsics' or"),
            (
                lambda c: c["views"][1].update(fov=3),
                r"view 1 \(images/.*: unknown 'fov'; known are",
            ),
            (lambda c: c["views"][1].update(intrinsics=[1, 2]), "'intrinsics' must be 3x3 or 4"),
            (lambda c: c["views"][1].update(extrinsics="x"), "'extrinsics' must be 4x4 or 3x4"),
            (lambda c: c["views"][1].update(sources=["a"]), "lists source 'a', which is none"),
            (lambda c: c["views"][1].update(sources=[1]), "must be a list of names"),
            (
                lambda c: c["views"][1].update(sources=["00000000", ["00000000", 0.5]]),
                "cameras.json: view 00000001 lists source 00000000 twice",
            ),
            (lambda c: c["views"][1].update(depth_range=[5, 5]), "view 1: depth range 5 to 5"),
            (lambda c: c["views"][1].update(image=4), "'image' must be a path"),
            (lambda c: c["views"][1]["intrinsics"][0].__setitem__(0, 0), "view 1: .*positive"),
            (lambda c: c["views"][1].update(image="images/00000000.png"), "two views are called"),
            (lambda c: c.pop("views"), "want an object with a list 'views'"),
            (lambda c: c.update(views=c["views"][:1]), "1 view; multi-view stereo needs two"),
        ],
    )
    def test_what_is_wrong_is_named(self, scene, tmp_path, change, said):
        with pytest.raises(ValueError, match=said) as caught:
            open_scene(self.edit(scene, tmp_path, change))
        assert "\n" not in str(caught.value)

    @given(data=st.data())
    def test_any_damage_is_one_clear_line(self, tmp_path_factory, data):
        path = _folder_of_two(str(tmp_path_factory.getbasetemp()))
        content = json.loads((path / "cameras.json").read_text())
        place, keys = content, list(content)
        while True:
            key = data.draw(st.sampled_from(keys))
            inner = place[key]
            if not isinstance(inner, (dict, list)) or not inner or data.draw(st.booleans()):
                break
            keys = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
            place = inner
        values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
        place[key] = data.draw(st.recursive(values, lambda v: st.lists(v, max_size=4)))
        file = tmp_path_factory.mktemp("damage") / "cameras.json"
        for name in ("images", "depth"):
            (file.parent / name).symlink_to(path / name)
        file.write_text(json.dumps(content))
        try:
            opened = open_scene(file)
            opened.sample(0, [1])
        except (ValueError, FileNotFoundError) as error:
            assert "\n" not in str(error)

    def test_not_json(self, tmp_path):
        (tmp_path / "cameras.json").write_text("{")
        with pytest.raises(ValueError, match="cameras.json: not cameras: this is not valid JSON"):
            open_scene(tmp_path)


def _moved_folder(path, offset):
    cameras = json.loads((path / "cameras.json").read_text())
    for view in cameras["views"]:
        for row in view["extrinsics"][:3]:
            row[3] -= np.dot(row[:3], offset)
    (path / "cameras.json").write_text(json.dumps(cameras))


def _moved_colmap(path, offset):
    images, points = path / "sparse/images.txt", path / "sparse/points3D.txt"
    lines = [line.split(" ") for line in images.read_text().splitlines()]
    for words in lines:
        if words[-1].endswith(".png"):
            turned = rotation_matrix(*map(float, words[1:5])) @ offset
            words[5:8] = map(str, np.array(words[5:8], float) - turned)
    images.write_text("\n".join(map(" ".join, lines)) + "\n")
    lines = [line.split(" ") for line in points.read_text().splitlines()]
    for words in lines:
        if words[0] != "#":
            words[1:4] = map(str, np.array(words[1:4], float) + offset)
    points.write_text("\n".join(map(" ".join, lines)) + "\n")


def _moved_camera_files(path, offset):
    for file in path.rglob("*_cam.txt"):
        lines = file.read_text().splitlines()
        for number in (1, 2, 3):
            row = np.array(lines[number].split(), float)
            row[3] -= row[:3] @ offset
            lines[number] = " ".join(map(repr, row.tolist()))
        file.write_text("\n".join(lines) + "\n")


_MOVED = {"folder": _moved_folder, "colmap": _moved_colmap}
_MOVED |= dict.fromkeys(["dtu", "blendedmvs"], _moved_camera_files)


@pytest.mark.parametrize("far", [3e6, 3e2])
@pytest.mark.parametrize("layout", _MOVED)
def test_cameras_far_from_the_origin(scene, tmp_path, recwarn, far, layout):
    """As in metres of a map, where float32 would round positions to a quarter of one."""
    path = write_scene(scene, tmp_path / "map", layout, lossless=True)
    near, offset = open_scene(path), np.array([far, -far, far / 7])
    _MOVED[layout](path, offset)
    opened = open_scene(path)
    said = [str(one.message) for one in recwarn]
    moved = torch.tensor(offset - opened.offset)
    if far < 1e6:
        assert opened.offset == (0, 0, 0) and not said
    else:
        assert len(said) == 1 and "origin is at (" in said[0]
        # Rotations of files are of seven digits.
        assert camera_centre(opened.views[0].extrinsics).abs().max() < 1
        assert moved.abs().max() < 10 and near_origin(opened).offset == opened.offset
    for view, known in zip(opened.views, near.views, strict=True):
        wanted = camera_centre(known.extrinsics.double()) + moved
        error = (camera_centre(view.extrinsics) - wanted).abs().max()
        assert view.extrinsics.dtype == torch.float32 and error < 1e-4
    assert all(opened.sources(view) == near.sources(view) for view in range(len(near)))
    if layout == "colmap":
        wanted = near.points.double() + moved
        torch.testing.assert_close(opened.points.double(), wanted, rtol=0, atol=1e-4)


def test_middlebury(scene, tmp_path):
    lines = [str(len(scene))]
    far = [lines[0]]
    for index, view in enumerate(scene.views):
        write_image(tmp_path / f"temple{index:04d}.png", scene.image(index))
        pose = view.extrinsics.double()
        shift = (pose[:3, 3] - pose[:3, :3] @ torch.tensor([3e6, 0, 0.0]).double()).tolist()
        numbers = [*view.intrinsics.flatten(), *view.extrinsics[:3, :3].flatten()]
        numbers += list(view.extrinsics[:3, 3])
        lines.append(f"temple{index:04d}.png " + " ".join(f"{n:.9g}" for n in numbers))
        far.append(" ".join([*lines[-1].split()[:-3], *map(repr, shift)]))
    file = tmp_path / "temple_par.txt"
    file.write_text("\n".join(lines) + "\n")
    opened = open_scene(tmp_path)
    assert opened.layout == "middlebury" and opened.views[1].name == "temple0001"
    assert torch.equal(opened.views[1].extrinsics, scene.views[1].extrinsics)
    assert opened.sources(1)[0] == scene.sources(1)[0]
    file.write_text("\n".join(far))
    with pytest.warns(UserWarning, match="from the origin"):
        moved = open_scene(tmp_path)
    shift = torch.tensor(np.array(moved.offset) - [3e6, 0, 0])
    wanted, centre = (camera_centre(s.views[1].extrinsics.double()) for s in (scene, moved))
    torch.testing.assert_close(centre + shift, wanted, rtol=0, atol=1e-2)
    file.write_text("\n".join([lines[0], lines[1].rsplit(" ", 1)[0]]))
    with pytest.raises(ValueError, match="temple_par.txt, line 2: want a name and the 21 numbers"):
        open_scene(tmp_path)
