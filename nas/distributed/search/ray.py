"""Evaluation by a Ray cluster: `pip install 'vizoo[ray]'`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...space import Architecture
from .executor import Done, Evaluate, Executor

__all__ = ["RayExecutor"]


class RayExecutor(Executor):
    """Evaluates on actors of a Ray cluster; what a lost actor had is evaluated again.

    Args:
        make: called once in each actor, gives the function from an architecture to its score; of
            a module that the cluster's machines can import.
        workers: number of actors.
        address: of the cluster; None starts one on this machine, `auto` finds a running one.
        restarts: how many lost actors are replaced before the search gives up.
        cpus: processors of each actor.
        gpus: of each actor; may be a fraction.

    Raises:
        ValueError: Ray is not installed, or there are no workers.
    """

    def __init__(
        self,
        make: Callable[[], Evaluate],
        workers: int,
        address: str | None = None,
        restarts: int = 10,
        cpus: float = 1,
        gpus: float = 0,
    ) -> None:
        if workers < 1:
            raise ValueError(f"{workers} workers: there must be at least one")
        try:
            import ray
        except ImportError as error:
            raise ValueError("Ray is not installed: pip install 'vizoo[ray]'") from error
        self._ray = ray
        self._started = not ray.is_initialized()
        if self._started:
            # Without any address Ray waits for the last cluster of this machine, which may be gone.
            ray.init(address or "local", include_dashboard=False, log_to_driver=False)
        self._actor = ray.remote(num_cpus=cpus, num_gpus=gpus)(_Worker)
        self._make = make
        self._workers: list[Any] = []
        self._idle = [self._new() for _ in range(workers)]
        self._restarts = restarts

    def run(self, architectures: Sequence[Architecture], done: Done | None = None) -> list[float]:
        """Scores, in order; what an actor that died evaluated is given to another."""
        ray = self._ray
        scores: dict[int, float] = {}
        waiting, running = list(range(len(architectures)))[::-1], {}
        try:
            while len(scores) < len(architectures):
                while waiting and self._idle:
                    index, worker = waiting.pop(), self._idle.pop()
                    running[worker.evaluate.remote(dict(architectures[index]))] = index, worker
                for answer in ray.wait(list(running))[0]:
                    index, worker = running[answer]
                    try:
                        scores[index] = ray.get(answer)
                    except ray.exceptions.RayActorError as error:
                        if not self._restarts:
                            del running[answer]
                            reason = " ".join(str(error).split())
                            raise RuntimeError(f"too many workers were lost: {reason}") from error
                        self._restarts -= 1
                        running[answer] = index, self._new()
                        waiting.append(index)
                    except ray.exceptions.RayTaskError as error:
                        raise ValueError(f"an evaluation failed: {error.cause!r}") from error
                    self._idle.append(running.pop(answer)[1])
                    if done is not None and index in scores:
                        done(index, scores[index])
        finally:  # what is evaluated after a failure ends before a worker begins with the next
            self._idle += [worker for _, worker in running.values()]
        return [scores[index] for index in range(len(architectures))]

    def close(self) -> None:
        """End the actors, and Ray if it was started here."""
        for worker in self._workers:
            self._ray.kill(worker)
        if self._started:
            self._ray.shutdown()

    def _new(self) -> Any:
        self._workers.append(self._actor.remote(self._make))
        return self._workers[-1]


class _Worker:
    def __init__(self, make: Callable[[], Evaluate]) -> None:
        self._evaluate = make()

    def evaluate(self, values: dict[str, Any]) -> float:
        return float(self._evaluate(Architecture(values)))
