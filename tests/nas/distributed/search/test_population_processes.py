"""Populations evaluated by several processes: the result of a search is that of one."""

from __future__ import annotations

import functools
import json
import random
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import distributed_search as remote
import pytest
import torch.distributed as dist
from ranks import context

from vizoo.nas.distributed import (
    Evaluator,
    QueueExecutor,
    RayExecutor,
    SavedSearch,
    SerialExecutor,
    serve,
)
from vizoo.nas.distributed.search import ray as ray_executor
from vizoo.nas.search import evolve
from vizoo.nas.space import Architecture


@pytest.fixture
def start():
    processes = []

    def begin(function, *args):
        processes.append(context.Process(target=function, args=args, daemon=True))
        processes[-1].start()
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()
        process.join()


def test_no_farewell_where_sigterm_ends_the_process():
    store = dist.HashStore()
    with pytest.raises(SystemExit), QueueExecutor(len, store):
        said = store.get("round")
        dist.PrefixStore(said.split()[0].decode(), store).add("joined", 1)  # and never leaves
        start = time.monotonic()
        sys.exit(143)
    assert store.get("round") == said and time.monotonic() - start < 1


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The search in one process, and what it evaluated."""
    folder = tmp_path_factory.mktemp("alone")
    return remote.search(SerialExecutor(remote.Score(folder))), sorted(remote.evaluated(folder))


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_any_number_of_processes_finds_the_same_and_evaluates_once(tmp_path, start, alone, workers):
    found = remote.with_workers(start, tmp_path, [None] * workers)
    assert found == alone[0]
    assert sorted(remote.evaluated(tmp_path)) == alone[1]
    assert len(list(tmp_path.glob("*.log"))) == workers + 1  # all had a share


def test_a_lost_workers_share_is_redone(tmp_path, start, alone, monkeypatch):
    # Those that are lost are waited for in the end, too.
    monkeypatch.setattr("vizoo.nas.distributed.search.executor._FAREWELL", 0.5)
    found = remote.with_workers(start, tmp_path, [1, 3, None], lost_after=1.5)
    # One that is only slow may be taken for lost: then something is evaluated twice.
    assert found == alone[0] and set(remote.evaluated(tmp_path)) == set(alone[1])


def test_what_an_earlier_job_left_in_the_store_is_not_believed():
    """torchrun starts a job again whose processes it has lost; its store stays."""
    store, space = dist.HashStore(), remote.space()
    drawn = [space.sample(random.Random(seed)) for seed in range(8)]
    answered = []

    def killed_worker(_):
        if len(answered) == 2:
            raise SystemExit
        answered.append(1)
        return -1.0

    def killed_leader(_):
        while len(answered) < 2:
            time.sleep(0.01)
        raise KeyboardInterrupt

    first = threading.Thread(target=serve, args=(killed_worker, store), daemon=True)
    first.start()
    with pytest.raises(KeyboardInterrupt):
        QueueExecutor(killed_leader, store).run(drawn)
    first.join(600)
    counts = []
    second = threading.Thread(target=lambda: counts.append(serve(_depth, store)), daemon=True)
    second.start()
    with QueueExecutor(_depth, store) as executor:
        while store.add("workers", 0) < 2:
            time.sleep(0.01)
        for some in (drawn[::-1], drawn[:3]):
            assert executor.run(some) == [architecture["depth"] for architecture in some]
    second.join(600)
    assert counts and not second.is_alive()


def _depth(architecture):
    time.sleep(0.02)
    return architecture["depth"]


def test_an_error_in_a_worker_ends_the_search(tmp_path, start):
    with pytest.raises(ValueError, match="in another process: TypeError: no such thing$"):
        remote.with_workers(start, tmp_path, ["never"] * 3)


@pytest.mark.parametrize("dies_at", [0, 5, 8, 19])
def test_a_killed_search_resumes_to_the_same_result(tmp_path, start, alone, dies_at):
    process = start(remote.searching, tmp_path, dies_at)
    process.join(600)
    assert process.exitcode == -9
    assert remote.searching(tmp_path) == alone[0]
    assert sorted(remote.evaluated(tmp_path)) == alone[1]  # nothing was evaluated twice
    generations = json.loads((tmp_path / "search.json").read_text())["generation"]
    assert generations == 4
    assert remote.searching(tmp_path) == alone[0]  # and once more changes nothing


def test_a_torn_line_of_the_journal_is_dropped(tmp_path):
    path, folder = tmp_path / "journal.jsonl", tmp_path
    executor = SerialExecutor(remote.Score(folder))
    first = Evaluator(executor, path, "weights 1")
    some = [remote.space().largest(), remote.space().smallest()]
    scores = first(some)
    path.write_text(path.read_text()[:-9])
    again = Evaluator(executor, path, "weights 1")
    assert list(again.scores) == some[:1] and again(some) == scores
    assert Evaluator(executor, path, "weights 1").scores == first.scores
    whole = path.read_text()
    head = whole.index("\n")
    for length in (0, 1, head - 2, head):  # killed in its first line
        path.write_text(whole[:length])
        assert Evaluator(executor, path, "weights 1")(some) == scores
        assert path.read_text() == whole
    with pytest.raises(ValueError, match="journal.jsonl: evaluations of 'weights 1', and these"):
        Evaluator(executor, path, "weights 2")
    for text in (b"{}\n", b"{}", b"someone's notes", b"\x89PNG\xff\n"):
        path.write_bytes(text)
        with pytest.raises(ValueError, match="journal.jsonl: no journal of evaluations"):
            Evaluator(executor, path)
        assert path.read_bytes() == text


def test_the_state_of_another_search_is_refused(tmp_path):
    remote.searching(tmp_path)
    saved = SavedSearch(tmp_path / "search.json")
    with pytest.raises(ValueError, match="cannot resume: the state is of a search with another"):
        evolve(remote.space(), len, seed=4, population=8, resume=saved.state)


class TaskError(Exception):
    def __init__(self, cause):
        self.cause = cause


class Actor:
    """One of Ray's, which evaluates where its answer is asked for."""

    def __init__(self, worker):
        self.evaluate = SimpleNamespace(remote=lambda values: lambda: worker.evaluate(values))


def _get(answer):
    try:
        return answer()
    except KeyError as error:
        raise TaskError(error) from error


def test_workers_of_a_failed_evaluation_are_taken_again(monkeypatch):
    """Also those that were evaluating something else then."""
    make = SimpleNamespace(remote=lambda make: Actor(ray_executor._Worker(make)))
    errors = SimpleNamespace(RayActorError=ConnectionError, RayTaskError=TaskError)
    ray = SimpleNamespace(is_initialized=lambda: True, exceptions=errors, get=_get)
    ray.remote = lambda **_: lambda _: make
    ray.wait = lambda answers: (answers[:1], answers[1:])
    ray.kill = lambda _: None
    monkeypatch.setitem(sys.modules, "ray", ray)
    with RayExecutor(lambda: lambda architecture: architecture["depth"], workers=3) as executor:
        for _ in range(4):
            with pytest.raises(ValueError, match="an evaluation failed: KeyError"):
                executor.run([Architecture({"other": n}) for n in range(3)])
        depths = [Architecture({"depth": n}) for n in range(5)]
        assert executor.run(depths) == [0, 1, 2, 3, 4] and len(executor._idle) == 3


@pytest.mark.slow
def test_a_ray_cluster_finds_the_same(tmp_path, alone, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", str(Path(remote.__file__).parent))
    make = functools.partial(remote.losing_once, tmp_path)
    with RayExecutor(make, workers=2, cpus=0.5) as executor:
        assert remote.search(executor) == alone[0]
        assert sorted(remote.evaluated(tmp_path)) == alone[1]
        with pytest.raises(ValueError, match="an evaluation failed: KeyError"):
            executor.run([Architecture({"other": 1})])
