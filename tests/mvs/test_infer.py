"""From a scene to its cloud: what is written, what is resumed, and one line for what is wrong."""

import json
import warnings
import zlib
from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import vizoo
from vizoo.datasets.mvs.cameras import lift, project
from vizoo.datasets.mvs.scene import Scene
from vizoo.mvs.fusion import Thresholds
from vizoo.mvs.infer import view_seed
from vizoo.mvs.reconstruction import reconstruct
from vizoo.vision.io.images import read_pixels, to_bytes
from vizoo.vision.io.pfm import read_pfm
from vizoo.vision.io.ply import read_ply


@pytest.fixture
def predictor(oracle):
    return vizoo.MVSPredictor(oracle, "cpu")


def cameras_of(scene):
    intrinsics = torch.stack([view.intrinsics for view in scene.views])
    return intrinsics, torch.stack([view.extrinsics for view in scene.views])


def altered(scene, view=None, **changes):
    """The scene with all views changed, or one of them."""
    views = [
        replace(v, **changes) if view is None or i == view else v for i, v in enumerate(scene.views)
    ]
    return Scene(scene.name, views, changes.pop("pairs", scene.pairs), scene.layout)


def test_a_whole_scene(scene, oracle, predictor, tmp_path):
    seen = []
    summary = reconstruct(
        predictor,
        replace(scene, offset=(3e6, 5.0, 7.0)),
        tmp_path / "out",
        report=lambda what, done, total: seen.append((what, done, total)),
    )
    assert seen[-1] == ("fusion", 4, 4) and ("views", 0, 4) in seen and ("views", 4, 4) in seen
    assert summary["offset"] == [3e6, 5, 7]
    names = [view.name for view in scene.views]
    assert [view["name"] for view in summary["views"]] == names == oracle.calls
    for name in names:
        depth = read_pfm(tmp_path / "out/depth" / f"{name}.pfm")
        np.testing.assert_array_equal(depth, scene.views[names.index(name)].truth()[0][0])
        confidence = read_pfm(tmp_path / "out/confidence" / f"{name}.pfm")
        assert confidence.shape == depth.shape and 0 <= confidence.min() < confidence.max() <= 1
        assert read_pixels(tmp_path / "out/depth" / f"{name}.png").shape[0] >= 48
    points, colours = read_ply(tmp_path / "out/cloud.ply")
    assert len(points) == summary["points"] > 0.5 * 4 * 48 * 64 and colours.std() > 10
    assert sum(view["points"] for view in summary["views"]) == len(points)
    assert read_pixels(tmp_path / "out/cloud.png").std() > 10
    assert json.loads((tmp_path / "out/summary.json").read_text()) == summary
    # Points of view 0, projected back, are the pixels they came from, in their colours.
    view, count = scene.views[0], summary["views"][0]["points"]
    pixels, depth = project(torch.from_numpy(points[:count]), view.intrinsics, view.extrinsics)
    pixels = pixels.round().long()
    image = view.image.mul(255).round().byte()
    assert torch.equal(image[:, pixels[:, 1], pixels[:, 0]].T, torch.from_numpy(colours[:count]))
    truth = view.truth()[0][0][pixels[:, 1], pixels[:, 0]]
    torch.testing.assert_close(depth, truth, rtol=1e-2, atol=0)


def test_one_view(scene, predictor, tmp_path):
    images = [view.image for view in scene.views]
    intrinsics, extrinsics = cameras_of(scene)
    result = predictor(images, intrinsics, extrinsics)
    np.testing.assert_array_equal(result.depth, scene.views[0].truth()[0][0])
    points, colours = result.points()
    assert points.shape == colours.shape == (48 * 64, 3)
    assert result.save(tmp_path, "cam0/a")[0] == tmp_path / "depth/cam0/a.pfm"  # as COLMAP's names
    arrays = [image.mul(255).round().byte().permute(1, 2, 0).numpy() for image in images]
    again = predictor(arrays, intrinsics, extrinsics, (1.0, 6.0))
    np.testing.assert_array_equal(again.image, arrays[0])
    assert again != result and result in [again, result]
    cameras = [given.double().numpy()[::-1].copy()[::-1] for given in (intrinsics, extrinsics)]
    loaded = predictor(arrays, *cameras, (1.0, 6.0))
    np.testing.assert_array_equal(loaded.confidence, again.confidence)
    extrinsics[:, :3, 3] -= 1e7 * extrinsics[:, :3, 0]
    with pytest.warns(UserWarning, match="from the origin .* subtract one offset from all"):
        predictor(arrays, intrinsics, extrinsics, (1.0, 6.0))


def test_files_lie_as_they_are_stored(scene, predictor, tmp_path):
    """As in a scene: cameras are those of the stored pixels, whatever EXIF notes."""
    exif, files = Image.Exif(), [tmp_path / f"{view.name}.png" for view in scene.views]
    exif[0x0112] = 8
    for file, view in zip(files, scene.views, strict=True):
        Image.fromarray(to_bytes(view.image)).save(file, exif=exif)
    intrinsics, extrinsics = cameras_of(scene)
    result = predictor(files, intrinsics, extrinsics, (1.0, 6.0))
    np.testing.assert_array_equal(result.image, to_bytes(scene.views[0].image))
    for file, view in zip(files, scene.views, strict=True):  # of a camera of 12 bits
        cv2.imwrite(str(file), np.uint16(to_bytes(view.image)[:, :, ::-1]) << 4)
    deep = [np.uint16(to_bytes(view.image)) << 4 for view in scene.views]
    for images in (files, deep):
        again = predictor(images, intrinsics, extrinsics, (1.0, 6.0)).image
        assert np.abs(again.astype(int) - result.image).max() <= 1


@pytest.mark.gpu
def test_cameras_on_another_device_than_the_network(scene, predictor):
    images = [view.image for view in scene.views]
    intrinsics, extrinsics = cameras_of(scene)
    for span in (None, (1.0, 6.0)):
        here = predictor(images, intrinsics, extrinsics, span)
        there = predictor(images, intrinsics.cuda(), extrinsics.cuda(), span)
        np.testing.assert_array_equal(there.depth, here.depth)
        np.testing.assert_array_equal(there.confidence, here.confidence)
        assert there.points()[0].shape == (48 * 64, 3)


def test_any_seed():
    """Large and negative ones too; small ones as they ever were."""
    assert view_seed(0, "a") == zlib.crc32(b"a") and view_seed(1, "a") >> 32 == 1
    seeds = [view_seed(seed, "a") for seed in (0, 1, 2**31, 2**32 - 1, -1, 2**32 + 1, 10**30)]
    for seed in seeds:
        torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("seed", [2**64, -(2**64), 10**30])
def test_a_seed_beyond_what_generators_take(scene, predictor, seed):
    predictor.predict_sample(scene.sample(0, [1]), seed)


def test_the_real_network(scene, tmp_path):
    """The network's own depth, for one seed the same; convolutions in bfloat16 leave it finite."""
    net = vizoo.create_model("dispmvs_tiny", coarse_iterations=1, fine_iterations=1)
    predictor = vizoo.MVSPredictor(net, "cpu")
    sample = scene.sample(0, [1])
    first = predictor.predict_sample(sample, 1)
    names = ("images", "intrinsics", "extrinsics", "depth_range")
    seeded = torch.Generator().manual_seed(1)
    with torch.inference_mode():
        wanted = net.eval()(*(sample[name][None] for name in names), generator=seeded)
    np.testing.assert_allclose(first.depth, wanted[0, 0], rtol=1e-4)
    np.testing.assert_array_equal(first.depth, predictor.predict_sample(sample, 1).depth)
    assert not np.array_equal(first.depth, predictor.predict_sample(sample, 2).depth)
    assert first.depth.shape == first.confidence.shape == (48, 64)
    half = vizoo.MVSPredictor(net, "cpu", "bfloat16")
    assert np.isfinite(half.predict_sample(sample, 1).depth).all()


def test_a_camera_held_on_its_side(scene):
    """Sources are stood upright before they are matched, in memory as in a scene."""
    seen = []

    class Watcher(nn.Module):
        def forward(self, images, intrinsics, extrinsics, depth_range, *, generator):
            seen.append((images.clone(), intrinsics.clone(), extrinsics.clone()))
            return torch.full_like(images[:, 0, :1], 2.0)

    first, second = scene.views[:2]
    quarter, aside = torch.eye(4), torch.eye(4)
    quarter[:2, :2] = torch.tensor([[0.0, -1], [1, 0]])
    aside[0, 3] = 0.2
    square = [view.image[:, :, 8:56] for view in (first, second)]
    intrinsics = torch.stack([view.intrinsics for view in (first, second)])
    extrinsics = torch.stack([first.extrinsics, aside @ first.extrinsics])
    predictor = vizoo.MVSPredictor(Watcher(), "cpu")
    predictor(square, intrinsics, extrinsics, (1.0, 9.0))
    # The pixel (x, y) of the second one goes to (H - 1 - y, x).
    square[1] = square[1].rot90(-1, (1, 2))
    k = intrinsics[1]
    intrinsics[1] = torch.tensor([[k[1, 1], 0, 47 - k[1, 2]], [0, k[0, 0], k[0, 2]], [0, 0, 1]])
    extrinsics[1] = quarter @ extrinsics[1]
    predictor(square, intrinsics, extrinsics, (1.0, 9.0))
    for before, after in zip(*seen, strict=True):
        torch.testing.assert_close(after, before)


def test_a_plane_sweep_beside_the_network(scene, predictor, tmp_path):
    summary = reconstruct(predictor, scene, tmp_path, classical=True)
    other = summary["classical"]
    assert other["model"] == "PlaneSweep" and summary["model"] == "Oracle"
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    assert (tmp_path / "classical/cloud.ply").is_file() and other["points"] > 1000
    for index, view in enumerate(scene.views):
        swept = read_pfm(tmp_path / "classical/depth" / f"{view.name}.pfm")
        truth = view.truth()[0][0].numpy()
        right = np.abs(swept - truth) < 0.05 * swept
        assert other["agreed"][view.name] == pytest.approx(right.mean(), abs=1e-4)
        confidence = read_pfm(tmp_path / "classical/confidence" / f"{view.name}.pfm")
        assert other["views"][index]["confidence"] == pytest.approx(confidence.mean(), abs=1e-4)
        assert confidence[right].mean() > confidence[~right].mean()


class Interrupted(Exception):
    pass


def test_an_interrupted_run_resumes(scene, oracle, predictor, tmp_path):

    def stop(what, done, total):
        if what == "views" and done == 2:
            raise Interrupted

    with pytest.raises(Interrupted):
        reconstruct(predictor, scene, tmp_path / "out", report=stop)
    assert oracle.calls == ["00000000", "00000001"]
    summary = reconstruct(predictor, scene, tmp_path / "out")
    assert oracle.calls == [view.name for view in scene.views]  # none of them twice
    assert [view.get("resumed", False) for view in summary["views"]] == [True, True, False, False]
    whole = reconstruct(predictor, scene, tmp_path / "whole")
    assert summary["points"] == whole["points"]
    np.testing.assert_array_equal(*(read_ply(tmp_path / f"{f}/cloud.ply")[0] for f in
                                    ("out", "whole")))  # fmt: skip


def test_ctrl_c_leaves_an_earlier_cloud_and_its_summary(scene, predictor, tmp_path):
    reconstruct(predictor, scene, tmp_path)
    files = [tmp_path / name for name in ("summary.json", "cloud.ply", "cloud.png")]
    before = [file.read_bytes() for file in files]

    def stop(what, done, total):
        if what == "fusion":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reconstruct(predictor, scene, tmp_path, report=stop)
    assert [file.read_bytes() for file in files] == before


@pytest.mark.parametrize("made_by", ["0.0.1", None])
def test_views_of_another_version_are_told(scene, predictor, tmp_path, made_by):
    reconstruct(predictor, scene, tmp_path)
    mark = tmp_path / "views/00000001.json"
    kept = json.loads(mark.read_text())
    assert kept.pop("vizoo") == vizoo.__version__
    mark.write_text(json.dumps({**kept, "vizoo": made_by} if made_by else kept))
    said = f"vizoo {made_by or 'of an earlier version'} computed are kept, and this is"
    with pytest.warns(UserWarning, match=said):
        summary = reconstruct(predictor, scene, tmp_path)
    assert all(view["resumed"] for view in summary["views"])


@pytest.mark.parametrize("classical", [False, True])
def test_an_interrupted_restart_resumes(scene, oracle, predictor, tmp_path, classical):
    """Views that the restart had not reached are of other settings, and not to be kept."""
    reconstruct(predictor, scene, tmp_path, classical=classical)
    narrow, started = scene.with_range(1.0, 20.0), []

    def stop(what, done, total):
        started.append(what)
        if started.count("views") == 3:
            raise Interrupted

    with pytest.raises(Interrupted):
        reconstruct(predictor, narrow, tmp_path, restart=True, classical=classical, report=stop)
    oracle.calls.clear()
    summary = reconstruct(predictor, narrow, tmp_path, classical=classical)
    assert oracle.calls == ["00000002", "00000003"]
    views = [*summary["views"], *(summary["classical"]["views"] if classical else ())]
    assert {tuple(view["depth_range"]) for view in views} == {(1.0, 20.0)}


def test_a_range_that_was_derived_stays(scene, predictor, tmp_path, monkeypatch):
    """A resumed run does not depend on what libraries make of features today."""
    bare = altered(scene, depth_range=None)
    with pytest.warns(UserWarning, match="no depth range is given"):
        first = reconstruct(predictor, bare, tmp_path)

    def derive(*_):
        pytest.fail("derived again")

    monkeypatch.setattr("vizoo.datasets.mvs.scene.derive_range", derive)
    with pytest.warns(UserWarning, match=r"\(of an earlier run\)"):
        again = reconstruct(predictor, altered(scene, depth_range=None), tmp_path)
    for one, other in zip(first["views"], again["views"], strict=True):
        assert other["resumed"] and one["depth_range"] == other["depth_range"]


def test_half_a_view_is_computed_again(scene, oracle, predictor, tmp_path):
    reconstruct(predictor, scene, tmp_path)
    (tmp_path / "depth/00000001.pfm").unlink()
    (tmp_path / "views/00000002.json").write_text('{"settings": ')
    oracle.calls.clear()
    reconstruct(predictor, scene, tmp_path)
    assert oracle.calls == ["00000001", "00000002"]


@pytest.mark.parametrize(
    ("changes", "settings", "message"),
    [
        ({}, {"size": (24, 32)}, r"other size \(48 64, now 24 32\)"),
        ({}, {"views": 3}, "other sources"),
        ({}, {"seed": 1}, r"other seed \(0, now 1\)"),
        ({"depth_range": (1.0, 2000.0)}, {}, r"other depth range \(.*, now 1 2000\)"),
        ({"depth_range": (1.0, 2000.0001)}, {}, r"other depth range \(.*, now 1 2000.0001\)"),
        ({"intrinsics": torch.tensor([[70.0, 0, 31], [0, 70, 24], [0, 0, 1]])}, {},
         "other images or cameras"),
        ({"image": torch.zeros(3, 48, 64)}, {}, "other images or cameras"),
    ],
)  # fmt: skip
def test_other_settings_are_noticed(scene, oracle, predictor, tmp_path, changes, settings, message):
    reconstruct(predictor, scene, tmp_path)
    said = message + ".*name another folder, or compute all views anew with --restart"
    with pytest.raises(ValueError, match=said):
        reconstruct(predictor, altered(scene, **changes), tmp_path, **settings)
    assert len(oracle.calls) == 4


def test_other_weights_are_noticed_and_a_restart_takes_them(scene, oracle, predictor, tmp_path):
    reconstruct(predictor, scene, tmp_path)
    other = type(oracle)(scene, 0.001)
    with pytest.raises(ValueError, match="00000000.json: computed from other weights"):
        reconstruct(vizoo.MVSPredictor(other, "cpu"), scene, tmp_path)
    reconstruct(vizoo.MVSPredictor(other, "cpu"), scene, tmp_path, restart=True)
    assert len(other.calls) == 4


def test_another_size(scene, predictor, tmp_path):
    summary = reconstruct(predictor, scene, tmp_path, size=(96, 128))
    assert summary["size"] == [96, 128]
    assert read_pfm(tmp_path / "depth/00000000.pfm").shape == (96, 128)
    assert summary["points"] > 0.4 * 4 * 96 * 128


def test_numbers_of_numpy(scene, predictor, tmp_path):
    size, thresholds = (np.int64(36), np.int64(48)), {"views": np.int64(1), "pixels": np.float32(1)}
    how = {"seed": np.int64(2), "thresholds": thresholds}
    summary = reconstruct(predictor, scene, tmp_path, size=size, **how)
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    again = reconstruct(predictor, scene, tmp_path, size=(36, 48), **{**how, "seed": 2})
    assert all(view["resumed"] for view in again["views"])


def test_what_is_assumed_is_said(scene, predictor, tmp_path):
    pairs = [sources[:1] for sources in scene.pairs]
    views = [replace(view, depth_range=None) for view in scene.views]
    sparse = Scene(scene.name, views, [*pairs[:3], []], scene.layout)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        summary = reconstruct(predictor, sparse, tmp_path)
    said = [str(w.message) for w in caught if w.category is UserWarning]
    assert len(said) == 3
    assert "1 of 4 views have no source and are left out (00000003)" in said[0]
    assert "no depth range is given for 3 of 3 views: assumed" in said[1] and "guessed" in said[1]
    assert "no view has more than 1 source, so 1 instead of 2 must agree" in said[2]
    assert len(summary["views"]) == 3 and summary["fusion"]["views"] == 1


def test_large_images_are_made_smaller(scene, predictor, tmp_path, monkeypatch):
    monkeypatch.setattr("vizoo.mvs.reconstruction._LONGEST", 32)
    said = r"images of 48x64 are resized to 24x32 \(height x width\); size chooses another"
    with pytest.warns(UserWarning, match=said):
        summary = reconstruct(predictor, scene, tmp_path)
    assert summary["size"] == [24, 32]


def test_thinning_normals_and_mesh(scene, predictor, tmp_path):
    library = pytest.importorskip("open3d", exc_type=ImportError)
    summary = reconstruct(predictor, scene, tmp_path, voxel=0.04, normals=True, mesh=0.04)
    cloud = library.io.read_point_cloud(str(tmp_path / "cloud.ply"))
    assert len(cloud.points) == summary["points"] < sum(v["points"] for v in summary["views"])
    normals = np.asarray(cloud.normals)
    np.testing.assert_allclose(np.linalg.norm(normals, axis=1), 1, atol=1e-5)
    centres = np.stack([np.linalg.inv(v.extrinsics.numpy())[:3, 3] for v in scene.views])
    towards = centres.mean(axis=0) - np.asarray(cloud.points)
    assert ((towards * normals).sum(axis=1) > 0).mean() > 0.95
    mesh = library.io.read_triangle_mesh(summary["mesh"])
    assert len(mesh.triangles) > 1000 and mesh.has_vertex_colors()
    # The surface lies where the points of the depth maps do, but for walls at steps in depth.
    from scipy.spatial import cKDTree

    depths = [view.truth()[0][0] for view in scene.views]
    truth = [lift(d, v.intrinsics, v.extrinsics) for d, v in zip(depths, scene.views, strict=True)]
    tree = cKDTree(torch.cat([points.reshape(-1, 3) for points in truth]).numpy())
    assert np.median(tree.query(np.asarray(mesh.vertices))[0]) < 0.02


def test_only_files_of_an_earlier_run_go(scene, predictor, tmp_path):
    mesh = tmp_path / "mesh.ply"
    mesh.write_text("somebody's")
    for _ in range(2):
        summary = reconstruct(predictor, scene, tmp_path)
        assert mesh.read_text() == "somebody's"
    (tmp_path / "summary.json").write_text(json.dumps({**summary, "mesh": "moved/mesh.ply"}))
    reconstruct(predictor, scene, tmp_path)
    assert not mesh.exists() and (tmp_path / "cloud.ply").is_file()


def test_views_of_another_scene_in_the_folder_are_named(scene, predictor, tmp_path):
    (tmp_path / "views").mkdir()
    for name in ("00000000", "cam0.a"):
        (tmp_path / "views" / f"{name}.json").write_text("{}")
    with pytest.warns(UserWarning, match=r"not of this one, stays there: cam0\.a$"):
        reconstruct(predictor, scene, tmp_path)


class NotFinite(nn.Module):
    def forward(self, images, *cameras, generator):
        return torch.full_like(images[:, 0, :1], torch.nan)


@pytest.mark.parametrize("count", [1, 2])
def test_what_no_view_confirms_is_written_and_not_fused(scene, predictor, tmp_path, count):
    """One view alone has sources, or two have others than each other."""
    third = [(3, 1.0)]
    pairs = [scene.pairs[0] if count == 1 else third, third if count == 2 else [], [], []]
    alone = Scene("s", scene.views, pairs, "generated")
    reconstruct(predictor, scene, tmp_path)
    with pytest.warns(UserWarning, match="there is depth, and nothing to fuse it with"):
        summary = reconstruct(predictor, alone, tmp_path, restart=True)
    assert summary["fusion"] is summary["cloud"] is None and len(summary["views"]) == count
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    assert (tmp_path / "depth/00000000.pfm").is_file() and not list(tmp_path.glob("*.ply"))


def test_refused(scene, oracle, predictor, tmp_path):
    cases = [
        (altered(scene, 2, image=torch.rand(3, 40, 64)), {}, "view 00000002: 40x64 pixels, but"),
        (altered(scene, depth_range=(0.1, 0.2)), {}, "no point is left of 12288 pixels"),
        (scene, {"views": 1}, "2 views or more, got 1"),
        (scene, {"voxel": -1.0}, "voxel -1.0: must be above 0"),
        (scene, {"mesh": 0}, "mesh 0: must be above 0"),
        (scene, {"size": (0, 64)}, r"size \(0, 64\): must be above 0"),
        (scene, {"size": np.array([48, 64])}, "reconstruct: size must be of type"),
        (Scene("s", scene.views, [[]] * 4, "generated"), {}, "no view has a source"),
        (scene, {"thresholds": Thresholds(7)}, "7 other views must agree, but no view"),
        (scene, {"thresholds": {"views": 7}}, "7 other views must agree, but no view"),
        (scene, {"thresholds": {"pixel": 1}}, "threshold 'pixel' is none of views, pixels, rel"),
    ]
    for number, (wrong, options, message) in enumerate(cases):
        with pytest.raises(ValueError, match=message):
            reconstruct(predictor, wrong, tmp_path / str(number), **options)
        assert not (tmp_path / str(number) / "cloud.ply").exists()
        # What is known beforehand is said before the views are computed.
        assert (tmp_path / str(number)).exists() == ("no point is left" in message)
    with pytest.raises(ValueError, match="view 00000000: the network's output is not finite"):
        reconstruct(vizoo.MVSPredictor(NotFinite(), "cpu"), scene, tmp_path / "nan")
    images, k, e = [scene.views[0].image], torch.eye(3)[None], torch.eye(4)[None]
    with pytest.raises(ValueError, match="two views at least"):
        predictor(images, k, e)
    with pytest.raises(ValueError, match=r"intrinsics must be \(3, 3, 3\), got \(3, 3\)"):
        predictor(images * 3, k[0], e.repeat(3, 1, 1), (1, 2))
    with pytest.raises(ValueError, match=r"extrinsics must be \(2, 4, 4\), got \(2, 3, 4\)"):
        predictor(images * 2, k.repeat(2, 1, 1), e[:, :3].repeat(2, 1, 1), (1, 2))
    with pytest.raises(ValueError, match="views 0 and 1 differ in size: 48x64, 40x64"):
        predictor([*images, images[0][:, :40]], k.repeat(2, 1, 1), e.repeat(2, 1, 1), (1, 2))
    with pytest.raises(ValueError, match="all cameras stand at one place"):
        predictor(images * 2, k.repeat(2, 1, 1), e.repeat(2, 1, 1))
    with pytest.raises(ValueError, match="depth range 2 to 1 is none"):
        predictor(images * 2, k.repeat(2, 1, 1), e.repeat(2, 1, 1), (2, 1))
    with pytest.raises(ValueError, match="float16 needs a GPU"):
        vizoo.MVSPredictor(oracle, "cpu", "float16")
