"""A folder with a toy task and its config, made the working folder."""

import itertools
import shutil
import sys
from pathlib import Path

import lightning.pytorch  # noqa: F401 - its log handler keeps the stderr of its first import
import pytest
from mvs_fixtures import oracle, scene, small_pictures  # noqa: F401
from panorama_fixtures import small_views  # noqa: F401
from stereo_fixtures import small_clouds, stand_in  # noqa: F401

from vizoo.common import energy

CONFIG = """\
model:
  class_path: toytask.Toy
  init_args: {width: 3}
data:
  class_path: toytask.ToyData
trainer:
  max_epochs: 2
  accelerator: cpu
  logger: false
  enable_progress_bar: false
  enable_model_summary: false
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    shutil.copy(Path(__file__).with_name("toytask.py"), tmp_path)
    (tmp_path / "toy.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", ["vizoo"])
    yield tmp_path
    sys.modules.pop("toytask", None)


@pytest.fixture
def energy_counter(monkeypatch):
    """Every call takes a quarter of a joule, and one is enough to tell."""
    steps = itertools.count()
    counters = energy._Counters("RAPL: package-0", lambda: [250 * next(steps)], [10**6], 1e-3)
    monkeypatch.setattr(energy, "_packages", lambda: counters)
    monkeypatch.setattr(energy, "_SECONDS", 0)
