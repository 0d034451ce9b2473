"""Plans of messages: as good as the best of all, and what would win on a link."""

from __future__ import annotations

import itertools
import json
import random

import pytest

from vizoo.__main__ import main
from vizoo.nas.distributed.planner import (
    LINKS,
    bucket_groups,
    finish_time,
    fit_link,
    plan_groups,
    predict,
)


def _compositions(count):
    for cuts in itertools.product((False, True), repeat=count - 1):
        groups = [1]
        for cut in cuts:
            if cut:
                groups.append(1)
            else:
                groups[-1] += 1
        yield groups


def test_a_plan_is_as_good_as_the_best_of_all():
    rng = random.Random(0)
    for _ in range(150):
        count = rng.randint(1, 9)
        ready = sorted(rng.random() for _ in range(count))
        sizes = [rng.choice((0.01, 0.1, 1.0)) * rng.random() for _ in range(count)]
        alpha, beta = rng.choice((0.0, 0.01, 0.1, 1.0)), rng.choice((0.1, 1.0))
        groups = plan_groups(ready, sizes, alpha, beta)
        best = min(finish_time(ready, sizes, g, alpha, beta) for g in _compositions(count))
        assert finish_time(ready, sizes, groups, alpha, beta) == pytest.approx(best, abs=1e-12)


def test_extremes_of_a_link():
    ready, sizes = [0.1, 0.2, 0.3], [0.05, 0.05, 0.05]
    assert plan_groups(ready, sizes, 10.0, 0.0) == [3]
    assert plan_groups(ready, sizes, 0.0, 1.0) == [1, 1, 1]


def test_buckets_close_when_they_are_full():
    assert bucket_groups([4, 4, 4, 4, 4], 8) == [2, 2, 1]
    assert bucket_groups([4, 4, 4, 4, 4], 8, first=4) == [1, 2, 2]
    assert bucket_groups([100], 8) == [1] and bucket_groups([], 8) == []


def test_a_link_is_found_in_its_messages():
    sizes = [1e3, 1e4, 1e5, 1e6, 1e7]
    found = fit_link(sizes, [5e-4 + 8e-10 * size for size in sizes])
    assert found == pytest.approx((5e-4, 8e-10), rel=1e-6)
    with pytest.raises(ValueError, match="at least two sizes"):
        fit_link([1.0], [1.0])


def test_compression_pays_on_slow_links_only():
    ready, shapes = [0.01 * i for i in range(1, 21)], [(256, 256, 3, 3)] * 20
    slow = predict(ready, shapes, 8, 1e-3, 1e-7)
    assert slow["acpsgd"] < slow["plain"] / 5 and slow["gtopk"] < slow["topk"] < slow["fp16"]
    assert slow["fp16"] < slow["merged"] <= min(slow["plain"], slow["tensors"], slow["single"])
    fast = predict(ready, shapes, 8, 1e-6, 1e-12)
    assert fast["merged"] == pytest.approx(fast["acpsgd"], rel=0.01)


def test_bad_plans():
    with pytest.raises(ValueError, match="ascending order"):
        plan_groups([2.0, 1.0], [1.0, 1.0], 0.0, 1.0)
    with pytest.raises(ValueError, match="groups of 1 gradients, where there are 2"):
        finish_time([1.0, 2.0], [1.0, 1.0], [1], 0.0, 1.0)


def test_the_command(capsys):
    words = ["comm", "plan", "--model", "fadnet_plus_micro", "--input", "64x128", "--batch", "1"]
    assert main([*words, "--steps", "1", "--link", "10gbe-8", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    steps = report["step_ms"]
    assert steps["merged"] <= min(steps["plain"], steps["tensors"], steps["single"])
    assert (report["alpha"], report["beta"]) == LINKS["10gbe-8"]
    assert min(steps.values()) >= report["forward_ms"] + report["backward_ms"] - 0.01
    assert main([*words, "--steps", "1", "--alpha", "1e-3", "--beta", "1e-6"]) == 0
    said = capsys.readouterr().out
    assert "x plain  plain" in said and "compressors' own computation is not counted" in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "give the link: --link, or --alpha and --beta"),
        (["--link", "10gbe-8", "--processes", "1"], "--processes 1, --batch 2, --steps 5: at"),
        (["--alpha", "1", "--beta", "-1"], "--alpha 1.0, --beta -1.0: seconds"),
        (["--link", "10gbe-8", "--input", "big"], "big"),
    ],
)
def test_bad_input_is_one_line(capsys, words, says):
    assert main(["comm", "plan", "--model", "fadnet_plus_micro", *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("vizoo: error: ") and says in said and said.count("\n") == 1
