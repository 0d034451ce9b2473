"""What every test shares: one thread each, fixed seeds, reference data, GPU tests skipped."""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import importlib.util
import os
import random
import signal
import sys
from pathlib import Path
from unittest import mock

# Before torch is imported, so that the tests' own subprocesses inherit it.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import numpy as np
import pytest
import torch

from vizoo.common.memory import keep_freed_memory

# Where it is forbidden too: each process that tests start would compile the package's modules anew.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Until all is collected: what imports make stays, and to look for garbage in it takes seconds.
gc.disable()
atexit.register(gc.unfreeze)  # libraries complain of what is left when Python ends

ROOT = Path(__file__).resolve().parents[1]

# What commands print is for no terminal and 80 characters wide, wherever the tests run.
os.environ["COLUMNS"] = "80"
for _name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "VIZOO_TRACEBACK"):
    os.environ.pop(_name, None)

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)
    keep_freed_memory()  # as commands do; a third of the system's time goes into giving it back

# A shell ignores it for what runs in the background, and the tests' own processes would, too.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A shared machine makes any limit of time a lottery; where CI is set, runs are repeatable.
hypothesis.settings.register_profile(
    "vizoo",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
    max_examples=50,
)
hypothesis.settings.load_profile("vizoo")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips the tests marked ``gpu`` where there is no CUDA device."""
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


def pytest_collection_finish() -> None:
    """Garbage is looked for from here on, seldom, and not among the modules and the tests."""
    registry = sys.modules.get("lightning.fabric.utilities.registry")
    if entry_points := getattr(registry, "entry_points", None):
        # Each trainer asks for callbacks of all packages, and reads their files for it.
        registry.entry_points = functools.cache(entry_points)
    gc.freeze()
    gc.set_threshold(50_000)  # the usual 700 takes a tenth of a tracer's time
    gc.enable()


# Without a GPU torch.manual_seed notes each call's stack, for the day when there is one.
_TORCH = torch if torch.cuda.is_available() else torch.default_generator


def _seed() -> None:
    random.seed(0)
    np.random.seed(0)
    _TORCH.manual_seed(0)


@pytest.fixture(autouse=True)
def _no_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second for each figure would be much, and only some machines have counters."""
    monkeypatch.setattr("vizoo.common.energy._POWERCAP", Path("/none"))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Every test starts from the same random state, whichever tests ran before it."""
    _seed()


def pytest_fixture_setup(fixturedef: pytest.FixtureDef) -> None:
    """What several tests share starts from that state too, whichever of them needs it first."""
    if fixturedef.scope != "function":
        _seed()


@pytest.fixture(autouse=True)
def no_group_is_left():
    """Ends a group of processes that a trainer left, which the next test here would meet."""
    yield
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository's root, which is also the folder of the package."""
    return ROOT


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference outputs and real stereo pairs; skips the test where there is none.

    It is ``$VIZOO_SHARED`` if that is set, else ``shared`` beside the checkout.
    """
    folder = Path(os.environ.get("VIZOO_SHARED") or ROOT.parent / "shared")
    if not folder.is_dir():
        pytest.skip(f"no reference data at {folder} (set VIZOO_SHARED)")
    return folder


@pytest.fixture(scope="session")
def golden(shared):
    """Folder of a model's published cases, and the module that rebuilds weights and images."""
    path = shared / "golden" / "synthetic_state.py"
    if not path.is_file():
        pytest.skip("the published cases are not on this machine")
    spec = importlib.util.spec_from_file_location("synthetic_state", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return lambda name: (shared / "golden" / name, module)


@functools.cache
def _keep_onnx_operators() -> None:
    try:
        from torch.onnx._internal.exporter._registration import ONNXRegistry
    except ImportError:
        return  # another PyTorch: each file takes its second

    ONNXRegistry.from_torchlib = staticmethod(functools.cache(ONNXRegistry.from_torchlib))


@pytest.fixture(scope="session", autouse=True)
def _onnx_operators_are_read_once():
    """PyTorch parses the source of all of them for every file, which takes a second."""
    write = torch.onnx.export

    def export(*args, **settings):
        _keep_onnx_operators()
        return write(*args, **settings)

    with mock.patch.object(torch.onnx, "export", export):
        yield


@pytest.fixture(scope="session", autouse=True)
def _measurements_are_few():
    """Subnets take two seconds each otherwise, and hundreds of operators a hundredth of one."""
    with (
        mock.patch("vizoo.nas.efficiency.operators._SECONDS", 0.0),
        mock.patch.multiple("vizoo.vision.subnets.bench", _SECONDS=0.0, _REPETITIONS=3),
    ):
        yield


@pytest.fixture
def distributed_ends():
    """What a strategy of several processes leaves in this one is taken back after the test."""
    with mock.patch.dict(os.environ):
        yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@pytest.fixture
def benchmark(root, monkeypatch):
    """A module of the benchmarks by name; they are no part of the package."""
    monkeypatch.syspath_prepend(str(root))
    return lambda name: importlib.import_module(f"benchmarks.{name}")
