"""Means and correlations of the squares around each pixel."""

import pytest
import torch

from vizoo.vision.windows import box_mean, brightness, correlation, moments


@pytest.fixture
def pictures():
    return torch.randn(2, 1, 3, 12, 15, generator=torch.Generator().manual_seed(0)).unbind()


def square(picture, y, x, half=2):
    return picture[0, 0, max(0, y - half) : y + half + 1, max(0, x - half) : x + half + 1]


@pytest.mark.parametrize("place", [(6, 7), (0, 0), (11, 3)])
def test_each_pixel_tells_of_the_part_of_its_square_in_the_picture(pictures, place):
    first, second = (square(picture, *place) for picture in pictures)
    mean, variance = moments(pictures[0], 5)
    assert mean[(0, 0, *place)].item() == pytest.approx(first.mean().item(), abs=1e-6)
    assert variance[(0, 0, *place)].item() == pytest.approx(
        first.var(correction=0).item(), abs=1e-5
    )
    expected = torch.corrcoef(torch.stack((first.flatten(), second.flatten())))[0, 1]
    at = correlation(*pictures, 5)[(0, 0, *place)]
    assert at.item() == pytest.approx(expected.item(), abs=1e-5)


def test_exposure_leaves_the_correlation_as_it_is(pictures):
    first, second = pictures
    torch.testing.assert_close(
        correlation(first, second, 5), correlation(first, 3 * second + 0.5, 5), atol=1e-4, rtol=0
    )
    assert correlation(first, first, 5).min() > 0.999
    assert correlation(first, -first, 5).max() < -0.999


def test_flat_squares_tell_nothing(pictures):
    assert correlation(pictures[0], torch.zeros(1, 1, 12, 15), 5).abs().max() == 0


def test_known_moments_change_nothing(pictures):
    first, second = pictures
    known = moments(first, 5)
    assert torch.equal(correlation(first, second, 5), correlation(first, second, 5, known))


def test_mean_of_a_constant_is_the_constant_up_to_the_border():
    torch.testing.assert_close(
        box_mean(torch.full((1, 1, 5, 4), 2.0), 9), torch.full((1, 1, 5, 4), 2.0)
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_mean_of_half_precision(pictures, dtype):
    mean = box_mean(pictures[0].to(dtype), 5)
    torch.testing.assert_close(mean.float(), box_mean(pictures[0], 5), atol=0.02, rtol=0.02)


def test_brightness_is_that_of_bt601():
    colours = torch.eye(3).view(3, 3, 1, 1)
    assert brightness(colours).flatten().tolist() == pytest.approx([0.299, 0.587, 0.114])


def test_a_mean_has_a_gradient_and_is_the_same_with_it(pictures):
    wanted = pictures[0].clone().requires_grad_()
    mean = box_mean(wanted, 5)
    torch.testing.assert_close(mean.detach(), box_mean(pictures[0], 5))
    mean.sum().backward()
    assert wanted.grad.sum().item() == pytest.approx(12 * 15 * 3, rel=1e-4)
