"""The command `vizoo` with the toy supernets, for processes that torchrun starts.

TOY_PAUSE is how many seconds longer an evaluation takes, TOY_LOG a folder that gets a line for
each of them.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
import toy_supernet

from vizoo.__main__ import main
from vizoo.vision.configs.task import FitConfig
from vizoo.vision.subnets import best

if __name__ == "__main__":
    plain = FitConfig.evaluate

    def evaluate(self, net, *arguments):
        time.sleep(float(os.environ.get("TOY_PAUSE", 0)))
        error = plain(self, net, *arguments)
        if "TOY_LOG" in os.environ:
            attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
            with open(Path(os.environ["TOY_LOG"]) / f"rank{rank}.log", "a") as file:
                file.write(f"{attempt} {error!r}\n")
        return error

    with pytest.MonkeyPatch.context() as patch:
        toy_supernet.register(patch)
        patch.setattr(best, "_COUNTED", 30)
        patch.setattr(FitConfig, "evaluate", evaluate)
        sys.exit(main(sys.argv[1:]))
