import pytest
import torch
import torch.nn.functional as F

from vizoo.datasets.stereo import scenes as module
from vizoo.datasets.stereo.scenes import GeneratedStereo, generate_scenes

SIZE = (96, 192)


@pytest.fixture(scope="module")
def clean():
    return generate_scenes(10, *SIZE, seed=3, photometric=False)


def warp(image, disparity):
    """Samples image (B, C, H, W) at x - d, independently of the package's own operator."""
    width = image.shape[3]
    x = torch.arange(width) - disparity[:, 0]
    low = x.floor().clamp(0, width - 2)
    weight = (x - low).clamp(0, 1)[:, None]
    index = low.long()[:, None].expand_as(image)
    return image.gather(3, index) * (1 - weight) + image.gather(3, index + 1) * weight


def residual(scene, disparity):
    """Median and mean colour error over visible pixels that lie away from edges."""
    depth = scene["disparity"]
    spread = F.max_pool2d(depth, 3, 1, 1) + F.max_pool2d(-depth, 3, 1, 1)
    hidden = F.max_pool2d(scene["occluded"].float(), 5, 1, 2) > 0
    smooth = (spread < 1.0) & ~hidden
    error = (warp(scene["right"], disparity) - scene["left"]).abs().mean(1, keepdim=True)
    return float(error[smooth].mean())


def test_shapes_and_types():
    scene = generate_scenes(2, 48, 80, seed=0, device=torch.device("cpu"))
    for name in ("left", "right"):
        assert scene[name].shape == (2, 3, 48, 80) and scene[name].dtype == torch.float32
        assert 0 <= scene[name].min() and scene[name].max() <= 1
    assert scene["disparity"].shape == (2, 1, 48, 80)
    assert scene["disparity"].dtype == torch.float32
    assert scene["valid"].dtype == scene["occluded"].dtype == torch.bool
    assert scene["valid"].all()


def test_same_seed_same_scenes_whatever_the_count():
    several = generate_scenes(2, 48, 96, seed=5)
    first, second = (generate_scenes(1, 48, 96, seed=5, first=number) for number in range(2))
    other = generate_scenes(1, 48, 96, seed=6)
    for name, value in several.items():
        assert torch.equal(value, torch.cat([first[name], second[name]]))
    assert not torch.equal(first["left"], other["left"])
    assert not torch.equal(several["disparity"][0], several["disparity"][1])


def test_scenes_rendered_together_equal_scenes_rendered_alone():
    alone = generate_scenes(2, 64, 96, seed=8, photometric=False)
    together = generate_scenes(2, 64, 96, seed=8, photometric=False, batch=2)
    for name in ("left", "right", "disparity"):
        close = torch.isclose(alone[name], together[name], atol=1e-3)
        assert close.float().mean() > 0.999, name
    assert (alone["occluded"] == together["occluded"]).float().mean() > 0.999


def test_right_view_warped_by_the_disparity_is_the_left_view(clean):
    depth = clean["disparity"]
    right = residual(clean, depth)
    assert right < 0.012
    assert residual(clean, depth + 1) > 1.7 * right
    assert residual(clean, depth - 1) > 1.7 * right
    assert residual(clean, -depth) > 4 * right


def test_occlusion_agrees_with_a_brute_force_search(clean):
    """A left pixel is hidden where another left pixel with more disparity lands beside it."""
    depth, marked = clean["disparity"][:, 0], clean["occluded"][:, 0]
    width = depth.shape[2]
    match = torch.arange(width) - depth
    outside = match < 0
    beside = (match[..., None, :] - match[..., :, None]).abs() <= 0.5
    nearer = depth[..., None, :] > depth[..., :, None] + 1.0
    hidden = (beside & nearer).any(dim=-1)
    # The search knows neither what the left view lacks nor gaps that slanted surfaces leave.
    assert marked[outside].all()
    assert marked[hidden].float().mean() > 0.97
    surplus = marked & ~hidden & ~outside
    near = F.max_pool2d((hidden | outside).float()[:, None], 3, 1, 1)[:, 0] > 0
    from_beyond = match + F.max_pool2d(depth[:, None], (1, 2 * width - 1), 1, (0, width - 1))[:, 0]
    unexplained = surplus & ~near & (from_beyond < width - 2)
    assert unexplained.float().mean() < 0.005


@pytest.mark.parametrize("limit", [6.0, 40.0, 192.0])
def test_disparity_stays_in_range(limit):
    scenes = generate_scenes(3, 48, 128, seed=11, max_disparity=limit, photometric=False)
    depth = scenes["disparity"]
    assert depth.min() > 0
    assert depth.max() <= min(limit, 64)
    assert depth.flatten(1).amax(1).max() > 0.3 * min(limit, 64)


def test_planes_are_exact_in_both_views():
    p = {name: torch.zeros(1, 1, 1, dtype=torch.float64) for name in "abcqwestkm"}
    p |= {
        name: torch.full((1, 1, 1), 50.0, dtype=torch.float64) for name in ("rx", "ry", "cx", "cy")
    }
    p["phase"] = torch.zeros(1, 1, 1, dtype=torch.float64)
    p["a"] += 20
    p["b"] += 15
    p["c"] -= 4
    y, x_right = (
        torch.tensor([[[10.0]]]).double(),
        torch.linspace(0, 99, 12).double().view(1, 1, -1),
    )
    x, _ = module._left_position(x_right, y, p, curved=False)
    slope = 15 / 50
    expected = (x_right + 20 - slope * 50 - 4 / 50 * (10 - 50)) / (1 - slope)
    assert torch.allclose(x, expected, atol=1e-9)
    p["q"] += 3
    p["e"] -= 4
    p["s"] += 1
    p["k"] += 3
    x, _ = module._left_position(x_right, y, p, curved=True)
    disparity, _ = module._surface(x, y, p, curved=True)
    assert torch.allclose(x - disparity, x_right, atol=1e-4)


def test_misalignment_moves_rows_only_when_asked():
    level = generate_scenes(1, 48, 96, seed=2, photometric=False)
    offset = generate_scenes(1, 48, 96, seed=2, photometric=False, vertical_offset=2.0)
    assert torch.equal(level["left"], offset["left"])
    assert torch.equal(level["disparity"], offset["disparity"])
    assert not torch.equal(level["right"], offset["right"])


def test_views_differ_photometrically_by_default():
    plain = generate_scenes(1, 48, 96, seed=4, photometric=False)
    taken = generate_scenes(1, 48, 96, seed=4)
    assert torch.equal(plain["disparity"], taken["disparity"])
    assert not torch.equal(plain["left"], taken["left"])
    levels = taken["left"] * 255
    assert torch.allclose(levels, levels.round(), atol=1e-3)


@pytest.mark.parametrize(
    "wrong",
    [{"count": 0}, {"height": 8}, {"width": 8}, {"max_disparity": 0.0}, {"vertical_offset": -1.0}],
)
def test_wrong_arguments_are_named(wrong):
    arguments = {"count": 1, "height": 48, "width": 96, "seed": 0} | wrong
    with pytest.raises(ValueError, match="scenes: "):
        generate_scenes(**arguments)


def test_dataset_items_depend_on_seed_and_index_alone():
    data = GeneratedStereo(3, 48, 96, seed=9)
    samples = list(data)
    assert len(data) == len(samples) == 3
    series = generate_scenes(2, 48, 96, seed=9)
    sample = samples[1]
    assert set(sample) == {"left", "right", "disparity", "valid", "occluded", "name"}
    for name, value in series.items():
        assert torch.equal(sample[name], value[1])
    assert torch.equal(data[-2]["left"], sample["left"])
    with pytest.raises(IndexError):
        data[3]
    with pytest.raises(ValueError, match="length"):
        GeneratedStereo(0, 48, 96)


def test_dataset_in_worker_processes():
    data = GeneratedStereo(2, 48, 96, seed=1)
    loader = torch.utils.data.DataLoader(data, batch_size=1, num_workers=1)
    batches = list(loader)
    assert torch.equal(batches[1]["left"][0], data[1]["left"])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_gpu_shows_the_same_scenes():
    cpu = generate_scenes(3, 64, 96, seed=8)
    gpu = generate_scenes(3, 64, 96, seed=8, device="cuda")
    close = torch.isclose(cpu["disparity"], gpu["disparity"].cpu(), atol=1e-2)
    assert close.float().mean() > 0.99


def test_the_cache_belongs_to_a_version_of_the_scenes(tmp_path, monkeypatch):
    def kept():
        return {path.name for path in tmp_path.iterdir()}

    GeneratedStereo(1, 32, 64, max_disparity=24, cache=str(tmp_path))[0]
    first = kept()
    monkeypatch.setattr(module, "_VERSION", module._VERSION + 1)
    GeneratedStereo(1, 32, 64, max_disparity=24, cache=str(tmp_path))[0]
    assert len(first) == 1 and len(kept()) == 2


def test_clutter_covers_the_walls():
    """Fewer objects leave more of the background, whose disparity has fewer steps."""
    edges = []
    for clutter in (0.0, 0.3, 1.0):
        scenes = generate_scenes(2, 48, 96, seed=5, clutter=clutter)["disparity"]
        edges.append(((scenes[..., 1:] - scenes[..., :-1]).abs() > 1).float().mean().item())
    assert edges[0] < edges[1] < edges[2]
    with pytest.raises(ValueError, match="clutter 2: want 0 to 1"):
        generate_scenes(1, 64, 128, seed=5, clutter=2)
