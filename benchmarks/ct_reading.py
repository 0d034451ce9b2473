"""Reading and preparing a CT scan of 512x512x300: DICOM series and NIfTI, time and memory.

python -m benchmarks.ct_reading [--slices 300] [--size 512] [--threads 2]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks._machine import machine

_MEASURED = """
import json, resource, sys, time
import torch
torch.set_num_threads(int(sys.argv[2]))
from vizoo.datasets.ct import CTPreset, prepare, read_scan

before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
preset = CTPreset((512, 512), 32)
marks = [(time.perf_counter(), time.process_time())]
volume = read_scan(sys.argv[1], threads=int(sys.argv[2]))
marks.append((time.perf_counter(), time.process_time()))
sample = prepare(volume, preset)
marks.append((time.perf_counter(), time.process_time()))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
steps = [b - a for one, two in zip(marks, marks[1:]) for a, b in zip(one, two)]
print(json.dumps([*steps, peak, before]))
"""


def generate(shape: tuple[int, int, int], series: Path, nifti: Path) -> None:
    from vizoo.datasets.ct import Chest, write_dicom, write_nifti

    values, _, affine = Chest(0, "covid").scan(shape)
    write_dicom(series, values, affine)
    write_nifti(nifti, values, affine)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slices", type=int, default=300)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", help="keeps the generated files, to measure them again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.folder or temporary)
        series, nifti = folder / "series", folder / "scan.nii.gz"
        if not nifti.exists():
            shape = (options.slices, options.size, options.size)
            # In a process of its own: a child's peak of memory begins with its parent's.
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                pool.submit(generate, shape, series, nifti).result()
        table = Table(title=f"{options.size}x{options.size}x{options.slices}, to 512x512x32")
        for name in ("", "read, s", "CPU s", "prepare, s", "CPU s", "whole, s", "peak MiB"):
            table.add_column(name, justify="right" if name else "left")
        for name, path in (("DICOM", series), ("NIfTI, gzip", nifti)):
            command = [sys.executable, "-c", _MEASURED, str(path), str(options.threads)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            *times, peak, before = json.loads(done.stdout)
            whole = times[0] + times[2]
            cells = [f"{value:.2f}" for value in (*times, whole)]
            table.add_row(name, *cells, f"{peak:.0f} ({before:.0f} before)")
    console = Console(width=120)
    console.print(machine())
    console.print(table)


if __name__ == "__main__":
    main()
