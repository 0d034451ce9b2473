"""Under which conditions a latency was measured, and with which software."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ...common.system import told_by

__all__ = ["Conditions", "device_name", "software"]


@dataclass(frozen=True)
class Conditions:
    """What a latency depends on besides the network; equal conditions make figures comparable."""

    device: str  #: ``cpu`` or ``cuda``
    device_name: str  #: the processor's or the GPU's own name
    dtype: str  #: of the computation: ``float32``, ``bfloat16``, ``float16`` or ``int8``
    threads: int  #: CPU threads of PyTorch; on a GPU they are kept but not compared
    height: int  #: of the images, pixels
    width: int  #: of the images, pixels
    batch: int = 1  #: images at once
    runtime: str = "torch"  #: the software that runs networks
    float_parts: tuple[str, ...] = ()  #: of networks in int8, the parts that stay in float32

    @classmethod
    def here(
        cls,
        device: torch.device | str,
        dtype: torch.dtype,
        height: int,
        width: int,
        runtime: str = "torch",
        float_parts: Sequence[str] = (),
        batch: int = 1,
    ) -> Conditions:
        """The conditions of a measurement made now in this process."""
        device = torch.device(device)
        name = str(dtype).removeprefix("torch.")
        where = device.type, device_name(device), name, torch.get_num_threads(), height, width
        return cls(*where, batch, runtime=runtime, float_parts=tuple(sorted(float_parts)))

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Conditions:
        """The conditions `to_json` wrote.

        Raises:
            ValueError: names are missing or surplus.
        """
        try:
            # Tables of before int8 have no such parts.
            return cls(**{**content, "float_parts": tuple(content.get("float_parts", ()))})
        except TypeError as error:
            raise ValueError(f"conditions of a measurement: {error}") from error

    def to_json(self) -> dict[str, Any]:
        """Plain values under the attributes' names."""
        return {**asdict(self), "float_parts": list(self.float_parts)}

    def difference(self, other: Conditions) -> str:
        """How these differ from other conditions, in words; empty where they do not.

        Example:
            >>> table.conditions.difference(Conditions.here("cpu", torch.float32, 288, 576))
            'input 256x512 instead of 288x576'
        """
        mine, theirs = self.compared(), other.compared()
        return ", ".join(
            f"{name} {mine[name]} instead of {theirs.get(name, 'none')}"
            for name in mine
            if mine[name] != theirs.get(name)
        )

    def compared(self) -> dict[str, Any]:
        """What has to be equal for figures to be comparable, under names for people."""
        values: dict[str, Any] = {
            "device": f"{self.device} ({self.device_name})",
            "dtype": self.dtype,
            "input": f"{self.height}x{self.width}",
            "batch": self.batch,
            "runtime": self.runtime,
            "parts in float": ", ".join(self.float_parts) or "none",
        }
        if self.device == "cpu":
            values["threads"] = self.threads
        return values

    def __str__(self) -> str:
        count = f"{self.threads} thread{'s' * (self.threads > 1)}"
        threads = f", {count}" if self.device == "cpu" else ""
        batch = f", batch {self.batch}" if self.batch > 1 else ""
        size = f"{self.height}x{self.width}"
        runtime = "" if self.runtime == "torch" else f"{self.runtime}, "
        parts = f" but {' and '.join(self.float_parts)} in float32" if self.float_parts else ""
        told = f"{runtime}{self.dtype}{parts}{threads}, input {size}{batch}"
        return f"{self.device} ({self.device_name}), {told}"


def device_name(device: torch.device | str) -> str:
    """The name that the processor or the GPU gives itself."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    lines = told_by("/proc/cpuinfo").splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def software() -> dict[str, str]:
    """Versions, system and time (UTC), for the record: a change of these is no error."""
    facts = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "processors": str(os.cpu_count()),
    }
    if torch.cuda.is_available():
        facts["cuda"] = str(torch.version.cuda)
        facts["cudnn"] = str(torch.backends.cudnn.version())
    return facts
