"""The readers of the published layouts: what they find, what they read, what they complain of."""

from __future__ import annotations

import re
import shutil
import warnings

import numpy as np
import pytest
import torch

from vizoo.datasets.mixture import split_by_seed
from vizoo.datasets.stereo import (
    ETH3D,
    KITTI2012,
    KITTI2015,
    Middlebury2014,
    MiddleburyV3,
    PairFolders,
    PairList,
    SceneFlow,
    Sintel,
    StereoPairs,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*of the published")


def check(sample: dict, disparity: float, share: float = 1.0) -> None:
    """A well-formed sample whose views match by its disparity, which is known for a share."""
    left, right, truth, valid = (sample[k] for k in ("left", "right", "disparity", "valid"))
    assert left.shape == right.shape == (3, *truth.shape[1:]) and left.dtype == torch.float32
    assert truth.dtype == torch.float32 and valid.dtype == torch.bool and valid.shape == truth.shape
    assert valid.float().mean().item() == pytest.approx(share, abs=1e-6)
    assert (truth[valid] == disparity).all() and (truth[~valid] == 0).all()
    if disparity:
        shift = int(disparity)
        assert torch.equal(left[:, :, shift:], right[:, :, :-shift])


@pytest.mark.parametrize("flat", [False, True])
def test_sceneflow(tmp_path, trees, flat):
    root = trees.sceneflow(tmp_path, flat)
    train = SceneFlow(root)
    assert len(train) == 6
    assert [record.name.split("/")[0] for record in train.records] == (
        ["FlyingThings3D"] * 3 + ["Monkaa"] * 2 + ["Driving"]
    )
    assert train.records[0].name == "FlyingThings3D/frames_cleanpass/TRAIN/A/0000/0000"
    check(train[0], 2)
    check(train[1], 3)
    both = SceneFlow(root, passes="both")
    assert len(both) == 12 and set(both.groups) == set(train.groups)
    assert train.groups[0][0] == "FlyingThings3D/TRAIN/A/0000"
    parts = split_by_seed(both, 0.3)
    assert all(len(part) for part in parts) and not set(parts[0].groups) & set(parts[1].groups)
    assert len(SceneFlow(root, passes="final", subsets=["Monkaa"])) == 2
    test = SceneFlow(root, split="test")
    assert len(test) == 2 and all("TEST/B" in record.left for record in test.records)
    with pytest.raises(ValueError, match="no subset left"):
        SceneFlow(root, split="test", subsets=["Driving"])


def test_what_sceneflow_shows_twice_is_kept_together():
    driving = ["15mm_focallength/scene_forwards/fast", "35mm_focallength/scene_forwards/slow"]
    monkaa = ["funnyworld_x2", "funnyworld_camera2_augmented0_x2", "funnyworld_augmented1_x2"]
    for subset, scenes, other in (
        ("Driving", driving, "15mm_focallength/scene_backwards/fast"),
        ("Monkaa", monkaa, "eating_x2"),
    ):
        names = [f"{subset}/frames_cleanpass/{scene}/0001" for scene in (*scenes, other)]
        groups = [SceneFlow._group(name) for name in names]
        assert len(set(groups[:-1])) == 1 and groups[-1] != groups[0]


def test_pairs_of_one_sequence_are_split(tmp_path, trees):
    """The same pair in two passes is in one part."""
    root = trees.sceneflow(tmp_path)
    shutil.rmtree(root / "FlyingThings3D/frames_cleanpass/TRAIN/C")
    shutil.rmtree(root / "FlyingThings3D/frames_finalpass/TRAIN/C")
    whole = SceneFlow(root, passes="both", subsets=["FlyingThings3D"])
    train, val = split_by_seed(whole, 0.5)
    assert len(train) == len(val) == 2 and not set(train.groups) & set(val.groups)
    with pytest.raises(ValueError, match="cannot split 2 samples of 1 groups"):
        split_by_seed(train, 0.5)


def test_sceneflow_missing(tmp_path, trees):
    root = trees.sceneflow(tmp_path)
    (root / "FlyingThings3D/frames_cleanpass/TRAIN/A/0000/right/0001.png").unlink()
    shutil.rmtree(root / "FlyingThings3D/disparity/TRAIN/C")
    with pytest.raises(FileNotFoundError) as error:
        SceneFlow(root)
    text = str(error.value)
    assert "1 of 3 right images missing, first " in text and "A/0000/right/0001.png" in text
    assert "1 of 3 disparity maps missing, first " in text and "\n" not in text
    shutil.rmtree(root / "Monkaa/frames_cleanpass")
    with pytest.raises(FileNotFoundError, match="Scene Flow Monkaa at .* no pairs found; expected"):
        SceneFlow(root, subsets=["Monkaa"])


@pytest.mark.parametrize("year, dataset", [(2012, KITTI2012), (2015, KITTI2015)])
def test_kitti(tmp_path, trees, year, dataset):
    root = trees.kitti(tmp_path, year)
    whole = dataset(root, split="trainval")
    assert [record.name for record in whole.records][:2] == [
        "training/000000_10",
        "training/000001_10",
    ]
    assert len(whole) == 5
    known = 1 - (trees.HEIGHT // 3) / trees.HEIGHT
    check(whole[2], 4, known)
    hidden = dataset(root, split="trainval", occluded=False)[2]
    assert hidden["disparity"].max() == 2
    validation = {2012: ["000185"], 2015: ["000001", "000006"]}[year]
    assert [r.name[9:15] for r in dataset(root, split="val").records] == validation
    assert len(dataset(root, split="train")) == 5 - len(validation)
    test = dataset(root, split="test")
    assert len(test) == 2 and not test.has_truth and whole.has_truth
    check(test[0], 0, 0.0)


def test_kitti_published_splits_have_their_sizes():
    assert len(KITTI2015.validation) == 20 and max(KITTI2015.validation) < 200
    assert sorted(KITTI2012.validation) == list(range(194))[-14:]


def test_kitti_grey(tmp_path, trees):
    root = trees.kitti(tmp_path, 2012)
    for number in (0, 1):
        (root / f"training/colored_{number}").rename(root / f"training/image_{number}")
    assert len(KITTI2012(root, split="trainval", colour=False)) == 5
    with pytest.raises(FileNotFoundError, match="5 of 5 left images missing"):
        KITTI2012(root)


def test_kitti_missing(tmp_path, trees):
    root = trees.kitti(tmp_path, 2015, tuple(range(8)))
    for frame in (4, 6, 7):
        (root / f"training/image_3/{frame:06d}_10.png").unlink()
    message = f"KITTI 2015 at {root}: 3 of 8 right images missing, first {root}/training/image_3/"
    with pytest.raises(FileNotFoundError, match=re.escape(message + "000004_10.png")):
        KITTI2015(root)
    (root / "training/image_2/000000_10.png").unlink()
    with pytest.raises(FileNotFoundError, match="1 of 8 left images missing"):
        KITTI2015(root)
    with pytest.raises(FileNotFoundError, match="no such folder"):
        KITTI2015(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="no pairs found; expected .*image_2/000000_10.png"):
        KITTI2015(root / "training")
    with pytest.raises(ValueError, match="split 'valid' is none of train, val"):
        KITTI2015(root, split="valid")


@pytest.mark.filterwarnings("default")
def test_an_incomplete_download_gives_a_warning(tmp_path, trees):
    root = trees.kitti(tmp_path, 2015)
    with pytest.warns(UserWarning, match="5 of the published 200 pairs are here"):
        KITTI2015(root)


def test_root_from_the_environment(tmp_path, trees, monkeypatch):
    trees.kitti(tmp_path / "kitti", 2015)
    monkeypatch.setenv("VIZOO_DATA", str(tmp_path))
    assert len(KITTI2015("$VIZOO_DATA/kitti", split="trainval")) == 5
    assert len(KITTI2015("${VIZOO_DATA}/kitti", split="trainval")) == 5
    monkeypatch.delenv("VIZOO_DATA")
    with pytest.raises(ValueError, match="environment variable VIZOO_DATA is not set"):
        KITTI2015("$VIZOO_DATA/kitti")


def test_middlebury2014(tmp_path, trees):
    root = trees.middlebury2014(tmp_path)
    perfect = Middlebury2014(root)
    assert [record.name for record in perfect.records] == ["Adirondack-perfect", "Cable-perfect"]
    check(perfect[1], 5)
    both = Middlebury2014(root, calibration="both")
    assert [scene for scene, _ in both.groups] == ["Adirondack", "Adirondack", "Cable"]
    assert Middlebury2014(root, right="im1E")[0]["right"].max().item() == pytest.approx(0.2)
    (root / "Cable-perfect/disp0.pfm").unlink()
    with pytest.raises(FileNotFoundError, match="1 of 2 disparity maps missing"):
        Middlebury2014(root)


@pytest.mark.parametrize("above", [True, False])
def test_middlebury3(tmp_path, trees, above):
    root = trees.middlebury3(tmp_path) / ("" if above else "MiddEval3")
    train = MiddleburyV3(root)
    assert [record.name for record in train.records] == ["trainingH/Adirondack", "trainingH/Teddy"]
    assert [train._group(name) for name in ("x/Piano", "x/PianoL")] == ["x/Piano"] * 2
    check(train[0], 3)
    visible = (trees.HEIGHT - 2) * (trees.WIDTH - 4) / (trees.HEIGHT * trees.WIDTH)
    check(MiddleburyV3(root, occluded=False)[0], 3, visible)
    test = MiddleburyV3(root, split="test")
    assert len(test) == 1 and not test.has_truth
    with pytest.raises(FileNotFoundError, match="trainingQ"):
        MiddleburyV3(root, resolution="Q")


@pytest.mark.parametrize("beside", [False, True])
def test_eth3d(tmp_path, trees, beside):
    root = trees.eth3d(tmp_path, beside)
    train = ETH3D(root)
    scenes = [scene for scene, _ in train.groups]
    assert scenes == ["two_view_training/delivery_area", "two_view_training/terrace"]
    check(train[0], 3)
    assert not ETH3D(root, occluded=False)[0]["valid"][:, :2].any()
    assert not ETH3D(root, split="test").has_truth
    (root / "two_view_training/terrace_2s/im1.png").unlink()
    with pytest.raises(FileNotFoundError, match="1 of 2 right images missing, first .*terrace_2s"):
        ETH3D(root)


def test_eth3d_without_its_ground_truth(tmp_path, trees):
    shutil.rmtree(trees.eth3d(tmp_path) / "two_view_training_gt")
    with pytest.raises(FileNotFoundError, match="2 of 2 disparity maps missing, first .*_gt"):
        ETH3D(tmp_path)


def test_sintel(tmp_path, trees):
    root = trees.sintel(tmp_path)
    final = Sintel(root)
    assert [r.name for r in final.records] == [
        "final/alley_1/frame_0001",
        "final/alley_1/frame_0002",
        "final/market_6/frame_0001",
    ]
    check(final[0], 6)
    check(Sintel(root, occluded=False)[0], 6, 1 - 8 / trees.WIDTH)
    both = Sintel(root, passes="both")
    assert [scene for scene, _ in both.groups] == ["alley_1", "alley_1", "market_6"] * 2
    shutil.rmtree(root / "training/outofframe")
    assert len(Sintel(root)) == 3
    with pytest.raises(FileNotFoundError, match="3 of 3 outofframe masks missing"):
        Sintel(root, occluded=False)


def own_pairs(tmp_path, trees, count=3, with_truth=True):
    for number in range(count):
        trees.write_pair(
            tmp_path / f"L/scene{number}/a.png",
            tmp_path / f"R/scene{number}/a.png",
            tmp_path / f"D/scene{number}/a.pfm" if with_truth else None,
            number,
            1 + number,
        )
    return tmp_path


def test_own_pairs_by_patterns(tmp_path, trees):
    root = own_pairs(tmp_path, trees)
    patterns = {"left": f"{root}/L/*/*.png", "right": f"{root}/R/*/*.png"}
    pairs = StereoPairs(**patterns, disparity=f"{root}/D/**/*.pfm")
    assert [record.name for record in pairs.records] == ["scene0/a", "scene1/a", "scene2/a"]
    check(pairs[2], 3)
    assert not StereoPairs(**patterns).has_truth
    with pytest.raises(FileNotFoundError, match=r"no disparity files match .*\*.npy"):
        StereoPairs(**patterns, disparity=f"{root}/D/*/*.npy")
    (root / "R/scene1/a.png").unlink()
    with pytest.raises(ValueError, match=r"different numbers of files: 3 match .*, 2 match"):
        StereoPairs(**patterns)


def test_list_files(tmp_path, trees):
    root = own_pairs(tmp_path, trees)
    listing = root / "mine.list"
    listing.write_text(
        "# left right disparity\n\n"
        "L/scene0/a.png R/scene0/a.png D/scene0/a.pfm\n"
        "L/scene1/a.png\tR/scene1/a.png\tD//scene1/a.pfm\tnormal/unused.exr\n"
        "L/scene2/a.png 'R/scene2/a.png'  # without truth\n"
    )
    with pytest.warns(UserWarning, match="mine.list: 1 of 3 lines name no disparity map"):
        pairs = PairList(listing)
    assert len(pairs) == 3 and pairs.records[2].disparity is None
    check(pairs[1], 2)
    other = root.parent / f"{root.name}.list"
    shutil.move(listing, other)
    with pytest.warns(UserWarning, match="1 of 3"):
        assert len(PairList(other, root=root)) == 3
    with pytest.raises(FileNotFoundError, match="3 of 3 left images missing"):
        PairList(other)
    other.write_text("L/scene0/a.png\n")
    with pytest.raises(ValueError, match="line 1: 1 columns"):
        PairList(other, root=root)
    other.write_text("\n")
    with pytest.raises(FileNotFoundError, match="no pairs found"):
        PairList(other, root=root)
    other.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not text"):
        PairList(other, root=root)
    with pytest.raises(FileNotFoundError, match="no such list file"):
        PairList(root / "none.list")


def test_a_list_in_a_folder_that_a_link_leads_to(tmp_path, trees):
    """A path that goes up from there goes up from the folder, not from the link."""
    root = own_pairs(tmp_path / "data", trees, 1)
    listing = root / "lists/mine.list"
    listing.parent.mkdir()
    listing.write_text("../L/scene0/a.png ../R/scene0/a.png ../D/scene0/a.pfm\n")
    link = tmp_path / "short"
    link.symlink_to(listing.parent)
    pairs = PairList(link / listing.name)
    assert [record.name for record in pairs.records] == ["a"]
    check(pairs[0], 1)


def test_folders_of_pairs_are_called_as_the_links_to_them(tmp_path, trees, monkeypatch):
    """Where links lead, folders may share a name, and predictions of one name one file.

    Hidden ones are not looked at.
    """
    (tmp_path / "all").mkdir()
    for name in ("a", "b", ".c"):
        views = [tmp_path / name / f"scene/{side}.png" for side in ("left", "right")]
        trees.write_pair(*views, views[0].with_name("truth.pfm"), 0, 1)
        (tmp_path / "all" / name).symlink_to(views[0].parent)
    assert [record.name for record in PairFolders(tmp_path / "all").records] == ["a", "b"]
    monkeypatch.chdir(tmp_path / "a/scene")
    assert [record.name for record in PairFolders(".").records] == ["scene"]


def test_maps_of_a_published_list_stored_bottom_up(tmp_path, trees):
    root = own_pairs(tmp_path, trees, 1)
    truth = np.arange(1, 1 + trees.HEIGHT * trees.WIDTH, dtype=np.float32)
    truth = truth.reshape(trees.HEIGHT, trees.WIDTH)
    np.save(root / "D/scene0/a.npy", truth[::-1])
    listing = root / "mine.list"
    listing.write_text("L/scene0/a.png R/scene0/a.png D/scene0/a.npy\n")
    sample = PairList(listing, encoding="npy-bottom-up")[0]
    assert np.array_equal(sample["disparity"][0], truth)
    assert np.array_equal(PairList(listing)[0]["disparity"][0], truth[::-1])


def test_patterns_that_pair_different_scenes_warn(tmp_path, trees):
    root = own_pairs(tmp_path, trees, 4)
    patterns = [f"{root}/{name}" for name in ("L/*/*.png", "R/*/*.png", "D/*/*.pfm")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        StereoPairs(*patterns)
    for gone in ("L/scene0/a.png", "R/scene2/a.png", "D/scene0/a.pfm"):
        (root / gone).unlink()
    with pytest.warns(
        UserWarning, match="L/scene1/a.png is paired with .*R/scene0/a.png, and 2 of"
    ):
        StereoPairs(*patterns)


def test_published_list_of_scene_flow(tmp_path, trees):
    root = trees.sceneflow(tmp_path / "driving_release")
    del root
    scene = "driving_release/Driving/{}/35mm_focallength/scene_forwards/fast/{}/0000.{}"
    line = " ".join(
        [
            scene.format("frames_cleanpass", "left", "png"),
            scene.format("frames_cleanpass", "right", "png"),
            scene.format("disparity", "left", "pfm"),
        ]
    )
    (tmp_path / "driving_release.list").write_text(line + "\n")
    check(PairList(tmp_path / "driving_release.list")[0], 2)


def test_files_that_do_not_fit_are_named(tmp_path, trees):
    root = own_pairs(tmp_path, trees)
    pairs = StereoPairs(f"{root}/L/*/*.png", f"{root}/R/*/*.png", f"{root}/D/*/*.pfm")
    small = (trees.HEIGHT - 2, trees.WIDTH)
    trees.write_pair(root / "x.png", root / "R/scene0/a.png", size=small)
    with pytest.raises(ValueError, match=r"R/scene0/a.png: 22x40 pixels, but its left .* 24x40"):
        pairs[0]
    trees.write_pair(root / "x.png", root / "y.png", root / "D/scene1/a.pfm", size=small)
    with pytest.raises(ValueError, match=r"D/scene1/a.pfm: 22x40 pixels, but its left"):
        pairs[1]
    truth = root / "D/scene2/a.pfm"
    truth.write_bytes(truth.read_bytes()[:-7])
    with pytest.raises(ValueError, match="D/scene2/a.pfm"):
        pairs[2]
    (root / "L/scene2/a.png").write_bytes(b"no picture")
    with pytest.raises(ValueError, match="L/scene2/a.png"):
        pairs[2]


def test_unknown_ground_truth_is_invalid(tmp_path, trees):
    root = own_pairs(tmp_path, trees, 1)
    truth = np.full((trees.HEIGHT, trees.WIDTH), 5, np.float32)
    truth[0], truth[1], truth[2], truth[3] = np.nan, np.inf, -1, 0
    np.save(root / "D/scene0/a.npy", truth)
    sample = StereoPairs(f"{root}/L/*/*", f"{root}/R/*/*", f"{root}/D/*/*.npy")[0]
    assert not sample["valid"][0, :4].any() and sample["valid"][0, 4:].all()
    assert (sample["disparity"][0, :4] == 0).all() and (sample["disparity"][0, 4:] == 5).all()


def test_transform_is_applied(tmp_path, trees):
    root = own_pairs(tmp_path, trees, 1, with_truth=False)
    pairs = StereoPairs(f"{root}/L/*/*", f"{root}/R/*/*", transform=lambda s: {**s, "extra": 1})
    assert pairs[0]["extra"] == 1


def test_real_pair(shared):
    folder = shared / "data/stereo_real/playground"
    sample = StereoPairs(*(str(folder / name) for name in ("im0.png", "im1.png", "disp0.pfm")))[0]
    assert sample["left"].shape == (3, 490, 941)
    assert sample["valid"].float().mean().item() == pytest.approx(0.49, abs=0.01)


def test_a_map_without_any_known_disparity_is_named(tmp_path, trees):
    root = own_pairs(tmp_path, trees, 1)
    np.save(root / "D/scene0/a.npy", np.full((trees.HEIGHT, trees.WIDTH), np.nan, np.float32))
    pairs = StereoPairs(f"{root}/L/*/*", f"{root}/R/*/*", f"{root}/D/*/*.npy")
    with pytest.warns(UserWarning, match=r"a\.npy: no pixel has a known disparity"):
        assert not pairs[0]["valid"].any()
