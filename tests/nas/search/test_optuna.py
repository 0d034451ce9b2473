"""Optuna's studies that mirror a search, and its samplers in place of evolution."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import warnings
from statistics import fmean

import optuna
import pytest
from search_spaces import growing, rugged, small_space

from vizoo.nas.search import (
    SAMPLERS,
    Constraint,
    Mirror,
    UnreachableError,
    each,
    evolve,
    propose,
)
from vizoo.nas.space import Choice, SearchSpace

FOUND = {"val/accuracy": "maximize", "macs": "minimize"}


def loaded(path, name="val/accuracy, macs"):
    backend = optuna.storages.journal.JournalFileBackend(str(path))
    return optuna.load_study(study_name=name, storage=optuna.storages.JournalStorage(backend))


def limited(space, share):
    """A cost, and the limit that keeps to a share of the range."""
    cost = growing(space, 1)
    low, high = cost(space.smallest()), cost(space.largest())
    return Constraint("memory", cost, low + share * (high - low), "MB")


def test_a_study_has_what_was_evaluated(tmp_path):
    space, path = small_space(), tmp_path / "runs/journal.log"
    limit = limited(space, 0.5)
    mirror = Mirror(path, space, FOUND, [limit], {"weights": "abc"})
    small, large = space.smallest(), space.largest()
    mirror.add(small, (0.5, 10.0), {"parameters": 7.0, "latency": 1.5})
    mirror.add(large, (math.inf, 30.0))
    mirror.add(small, (0.5, 10.0))
    assert small in mirror and space.sample(random.Random(0)) not in mirror
    study = loaded(path)
    assert [d.name for d in study.directions] == ["MAXIMIZE", "MINIMIZE"]
    assert study.metric_names == ["val/accuracy", "macs"]
    assert study.user_attrs["limits"] == {"memory": limit.text(limit.limit)}
    assert study.user_attrs["search"] == {"search space": space.digest, "weights": "abc"}
    first, second = study.trials
    assert first.params == {"depth": 1, "blocks.0.kernel": 3, "blocks.0.width": 8}
    assert first.distributions["blocks.0.kernel"].choices == (3, 5, 7)
    assert first.values == [0.5, 10.0]
    assert first.user_attrs == {"parameters": 7.0, "latency": 1.5}
    assert first.system_attrs["constraints"] == [limit.cost(small) - limit.limit]
    assert first.constraints["0"] < 0 < second.constraints["0"]
    assert second.state.name == "FAIL" and space.validate(second.params) == large
    assert [trial.number for trial in study.best_trials] == [0]


def test_every_search_can_be_shown_and_gone_on_with(tmp_path):
    space, path, states = small_space(), tmp_path / "journal.log", []
    objective = each(rugged(space, 0))

    def show(step):
        mirror = Mirror(path, space, {"error": "minimize"})
        for item in step.evaluated:
            mirror.add(item.architecture, item.scores)
        assert len(loaded(path, "error").trials) == len(step.evaluated)
        states.append(step.state())

    settings = {"seed": 0, "population": 8, "on_generation": show}
    evolve(space, objective, generations=1, **settings)
    result = evolve(space, objective, generations=3, resume=states[-1], **settings)
    study = loaded(path, "error")
    assert [trial.value for trial in study.trials] == [i.scores[0] for i in result.evaluated]
    assert study.best_value == result.score
    assert space.validate(study.best_params) == result.best


def test_a_study_of_another_search_is_refused(tmp_path):
    space, path = small_space(), tmp_path / "journal.log"
    Mirror(path, space, FOUND, origin={"weights": "a"}).add(space.smallest(), (0.1, 2.0))
    other = space.restrict({"depth": [1, 2]})
    for given, key in (
        ((other, FOUND, (), {"weights": "a"}), "search space"),
        ((space, FOUND, (), {"weights": "b"}), "weights"),
        ((space, dict.fromkeys(FOUND, "minimize"), (), {"weights": "a"}), "direction"),
    ):
        with pytest.raises(ValueError) as refused:
            Mirror(path, *given)
        assert str(refused.value) == (
            f"{path}: its study 'val/accuracy, macs' is of a search with another {key}; "
            "name another file"
        )
    again = Mirror(path, space, FOUND, origin={"weights": "a"})
    assert space.smallest() in again and len(again.study.trials) == 1
    Mirror(path, other, {"val/epe": "minimize"})  # a study of its own beside the other


@pytest.mark.parametrize(
    "content",
    [
        b'{"a": 1}',
        b"hello\n",
        b"[]\n",
        b"5\n",
        b"\x89PNG\r\n\x1a\n",
        b"{}\n",
        b'{"op_code": 0}\nhello\n{"op',
        b'{"op',
    ],
)
def test_a_file_that_is_no_journal_stays_as_it_is(tmp_path, content):
    path = tmp_path / "other.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="other.json: no journal of Optuna: ") as refused:
        Mirror(path, small_space(), FOUND)
    assert "\n" not in str(refused.value) and path.read_bytes() == content


@pytest.mark.parametrize("cut", [30, 1])
def test_a_line_cut_off_is_all_that_is_lost(tmp_path, cut):
    space, path = small_space(), tmp_path / "journal.log"
    mirror = Mirror(path, space, FOUND)
    mirror.add(space.smallest(), (0.1, 2.0))
    whole = path.read_bytes()
    mirror.add(space.largest(), (0.2, 3.0))
    longer = path.read_bytes()
    path.write_bytes(longer[:-cut])
    if cut == 1:  # the entry is whole
        again = Mirror(path, space, FOUND)
        assert path.read_bytes().startswith(longer)
    else:
        with pytest.warns(UserWarning, match="journal.log: its last line was cut off") as said:
            again = Mirror(path, space, FOUND)
        assert len(said) == 1 and path.read_bytes().startswith(whole)
        assert space.smallest() in again and space.largest() not in again
        again.add(space.largest(), (0.2, 3.0))
    assert [trial.values for trial in loaded(path).trials] == [[0.1, 2.0], [0.2, 3.0]]


KILLED = """
import os, signal, sys
from search_spaces import rugged, small_space
from vizoo.nas.search import Mirror, each, propose

space, seen = small_space(), []
mirror, function = Mirror(sys.argv[1], space, {"error": "minimize"}), rugged(space, 0)

def error(architecture):
    if len(seen) == 12:
        os.kill(os.getpid(), signal.SIGKILL)
    seen.append(architecture)
    mirror.add(architecture, [function(architecture)])
    return function(architecture)

propose(space, {"error": each(error)}, sampler="nsga2", seed=0, evaluations=30)
"""


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_killed_search_leaves_a_study_to_go_on_with(tmp_path, root):
    path = tmp_path / "journal.log"
    paths = [str(root / "tests/support"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )
    assert done.returncode == -signal.SIGKILL
    assert [trial.state.name for trial in loaded(path, "error").trials] == ["COMPLETE"] * 12
    space = small_space()
    mirror, error = Mirror(path, space, {"error": "minimize"}), rugged(space, 0)
    result = propose(space, {"error": each(error)}, sampler="nsga2", seed=0, evaluations=30)
    for item in result.evaluated:
        mirror.add(item.architecture, item.scores)
    trials = loaded(path, "error").trials
    assert [trial.value for trial in trials] == [item.scores[0] for item in result.evaluated]


def _samplers_and_scores():
    """All but two scores for the slowest sampler, which others have."""
    for names in (("error",), ("error", "cost")):
        for sampler in SAMPLERS:
            slow = sampler == "gp" and len(names) > 1
            yield pytest.param(sampler, names, marks=[pytest.mark.slow] if slow else [])


@pytest.mark.parametrize(("sampler", "names"), list(_samplers_and_scores()))
def test_a_sampler_keeps_limits_and_its_budget(sampler, names):
    space = small_space()
    limit, calls = limited(space, 0.4), []
    functions = {"error": rugged(space, 0), "cost": growing(space, 2)}

    def counted(name):
        def scores(architectures):
            calls.append(len(architectures))
            return [functions[name](a) for a in architectures]

        return scores

    settings = {"sampler": sampler, "seed": 3, "constraints": [limit], "population": 6}
    objectives = {name: counted(name) for name in names}
    before = optuna.logging.get_verbosity()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = propose(space, objectives, evaluations=10, at_once=4, **settings)
    assert optuna.logging.get_verbosity() == before
    architectures = [item.architecture for item in result.evaluated]
    assert len(set(architectures)) == 10 and all(a in space for a in architectures)
    assert all(limit.satisfied(a) for a in architectures)
    assert calls == [4] * 2 * len(names) + [2] * len(names)
    assert result.names == names and len(result.front[0].scores) == len(names)
    again = propose(space, objectives, evaluations=10, at_once=4, **settings)
    assert again == result
    with pytest.raises(UnreachableError, match="no architecture has a memory of at most"):
        settings["constraints"] = [Constraint("memory", limit.cost, 0.0)]
        propose(space, objectives, **settings)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_stopped_search_ends_as_the_whole_one(sampler):
    states, asked = [], []
    # A Gaussian process takes its time where many choices depend on each other.
    flat = SearchSpace([Choice(f"c{i}", (0, 1, 2)) for i in range(3)])
    space = flat if sampler == "gp" else small_space()
    error = rugged(space, 0)

    def counted(architecture):
        asked.append(architecture)
        return error(architecture)

    settings = {"sampler": sampler, "seed": 0, "at_once": 2}
    settings["on_generation"] = lambda step: states.append(json.loads(json.dumps(step.state())))
    whole = propose(space, {"error": each(counted)}, evaluations=14, **settings)
    assert len(states) == 7 and len(states[5]["evaluated"]) == 12
    del asked[:]
    kept = states[5]
    resumed = propose(space, {"error": each(counted)}, evaluations=14, resume=kept, **settings)
    assert resumed == whole
    assert asked == [item.architecture for item in whole.evaluated[12:]] and len(states) == 8
    # Of more evaluations the first one's last is in the midst of what is asked for at once.
    del states[:]
    propose(space, {"error": each(error)}, evaluations=13, **settings)
    propose(space, {"error": each(error)}, evaluations=14, resume=states[-1], **settings)
    assert [len(state["evaluated"]) for state in states[-2:]] == [13, 14]
    with pytest.raises(ValueError, match="the state is of a search with another settings"):
        propose(space, {"error": each(error)}, resume=kept, **{**settings, "seed": 1})


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_all_of_a_small_space_even_without_scores(sampler):
    space = SearchSpace(
        [Choice("depth", (1, 2, 3)), Choice("wide", (False, True)), Choice("one", (1,))]
    )

    def error(architecture):
        if architecture["depth"] == 3:
            return math.inf if architecture["wide"] else math.nan
        return architecture["depth"]

    result = propose(space, {"error": each(error)}, sampler=sampler, seed=0, evaluations=9)
    assert len(result.evaluated) == space.count() == 6
    assert [item.scores for item in result.front] == [(1.0,)] * 2


@pytest.mark.parametrize("sampler", ["tpe", pytest.param("gp", marks=pytest.mark.slow)])
def test_samplers_learn(sampler):
    """More than nine tenths of random searches."""
    space = SearchSpace([Choice(f"c{i}", (0, 1, 2, 3)) for i in range(8)])
    error = rugged(space, 0, 0.0)
    found = [
        propose(space, {"error": each(error)}, sampler=sampler, seed=seed, evaluations=40).front[0]
        for seed in range(2)
    ]
    rng = random.Random(0)
    drawn = sorted(min(error(space.sample(rng)) for _ in range(40)) for _ in range(50))
    assert fmean(item.scores[0] for item in found) < drawn[5]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"sampler": "cmaes"}, "no sampler 'cmaes'; there are evolution, tpe, gp, nsga2"),
        ({"sampler": "tpe", "evaluations": 0}, "evaluations and at_once are 1 or more, not 0"),
        ({"sampler": "tpe", "at_once": 0}, "evaluations and at_once are 1 or more, not 80 and 0"),
    ],
)
def test_bad_settings(settings, says):
    with pytest.raises(ValueError, match=says):
        propose(small_space(), {"error": each(len)}, seed=0, **settings)


def test_without_the_extra(monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "scipy", None)
        with pytest.raises(ImportError, match=r"sampler gp needs scipy: pip install 'vizoo\[opt"):
            propose(small_space(), {"error": each(len)}, sampler="gp", seed=0)
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ImportError, match=r"^a sampler needs optuna: pip install 'vizoo\[optuna"):
        propose(small_space(), {"error": each(len)}, sampler="tpe", seed=0)
    with pytest.raises(ImportError, match="^the storage of a search needs optuna: pip install"):
        Mirror(tmp_path / "journal.log", small_space(), FOUND)
    assert not any(tmp_path.iterdir())
