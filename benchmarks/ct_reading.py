"""Reading and preparing a CT scan of 512x512x300: DICOM series and NIfTI, time and memory.

python -m benchmarks.ct_reading [--slices 300] [--size 512] [--threads 2]
"""

from __future__ import annotations

import tempfile
import time
from itertools import pairwise
from pathlib import Path

from benchmarks._machine import apart, arguments, peak_megabytes, start, table
from vizoo.datasets.ct import Chest, CTPreset, prepare, read_scan, write_dicom, write_nifti


def generate(shape: tuple[int, int, int], series: Path, nifti: Path) -> None:
    values, _, affine = Chest(0, "covid").scan(shape)
    write_dicom(series, values, affine)
    write_nifti(nifti, values, affine)


def measured(path: Path, threads: int) -> tuple[list[float], float, float]:
    """Seconds and CPU seconds of reading and of preparing, MiB held before and at the most."""
    before = peak_megabytes()
    marks = [(time.perf_counter(), time.process_time())]
    volume = read_scan(path, threads=threads)
    marks.append((time.perf_counter(), time.process_time()))
    prepare(volume, CTPreset((512, 512), 32))
    marks.append((time.perf_counter(), time.process_time()))
    steps = [b - a for one, two in pairwise(marks) for a, b in zip(one, two, strict=True)]
    return steps, before, peak_megabytes()


def main() -> None:
    parser = arguments(__doc__, slices=300, size=512)
    parser.add_argument("--folder", help="keeps the generated files, to measure them again")
    options, console = start(parser)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.folder or temporary)
        series, nifti = folder / "series", folder / "scan.nii.gz"
        if not nifti.exists():
            apart(generate, (options.slices, options.size, options.size), series, nifti)
        for name, path in (("DICOM", series), ("NIfTI, gzip", nifti)):
            times, before, peak = apart(measured, path, options.threads)
            cells = [f"{value:.2f}" for value in (*times, times[0] + times[2])]
            rows.append([name, *cells, f"{peak:.0f} ({before:.0f} before)"])
    columns = ["", "read, s", "CPU s", "prepare, s", "CPU s", "whole, s", "peak MiB"]
    title = f"{options.size}x{options.size}x{options.slices}, to 512x512x32"
    console.print(table(columns, rows, title))


if __name__ == "__main__":
    main()
