"""Samplers: functions of space, step and seed."""

from __future__ import annotations

import pytest
from search_spaces import printed, small_space

from vizoo.nas.training.sampling import LargestSampler, SandwichSampler, UniformSampler

SPACE = small_space()


@pytest.mark.parametrize("sampler", [UniformSampler(3), SandwichSampler(3)])
def test_a_step_draws_the_same_whatever_came_before(sampler):
    first = [sampler.subnets(SPACE, step) for step in range(20)]
    again = [sampler.subnets(SPACE, step) for step in reversed(range(20))]
    assert first == again[::-1]
    assert all(a in SPACE for drawn in first for a in drawn)
    drawn = [a for subnets in first for a in subnets[-3:]]
    assert len(set(drawn)) > 40  # of 60
    other = type(sampler)(3, seed=1)
    assert other.subnets(SPACE, 0) != first[0]


def test_processes_draw_alike():
    """No hash of a string, which differs between processes, decides anything."""
    code = (
        "from search_spaces import small_space\n"
        "from vizoo.nas.training.sampling import UniformSampler\n"
        "print([a.digest for a in UniformSampler(4, seed=7).subnets(small_space(), 123)])"
    )
    own = [a.digest for a in UniformSampler(4, seed=7).subnets(SPACE, 123)]
    assert printed(code) == f"{own}\n"


def test_uniform_draws_every_value_alike():
    drawn = [a for step in range(600) for a in UniformSampler(2).subnets(SPACE, step)]
    for value in (1, 2, 3):
        share = sum(a["depth"] == value for a in drawn) / len(drawn)
        assert share == pytest.approx(1 / 3, abs=0.05)


def test_sandwich_and_largest():
    subnets = SandwichSampler(2).subnets(SPACE, 5)
    assert subnets[:2] == [SPACE.largest(), SPACE.smallest()] and len(subnets) == 4
    closed = SPACE.restrict({c.name: [c.largest] for c in SPACE})
    assert SandwichSampler(0).subnets(closed, 5) == [closed.largest()]
    assert LargestSampler().subnets(SPACE, 5) == [SPACE.largest()]


def test_settings_that_make_no_sense():
    with pytest.raises(ValueError, match="at least one subnet, not 0"):
        UniformSampler(0)
    with pytest.raises(ValueError, match="cannot be -1"):
        SandwichSampler(-1)
