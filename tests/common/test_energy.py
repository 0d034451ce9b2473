"""Energy by counters that the tests move: of packages, of a GPU, and where there are none."""

from __future__ import annotations

import ctypes
import time
import types

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vizoo.common import energy
from vizoo.common.energy import Energy, joules


@pytest.fixture
def clock(monkeypatch):
    """Seconds that only calls move."""
    state = types.SimpleNamespace(now=0.0)
    monkeypatch.setattr(time, "perf_counter", lambda: state.now)
    return state


class Powercap:
    """A folder as Linux shows it: two packages, what is within them, and the first one again."""

    zones = {
        "intel-rapl:0": "package-0",
        "intel-rapl:0:0": "core",
        "intel-rapl:0:1": "dram",
        "intel-rapl:1": "package-1",
        "intel-rapl:2": "psys",
        "intel-rapl-mmio:0": "package-0",
    }

    def __init__(self, root, top=262_143_328_850):
        self.root, self.top = root, top
        (root / "intel-rapl").mkdir()  # the driver itself, which counts nothing
        for zone, name in self.zones.items():
            (root / zone).mkdir()
            (root / zone / "name").write_text(f"{name}\n")
            (root / zone / "max_energy_range_uj").write_text(f"{top}\n")
            (root / zone / "energy_uj").write_text("0\n")

    def add(self, **used):
        for zone, name in self.zones.items():
            file = self.root / zone / "energy_uj"
            moved = int(file.read_text()) + used.get(name.replace("-", "_"), 10**9)
            file.write_text(f"{moved % (self.top + 1)}\n")


@pytest.fixture
def powercap(tmp_path, monkeypatch):
    monkeypatch.setattr(energy, "_POWERCAP", tmp_path)
    return Powercap(tmp_path)


def test_packages_are_added_and_nothing_counts_twice(powercap, clock):
    def call():
        clock.now += 0.3
        powercap.add(package_0=3_000_000, package_1=500_000)

    for zone in ("intel-rapl:0", "intel-rapl:1"):  # about to begin again at 0
        (powercap.root / zone / "energy_uj").write_text(f"{powercap.top - 100}")
    measured = joules(call)
    assert measured == (pytest.approx(3.5), "RAPL: package-0, package-1")
    assert measured.to_json() == {"joules": measured.joules, "energy": measured.source}
    assert clock.now == pytest.approx(0.3 * 5)  # one to warm up, four until a second is over


@given(top=st.integers(1, 2**50), start=st.integers(0), used=st.integers(0))
def test_counters_begin_anew(top, start, used):
    start, used = start % (top + 1), used % (top + 1)
    counters = energy._Counters("", list, [top], 1.0)
    assert counters.between([start], [(start + used) % (top + 1)]) == used


def test_without_counters_there_is_no_figure(tmp_path, monkeypatch):
    def call():
        pytest.fail("nothing is to be measured")

    for folder in (tmp_path / "none", tmp_path):
        monkeypatch.setattr(energy, "_POWERCAP", folder)
        measured = joules(call)
        assert measured.joules is None
        assert measured.source.startswith(f"not measurable here: no RAPL counter in {folder}")
    assert joules(call, "meta") == (None, "not measurable here: no counter is known for meta")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (PermissionError(13, "Permission denied"), r"sudo chmod a\+r .*/\*/energy_uj"),
        (OSError(61, "No data available"), "cannot be read: .*No data available"),
    ],
)
def test_counters_that_cannot_be_read(powercap, monkeypatch, error, says):
    read = energy.Path.read_text

    def refuse(path):
        if path.name == "energy_uj":
            raise error
        return read(path)

    monkeypatch.setattr(energy.Path, "read_text", refuse)
    measured = joules(lambda: pytest.fail("nothing is to be measured"))
    assert measured.joules is None
    with pytest.raises(AssertionError, match=rf"^not measurable here: .*{says}"):
        raise AssertionError(measured.source)


def test_a_range_that_nobody_knows(powercap):
    (powercap.root / "intel-rapl:1" / "max_energy_range_uj").unlink()
    assert "range of the RAPL counters is unknown" in joules(lambda: None).source


class Nvml:
    """As much of NVIDIA's library as is called."""

    def __init__(self, **codes):
        self.codes, self.millijoules = codes, 2**40
        self.nvmlErrorString = lambda code: b"Not Supported"

    def nvmlInit_v2(self):
        return self.codes.get("init", 0)

    def nvmlDeviceGetHandleByUUID(self, name, handle):
        handle._obj.value = 7
        return 0 if name == b"GPU-6f5a" else 6

    def nvmlDeviceGetTotalEnergyConsumption(self, handle, energy):
        energy._obj.value = self.millijoules
        return self.codes.get("energy", 0) if handle.value == 7 else 2


@pytest.fixture
def gpu(monkeypatch, clock):
    properties = types.SimpleNamespace(uuid="6f5a", name="NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    return clock


def test_a_gpu(gpu, monkeypatch):
    nvml = Nvml()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: nvml)

    def call():
        gpu.now += 0.5
        nvml.millijoules += 250

    assert joules(call, "cuda:1") == Energy(pytest.approx(0.25), "NVML: NVIDIA H200")


def test_a_gpu_that_does_not_count(gpu, monkeypatch):
    nvml = Nvml(energy=3)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: nvml)
    says = "not measurable here: nvmlDeviceGetTotalEnergyConsumption: Not Supported (NVML)"
    assert joules(int, "cuda") == (None, says)
    monkeypatch.undo()

    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert "libnvidia-ml.so.1 of NVIDIA's driver is not there" in joules(int, "cuda").source


@pytest.mark.gpu
def test_this_gpu():
    values = torch.rand(4096, 4096, device="cuda")
    measured = joules(lambda: values @ values, "cuda")
    assert measured.joules is None or 1e-3 < measured.joules < 100
