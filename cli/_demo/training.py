"""The training of `vizoo demo`: FADNet++ tiny on generated scenes, interrupted and resumed."""

from __future__ import annotations

import csv
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

CONFIG = "stereo/fadnet_demo.yaml"
_LOSS, _ERROR = "train/loss", "val/epe"
_LOOK = 0.5  # seconds between looks at how far the training is


@dataclass(frozen=True)
class Training:
    """What `vizoo fit` did."""

    commands: list[str]  #: the lines that were run, the second of which resumed
    config: Path  #: the file that they name
    weights: Path  #: of the network in the end
    losses: list[tuple[int, float]]  #: (step, loss), in order
    errors: list[tuple[int, float]]  #: (step, mean error on unseen scenes in pixels), one an epoch
    interrupted: int  #: the last step before the interruption; 0 if the training was too short
    seconds: float  #: of both commands together

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        values = {name: value for name, value in asdict(self).items() if name != "config"}
        return {**values, "weights": str(self.weights), "seconds": round(self.seconds, 1)}


def train(out: Path, epochs: int, device: str, tell: Callable[[str], Any]) -> Training:
    """Train by the command that a user types; stop it half-way as Ctrl+C does, and resume.

    The folder `out` gets ``training.yaml``, ``training`` and ``fadnet_demo.safetensors``.
    """
    import yaml

    from ...common.files import write_text

    start = time.perf_counter()
    settings, runs = _settings(out, epochs, device), out / "training"
    config = write_text(out / "training.yaml", yaml.safe_dump(settings, sort_keys=False))
    data = settings["data"]["init_args"]
    # A little before the middle, which of an even number of epochs is the end of one.
    middle = 0.45 * (epochs * data["samples_per_epoch"] // data["batch_size"])
    command = ["fit", "--config", str(config)]
    commands = [shlex.join(["vizoo", *command])]
    known = _versions(runs)
    tell(commands[0])
    code = _run(command, lambda: _reached(middle, runs, known))
    interrupted = 0
    checkpoint = next((run / "checkpoints/last.ckpt" for run in _new(runs, known)), None)
    if code == 130 and checkpoint is not None and checkpoint.is_file():
        interrupted = _rows(checkpoint.parents[1])[-1][0]
        command += ["--ckpt_path", str(checkpoint)]
        commands.append(shlex.join(["vizoo", *command]))
        tell(f"interrupted; {commands[1]}")
        code = _run(command, lambda: False)
    if code:
        raise ValueError("the training failed: see above")

    # What takes seconds to import is not needed before.
    from ...vision.hub.weights import load_weights, save_weights

    done = _new(runs, known)
    weights = out / "fadnet_demo.safetensors"
    last = load_weights(done[-1] / "checkpoints/last.ckpt")
    save_weights(last, weights, trained_on="generated scenes")
    losses = [pair for folder in done for pair in _rows(folder)]
    errors = [pair for folder in done for pair in _rows(folder, _ERROR)]
    seconds = time.perf_counter() - start
    return Training(commands, config, weights, losses, errors, interrupted, seconds)


def test(training: Training, device: str, tell: Callable[[str], Any]) -> dict[str, Any]:
    """Print a table of unseen scenes: the network, StereoSGBM, the best constant disparity.

    The scenes are those of the training's config. Returns method to its scores.
    """
    import torch
    import yaml
    from rich.console import Console
    from rich.progress import track
    from rich.table import Table

    from ...datasets.stereo import GeneratedStereo
    from ...stereo.classical import semi_global_matching
    from ...stereo.infer import StereoPredictor
    from ...stereo.metrics import DisparityMetrics

    config = yaml.safe_load(training.config.read_text(encoding="utf-8"))
    scenes = GeneratedStereo(**config["data"]["init_args"]["test"][0]["init_args"])
    tell(f"a test on {len(scenes)} scenes that it has not seen")
    predictor = StereoPredictor(training.weights, device=device)
    samples = [scenes[index] for index in range(len(scenes))]
    known = torch.cat([sample["disparity"][sample["valid"]] for sample in samples])
    middle = known.median()
    methods: dict[str, Callable[..., Any]] = {
        "FADNet++ tiny, trained here": lambda *views: (
            predictor(*views, scale=1, check=False).disparity
        ),
        "StereoSGBM (OpenCV)": semi_global_matching,
        f"best constant, {middle:.1f} px": lambda left, right: middle.expand(left.shape[1:]),
    }
    console = Console(stderr=True)
    table = Table("method", "EPE [px]", "bad-1", "bad-2", "bad-3", "D1")
    report, still = {}, not console.is_interactive
    for name, method in methods.items():
        metrics = DisparityMetrics()
        for sample in track(samples, name, transient=True, console=console, disable=still):
            disparity = torch.as_tensor(method(sample["left"], sample["right"]))[None, None]
            metrics.update(disparity, sample["disparity"][None], sample["valid"][None])
        values = {key: value.item() for key, value in metrics.compute().items()}
        shares = [f"{100 * values[key]:.1f} %" for key in ("bad1", "bad2", "bad3", "d1")]
        table.add_row(name, f"{values['epe']:.2f}", *shares)
        report[name] = {key: round(value, 5) for key, value in values.items()}
    console.print(table)
    return report


def _settings(out: Path, epochs: int, device: str) -> dict[str, Any]:
    """The demo's config, with all that it writes under `out`."""
    from ...vision.configs.builtin import read_config

    config = read_config(CONFIG)
    config["trainer"]["logger"]["init_args"]["save_dir"] = str(out)
    config["trainer"]["max_epochs"] = epochs
    if device != "auto":
        kind, _, number = device.partition(":")
        config["trainer"]["accelerator"] = "gpu" if kind == "cuda" else kind
        config["trainer"]["devices"] = [int(number)] if number else 1
    config["model"]["init_args"]["round_epochs"] = [epochs]
    return config


def _reached(steps: float, runs: Path, known: set[Path]) -> bool:
    return any(rows and rows[-1][0] + 1 >= steps for rows in map(_rows, _versions(runs) - known))


def _run(words: list[str], stop: Callable[[], bool]) -> int:
    """Run a command of vizoo's, interrupt it once `stop` says so, and return its exit code."""
    # All of it to stderr, whatever Python's own is: with --json stdout is for JSON alone.
    process = subprocess.Popen([sys.executable, "-m", "vizoo", *words], stdout=2)
    stopped = False
    try:
        while True:
            try:
                return process.wait(_LOOK)
            except subprocess.TimeoutExpired:
                if not stopped and os.name == "posix" and stop():
                    process.send_signal(signal.SIGINT)
                    stopped = True
    except KeyboardInterrupt:
        # The terminal has told the child too, which writes its checkpoint.
        process.wait()
        raise
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


def _versions(runs: Path) -> set[Path]:
    return set(runs.glob("version_*"))


def _new(runs: Path, known: set[Path]) -> list[Path]:
    """Folders of runs since then, in order."""
    return sorted(_versions(runs) - known, key=lambda folder: int(folder.name.split("_")[1]))


def _rows(folder: Path, name: str = _LOSS) -> list[tuple[int, float]]:
    """What a run logged so far: step and value."""
    try:
        with (folder / "metrics.csv").open(encoding="utf-8", newline="") as file:
            rows = [(row["step"], row.get(name)) for row in csv.DictReader(file)]
    except FileNotFoundError:
        return []
    return [(int(step), float(value)) for step, value in rows if step and value]
