"""How long `vizoo --help`, `import vizoo` and `vizoo infer stereo` take, each in fresh processes.

    python -m benchmarks.startup [--repeat 5]

Seconds on the clock, and of the processor: where a machine is shared, the latter tell. The last
table says where the seconds of `vizoo infer stereo` go, for one small pair.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median

from PIL import Image

from benchmarks._machine import arguments, in_turns, start, table
from vizoo.datasets.stereo.scenes import generate_scenes
from vizoo.vision.io.images import to_bytes

SIZE = (192, 384)
STAGES = """
import json, time
seconds, begin = {}, time.process_time()
def stage(name):
    global begin
    now = time.process_time()
    seconds[name], begin = now - begin, now
stage("Python itself")
import torch
stage("import torch")
from vizoo.cli import infer_stereo
from vizoo.stereo.infer import StereoPredictor
stage("import vizoo")
predictor = StereoPredictor()
stage("weights")
result = predictor("left.png", "right.png")
stage("the first pair")
files = result.save("out")
stage("files of results")
predictor("left.png", "right.png")
stage("a second pair")
print(json.dumps(seconds))
"""


def timed(command: list[str], folder: Path) -> tuple[float, float, str]:
    """Seconds on the clock and of the processor that a process takes, and what it prints."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, capture_output=True, check=True, cwd=folder, text=True)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, used, done.stdout


def main() -> None:
    options, console = start(arguments(__doc__, repeat=5))
    infer = ["-m", "vizoo", "infer", "stereo", "left.png", "right.png", "--out", "out"]
    commands = {
        "python -c pass": ["-c", "pass"],
        "import torch": ["-c", "import torch"],
        "import torch, vizoo": ["-c", "import torch, vizoo"],
        "import vizoo": ["-c", "import vizoo"],
        "vizoo --help": ["-m", "vizoo", "--help"],
        "vizoo models --help": ["-m", "vizoo", "models", "--help"],
        "vizoo infer stereo": infer,
        "its stages": ["-c", STAGES],
    }
    commands = {name: [sys.executable, *words] for name, words in commands.items()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        scene = generate_scenes(1, *SIZE, seed=7, max_disparity=40)
        for view in ("left", "right"):
            Image.fromarray(to_bytes(scene[view][0])).save(folder / f"{view}.png")
        # The first turn fills the disk cache.
        runs = in_turns(commands, options.repeat, partial(timed, folder=folder))
    stages = [json.loads(printed) for *_, printed in runs.pop("its stages")]
    rows = [
        [name, *(f"{median(run[i] for run in found):.2f}" for i in range(2))]
        for name, found in runs.items()
    ]
    for name in ("import torch, vizoo", "vizoo infer stereo"):
        pairs = list(zip(runs["import torch"], runs[name], strict=True))
        beyond = [f"{median(b[i] - a[i] for a, b in pairs):.2f}" for i in range(2)]
        rows.append([f"{name}, beyond torch", *beyond])
    title = f"Start-up, median of {options.repeat}"
    console.print(table(["process", "s", "processor s"], rows, title))
    rows = [[name, f"{median(run[name] for run in stages):.2f}"] for name in stages[0]]
    console.print(table(["stage", "processor s"], rows, "Stages of a pair of {}x{}".format(*SIZE)))


if __name__ == "__main__":
    main()
