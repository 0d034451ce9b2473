"""The plane sweep: near the truth on a textured scene, whatever the exposure; what it refuses."""

import functools
import itertools

import pytest
import torch

from vizoo.mvs import classical
from vizoo.mvs.classical import SourceCorrelation, better_half, plane_sweep


def share_within(depth, textured_views, tolerance):
    """Share of the known pixels whose depth is right, away from the borders."""
    truth, inner = textured_views["depth"][0], torch.zeros_like(textured_views["valid"][0])
    inner[12:-12, 12:-12] = True
    known = textured_views["valid"][0] & inner
    return ((depth - truth).abs() / truth < tolerance)[known].float().mean()


def sweep(textured_views, images=None, **settings):
    return plane_sweep(
        textured_views["images"] if images is None else images,
        textured_views["intrinsics"],
        textured_views["extrinsics"],
        tuple(textured_views["depth_range"].tolist()),
        **settings,
    )


@pytest.fixture(scope="module")
def swept(textured_views):
    return sweep(textured_views)


def test_near_the_truth(textured_views, swept):
    depth, score = swept
    assert depth.shape == score.shape == (96, 128)
    least, greatest = textured_views["depth_range"]
    assert (depth >= least - 1e-3).all() and (depth <= greatest + 1e-3).all()
    assert share_within(depth, textured_views, 0.02) > 0.75
    # The parabola finds what lies between few planes.
    coarse, _ = sweep(textured_views, planes=24)
    assert share_within(coarse, textured_views, 0.02) > 0.5


def test_of_several_windows_the_mean_counts(textured_views):
    views = [textured_views[name] for name in ("images", "intrinsics", "extrinsics")]
    small, large = (SourceCorrelation(*views, windows)(0.5)[0] for windows in ((9,), (17,)))
    both = SourceCorrelation(*views, (9, 17))
    torch.testing.assert_close(both(0.5), torch.stack((small, large)))
    torch.testing.assert_close(both.score(0.5), better_half((small + large) / 2))


def test_a_pixel_that_is_no_number_tells_nothing(textured_views):
    images = textured_views["images"].clone()
    images[1, :, 20, 30] = torch.nan
    depth, score = sweep(textured_views, images, planes=8, smooth=False)
    assert depth.isfinite().all() and -1 <= score.min() <= score.max() <= 1


@pytest.mark.parametrize("sources", [1, 2, 3, 4, 7])
def test_the_better_half_is_that_of_a_sort(sources):
    alike = torch.rand(2, sources, 3, 5).mul(8).round()  # with ties
    ranked = alike.sort(dim=1, descending=True).values
    torch.testing.assert_close(better_half(alike), ranked[:, : -(-sources // 2)].mean(1))


def test_windows_grow_with_the_picture(textured_views):
    few = functools.partial(sweep, textured_views, planes=8)
    small, large = few(windows=(5, 9)), few()
    assert all(torch.equal(a, b) for a, b in zip(small, large, strict=True))  # of 96x128
    assert not torch.equal(few(windows=(9,))[0], large[0])


def test_views_in_float64_are_compared_as_others(textured_views):
    views = {k: textured_views[k].double() for k in ("images", "intrinsics", "extrinsics")}
    double, single = (sweep({**textured_views, **v}, planes=8)[0] for v in (views, {}))
    torch.testing.assert_close(double.float(), single, rtol=1e-3, atol=1e-3)


def test_exposure_changes_nothing(textured_views, swept):
    darker = textured_views["images"].clone()
    darker[1:] = 0.6 * darker[1:] + 0.1
    (plain, _), (dark, _) = swept, sweep(textured_views, darker)
    inner = (slice(12, -12), slice(12, -12))  # windows beyond a source's border hold black
    assert torch.isclose(plain[inner], dark[inner], rtol=1e-2).float().mean() > 0.95


def test_right_scores_are_higher(textured_views, swept):
    depth, score = swept
    truth = textured_views["depth"][0]
    right = (depth - truth).abs() / truth < 0.02
    assert score[right].mean() > score[~right].mean() + 0.1 and (score <= 1.001).all()


@pytest.mark.parametrize("noise", [0, 0.02])
def test_where_neighbours_agree_depth_is_better(textured_views, noise):
    images = textured_views["images"]
    images = images + noise * torch.randn(images.shape, generator=torch.manual_seed(0))
    plain, _ = sweep(textured_views, images)
    smooth, score = sweep(textured_views, images, smooth=True)
    assert score.shape == smooth.shape and (score <= 1.001).all()
    gain = share_within(smooth, textured_views, 0.02) - share_within(plain, textured_views, 0.02)
    assert gain > 0.05


@pytest.mark.parametrize("axis", [0, 1])
def test_a_sum_is_what_the_best_path_through_a_pixel_costs(axis):
    generator = torch.manual_seed(1)
    costs = torch.randint(0, 500, (5, 4), generator=generator).short()  # five pixels, four planes
    leaps = torch.randint(100, 400, (4,), generator=generator).short()
    lines = costs.unsqueeze(1 - axis)
    totals = torch.zeros_like(lines)
    classical._gather(totals, lines, leaps.unsqueeze(1 - axis), axis)
    least = torch.full((5, 4), 1 << 20, dtype=torch.int32)
    for path in itertools.product(range(4), repeat=5):
        cost = sum(int(costs[pixel, plane]) for pixel, plane in enumerate(path))
        for leap, (a, b) in zip(leaps.tolist(), itertools.pairwise(path), strict=True):
            cost += (0, classical._STEP, leap)[min(abs(a - b), 2)]
        for pixel, plane in enumerate(path):
            least[pixel, plane] = min(least[pixel, plane], cost)
    # Either way counts a pixel itself, and leaves out what all planes before it cost at least.
    sums = (totals - lines).squeeze(1 - axis).int()
    assert torch.equal(sums - sums.amin(1, True), least - least.amin(1, True))


def test_rows_and_columns_are_treated_alike():
    generator = torch.manual_seed(2)
    scores = list(2 * torch.rand(6, 9, 7, generator=generator) - 1)
    grey = torch.rand(9, 7, generator=generator)
    index, peak = classical._smoothest(scores, 6, grey)
    turned, peak_turned = classical._smoothest([score.T for score in scores], 6, grey.T)
    assert torch.equal(index, turned.T)
    assert all(torch.equal(a, b.T) for a, b in zip(peak, peak_turned, strict=True))


@pytest.mark.parametrize(
    "settings", [{"planes": 1}, {"windows": (9, 4)}, {"windows": (0,)}, {"windows": ()}]
)
def test_refused(textured_views, settings):
    with pytest.raises(ValueError, match="want two views, two planes and odd windows"):
        sweep(textured_views, **settings)
    with pytest.raises(ValueError, match="plane sweep over 1 views"):
        plane_sweep(
            textured_views["images"][:1],
            textured_views["intrinsics"][:1],
            textured_views["extrinsics"][:1],
            (1.0, 2.0),
        )
    with pytest.raises(ValueError, match="depth range 2 to 1 is none"):
        plane_sweep(
            textured_views["images"],
            textured_views["intrinsics"],
            textured_views["extrinsics"],
            (2.0, 1.0),
        )
