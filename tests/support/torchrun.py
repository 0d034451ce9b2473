"""Runs `torchrun` as users do, and kills processes of it at moments that a seed decides."""

from __future__ import annotations

import dataclasses
import os
import random
import runpy
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from ranks import context
from torch.distributed import run as launcher
from torch.distributed.launcher.api import elastic_launch

SUPPORT = Path(__file__).parent

_LIMIT = 3600


@dataclass
class Run:
    """What became of a run.

    Attributes:
        code: exit status.
        output: stdout and stderr.
        kills: for each kill the attempt (from 0), the lines it had left, and the process's rank.
    """

    code: int
    output: str
    kills: list[tuple[int, int, int]] = field(default_factory=list)


def torchrun(
    folder, processes, words, kills=0, seed=0, within=(1, 1), lines=None, more=None, forked=False
):
    """Run a command in several processes, killing one of them again and again.

    A fifth of the kills falls into the start of the processes. The others wait until an attempt
    has left a number of lines, so that they hit the same work however fast the machine is.

    Args:
        folder: working directory.
        processes: how many.
        words: of the command, a module or a script first.
        kills: how many, each of which torchrun answers with a restart.
        seed: of moments and processes.
        within: fewest and most lines of an attempt that is killed.
        lines: gives the number of lines that an attempt (from 0) has left so far.
        more: environment variables.
        forked: by processes that have most imports done when they start.
    """
    words = ["--standalone", "--nproc-per-node", str(processes), "--max-restarts", str(kills)] + [
        *("--monitor-interval", "0.1", "--log-dir", str(Path(folder) / "logs"), *words)
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    environment |= more or {}
    environment["PYTHONPATH"] = os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")])
    with open(Path(folder) / "output.txt", "w+") as output:
        process = (_Forked if forked else _started)(words, folder, environment, output)
        try:
            found = _kill(process, processes, kills, random.Random(seed), within, lines)
            code = process.wait(_LIMIT)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        output.seek(0)
        return Run(code, output.read(), found)


def _started(words, folder, environment, output):
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *words],
        cwd=folder,
        env=environment,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


class _Forked:
    """What torchrun does in a process, as of :class:`subprocess.Popen`."""

    def __init__(self, words, folder, environment, output):
        self._process = context.Process(target=_launch, args=(words, folder, environment))
        self._process.start()
        self.pid = self._process.pid

    def poll(self):
        return self._process.exitcode

    def wait(self, limit=None):
        self._process.join(limit)
        return self._process.exitcode


def _launch(words, folder, environment):
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    output = os.open("output.txt", os.O_WRONLY | os.O_APPEND)
    for number in (1, 2):
        os.dup2(output, number)
    launcher.elastic_launch = lambda config, entrypoint: elastic_launch(
        dataclasses.replace(config, start_method="fork"), _work
    )
    launcher.run(launcher.parse_args(words))


def _work(*words):
    """Python's own work: a module or a script, with its arguments."""
    unbuffered, *words = words
    module = words[0] == "-m"
    sys.argv = words[module:]
    try:
        run = runpy.run_module if module else runpy.run_path
        run(sys.argv[0], run_name="__main__", **({"alter_sys": True} if module else {}))
    except SystemExit as stop:
        if stop.code:
            raise RuntimeError(f"exit status {stop.code}") from stop


def _kill(process, processes, kills, rng, within, lines):
    done, before, starting = [], set(), 5.0
    end = time.monotonic() + _LIMIT
    for attempt in range(kills):
        while len(workers := _workers(process.pid) - before) < processes:
            _go_on(process, end)
        start = time.monotonic()
        early, moment, wanted = rng.random() < 0.2, rng.random(), rng.randint(*within)
        if early:
            time.sleep(moment * starting)
        else:
            while lines(attempt) < wanted:
                _go_on(process, end)
            starting = time.monotonic() - start
        rank = rng.randrange(processes)
        done.append((attempt, lines(attempt), rank))
        os.kill(sorted(workers)[rank], signal.SIGKILL)
        before |= workers
    return done


def _go_on(process, end):
    if process.poll() is not None or time.monotonic() > end:
        raise AssertionError("torchrun ended, or took too long, before the kill")
    time.sleep(0.01)


def _workers(pid):
    """The processes that another has started, oldest first by number."""
    found = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found |= {int(child) for child in task.read_text().split()}
        except OSError:  # a thread that has ended meanwhile
            continue
    return found
