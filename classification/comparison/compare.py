"""Networks made by hand against those that searches find, by one recipe and several seeds."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...common.extras import from_extra
from ...common.files import make_folder, read_json, write_json
from ...nas.efficiency.provenance import Conditions
from .candidates import Shared, check_rows
from .config import CompareConfig
from .report import write_report
from .runs import latencies, run

__all__ = ["Comparison", "compare"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Comparison:
    """What a comparison has come to."""

    out: Path  #: its folder
    rows: list[dict[str, Any]]  #: a row's figures each, the most accurate first
    differences: list[dict[str, Any]]  #: of each pair of rows, and whether chance explains it
    failed: dict[str, str]  #: "row, seed" of runs that failed → why; they are tried again next time

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        names = ("rows", "differences", "failed")
        return {"out": str(self.out), **{name: getattr(self, name) for name in names}}


def compare(
    config: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    report: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Comparison:
    """Find, train and test every row's network for every seed, and write the report.

    Each finished run is a file `runs/ROW/SEED.json`, so that the same call goes on where it was
    stopped. A run that fails does not stop the others, and is logged at once.

    Args:
        config: a file, or the name of a built-in config, see `CompareConfig`.
        out: folder of `results.csv`, `report.html`, `comparison.json` and the runs.
        report: called as ``report(what, done, total)`` before each run.

    Raises:
        FileNotFoundError: no such config, or none of its images.
        OSError: the folder cannot be made.
        ValueError: no config of a comparison, runs of other settings in the folder, or every run
            failed.

    Example:
        >>> made = vizoo.compare("compare/generated.yaml", "report")
        >>> made.rows[0]["row"], made.rows[0]["top1"], made.rows[0]["top1_std"]
    """
    from_extra("scipy", "scipy.stats", "a comparison")  # before hours of training
    settings, folder = CompareConfig.read(config), Path(out)
    files = {
        (name, seed): folder / "runs" / re.sub(r"[^\w.+-]+", "_", name) / f"{seed}.json"
        for seed in settings.seeds
        for name in settings.rows
    }
    if len(set(files.values())) < len(files):
        raise ValueError(f"{config}: names of rows, or seeds, come to the same file")
    done = {key: path for key, path in files.items() if _is_done(path, settings.digest(key[0]))}
    for stage in ("fit", "test"):  # what is wrong with the images is wrong with all runs
        settings.data.setup(stage)
    check_rows(settings)
    make_folder(folder)
    failed: dict[str, str] = {}
    shared = Shared()
    for number, (key, path) in enumerate(files.items()):
        name, seed = key
        report(f"{name}, seed {seed}", number, len(files))
        if key in done:
            continue
        try:
            write_json(path, run(settings, name, seed, shared))
        except Exception as error:  # of any layer; the other rows can still be compared
            text = " ".join(str(error).split()) or type(error).__name__
            failed[f"{name}, seed {seed}"] = f"{type(error).__name__}: {text}"
            _log.warning("%s, seed %s failed, the others go on: %s", name, seed, text)
            _log.debug("where %s, seed %s failed", name, seed, exc_info=True)
    report("", len(files), len(files))
    runs = [read_json(path, "a run") for path in files.values() if path.is_file()]
    if not runs:
        raise ValueError(f"{config}: all runs failed: {next(iter(failed.values()))}")
    rows, differences = write_report(
        settings, runs, _latencies(settings, folder, runs), failed, folder
    )
    return Comparison(folder, rows, differences, failed)


def _is_done(path: Path, digest: str) -> bool:
    if not path.is_file():
        return False
    if read_json(path, "a run").get("digest") != digest:
        raise ValueError(f"{path}: a run of other settings: name another folder, or delete it")
    return True


def _latencies(
    settings: CompareConfig, folder: Path, runs: list[dict[str, Any]]
) -> dict[str, list[float | None]]:
    """Milliseconds and joules of each run's network.

    They are measured again where there are new runs, or other conditions.
    """
    path = folder / "latency.json"
    names = [f"{one['row']}/{one['seed']}/{one['digest']}" for one in runs]
    conditions = Conditions.here("cpu", torch.float32, *settings.size, batch=settings.batch)
    about = {"runs": names, "conditions": conditions.to_json()}
    if path.is_file():
        known = read_json(path, "latencies")
        if all(known.get(key) == value for key, value in about.items()):
            return known
    times, energies = latencies(settings, runs)
    known = {**about, "latency": times, "joules": energies}
    write_json(path, known)
    return known
