"""Runs every benchmark, one after the other: `python -m benchmarks` in the repository's root.

Those on real photographs (`*_transfer`, `*_tuning`) need a folder of them, so they are run alone.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def main() -> int:
    folder = Path(__file__).parent
    failed = 0
    for file in sorted(folder.glob("[a-z]*.py")):
        if file.stem.endswith(("_transfer", "_tuning")):
            continue
        print(f"== {file.stem}", flush=True)
        command = [sys.executable, "-m", f"benchmarks.{file.stem}"]
        failed |= subprocess.run(command, cwd=folder.parent).returncode
    return int(failed != 0)


if __name__ == "__main__":
    sys.exit(main())
