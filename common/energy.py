"""Energy by the machine's own counters: RAPL of the processor, NVML's of a GPU; never an estimate.

RAPL counts whole processor packages, with everything else that runs on them, but neither memory
nor board nor power supply. NVML counts the board of one GPU, and not the processor that feeds it.
Idle power is part of both.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .timing import now

__all__ = ["Energy", "joules"]

_POWERCAP = Path("/sys/class/powercap")
_SECONDS = 1.0  # RAPL moves every millisecond, NVML's counter several times a second
_PACKAGE = "package"  # psys holds the packages, core, uncore and dram are within or beside them


class Energy(NamedTuple):
    """What one call takes, and who says so."""

    joules: float | None  #: None where it cannot be measured
    source: str  #: the counters, or why there is no figure

    def to_json(self) -> dict[str, Any]:
        """The entries `joules` and `energy`, the source."""
        return {"joules": self.joules, "energy": self.source}


@dataclass(frozen=True)
class _Counters:
    name: str
    read: Callable[[], Sequence[int]]
    tops: Sequence[int]  # the highest values, behind which counting begins at 0 again
    unit: float  # joules a step

    def between(self, before: Sequence[int], after: Sequence[int]) -> float:
        steps = zip(before, after, self.tops, strict=True)
        return self.unit * sum((end - start) % (top + 1) for start, end, top in steps)


class _Unmeasurable(Exception):
    """Why there is no counter."""


def joules(call: Callable[[], Any], device: torch.device | str = "cpu") -> Energy:
    """Energy of one call: the mean over a second of calls, after one that warms up.

    Of a CPU it is that of all processor packages, of a GPU that of its board. Idle power is not
    subtracted, and what other programs do meanwhile counts too.

    Args:
        call: what is measured; it takes no arguments.
        device: what it computes on; several minutes for one call are beyond what its counters can
            tell.
    """
    kind = torch.device(device).type
    try:
        if kind not in ("cpu", "cuda"):
            raise _Unmeasurable(f"no counter is known for {kind}")
        counters = _gpu(torch.device(device)) if kind == "cuda" else _packages()
        with torch.inference_mode():
            call()
            start, calls, before = now(device), 0, counters.read()
            while not calls or now(device) < start + _SECONDS:
                call()
                calls += 1
            now(device)
            used = counters.between(before, counters.read())
    except _Unmeasurable as error:
        return Energy(None, f"not measurable here: {error}")
    return Energy(used / calls, counters.name)


def _packages() -> _Counters:
    # The same package may have a second way in, intel-rapl-mmio, which sorts before the first.
    zones = {
        name: file.parent
        for file in sorted(_POWERCAP.glob("*/name"))
        if (name := file.read_text().strip()).startswith(_PACKAGE)
    }
    if not zones:
        raise _Unmeasurable(
            f"no RAPL counter in {_POWERCAP} (virtual machines, containers and many processors "
            "have none)"
        )
    files = [zone / "energy_uj" for zone in zones.values()]

    def read() -> list[int]:
        try:
            return [int(file.read_text()) for file in files]
        except PermissionError:
            raise _Unmeasurable(
                f"only root may read the RAPL counters; sudo chmod a+r {_POWERCAP}/*/energy_uj "
                "lets everybody until the machine starts anew"
            ) from None
        except (OSError, ValueError) as error:
            raise _Unmeasurable(f"the RAPL counters cannot be read: {error}") from None

    read()
    try:
        tops = [int((zone / "max_energy_range_uj").read_text()) for zone in zones.values()]
    except (OSError, ValueError) as error:
        raise _Unmeasurable(f"the range of the RAPL counters is unknown: {error}") from None
    return _Counters(f"RAPL: {', '.join(zones)}", read, tops, 1e-6)


def _gpu(device: torch.device) -> _Counters:
    try:
        library: Any = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        raise _Unmeasurable("libnvidia-ml.so.1 of NVIDIA's driver is not there") from None

    def ask(name: str, *arguments: Any) -> None:
        if code := getattr(library, name)(*arguments):
            library.nvmlErrorString.restype = ctypes.c_char_p
            raise _Unmeasurable(f"{name}: {library.nvmlErrorString(code).decode()} (NVML)")

    ask("nvmlInit_v2")
    properties: Any = torch.cuda.get_device_properties(device)
    handle, energy = ctypes.c_void_p(), ctypes.c_ulonglong()
    # By its own name: CUDA may number GPUs, or show some of them, in another way.
    name = f"GPU-{properties.uuid}".encode()
    ask("nvmlDeviceGetHandleByUUID", name, ctypes.byref(handle))

    def read() -> list[int]:
        ask("nvmlDeviceGetTotalEnergyConsumption", handle, ctypes.byref(energy))
        return [energy.value]

    read()
    return _Counters(f"NVML: {properties.name}", read, [2**64 - 1], 1e-3)
