"""What works on this machine, and how to get the rest."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from ..common.extras import installs
from ..common.system import bfloat16_instructions, compiler, installed_version, missing_library

__all__ = ["Check", "examine"]

_FREE_WANTED = 5e9
"""Bytes: PyTorch with its CUDA wheels, or some training runs."""


@dataclass(frozen=True)
class Check:
    """One line of the report."""

    name: str  #: what was looked at
    ok: bool  #: whether it works
    found: str  #: version, count or reason
    remedy: str = ""  #: what to do where it does not work, else empty
    core: bool = False  #: nothing works without it


_Found = tuple[bool, str, str]
"""Whether something works, what `Check` says was found, and the remedy if it does not work."""


def examine() -> Iterator[Check]:
    """Run every one of `_CHECKS`; one that fails to run is reported as missing."""
    for name, check in _CHECKS.items():
        try:
            ok, found, remedy = check()
        except Exception as error:
            ok, found, remedy = False, f"{type(error).__name__}: {error}", ""
        yield Check(name, ok, found, "" if ok else remedy, core=name in _CORE)


def _package(module: str, wheel: str) -> _Found:
    try:
        package = importlib.import_module(module)
    except (ImportError, OSError) as error:
        todo = missing_library(error) or f"pip install {wheel}"
        return False, (str(error) or type(error).__name__).splitlines()[0], todo
    return True, getattr(package, "__version__", "present"), ""


def _extra(module: str, extra: str) -> _Found:
    """A package that only what `_EXTRAS` says needs."""
    if find_spec(module) is not None:
        return _package(module, module)
    return False, f"not installed; for {_EXTRAS[extra][0]}", installs(extra)


def _cuda() -> _Found:
    import torch

    if torch.cuda.is_available():
        names = {torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())}
        return True, f"{torch.version.cuda}, {', '.join(sorted(names))}", ""
    if torch.version.cuda is None:
        return False, "this PyTorch is built for the CPU alone", "https://pytorch.org/get-started"
    if Path("/proc/driver/nvidia").exists():
        reason = f"driver found, but PyTorch (CUDA {torch.version.cuda}) cannot use it"
        todo = "update the NVIDIA driver or install a PyTorch for its CUDA version"
        return False, reason, todo
    return False, "no NVIDIA GPU; everything runs on the CPU, training slowly", ""


def _operator() -> _Found:
    """Which implementation operators take here."""
    import torch

    from .ops._kernels import implementation, setting

    taken, why = implementation()
    if taken == "cuda":
        return True, f"CUDA kernel, {why}; float64: PyTorch", ""
    if setting() == "cuda" and not torch.cuda.is_available():
        return False, why, "unset VIZOO_OPS, or operators refuse to run"
    ok = setting() == "torch" or not torch.cuda.is_available()
    remedy = 'pip install "cuda-core[cu13]" (cu12 for a PyTorch of CUDA 12), or VIZOO_OPS=torch'
    return ok, f"PyTorch: {why}", remedy


_EXTRAS = {
    "tensorboard": ("curves and pictures of a training in a browser", ("tensorboard",)),
    "scipy": ("vizoo evaluate mvs and vizoo ensemble", ("scipy",)),
    "export": ("ONNX files", ("onnx", "onnxscript", "onnxruntime")),
    "openvino": ("networks run and written by OpenVINO", ("openvino", "nncf")),
    "ct": ("DICOM, NIfTI and augmentation of CT scans", ("pydicom", "nibabel", "monai")),
    "detection": ("mean average precision of detectors", ("pycocotools",)),
    "optuna": ("vizoo search --storage and --sampler", ("optuna",)),
    "ros": ("stereo pairs of ROS bags", ("rosbags",)),
    "viewer": ("recordings of stereo sequences for rerun", ("rerun",)),
    "serve": ("the page of vizoo serve", ("gradio",)),
}
"""Extra of pyproject.toml to what needs it, and the modules that are looked for."""

_OPERATORS = (
    "correlation",
    "correlation_2d",
    "group_wise_correlation",
    "concat_volume",
    "epipolar_correlation",
    "warp_by_disparity",
    "soft_argmin",
    "mesh_convolution",
)


def _compiler() -> _Found:
    name, path = compiler()
    todo = "for AOTInductor and torch.compile on the CPU: apt install g++, or set CXX"
    return path is not None, path or f"no {name}", todo


def _bf16() -> _Found:
    fast = bfloat16_instructions()
    if fast is None:
        return False, "this system does not say whether the CPU has hardware for it", ""
    slow = "the CPU computes bfloat16 without hardware for it, slowly"
    return bool(fast), ", ".join(fast) or slow, "use float32 on the CPU"


def _threads() -> _Found:
    import torch

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = torch.get_num_threads()
    found = f"{threads} used by PyTorch, {usable} cores usable"
    return threads <= (usable or 1), found, f"export OMP_NUM_THREADS={usable}"


def _disk() -> _Found:
    free = shutil.disk_usage(".").free
    todo = "checkpoints may not fit; free some space or run in another folder"
    return free > _FREE_WANTED, f"{free / 1e9:.1f} GB free in {Path.cwd()}", todo


def _writable() -> _Found:
    ok = os.access(".", os.W_OK)
    todo = "run in a folder of your own, or let results go to another"
    return ok, f"{Path.cwd()}{'' if ok else ' cannot be written to'}", todo


def _configs() -> _Found:
    from .configs.builtin import CONFIGS, list_configs

    names = list_configs()
    todo = "install again: pip install --force-reinstall vizoo"
    return bool(names), f"{len(names)} in {CONFIGS}", todo


def _models() -> _Found:
    from .hub.registry import list_models

    have = ", ".join(list_models(pretrained=True)) or "none"
    return True, f"{len(list_models())}, with trained weights: {have}", ""


def _dicom() -> _Found:
    if find_spec("pydicom") is None:
        return False, "pydicom is not installed", installs("ct")

    from pydicom.pixels import get_decoder
    from pydicom.uid import JPEG2000Lossless, JPEGLosslessSV1, JPEGLSLossless

    kinds = {
        "JPEG lossless": JPEGLosslessSV1,
        "JPEG-LS": JPEGLSLossless,
        "JPEG 2000": JPEG2000Lossless,
    }
    missing = [name for name, syntax in kinds.items() if not get_decoder(syntax).is_available]
    found = f"cannot read {', '.join(missing)}" if missing else ", ".join(kinds)
    return not missing, found, "pip install pylibjpeg pylibjpeg-libjpeg pylibjpeg-openjpeg"


_CHECKS: dict[str, Callable[[], _Found]] = {
    "Python": lambda: (True, f"{platform.python_version()} ({sys.executable})", ""),
    "vizoo": lambda: (True, f"{installed_version()} ({Path(__file__).resolve().parents[1]})", ""),
    "torch": partial(_package, "torch", "torch"),
    "lightning": partial(_package, "lightning", "lightning"),
    "CUDA": _cuda,
    **{f"operator {name}": _operator for name in _OPERATORS},
    "operator gather_faces": lambda: (True, "PyTorch: its own kernels serve on every device", ""),
    "bfloat16 on the CPU": _bf16,
    "threads": _threads,
    "opencv-python-headless": partial(_package, "cv2", "opencv-python-headless"),
    "open3d": partial(_package, "open3d", "open3d"),
    **{m: partial(_extra, m, extra) for extra, (_, modules) in _EXTRAS.items() for m in modules},
    "compressed DICOM": _dicom,
    "C++ compiler": _compiler,
    "models": _models,
    "configs": _configs,
    "working folder": _writable,
    "disk": _disk,
}
"""Name to check, in the order shown."""

_CORE = {"Python", "torch", "lightning", "opencv-python-headless", "models"}
"""Checks without which nothing works."""
