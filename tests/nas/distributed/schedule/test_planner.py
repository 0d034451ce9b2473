"""Plans of messages: as good as the best of all."""

from __future__ import annotations

import itertools
import random

import pytest

from vizoo.nas.distributed.schedule.simulator import _bucket_groups, plan_groups


def _compositions(count):
    for cuts in itertools.product((False, True), repeat=count - 1):
        groups = [1]
        for cut in cuts:
            if cut:
                groups.append(1)
            else:
                groups[-1] += 1
        yield groups


def _finish_time(ready, sizes, groups, alpha, beta):
    """When the last message of a plan ends."""
    end, first = 0.0, 0
    for last in itertools.accumulate(groups):
        end = max(end, ready[last - 1]) + alpha + beta * sum(sizes[first:last])
        first = last
    assert first == len(sizes)
    return end


def test_a_plan_is_as_good_as_the_best_of_all():
    rng = random.Random(0)
    for case in range(150):
        count = rng.randint(1, 9 if case else 11)
        ready = sorted(rng.random() for _ in range(count))
        sizes = [rng.choice((0.01, 0.1, 1.0)) * rng.random() for _ in range(count)]
        alpha, beta = rng.choice((0.0, 0.01, 0.1, 1.0)), rng.choice((0.1, 1.0))
        groups = plan_groups(ready, sizes, alpha, beta)
        best = min(_finish_time(ready, sizes, g, alpha, beta) for g in _compositions(count))
        assert _finish_time(ready, sizes, groups, alpha, beta) == pytest.approx(best, abs=1e-12)


def test_extremes_of_a_link():
    ready, sizes = [0.1, 0.2, 0.3], [0.05, 0.05, 0.05]
    assert plan_groups(ready, sizes, 10.0, 0.0) == [3]
    assert plan_groups(ready, sizes, 0.0, 1.0) == [1, 1, 1]


def test_buckets_close_when_they_are_full():
    assert _bucket_groups([4, 4, 4, 4, 4], 8) == [2, 2, 1]
    assert _bucket_groups([4, 4, 4, 4, 4], 8, first=4) == [1, 2, 2]
    assert _bucket_groups([100], 8) == [1] and _bucket_groups([], 8) == []


def test_bad_plans():
    with pytest.raises(ValueError, match="ascending order"):
        plan_groups([2.0, 1.0], [1.0, 1.0], 0.0, 1.0)
