"""What may be trusted without truth: agreement of sizes, views and matchers."""

import pytest
import torch
from torch.nn.functional import avg_pool2d

from vizoo.datasets.stereo import generate_scenes
from vizoo.stereo.agreement import agreed, disagreement, gained
from vizoo.stereo.classical import semi_global_matching


@pytest.fixture(scope="module")
def scene():
    scene = generate_scenes(1, 128, 256, seed=5, max_disparity=24, clutter=0.3)
    return {name: value[0] for name, value in scene.items()}


def views(shift=6, height=40, width=80):
    """A texture seen by both cameras with one disparity everywhere."""
    texture = torch.rand(3, height, width + shift, generator=torch.Generator().manual_seed(0))
    return texture[:, :, :width], texture[:, :, shift:]


def constant(value):
    return lambda left, right, scale: torch.full(left.shape[1:], float(value))


def test_what_all_give_is_agreed():
    disparity, sure = agreed(constant(6), *views())
    assert disparity.eq(6).all()
    assert sure[:, 6:].all() and not sure[:, :6].any()  # whose match is outside the picture


@pytest.mark.parametrize(("apart", "counts"), [(0.9, True), (1.1, False)])
def test_sizes_have_to_agree(apart, counts):
    _, sure = agreed(
        lambda left, right, scale: torch.full((40, 80), 6 + apart * (scale == 0.5)), *views()
    )
    assert sure[:, 8:].all() if counts else not sure.any()


def test_a_network_that_answers_one_number_agrees_with_nothing():
    """In pixels of the pair it is another number at every size."""
    _, sure = agreed(lambda left, right, scale: torch.full((40, 80), 6 / scale), *views())
    assert not sure.any()


def test_views_have_to_agree():
    left, right = views()

    def match(first, second, scale):
        return torch.full((40, 80), 6.0 if first is left else 8.0)

    _, sure = agreed(match, left, right)
    assert not sure.any()


def test_the_right_view_is_read_at_the_match():
    """A step of disparity lies elsewhere in the right view."""
    left, right = views()
    columns = torch.arange(80)
    own = torch.where(columns < 40, 4.0, 12.0).expand(40, 80)
    other = torch.where(columns < 32, 4.0, 12.0).expand(40, 80)

    def match(first, second, scale):
        return own if first is left else other.flip(-1)

    _, sure = agreed(match, left, right)
    assert sure[:, 4:36].all() and sure[:, 45:].all()


def test_another_matcher_judges_where_it_is_sure():
    """Elsewhere the smaller sizes do; whatever it is, no distance counts more than the most."""
    judged = torch.full((40, 80), 6.0)
    judged[:, 40:] = 0
    found = {1.0: 6.5, 0.75: 7.5, 0.5: 16.5}

    def match(first, second, scale):
        return torch.full((40, 80), found[scale])

    doubt = disagreement(match, *views(), judged)
    assert doubt[:, :40].eq(0.5).all() and doubt[:, 40:].eq(1 + 3).all()
    assert disagreement(match, *views(), judged + 50 * (judged > 0))[:, :40].eq(3).all()


def test_disagreement_goes_with_the_error(scene):
    """The more a disparity is disturbed, the larger it is; smoothing it away does not help."""
    truth = scene["disparity"][0]
    pair = scene["left"], scene["right"]
    judged = torch.from_numpy(semi_global_matching(*pair, disparities=32, fill=False))

    def of(disparity):
        own = lambda left, right, scale: disparity + (scale == 0.5) * (disparity - truth)  # noqa: E731
        return float(disagreement(own, *pair, judged).mean())

    noise = torch.randn(truth.shape, generator=torch.Generator().manual_seed(1))
    values = [of(truth + share * noise) for share in (0, 0.3, 0.6, 1.2)]
    assert values == sorted(values) and values[0] < 0.7 * values[2]
    assert of(torch.full_like(truth, float(truth.median()))) > values[2]


def test_a_gain_has_its_error():
    """Beyond twice its standard error if it is everywhere, within if it is by chance."""
    draws = torch.Generator().manual_seed(0)
    before = [torch.rand(70, 100, generator=draws), torch.rand(40, 64, generator=draws)]
    assert gained(before, before) == (0, 0)
    gain, error = gained(before, [old - 0.1 for old in before])
    assert gain == pytest.approx(0.1, abs=1e-5) and error < 1e-6
    tiles = (
        torch.randn(1, 1, 3, 4, generator=draws).repeat_interleave(32, 2).repeat_interleave(32, 3)
    )
    after = [before[0] - tiles[0, 0, :70, :100], before[1]]
    gain, error = gained(before, after)
    ours = avg_pool2d(tiles[:, 0, :70, :100], 32, ceil_mode=True)
    assert gain == pytest.approx(float(ours.mean()) / 2, abs=1e-5) and abs(gain) < 2 * error
    assert error == pytest.approx(float(ours.std()) / 12**0.5 / 2, rel=1e-4)
