"""How long `vizoo --help` and `import vizoo` take, each in fresh processes.

python -m benchmarks.startup [--repeat 5]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks._machine import machine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    commands = {
        "python -c pass": ["-c", "pass"],
        "import torch": ["-c", "import torch"],
        "import torch, vizoo": ["-c", "import torch, vizoo"],
        "import vizoo": ["-c", "import vizoo"],
        "vizoo --help": ["-m", "vizoo", "--help"],
        "vizoo models --help": ["-m", "vizoo", "models", "--help"],
    }
    times = {name: [] for name in commands}
    for _ in range(options.repeat + 1):
        for name, arguments in commands.items():
            command = [sys.executable, *arguments]
            start = time.perf_counter()
            subprocess.run(command, capture_output=True, check=True)
            times[name].append(time.perf_counter() - start)
    times = {name: found[1:] for name, found in times.items()}  # the first fills the disk cache
    beyond = median(
        b - a for a, b in zip(times["import torch"], times["import torch, vizoo"], strict=True)
    )
    console = Console(width=120)
    console.print(machine())
    table = Table(title=f"Start-up, median of {options.repeat}")
    table.add_column("process")
    table.add_column("s", justify="right")
    for name, found in times.items():
        table.add_row(name, f"{median(found):.2f}")
    table.add_row("vizoo beyond torch", f"{beyond:.2f}")
    console.print(table)


if __name__ == "__main__":
    main()
