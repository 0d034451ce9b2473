"""Draws: even numbers, one by one or many at once, and proper rotations."""

from __future__ import annotations

import numpy as np

from vizoo.datasets.draws import Draws


def test_draws_are_even():
    draws = Draws("test", 1)
    values = np.array([draws.uniform() for _ in range(4000)])
    assert np.abs(np.histogram(values, 10, (0, 1))[0] - 400).max() < 90
    rotations = np.stack([draws.rotation() for _ in range(200)])
    assert np.allclose(rotations @ rotations.transpose(0, 2, 1), np.eye(3))
    assert np.allclose(np.linalg.det(rotations), 1)


def test_many_at_once_are_those_of_single_calls():
    many, single = Draws("test", 2), Draws("test", 2)
    for shape in ((2, 3), (4,), (0,), (1, 5)):
        values = many.uniforms(*shape)
        assert values.shape == shape
        assert values.ravel().tolist() == [single.uniform() for _ in range(values.size)]
    assert many.bits() == single.bits()
