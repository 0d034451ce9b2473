"""Compiles, keeps and launches the CUDA kernels in ``kernels/*.cu``.

NVRTC compiles a kernel at its first use, through NVIDIA's ``cuda-core``: it comes with PyTorch's
own CUDA wheels, and the kernels include none of CUDA's headers, so that no toolkit and no compiler
is needed. What was compiled is kept on disk. Kernels run on PyTorch's current stream, on memory
that PyTorch's allocator gave, and nothing waits for them: a CUDA graph can record them.

``VIZOO_OPS=torch`` takes the PyTorch reference for CUDA tensors too; ``VIZOO_OPS=cuda`` refuses to
do without a kernel, for tensors on the CPU and float64 as well, which have none. Without either, a
kernel that should be there and cannot be had is told once in a warning, and the reference runs.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import json
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from ...common.files import write_bytes

FOLDER = Path(__file__).parent / "kernels"
TYPES = {torch.float32: "float", torch.float16: "Half", torch.bfloat16: "BFloat"}
KERNELS: dict[str, tuple[str, ...]] = {}
"""For each file of ``kernels/`` its functions; ``{}`` stands for any of the number types."""
_DEVICE = "cuda"
"""Type of device whose tensors have kernels."""
_LEAST = (8, 0)
"""Least compute capability: before it bfloat16 is not computed with."""

_SETTING = "VIZOO_OPS"
_REMEDY = f"unset {_SETTING} to take the PyTorch reference"
Argument = Tensor | int | float
Arguments = tuple[Argument, ...]
"""Of a kernel: a pointer, a ``long long`` or a ``double``."""

_THREAD = threading.local()
_FAILED: dict[tuple[str, torch.device], str] = {}
_WARNED: set[str] = set()


def choose(
    operator: str,
    reference: Callable[..., Any],
    kernel: Callable[..., Any],
    *,
    atomics: bool = False,
    refuses: Callable[..., str | None] | None = None,
) -> Callable[..., Any]:
    """The function to register for tensors of any device: the kernel, or else the reference.

    Args:
        operator: name to speak of.
        reference: PyTorch implementation.
        kernel: the same function by kernels, which :func:`launch` starts.
        atomics: the kernel adds in no fixed order, so that the reference runs where
            ``torch.use_deterministic_algorithms(True)`` is set.
        refuses: why the kernel does not take these arguments, or None where it does.

    Returns:
        A function that raises ValueError where ``VIZOO_OPS=cuda`` asks for a kernel that cannot be
        had, or ``VIZOO_OPS`` is neither ``torch`` nor ``cuda``.
    """

    @functools.wraps(reference)
    def call(*arguments: Any) -> Any:
        tensor, asked = arguments[0], setting()
        reason: str | None
        here, kind = (operator, tensor.device), tensor.device.type
        if asked == "torch" or kind == "meta":
            return reference(*arguments)
        if kind != _DEVICE:
            reason = f"no kernels for tensors on the {kind.upper()}"
        elif tensor.dtype not in TYPES:
            reason = f"no kernels for {str(tensor.dtype)[6:]}"
        elif atomics and torch.are_deterministic_algorithms_enabled():
            reason = "sums in no fixed order, and torch.use_deterministic_algorithms is set"
        else:
            reason = refuses(*arguments) if refuses else None
        if reason is None:
            reason = _unusable(tensor.device) or _FAILED.get(here)
            if reason is None:
                try:
                    return kernel(*arguments)
                except _KernelMissing as error:
                    reason = _FAILED[here] = str(error)
            if not asked:
                _warn_once(f"{operator} takes its PyTorch reference, which is slower: {reason}")
        if asked:
            raise ValueError(f"{_SETTING}=cuda, but {operator}: {reason}; {_REMEDY}")
        return reference(*arguments)

    return call


class _KernelMissing(RuntimeError):
    """A kernel could not be compiled or loaded."""


def setting() -> str:
    """``$VIZOO_OPS``: torch, cuda, or empty.

    Raises:
        ValueError: it is something else.
    """
    value = os.environ.get(_SETTING, "")
    if value not in ("", "torch", "cuda"):
        raise ValueError(f"{_SETTING}={value}: must be torch or cuda, or not set")
    return value


def implementation(device: torch.device | None = None) -> tuple[str, str]:
    """Which implementation operators take for tensors of a device.

    Args:
        device: by default the current GPU, or the CPU where there is none.

    Returns:
        ``"cuda"`` or ``"torch"``, and why.

    Raises:
        ValueError: ``VIZOO_OPS`` is neither ``torch`` nor ``cuda``.
    """
    if device is None:
        device = torch.device("cpu")
        if torch.cuda.is_available():
            device = torch.device("cuda", torch.cuda.current_device())
    if device.type != "cuda":
        forced = f"{_SETTING}=cuda is set, but " if setting() == "cuda" else ""
        return "torch", f"{forced}no CUDA device"
    reason = f"{_SETTING}=torch" if setting() == "torch" else _unusable(device)
    return ("torch", reason) if reason else ("cuda", f"compiled at first use, {_versions()}")


def launch(
    file: str, kernel: str, grid: tuple[int, ...], threads: int, *arguments: Argument
) -> None:
    """Starts a kernel on the current stream of its first argument's device.

    Args:
        file: name of the ``.cu`` file, without suffix.
        kernel: its function, with template arguments.
        grid: blocks along x, y and z; what exceeds CUDA's limits is cut down to them, kernels go
            round. With none nothing is started.
        threads: of a block.
        arguments: in the kernel's order: tensors for its pointers, int for ``long long``, float for
            ``double``; a tensor first.

    Raises:
        _KernelMissing: it could not be compiled or loaded.
    """
    if 0 in grid:
        return
    index = cast("Tensor", arguments[0]).get_device()
    with torch.cuda.device(index):
        started: dict[Any, Any] = vars(_THREAD)
        if index not in started:
            _core().Device(index).set_current()
            started[index] = True
        function = _load(file, kernel, _architecture(index))
        stream = _stream(torch.cuda.current_stream(index).cuda_stream, index)
        values = [x if isinstance(x, (int, float)) else x.data_ptr() for x in arguments]
        _core().launch(stream, _configuration(grid, threads), function, *values)


def _source(file: str) -> str:
    return (FOLDER / f"{file}.cu").read_text(encoding="utf-8")


def _compile_kernels(file: str, kernels: tuple[str, ...], architecture: str) -> Any:
    """``cuda.core.ObjectCode`` of functions of a ``.cu`` file for ``sm_90`` …; needs no GPU."""
    try:
        core = _core()
        options = core.ProgramOptions(
            name=f"{file}.cu", arch=architecture, include_path=str(FOLDER), **_OPTIONS
        )
        return core.Program(_source(file), "c++", options).compile(
            "cubin", name_expressions=kernels
        )
    except Exception as error:  # whatever a driver, a library or the compiler has to say
        message = " ".join(str(error).split())
        raise _KernelMissing(f"{file}.cu: {type(error).__name__}: {message[:400]}") from error


_OPTIONS = {"std": "c++17"}
_WANTED = (
    *("Device", "LaunchConfig", "ObjectCode", "Program", "ProgramOptions", "Stream", "launch"),
    "LEGACY_DEFAULT_STREAM",
)


@functools.cache
def _core() -> Any:
    return importlib.import_module("cuda.core")


@functools.cache
def _absent() -> str | None:
    """Why nothing can be compiled here, or None."""
    major = (torch.version.cuda or "13").split(".")[0]
    try:
        core = _core()
        missing = [name for name in _WANTED if not hasattr(core, name)]
        if missing:
            return f"cuda-core {core.__version__} lacks {missing[0]} (pip install -U cuda-core)"
        nvrtc = importlib.import_module("cuda.bindings.nvrtc")
        nvrtc.nvrtcVersion()
    except Exception as error:
        return f'{" ".join(str(error).split())[:200]} (pip install "cuda-core[cu{major}]")'
    return None


@functools.cache
def _versions() -> str:
    nvrtc = importlib.import_module("cuda.bindings.nvrtc")
    _, major, minor = nvrtc.nvrtcVersion()
    return f"cuda-core {_core().__version__}, NVRTC {major}.{minor}"


def _unusable(device: torch.device) -> str | None:
    return _absent() or _unsupported(device.index or 0)


@functools.cache
def _unsupported(index: int) -> str | None:
    if torch.version.hip:
        return "kernels are for NVIDIA's GPUs, and this PyTorch is built for AMD's"
    capability = torch.cuda.get_device_capability(index)
    if capability < _LEAST:
        return "compute capability {}.{} is below {}.{}".format(*capability, *_LEAST)
    _, known = importlib.import_module("cuda.bindings.nvrtc").nvrtcGetSupportedArchs()
    if 10 * capability[0] + capability[1] not in known:
        return "{} does not know compute capability {}.{}".format(_versions(), *capability)
    return None


@functools.cache
def _architecture(index: int) -> str:
    return "sm_{}{}".format(*torch.cuda.get_device_capability(index))


@functools.lru_cache(maxsize=512)
def _configuration(grid: tuple[int, ...], threads: int) -> Any:
    x, y, z = (*grid, 1, 1)[:3]
    grid = min(x, 2**31 - 1), min(y, 65535), min(z, 65535)
    return _core().LaunchConfig(grid=grid, block=threads)


@functools.lru_cache(maxsize=64)
def _stream(handle: int, index: int) -> Any:
    # Zero stands for the default stream, which cuda-core names by an object.
    return _core().Stream.from_handle(handle) if handle else _core().LEGACY_DEFAULT_STREAM


@functools.cache
def _load(file: str, kernel: str, architecture: str) -> Any:
    """The kernel, from disk or compiled; one for all GPUs of an architecture."""
    path: Path | None = None
    try:
        path = _cache_path(file, kernel, architecture)
    except OSError as error:  # no home folder
        _warn_unkept(error)
    entry = None if path is None else _read_entry(path)
    if entry is None:
        compiled = _compile_kernels(file, (kernel,), architecture)
        entry = compiled.symbol_mapping[kernel].decode(), compiled.code
        if path is not None:
            _write_entry(path, *entry)
    name, code = entry
    try:
        with _loading():
            return _core().ObjectCode.from_cubin(code).get_kernel(name)
    except Exception as error:
        raise _KernelMissing(f"{kernel}: {type(error).__name__}: {error}") from error


@contextlib.contextmanager
def _loading() -> Iterator[None]:
    """While a stream is captured, CUDA forbids to load code unless the thread says it is meant."""
    if not torch.cuda.is_current_stream_capturing():
        yield
        return
    driver = importlib.import_module("cuda.bindings.driver")
    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    _, before = driver.cuThreadExchangeStreamCaptureMode(relaxed)
    try:
        yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(before)


def _cache_path(file: str, kernel: str, architecture: str) -> Path:
    """Where a compiled kernel is kept: the name says all that it was made from."""
    digest = hashlib.sha256()
    for path in sorted(FOLDER.glob("*.cuh")):
        digest.update(path.read_bytes())
    for part in (_source(file), kernel, architecture, repr(_OPTIONS), _versions()):
        digest.update(part.encode() + b"\0")
    from ..hub.download import cache_folder

    name = f"{file}-{architecture}-{digest.hexdigest()[:32]}.bin"
    return cache_folder().with_name("kernels") / name


def _read_entry(path: Path) -> tuple[str, bytes] | None:
    """Name and machine code, or None where there is no entry or it is damaged."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    digest, payload = data[:32], data[32:]
    if hashlib.sha256(payload).digest() != digest:
        return None
    name, code = payload.split(b"\n", 1)
    return json.loads(name), code


def _write_entry(path: Path, name: str, code: bytes) -> None:
    """Keeps a compiled kernel; several processes may write the same one."""
    payload = json.dumps(name).encode() + b"\n" + code
    try:
        write_bytes(path, hashlib.sha256(payload).digest() + payload)
    except OSError as error:
        _warn_unkept(error)


def _warn_unkept(error: OSError) -> None:
    _warn_once(f"compiled kernels cannot be kept ({error}); set VIZOO_HOME to another folder")


def _warn_once(message: str) -> None:
    if message not in _WARNED:
        _WARNED.add(message)
        warnings.warn(message, stacklevel=3)
