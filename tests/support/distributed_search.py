"""What the processes of the tests of distributed search do."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import torch.distributed as dist

from vizoo.nas.distributed.search.executor import QueueExecutor, SerialExecutor, serve
from vizoo.nas.distributed.search.population import Evaluator, SavedSearch
from vizoo.nas.search import evolve
from vizoo.nas.space import Choice, SearchSpace


def space():
    depth = Choice("depth", (1, 2, 3))
    widths = [Choice(f"width{i}", (8, 16, 24)) for i in range(3)]
    return SearchSpace([depth, *widths], {"width2": [{"depth": (3,)}]})


class Score:
    """Scores an architecture, and leaves a line for each in a file of this process.

    Args:
        folder: of the files.
        dies_at: the process ends, as by `kill -9`, in its evaluation of this number; `never`
            makes evaluations fail instead.
        together: so many processes have each begun an evaluation before the first one ends.
    """

    def __init__(self, folder, dies_at=None, together=1):
        self.folder = Path(folder)
        self.dies_at = dies_at
        self.together = together
        self.count = 0

    def __call__(self, architecture):
        if self.dies_at == "never":
            raise TypeError("no such\nthing")
        if self.count == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1
        with open(self.folder / f"{os.getpid()}.log", "a") as file:
            file.write(architecture.digest + "\n")
        end = time.monotonic() + 600
        while self.count == 1 and len(list(self.folder.glob("*.log"))) < self.together:
            if time.monotonic() > end:
                raise TimeoutError("the other processes evaluate nothing")
            time.sleep(0.01)
        time.sleep(0.003 * (architecture["depth"] + self.count % 3))
        wanted = {"depth": 2, "width0": 8, "width1": 24}
        return sum(abs(architecture[name] - value) for name, value in wanted.items()) + 0.1


def evaluated(folder):
    """The architectures of all files, by digest."""
    return [line for file in Path(folder).glob("*.log") for line in file.read_text().split()]


def search(executor, journal=None, saved=None):
    """A short search; its outcome as plain values."""
    more = {} if saved is None else {"resume": saved.state, "on_generation": saved}
    settings = {"seed": 3, "population": 8, "generations": 4}
    found = evolve(space(), Evaluator(executor, journal), **settings, **more)
    return [(item.architecture.digest, item.scores, item.generation) for item in found.evaluated]


def worker(port, folder, dies_at, together):
    serve(Score(folder, dies_at, together), dist.TCPStore("127.0.0.1", port, is_master=False))


def searching(folder, dies_at=None):
    """A search in one process that keeps a journal and its state."""
    with SerialExecutor(Score(folder, dies_at)) as executor:
        saved = SavedSearch(Path(folder) / "search.json")
        return search(executor, Path(folder) / "journal.jsonl", saved)


def with_workers(start, folder, deaths=(), lost_after=600.0):
    """The search with workers that `start(function, *args)` starts; `deaths` of each."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    together = 1 + sum(dies_at != "never" for dies_at in deaths)
    for dies_at in deaths:
        start(worker, store.port, folder, dies_at, together)
    with QueueExecutor(Score(folder, together=together), store, lost_after) as executor:
        while deaths and store.add("workers", 0) < len(deaths):
            time.sleep(0.01)
        return search(executor)


def losing_once(folder):
    """A score whose first process is lost in its third evaluation."""
    mark = Path(folder) / "lost"
    first = not mark.exists()
    mark.touch()
    return Score(folder, 2 if first else None)


def search_command(rank, port, folder, words):
    """`vizoo search` on the toy supernet, as one of two processes that torchrun has started."""
    import pytest
    import toy_supernet

    from vizoo.__main__ import main

    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    # As torchrun does, whose agent has the store.
    os.environ.update(TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="0")
    os.chdir(folder)
    with pytest.MonkeyPatch.context() as patch:
        toy_supernet.register(patch)
        patch.setattr("vizoo.vision.subnets.best._COUNTED", 30)
        code = main(words)
    os._exit(code)
