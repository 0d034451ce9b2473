"""What the machine brings: versions, sources, bfloat16, a C++ compiler, libraries of wheels."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = [
    "bfloat16_instructions",
    "compiler",
    "installed_version",
    "missing_library",
    "source_digest",
    "told_by",
]

_DEBIAN = {
    "libusb-1.0.so.0": "libusb-1.0-0",
    "libGL.so.1": "libgl1",
    "libEGL.so.1": "libegl1",
    "libX11.so.6": "libx11-6",
    "libgomp.so.1": "libgomp1",
    "libidn2.so.0": "libidn2-0",
    "libudev.so.1": "libudev1",
}
"""System library to the Debian package that has it; scripts/system-libraries.sh installs them."""


def installed_version(package: str = "vizoo") -> str:
    """Version of a package, `0+uninstalled` where it runs from a folder."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "0+uninstalled"


def missing_library(error: Exception) -> str | None:
    """Say how to get the system library for want of which an import failed.

    Returns:
        What to do, or None where the error names no such library.

    Example:
        >>> missing_library(ImportError("libGL.so.1: cannot open shared object file"))
        'on Debian or Ubuntu: apt-get install libgl1 (libGL.so.1 is missing)'
    """
    library = re.search(r"(lib[\w.+-]+\.so[.\d]*): cannot open", str(error))
    if library is None:
        return None
    if library[1] not in _DEBIAN:
        return f"install the system package that has {library[1]}"
    return f"on Debian or Ubuntu: apt-get install {_DEBIAN[library[1]]} ({library[1]} is missing)"


def bfloat16_instructions() -> list[str] | None:
    """The CPU's instruction sets for bfloat16, by Linux's names; None where nobody tells."""
    if not (text := told_by("/proc/cpuinfo")):
        return None
    match = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    flags = set(match[1].split()) if match else set()
    return sorted(flags & {"amx_bf16", "avx512_bf16", "bf16"})


def told_by(file: str | os.PathLike[str]) -> str:
    """What a file of the system says; nothing where there is none."""
    try:
        return Path(file).read_text()
    except OSError:
        return ""


@cache
def source_digest(folder: Path, pattern: str = "*.py") -> str:
    """Of the sources in a folder: a hexadecimal number; computed once in a process."""
    digest = hashlib.sha256()
    for file in sorted(filter(Path.is_file, folder.glob(pattern))):  # editors' locks lead nowhere
        digest.update(file.read_bytes())
    return digest.hexdigest()


def compiler() -> tuple[str, str | None]:
    """The C++ compiler that PyTorch calls: its name, and its path or None where it is missing."""
    name = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    return name, shutil.which(name)
