"""Runs the CUDA kernels on the CPU: compiled by the system's C++ compiler, thread by thread."""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
import shutil
import subprocess
from pathlib import Path

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from vizoo.vision.ops import _kernels

HEADER = Path(__file__).with_name("cuda_on_cpu.h")


def compiler() -> str | None:
    """The system's C++ compiler, or None where there is none that knows half precision."""
    found = shutil.which("g++") or shutil.which("clang++")
    if found is None:
        return None
    command = [found, "-std=c++17", "-fsyntax-only", "-x", "c++", "-"]
    tried = subprocess.run(command, input=b"_Float16 x;", capture_output=True)
    return found if tried.returncode == 0 else None


class Emulator:
    """Takes the place of :func:`vizoo.vision.ops._kernels.launch`, for tensors on the CPU.

    With ``backwards`` the threads of a block run in the other order: a race shows as a difference.
    """

    def __init__(self, compiler: str, folder: Path, kernels: dict[str, tuple[str, ...]]) -> None:
        self.compiler = compiler
        self.folder = folder
        self.kernels = kernels
        self.libraries: dict[str, ctypes.CDLL] = {}
        self.launched: list[str] = []
        self.backwards = False

    def library(self, file: str) -> ctypes.CDLL:
        if file not in self.libraries:
            self.libraries[file] = ctypes.CDLL(str(self.build(file)))
        return self.libraries[file]

    def names(self, file: str) -> list[str]:
        return sorted({k.format(t) for k in self.kernels[file] for t in _kernels.TYPES.values()})

    def build(self, file: str) -> Path:
        lines = [f'#include "{HEADER}"', f'#include "{_kernels.FOLDER / file}.cu"']
        given = "const unsigned* grid, unsigned threads, void** values, int count, int backwards"
        for i, name in enumerate(self.names(file)):
            lines.append(f'extern "C" int kernel_{i}({given}) {{')
            lines.append(f"  return emulator::launch(&{name}, grid, threads, values, count,")
            lines.append("      backwards != 0);\n}")
        text = "\n".join(lines)
        digest = hashlib.sha256(text.encode())
        for path in (
            HEADER,
            _kernels.FOLDER / f"{file}.cu",
            *sorted(_kernels.FOLDER.glob("*.cuh")),
        ):
            digest.update(path.read_bytes())
        library = self.folder / f"{file}-{digest.hexdigest()[:16]}.so"
        if not library.exists():
            code, temporary = (library.with_suffix(f".{os.getpid()}{x}") for x in (".cpp", ".so"))
            code.write_text(text)
            command = [self.compiler, "-std=c++17", "-O1", "-shared", "-fPIC", "-w", str(code)]
            subprocess.run([*command, "-o", str(temporary)], check=True)
            temporary.replace(library)  # other processes may be at the same
            code.unlink()
        return library

    def __call__(self, file, kernel, grid, threads, *arguments) -> None:
        if 0 in grid:
            return
        grid = (ctypes.c_uint * 3)(*(*grid, 1, 1)[:3])
        values = []
        for value in arguments:
            if isinstance(value, Tensor):
                assert value.device.type == "cpu"
                values.append(ctypes.c_longlong(value.data_ptr()))
            elif isinstance(value, float):
                values.append(ctypes.c_double(value))
            else:
                values.append(ctypes.c_longlong(value))
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        function = getattr(self.library(file), f"kernel_{self.names(file).index(kernel)}")
        code = function(grid, threads, pointers, len(values), int(self.backwards))
        assert code == 0, ("", "threads wait for others that ended", "arguments are missing")[code]
        self.launched.append(kernel)


def guarded(tensor: Tensor, offset: int = 0) -> Tensor:
    """A copy of the same strides amid NaN, `offset` numbers away from where allocations begin."""
    size = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    room = torch.full((size + 128 + offset,), math.nan, dtype=tensor.dtype)
    out = room.as_strided(tensor.shape, tensor.stride(), 64 + offset)
    return out.copy_(tensor)


class Guard(TorchDispatchMode):
    """Lets what is allocated lie amid NaN and hold NaN, and knows whether the margins stayed so."""

    MARGIN = 64
    EMPTY = (
        torch.ops.aten.empty.memory_format,
        torch.ops.aten.empty_like.default,
        torch.ops.aten.new_empty.default,
    )

    def __init__(self) -> None:
        super().__init__()
        self.rooms: list[Tensor] = []

    def __torch_dispatch__(self, func, types, arguments=(), settings=None):
        out = func(*arguments, **(settings or {}))
        if func not in self.EMPTY or not out.is_floating_point():
            return out
        size = out.untyped_storage().nbytes() // out.element_size()
        room = torch.full((size + 2 * self.MARGIN,), math.nan, dtype=out.dtype)
        self.rooms.append(room)
        return room.as_strided(out.shape, out.stride(), self.MARGIN)

    def intact(self) -> bool:
        ends = (slice(self.MARGIN), slice(-self.MARGIN, None))
        return all(bool(room[end].isnan().all()) for room in self.rooms for end in ends)
