"""What may be trusted without truth: agreement of sizes and views, and likeness at the match."""

import pytest
import torch

from vizoo.datasets.stereo import generate_scenes
from vizoo.stereo.agreement import agreed, alike


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


def test_alike_at_the_match_alone():
    left, right = views()
    inside = slice(16, -16)

    def share(disparity):
        return alike(left, right, torch.full((40, 80), disparity))[inside, inside].float().mean()

    assert share(6.0) == 1
    assert max(share(3.0), share(0.0), share(12.0)) < 0.01
    assert alike(left, 0.5 * right + 0.2, torch.full((40, 80), 6.0))[inside, inside].all()


def test_smooth_places_are_like_nothing():
    ramp = torch.linspace(0, 1, 80).expand(3, 40, 80)
    for left, right in ((ramp, ramp), (torch.full_like(ramp, 0.5), torch.full_like(ramp, 0.5))):
        assert alike(left, right, torch.zeros(40, 80)).float().mean() < 0.1


def test_truth_is_more_alike_than_any_number(scene):
    pair, truth = (scene["left"], scene["right"]), scene["disparity"][0]
    best = alike(*pair, truth).float().mean()
    numbers = [alike(*pair, torch.full_like(truth, n)).float().mean() for n in (0.0, 4.0, 12.0)]
    assert best > 0.3 and max(numbers) < best / 2
    assert alike(*pair, truth + 1).float().mean() < 0.8 * best
