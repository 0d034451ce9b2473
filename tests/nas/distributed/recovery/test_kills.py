"""Processes of `torchrun` that are killed at random: training and search go on by themselves.

Here processes are forked, which saves their imports. The long runs start them as a user does:
20 kills of one of four processes each, take some ten minutes on two processors:
`pytest -n0 -s -m slow tests/nas/distributed/recovery/test_kills.py`, which prints a line for each
kill.
"""

from __future__ import annotations

import json
import sys
from functools import partial

import pytest
import torch
import toy_supernet
import yaml
from distributed_snapshots import command
from ranks import run_ranks
from torchrun import SUPPORT, torchrun

from vizoo.__main__ import main
from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.weights import save_weights

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and /dev/shm")

EVERY = 5
PAUSE = 0.03


def lines(folder):
    """What the processes have logged: attempt and step, or error, of each line."""
    rows = [line.split() for path in folder.glob("rank*.log") for line in path.open()]
    return [(int(attempt), float(value)) for attempt, value, *_ in rows]


def count(folder, attempt):
    """How many lines an attempt has left."""
    return sum(found == attempt for found, _ in lines(folder))


def train(folder, processes, epochs, kills=0, seed=0, steps=None, forked=False):
    """Train by `vizoo fit` with compressed gradients, under torchrun if something is killed.

    Returns:
        The run, and the folder of its logs.
    """
    log, memory = folder / "log", folder / "memory"
    log.mkdir(parents=True)
    memory.mkdir()
    snapshot = {"every_n_steps": EVERY, "parity_group": 2, "memory": str(memory)}
    hook = {"class_path": "vizoo.nas.distributed.TopK", "init_args": {"density": 0.2}}
    named = "vizoo.nas.distributed"
    config = {
        "seed_everything": 3,
        "trainer": {
            "accelerator": "cpu",
            "devices": processes,
            "strategy": {
                "class_path": f"{named}.HookDDPStrategy",
                "init_args": {"hook": hook, "process_group_backend": "gloo"},
            },
            "max_epochs": epochs,
            "num_sanity_val_steps": 0,
            "logger": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "default_root_dir": str(folder),
            "callbacks": [
                {"class_path": f"{named}.InMemorySnapshot", "init_args": snapshot},
                {"class_path": f"{named}.ReplicaDriftCheck", "init_args": {"every_n_steps": 7}},
            ],
        },
        "model": {
            "class_path": "toy_snapshots.Task",
            "init_args": {"log": str(log), "pause": PAUSE if kills else 0.0},
        },
        "data": {
            "class_path": "toy_snapshots.Numbered",
            "init_args": {"size": 22 * processes, "batch_size": 2},
        },
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    words = ["fit", "--config", "config.yaml"]
    if not kills:
        assert run_ranks(processes, command, str(folder), words) == [0] * processes
        return None, log
    words = ["-m", "vizoo", *words]
    fresh = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # as README says
    within = [processes * number for number in steps]  # a line for each step of each process
    left = partial(count, log)
    run = torchrun(folder, processes, words, kills, seed, within, left, fresh, forked)
    assert run.code == 0, run.output[-3000:]
    return run, log


def check_training(tmp_path, processes, epochs, kills, seed, steps, forked=False):
    _, expected = train(tmp_path / "whole", processes, epochs)
    run, log = train(tmp_path / "killed", processes, epochs, kills, seed, steps, forked)
    for rank in range(processes):
        ends = [torch.load(f / f"end{rank}.pt", weights_only=True) for f in (expected, log)]
        assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())
    assert len(run.kills) == kills
    steps_of = {attempt: [] for attempt in range(kills + 1)}
    for attempt, step in lines(log):
        steps_of[attempt].append(int(step))
    last = 0  # the step that was under way when a process was killed
    for attempt, _, rank in run.kills:
        last = max([last, *steps_of[attempt]])
        after = next((steps_of[a] for a in range(attempt + 1, kills + 1) if steps_of[a]), None)
        lost = last - min(after)  # -1: a snapshot was just taken, and the next step not begun
        print(f"kill {attempt}: seed {seed}, process {rank}, at {last}, lost {lost}")
        assert -1 <= lost <= EVERY
    assert "going on from the snapshot after step" in run.output
    assert "an earlier run" not in run.output  # last.ckpt is still this one's
    folder = tmp_path / "killed"
    assert not list((folder / "memory").iterdir())
    names = {"last.ckpt", *(f"last.ckpt.rank{rank}" for rank in range(processes))}
    assert {path.name for path in (folder / "checkpoints").iterdir()} == names
    assert torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["epoch"] == epochs - 1


@pytest.fixture
def toys(monkeypatch, tmp_path):
    """A trained toy supernet and a config, in the working folder."""
    toy_supernet.enter(monkeypatch, tmp_path, length=4, counted=30)
    torch.manual_seed(0)
    save_weights(create_model("toy", widths=(4, 8)), "supernet.safetensors")


def check_search(tmp_path, monkeypatch, processes, sizes, kills, seed, pause, most, forked=False):
    words = ["search", "--supernet", "supernet.safetensors", "--data", "toy.yaml", "--direct"]
    words += ["--metric", "val/error", "--input", "16x24"]
    words += [f"--{name}={value}" for name, value in sizes.items()]
    assert main([*words, "--out", "alone"]) == 0
    log = tmp_path / "log"
    log.mkdir()
    monkeypatch.setenv("TOY_LOG", str(log))
    monkeypatch.setenv("TOY_PAUSE", str(pause))
    command = [str(SUPPORT / "toy_command.py"), *words, "--out", "job"]
    kept_by = {}  # attempt: the errors that were in the file at last before it was killed

    def evaluated(attempt):
        file = tmp_path / "job" / "evaluations.json"
        rows = json.loads(file.read_text())["evaluations"] if file.exists() else []
        kept_by[attempt] = {row["error"] for row in rows}
        return count(log, attempt)

    run = torchrun(tmp_path, processes, command, kills, seed, (1, most), evaluated, forked=forked)
    assert run.code == 0, run.output[-3000:]
    alone, job = (
        json.loads((tmp_path / name / "front.json").read_text()) for name in ("alone", "job")
    )
    assert job["front"] == alone["front"] and job["evaluated"] == alone["evaluated"]
    kept = [
        json.loads((tmp_path / name / "evaluations.json").read_text()) for name in ("alone", "job")
    ]
    both = [
        {json.dumps(row["architecture"]): row["error"] for row in k["evaluations"]} for k in kept
    ]
    assert both[0] == both[1]
    again = len(lines(log)) - job["evaluated"]
    if kills > 1:
        assert len(list(log.glob("*.log"))) == processes  # all had a share
    for attempt, evaluated, rank in run.kills:
        print(f"kill {attempt}: seed {seed}, process {rank}, {evaluated} evaluated since the last")
    print(f"{job['evaluated']} evaluated, {again} of them again")
    # Nothing that a file kept is evaluated again: only what was under way or not collected yet.
    assert again >= 0 and len(set(both[0].values())) == len(both[0])
    for attempt, error in lines(log):
        assert not any(error in kept_by[before] for before in kept_by if before < attempt)
    assert kills == 1 or any(kept_by.values())
    # A process that is killed while it writes leaves the hidden file that it wrote to.
    assert {path.name for path in (tmp_path / "job").glob("[!.]*")} == {
        *("evaluations.json", "front.csv", "front.json", "front.png")
    }


def test_a_killed_training_goes_on(tmp_path):
    check_training(tmp_path, processes=2, epochs=3, kills=1, seed=3, steps=(8, 12), forked=True)


def test_a_search_by_torchrun_is_killed_and_goes_on(tmp_path, toys, monkeypatch):
    sizes = {"population": 8, "generations": 3}
    check_search(tmp_path, monkeypatch, 2, sizes, 1, seed=2, pause=0.1, most=6, forked=True)


@pytest.mark.slow
def test_twenty_kills_of_a_training_cost_an_interval_each_at_most(tmp_path):
    check_training(tmp_path, processes=4, epochs=30, kills=20, seed=10, steps=(1, 12))


@pytest.mark.slow
def test_twenty_kills_of_a_search_cost_what_was_under_way(tmp_path, toys, monkeypatch):
    sizes = {"population": 24, "generations": 14}
    check_search(tmp_path, monkeypatch, 4, sizes, kills=20, seed=20, pause=0.8, most=6)
