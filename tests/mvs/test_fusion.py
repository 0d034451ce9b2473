"""Fusion: the published filter's answers, exact depth survives, every loss is accounted for."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from mvs_fixtures import small_scene

from vizoo.datasets.mvs.cameras import lift, project
from vizoo.mvs.fusion import DEFAULT, PRESETS, DepthView, Thresholds, fuse, fuse_to_file, preset
from vizoo.vision.io.pfm import write_pfm
from vizoo.vision.io.ply import read_ply

SIZE = (48, 64)


def camera(x, y, turn):
    """A camera at (x, y, 0), turned by `turn` radians about the vertical axis."""
    c, s = np.cos(turn), np.sin(turn)
    extrinsics = torch.eye(4)
    extrinsics[:3, :3] = torch.tensor([[c, 0, s], [0, 1, 0], [-s, 0, c]])
    extrinsics[:3, 3] = -extrinsics[:3, :3] @ torch.tensor([x, y, 0.0])
    return torch.tensor([[60.0, 0, 31], [0, 62, 24], [0, 0, 1]]), extrinsics


def plane_depth(intrinsics, extrinsics):
    """Depth of the plane z = 4 + 0.3 x - 0.2 y in a camera, by intersection of rays."""
    y, x = torch.meshgrid(*(torch.arange(n).double() for n in SIZE), indexing="ij")
    rays = torch.stack([x, y, torch.ones_like(x)], -1) @ intrinsics.double().inverse().T
    pose = extrinsics.double().inverse()
    rays, centre = rays @ pose[:3, :3].T, pose[:3, 3]
    normal = torch.tensor([-0.3, 0.2, 1.0], dtype=torch.float64)
    return ((4 - centre @ normal) / (rays @ normal)).float()


def agreement(view, source, thresholds=DEFAULT):
    """Where a view (depth, intrinsics, extrinsics) and another agree, and the other's depth there.

    What is kept of two views is their mean.
    """
    views = [
        DepthView(name, k, e, depth, None, sources)
        for name, (depth, k, e), sources in (("view", view, [1]), ("source", source, []))
    ]
    part = next(fuse(views, replace(thresholds, views=1)))
    agrees = torch.from_numpy(part.depth) > 0
    return agrees, torch.where(agrees, 2 * torch.from_numpy(part.depth) - view[0], 0)


def plane_views(**changes):
    cameras = [camera(0.3 * i, 0.1 * i, -0.06 * i) for i in range(4)]
    views = []
    for i, (k, e) in enumerate(cameras):
        image = np.full((*SIZE, 3), 50 * i, np.uint8)
        sources = [j for j in range(4) if j != i]
        view = {"depth": plane_depth(k, e), "image": image, "sources": sources, **changes}
        views.append(DepthView(f"v{i}", k, e, **view))
    return views


def test_reference_case(shared):
    folder = shared / "golden" / "dispmvs"
    case = json.loads((folder / "fusion_consistency.json").read_text())
    data = {k: torch.from_numpy(v) for k, v in np.load(folder / "fusion_consistency.npz").items()}
    settings = case["arguments"]
    thresholds = Thresholds(
        settings["views_needed"], settings["pixel_threshold"], settings["relative_threshold"]
    )
    extrinsics = torch.eye(4).repeat(4, 1, 1)
    extrinsics[:, :3] = torch.cat([data["in_rotations"], data["in_translations"]], dim=2)
    cameras = list(zip(data["in_depths"], data["in_intrinsics"], extrinsics, strict=True))
    limit = case["tolerance"]["mask_disagreement"]
    for wanted, source in zip(data["out_consistent"], cameras[1:], strict=True):
        agrees, _ = agreement(cameras[0], source, thresholds)
        assert (agrees != wanted.bool()).float().mean() <= limit

    span = (data["in_depth_min"].item(), data["in_depth_max"].item())
    views = [
        DepthView(str(i), k, e, depth, None, [1, 2, 3] if i == 0 else [], span)
        for i, (depth, k, e) in enumerate(cameras)
    ]
    part = next(fuse(views, thresholds))
    keep = data["out_keep"].bool().numpy()
    assert ((part.depth > 0) != keep).mean() <= limit
    both = (part.depth > 0) & keep
    wanted = data["out_mean_depth"].numpy()
    error = np.abs(part.depth - wanted)[both] / wanted[both]
    assert np.quantile(error, 0.99) <= case["tolerance"]["mean_depth_relative"]
    assert part.unknown + part.unconfirmed + part.out_of_range + part.kept == keep.size


@pytest.mark.parametrize("off", [0.6, 1.5])
def test_how_far_a_pixel_may_come_back(off):
    """Cameras side by side; one sees the plane so far off that pixels return `off` away."""
    (k, e), (_, beside) = camera(0, 0, 0), camera(1, 0, 0)
    focal, depth = k[0, 0].item(), 4.0
    view = torch.full(SIZE, depth), k, e
    other = torch.full(SIZE, 1 / (1 / depth - off / focal)), k, beside
    for pixels, kept in ((0.9 * off, False), (1.1 * off, True)):
        agrees, _ = agreement(view, other, Thresholds(1, pixels, relative=0.5))
        assert agrees[:, 16:].all() == kept == agrees.any()


def test_exact_depth_is_kept(tmp_path):
    """Over 95 % of what two other views see; every point on the plane."""
    views = plane_views()
    report = fuse_to_file(views, tmp_path / "cloud.ply", Thresholds(2))
    points, colours = read_ply(tmp_path / "cloud.ply")
    assert len(points) == report.points == sum(report.kept_by_view.values())
    np.testing.assert_allclose(points[:, 2], 4 + 0.3 * points[:, 0] - 0.2 * points[:, 1], atol=1e-4)
    seen = 0
    for i, view in enumerate(views):
        pose = view.extrinsics.double().inverse()
        y, x = torch.meshgrid(*(torch.arange(n).double() for n in SIZE), indexing="ij")
        rays = torch.stack([x, y, torch.ones_like(x)], -1) @ view.intrinsics.double().inverse().T
        world = (rays * view.depth[..., None]) @ pose[:3, :3].T + pose[:3, 3]
        count = torch.zeros(SIZE)
        for other in view.sources:
            k, e = views[other].intrinsics.double(), views[other].extrinsics.double()
            p = (world @ e[:3, :3].T + e[:3, 3]) @ k.T
            u, v = p[..., 0] / p[..., 2], p[..., 1] / p[..., 2]
            count += (u >= 0) & (v >= 0) & (u <= SIZE[1] - 1) & (v <= SIZE[0] - 1)
        visible = int((count >= 2).sum())
        assert report.kept_by_view[f"v{i}"] > 0.95 * visible
        seen += visible
    assert set(np.unique(colours)) <= {0, 50, 100, 150} and seen > 1000
    assert report.pixels == 4 * SIZE[0] * SIZE[1]


def test_a_generated_scene_is_kept():
    """Steps in depth included: over 95 % of what two other views truly see."""
    scene = small_scene(views=5, height=96, width=128)
    depths = [view.truth()[0][0] for view in scene.views]
    others = [[j for j in range(5) if j != i] for i in range(5)]
    views = [
        DepthView(v.name, v.intrinsics, v.extrinsics, d, None, o, v.depth_range)
        for v, d, o in zip(scene.views, depths, others, strict=True)
    ]
    kept = visible = 0
    for index, part in enumerate(fuse(views)):
        points = lift(depths[index], views[index].intrinsics, views[index].extrinsics)
        count = torch.zeros(96, 128)
        for other in others[index]:
            pixels, far = project(points, views[other].intrinsics, views[other].extrinsics)
            x, y = pixels.round().long().unbind(-1)
            inside = (x >= 0) & (y >= 0) & (x < 128) & (y < 96) & (far > 0)
            seen = depths[other][y.clamp(0, 95), x.clamp(0, 127)]
            count += inside & ((seen - far).abs() < 0.01 * far)
        mutual = (count >= 2).numpy()
        kept += int((part.depth > 0)[mutual].sum())
        visible += int(mutual.sum())
    assert kept > 0.95 * visible and visible > 0.7 * 5 * 96 * 128


def test_a_view_agrees_with_itself_up_to_its_border_but_not_around_holes():
    k, e = camera(0.2, 0.1, 0.3)
    depth = plane_depth(k, e)
    agrees, carried = agreement((depth, k, e), (depth, k, e))
    assert agrees.all()
    torch.testing.assert_close(carried, depth)
    source = depth.clone()
    source[10, 10], source[20, 20] = 0, torch.nan
    agrees, carried = agreement((depth, k, e), (source, *camera(0.21, 0.1, 0.3)))
    assert torch.isfinite(carried).all()
    # Every lookup next to a hole mixes the unknown in, so none of them may agree.
    assert 0 < (~agrees[8:13, 8:13]).sum() <= 9 and 0 < (~agrees[18:23, 18:23]).sum() <= 9


def test_arrays_that_are_flipped():
    views = plane_views()
    flipped = [replace(view, depth=view.depth.numpy()[::-1].copy()[::-1]) for view in views]
    for part, other in zip(fuse(views), fuse(flipped), strict=True):
        np.testing.assert_array_equal(part.points, other.points)


def test_wrong_depth_is_removed():
    views = plane_views()
    views[0].depth[5:10, 5:10] *= 1.1
    part = next(fuse(views, Thresholds(2)))
    assert not part.depth[5:10, 5:10].any()


def test_sources_behind_the_camera_do_not_confirm():
    k, e = camera(0, 0, 0)
    depth = torch.full(SIZE, 2.0)
    behind = e.clone()
    behind[:3, :3] = torch.diag(torch.tensor([-1.0, 1, -1]))
    agrees, _ = agreement((depth, k, e), (depth, k, behind))
    assert not agrees.any()


def test_streaming_reads_from_disk_and_keeps_to_its_bytes(tmp_path, monkeypatch):
    views = plane_views()
    wanted = [part.points for part in fuse(views)]
    reads = []
    streamed = []
    for view in views:
        path = tmp_path / f"{view.name}.pfm"
        write_pfm(path, view.depth.numpy())

        def image(view=view):
            reads.append(view.name)
            return view.image

        streamed.append(
            DepthView(view.name, view.intrinsics, view.extrinsics, path, image, view.sources)
        )
    monkeypatch.setattr("vizoo.mvs.fusion._CACHE_BYTES", 4 * SIZE[0] * SIZE[1])  # one map
    found = [part.points for part in fuse(streamed)]
    assert reads == ["v0", "v1", "v2", "v3"]
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.gpu
def test_gpu_agrees_with_cpu():
    for a, b in zip(fuse(plane_views()), fuse(plane_views(), device="cuda"), strict=True):
        assert abs(a.kept - b.kept) <= 0.01 * a.kept
        both = (a.depth > 0) & (b.depth > 0)
        np.testing.assert_allclose(a.depth[both], b.depth[both], rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "thresholds", "message"),
    [
        ({"depth": torch.zeros(SIZE)}, Thresholds(), "12288 had no depth, 0 were .*maps are empty"),
        ({"depth": torch.rand(SIZE) + 1}, Thresholds(3, 0.01, 1e-4), "12288 were not.*by 3 other"),
        ({"depth_range": (50.0, 90.0)}, Thresholds(), r"lay beyond the depth range \(50 to 90\)"),
    ],
)
def test_no_point_left(tmp_path, changes, thresholds, message):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match=f"no point is left of 12288 pixels.*{message}"):
            fuse_to_file(plane_views(**changes), tmp_path / "cloud.ply", thresholds)
    assert not list(tmp_path.iterdir())


def test_an_empty_depth_map_is_named(tmp_path):
    views = plane_views()
    views[2].depth[:] = torch.nan
    with pytest.warns(UserWarning, match="view v2: its depth map is empty"):
        report = fuse_to_file(views, tmp_path / "cloud.ply")
    assert report.kept_by_view["v2"] == 0 and report.points > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sources": [7]}, "view v3: its sources name view 7 of 4"),
        ({"sources": [3]}, "view v3: its sources name itself"),
        ({"sources": [0, 1, 0]}, "view v3: its sources name view 0 twice"),
        ({"intrinsics": torch.zeros(3, 3)}, "view v3: the intrinsics"),
        ({"depth": torch.ones(5)}, r"view v3: a depth map has shape \(H, W\)"),
        ({"image": np.zeros((3, *SIZE), np.uint8)}, r"view v3: its image is uint8 \(3, 48, 64\)"),
    ],
)
def test_a_wrong_view_is_named(changes, message):
    views = plane_views()
    views[3] = replace(views[3], **changes)
    with pytest.raises(ValueError, match=message):
        list(fuse(views))


def test_too_few_views():
    with pytest.raises(ValueError, match="two views or more, got 1"):
        fuse(plane_views()[:1])
    views = [replace(view, sources=view.sources[:1]) for view in plane_views()]
    with pytest.raises(ValueError, match="no view has more than 1 source: ask for 1"):
        fuse(views)


def test_presets():
    assert preset("default") == Thresholds(2, 1.0, 0.01)
    assert preset("DTU/scan118") == Thresholds(3, 0.75, 0.01)
    assert preset("tanks/Francis") == Thresholds(8, 2.0, 0.0025)
    assert sum(name.startswith("dtu/") for name in PRESETS) == 22
    assert sum(name.startswith("tanks/") for name in PRESETS) == 14
    with pytest.raises(ValueError, match="did you mean 'tanks/family'"):
        preset("tanks/famly")
    with pytest.raises(ValueError, match="views must be positive, got 0"):
        Thresholds(0)
