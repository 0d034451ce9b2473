"""Where architectures are evaluated: here, by the processes of a job, or by a cluster.

An `Executor` is all that a search knows of it: `run` gives the scores of a list of architectures
in its order, so that the result of a search does not depend on who evaluated what, or when.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist

from ....common.files import shortened
from ...space import Architecture

__all__ = ["Executor", "QueueExecutor", "SerialExecutor", "job_store", "score_of", "serve"]

Evaluate = Callable[[Architecture], float]
Done = Callable[[int, float], None]

_PAUSE = 0.02
_BEAT = 1.0
_FAREWELL = 5.0  # seconds, at most, that workers are waited for in the end


def score_of(evaluate: Evaluate, architecture: Architecture) -> float:
    """What `evaluate` gives for an architecture.

    Raises:
        ValueError: it is no number, or `evaluate` no function.
    """
    if not callable(evaluate):
        raise ValueError(
            f"evaluate {shortened(evaluate)}: give a function, architecture to error, such as "
            "FitConfig.errors returns"
        )
    score = evaluate(architecture)
    try:
        return float(score)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"evaluate gave {shortened(score)} for {shortened(dict(architecture))}: it must return "
            "the error as a number"
        ) from error


class Executor:
    """Evaluates architectures; a context manager that ends what it has started."""

    def run(self, architectures: Sequence[Architecture], done: Done | None = None) -> list[float]:
        """The score of each architecture, in order.

        In this process ``done(index, score)`` is called, once for each, as they come.

        Raises:
            ValueError: an evaluation failed; what it said.
        """
        raise NotImplementedError

    def close(self) -> None:
        """End; workers are let go."""

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class SerialExecutor(Executor):
    """Evaluates one after the other in this process."""

    def __init__(self, evaluate: Evaluate) -> None:
        self.evaluate = evaluate

    def run(self, architectures: Sequence[Architecture], done: Done | None = None) -> list[float]:
        """Scores, in order; one evaluation after the other in this process."""
        scores = []
        for index, architecture in enumerate(architectures):
            scores.append(score_of(self.evaluate, architecture))
            if done is not None:
                done(index, scores[-1])
        return scores


class QueueExecutor(Executor):
    """Hands out architectures one by one to the processes of a job, this one among them.

    The others call `serve` with the same store. They may come and go: what a process had that
    gives no sign of life any more is evaluated again. An evaluation must not wait for another
    process, so there are no collectives in it.

    Args:
        evaluate: architecture to score; the same function in all processes.
        store: key-value store that all processes reach, such as that of a rendezvous.
        lost_after: seconds without a sign of life after which a process is taken for lost. They
            give one each second, however long an evaluation is.
    """

    def __init__(self, evaluate: Evaluate, store: dist.Store, lost_after: float = 30.0) -> None:
        self.evaluate = evaluate
        self.store = store
        self.lost_after = lost_after
        # A store may outlive a job that is started again; what is left in it is another session's.
        self._session = secrets.token_hex(8)
        self._round = 0
        self._signs: dict[str, tuple[int, float]] = {}
        self._announce(0)

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if kind is not SystemExit:  # of SIGTERM, which torchrun sends to all
            self.close()

    def run(self, architectures: Sequence[Architecture], done: Done | None = None) -> list[float]:
        """Scores, in order, of this process and the others that have joined."""
        self._round += 1
        jobs, scores = dist.PrefixStore(f"{self._session}/round{self._round}", self.store), {}
        jobs.set("jobs", json.dumps([dict(architecture) for architecture in architectures]))
        self._announce(self._round)

        def known(key: str) -> str | None:
            return jobs.get(key).decode() if jobs.check([key]) else None

        def keep(index: int, answer: dict[str, Any]) -> None:
            if "error" in answer:
                raise ValueError(f"an evaluation failed in another process: {answer['error']}")
            scores[index] = answer["score"]
            if done is not None:
                done(index, scores[index])

        def collect() -> None:
            for index in range(len(architectures)):
                if index not in scores and (answer := known(f"answer/{index}")):
                    keep(index, json.loads(answer))

        while (index := _claim(jobs, "leader")) < len(architectures):
            keep(index, {"score": score_of(self.evaluate, architectures[index])})
            collect()
        while len(scores) < len(architectures):
            collect()
            for index in range(len(architectures)):
                if index not in scores and self._lost(known(f"owner/{index}") or f"nobody {index}"):
                    keep(index, {"score": score_of(self.evaluate, architectures[index])})
            time.sleep(_PAUSE)
        return [scores[index] for index in range(len(architectures))]

    def close(self) -> None:
        """Tell the others to end, and wait a few seconds for them."""
        self._announce(-1)
        mine = dist.PrefixStore(self._session, self.store)
        # This process may hold the store that the others still read.
        end = time.monotonic() + _FAREWELL
        while mine.add("left", 0) < mine.add("joined", 0) and time.monotonic() < end:
            time.sleep(_PAUSE)

    def _announce(self, number: int) -> None:
        """Tell the others the round: 0 before the first, -1 behind the last."""
        self.store.set("round", f"{self._session} {number}")

    def _lost(self, worker: str) -> bool:
        sign, now = self.store.add(f"alive/{worker}", 0), time.monotonic()
        before, since = self._signs.setdefault(worker, (sign, now))
        if sign != before:
            self._signs[worker] = (sign, now)
            return False
        return now - since > self.lost_after


def serve(evaluate: Evaluate, store: dist.Store) -> int:
    """Evaluate for a `QueueExecutor` by its store until it is closed; says how many.

    Raises:
        RuntimeError: the store is gone, and with it the process that searches.
    """
    worker = str(store.add("workers", 1))
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(_BEAT):
            try:
                store.add(f"alive/{worker}", 1)
            except RuntimeError:  # what is evaluated meanwhile will find out
                return

    threading.Thread(target=beat, daemon=True).start()
    joined, count = "", 0
    seen: tuple[str, ...] = ()
    try:
        while True:
            session, number = current = tuple(store.get("round").decode().split())
            if session != joined:
                dist.PrefixStore(session, store).add("joined", 1)
                joined = session
            if number == "-1":
                break
            if number == "0" or current == seen:
                time.sleep(_PAUSE)
                continue
            jobs, seen = dist.PrefixStore(f"{session}/round{number}", store), current
            architectures = [Architecture(values) for values in json.loads(jobs.get("jobs"))]
            while (index := _claim(jobs, worker)) < len(architectures):
                answer = _answer(evaluate, architectures[index])
                jobs.set(f"answer/{index}", json.dumps(answer))
                count += 1
        dist.PrefixStore(joined, store).add("left", 1)
    except RuntimeError as error:
        raise RuntimeError(f"the process that searches is gone ({error})") from error
    finally:
        ended.set()
    return count


def job_store() -> tuple[int, dist.Store] | None:
    """This process's rank and the store of the job that `torchrun` has started; None without.

    Raises:
        RuntimeError: the others cannot be reached.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or "MASTER_ADDR" not in os.environ:
        return None
    store, rank, _ = next(dist.rendezvous("env://"))
    return rank, store


def _answer(evaluate: Evaluate, architecture: Architecture) -> dict[str, Any]:
    try:
        return {"score": score_of(evaluate, architecture)}
    except Exception as error:  # the process that searches is told, and ends the search
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}


def _claim(jobs: dist.Store, worker: str) -> int:
    """The index of an architecture that no one has; at least their number if there is none."""
    index = jobs.add("next", 1) - 1
    jobs.set(f"owner/{index}", worker)
    return index
