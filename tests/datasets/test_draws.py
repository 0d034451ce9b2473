"""Draws: even numbers, proper rotations."""

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
