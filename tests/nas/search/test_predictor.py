"""The accuracy predictor."""

from __future__ import annotations

import math
import random

import pytest
import torch
from safetensors.torch import save_file
from search_spaces import easnet_space, rugged, small_space

from vizoo.nas.search import Predictor, agreement, evolve

QUICK = {"hidden": (64, 64), "epochs": 40}


def measured(space, count, seed=0):
    rng = random.Random(seed)
    score = rugged(space, 0, 0.2)
    drawn = dict.fromkeys(space.sample(rng) for _ in range(count))
    return [(a, math.exp(0.2 * score(a))) for a in drawn]


@pytest.fixture(scope="module")
def pairs():
    return measured(easnet_space(), 600)


@pytest.fixture(scope="module")
def predictor(pairs):
    return Predictor.fit(easnet_space(), pairs, seed=0, logarithm=True, **QUICK)


def test_agreement():
    up = agreement([1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 40.0])
    assert (up.count, up.kendall) == (4, 1.0) and up.spearman == pytest.approx(1.0, abs=1e-5)
    assert up.rmse == pytest.approx(math.sqrt(9**2 * (1 + 4 + 9 + 16) / 4))
    assert up.median_relative_error == pytest.approx(0.9)
    some = agreement([1.0, 3.0, 2.0, 4.0], [1.0, 2.0, 3.0, 4.0])
    assert some.kendall == pytest.approx(2 / 3) and some.spearman == pytest.approx(0.8, abs=1e-5)
    constant = agreement([1.0, 1.0], [1.0, 2.0])
    assert math.isnan(constant.kendall) and constant.to_json()["kendall"] is None
    with pytest.raises(ValueError, match="two or more"):
        agreement([1.0], [1.0])
    with pytest.raises(ValueError, match="as many"):
        agreement([1.0, 2.0], [1.0, 2.0, 3.0])


def test_ranks_architectures_it_has_not_seen(pairs, predictor):
    assert predictor.held_out.count == round(0.2 * len(pairs))
    assert predictor.held_out.kendall > 0.6
    fresh = predictor.evaluate(measured(easnet_space(), 200, seed=1))
    assert fresh.kendall > 0.6 and fresh.spearman > 0.8
    spread = torch.tensor([value for _, value in pairs]).std()
    assert fresh.rmse < 0.7 * spread


def test_a_seed_fixes_the_fit(pairs):
    space, some = easnet_space(), [a for a, _ in pairs[:5]]
    settings = {**QUICK, "epochs": 2}
    torch.manual_seed(0)
    first = Predictor.fit(space, pairs, seed=3, **settings).predict(some)
    before = torch.random.get_rng_state()
    assert Predictor.fit(space, pairs, seed=3, **settings).predict(some) == first
    assert torch.equal(torch.random.get_rng_state(), before)
    assert Predictor.fit(space, pairs, seed=4, **settings).predict(some) != first


def test_starts_at_the_mean(pairs):
    shifted = [(a, value + 1000.0) for a, value in pairs]
    untrained = Predictor.fit(easnet_space(), shifted, seed=0, hidden=(8,), epochs=1)
    mean = sum(value for _, value in shifted) / len(shifted)
    assert untrained.predict([pairs[0][0]])[0] == pytest.approx(mean, abs=2.0)


def test_a_file_predicts_the_same(tmp_path, pairs):
    space, some = easnet_space(), [a for a, _ in pairs[:20]]
    for arguments in ({"members": 2}, {"logarithm": True, "held_out": 0.0}):
        predictor = Predictor.fit(space, pairs[:60], seed=0, hidden=(16,), epochs=2, **arguments)
        path = predictor.save(tmp_path / "new" / "p.safetensors")
        again = Predictor.load(path, space)
        assert again.predict(some) == predictor.predict(some)
        assert again.held_out == predictor.held_out and again.space == space
    assert again.held_out is None
    with pytest.raises(ValueError, match="another search space"):
        Predictor.load(path, small_space())


def test_wrong_files(tmp_path, predictor):
    path = tmp_path / "p.safetensors"
    with pytest.raises(FileNotFoundError, match="no such file"):
        Predictor.load(path)
    path.write_bytes(b"12345678 no")
    with pytest.raises(ValueError, match="not a safetensors file"):
        Predictor.load(path)
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(ValueError, match="holds no accuracy predictor"):
        Predictor.load(path)
    for about in ("[", '{"kind": "accuracy predictor", "version": 1}'):
        save_file({"a": torch.zeros(1)}, path, metadata={"vizoo": about})
        with pytest.raises(ValueError, match=r"p\.safetensors: ") as error:
            Predictor.load(path)
        assert "\n" not in str(error.value)


def test_wrong_measurements(pairs):
    space = easnet_space()
    with pytest.raises(ValueError, match="10 measurements or more, not 9"):
        Predictor.fit(space, pairs[:9], seed=0)
    with pytest.raises(ValueError, match="from 0 to 0.8"):
        Predictor.fit(space, pairs, seed=0, held_out=0.9)
    architecture = pairs[0][0]
    with pytest.raises(ValueError, match="is not finite$"):
        Predictor.fit(space, [*pairs, (architecture, math.nan)], seed=0)
    with pytest.raises(ValueError, match="finite and positive"):
        Predictor.fit(space, [*pairs, (architecture, 0.0)], seed=0, logarithm=True)
    with pytest.raises(ValueError, match="there is no choice 'depth'"):
        Predictor.fit(space, [*pairs, (small_space().largest(), 1.0)], seed=0)


def test_other_architectures_are_named(predictor):
    assert predictor.predict([]) == []
    with pytest.raises(ValueError, match="there is no choice 'depth'"):
        predictor.predict([small_space().largest()])


def test_searches_by_prediction(predictor):
    space = easnet_space()
    found = evolve(space, predictor.predict, seed=0, population=40, generations=8)
    score = rugged(space, 0, 0.2)
    rng = random.Random(5)
    ordinary = sorted(score(space.sample(rng)) for _ in range(300))
    assert score(found.best) < ordinary[3]
