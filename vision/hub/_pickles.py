"""Pickles read with ``weights_only=True`` and without a fallback; what is refused is named."""

from __future__ import annotations

import codecs
import errno
import io
import mimetypes
import pickle
import pickletools
import re
import warnings
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from ...common.files import few

# What the pickle of a NumPy number names: checkpoints of older programs keep losses as such.
# NumPy 2 calls the module otherwise than NumPy 1 did; either reads files of both.
_scalar = np.float64(0).__reduce__()[0]
_NUMPY: list[Any] = [
    (_scalar, "numpy.core.multiarray.scalar"),
    (_scalar, "numpy._core.multiarray.scalar"),
    (codecs.encode, "_codecs.encode"),
    np.dtype,
    *(type(np.dtype(code)) for code in "?bhilqBHILQefd"),
]
# What a state dict is made of, for files of which PyTorch cannot say what it blocks.
_HARMLESS = re.compile(
    r"collections\.OrderedDict|_codecs\.encode|numpy\.(_?core\.multiarray\.scalar|dtype)|"
    r"torch\.\w*Storage|torch\.storage\.\w+|torch\.Size|torch\.device|torch\.b?float\d*|"
    r"torch\._utils\._rebuild_\w+|torch\._tensor\.\w+|torch\.nn\.parameter\.Parameter|"
    r"torch\.Tensor|torch\.serialization\.\w+"
)
_PLACE = re.compile(r"\[enforce fail at [^]]*\] \. ")
_EXPORT = "an export, not a checkpoint: give the checkpoint that it was exported from"
_EXPORTS = (".onnx", ".xml", ".pt2", ".engine")
_PICKLES = 4  # older PyTorch wrote three small ones before the one that counts


def load_pickle(path: Path, *, mmap: bool = False) -> Any:
    """`torch.load` of tensors, plain values and NumPy's numbers only.

    Raises:
        ValueError: a damaged file, or a pickle that names more than that; it lists the names.
    """
    _check_stored(path)
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals(_NUMPY):
            warnings.simplefilter("ignore")  # of the unpickler, about files that it then refuses
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except pickle.UnpicklingError as error:
        names = _blocked_globals(path)
        if names:
            raise ValueError(
                f"{path}: refused, because its pickle would run more than tensors need: "
                f"{few(names, 12)}; save its state dict alone"
            ) from error
        what = stand_in(path) or "not a checkpoint that can be read safely"
        raise ValueError(f"{path}: {what}") from error
    # On a damaged file the unpickler raises whatever its bytes lead to: IndexError, TypeError …
    except Exception as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # that is a bad offset in it
            raise
        what = _EXPORT if "TorchScript archives" in str(error) else stand_in(path)
        if what:
            raise ValueError(f"{path}: {what}") from error
        reason = "its bytes do not decode"
        if isinstance(error, EOFError):
            reason = "it ends too early"
        elif isinstance(error, RuntimeError):  # torch's own words; of others only numbers and keys
            reason = _PLACE.sub("", str(error)).partition("\n")[0].partition(". ")[0]
        raise ValueError(f"{path}: not a checkpoint, or damaged ({reason})") from error


def _check_stored(path: Path) -> None:
    """Refuse a zip that unpacks to more bytes than it has, and so to any number of them.

    Of TorchScript only the code is compressed, which is not read.
    """
    if not zipfile.is_zipfile(path):
        return
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except Exception as error:  # which PyTorch might read all the same
        what = "its list of contents cannot be read"
        raise ValueError(f"{path}: not a checkpoint, or damaged ({what})") from error
    read = (entry for entry in entries if entry.filename.split("/")[1:2] != ["code"])
    if sum(entry.file_size for entry in read) > path.stat().st_size:
        raise ValueError(
            f"{path}: not a checkpoint: it is compressed, as those of PyTorch never are: unpack "
            "it, or save it anew with torch.save"
        )


def stand_in(path: Path) -> str:
    """What lies there instead of a checkpoint, where that can be told; else an empty string."""
    with path.open("rb") as file:
        head = file.read(64).lstrip().lower()
    if head.startswith((b"<!doctype html", b"<html")):
        return "a web page, not the file: the server wanted a confirmation or a login; get it again"
    if head.startswith(b"version https://git-lfs"):
        return "a pointer of Git LFS, not the file: get that with git lfs pull"
    if path.suffix in _EXPORTS:
        return _EXPORT
    if path.suffix == ".bin" and (graph := path.with_suffix(".xml")).is_file():
        return f"the weights of an OpenVINO file, which goes by its other half, {graph.name}"
    kind = (mimetypes.guess_type(path.name)[0] or "").partition("/")[0]
    if kind in ("image", "video", "audio", "text"):
        return f"of the type {kind}, not weights: give .safetensors, .ckpt or .pth"
    return ""


def _blocked_globals(path: Path) -> list[str]:
    """Names in a pickle that are not read, those beyond PyTorch first; nothing is run.

    Empty where the file is damaged, so that there is nothing to name.
    """
    try:
        with torch.serialization.safe_globals(_NUMPY):
            names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except Exception:  # no zip: an older file, or a damaged one
        names = []
    names = names or [name for name in _named(path) if not _HARMLESS.fullmatch(name)]
    names = [name if name.isprintable() else ascii(name) for name in names]
    return sorted(set(names), key=lambda name: (name.startswith("torch."), name))


def _named(path: Path) -> list[str]:
    """Names of all that the pickles at the beginning of a file refer to, or the one in a zip."""
    names: list[str] = []
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                for name in archive.namelist():
                    if name.endswith("/data.pkl"):
                        names += _of_one(io.BytesIO(archive.read(name)))
            return names
        with path.open("rb") as file:
            for _ in range(_PICKLES):
                names += _of_one(file)
    # pickletools raises ValueError, and on damaged bytes whatever they lead to.
    except Exception:
        pass
    return names


def _of_one(file: IO[bytes]) -> list[str]:
    names: list[str] = []
    memo: dict[int, str] = {}
    strings: list[str] = []
    for opcode, argument, _ in pickletools.genops(file):
        if opcode.name in ("GLOBAL", "INST"):
            names.append(str(argument).replace(" ", "."))
        elif opcode.name == "STACK_GLOBAL":
            names.append(".".join(strings[-2:]))
        elif "UNICODE" in opcode.name or "STRING" in opcode.name:
            strings.append(str(argument))
        elif opcode.name == "MEMOIZE":
            memo[len(memo)] = strings[-1] if strings else ""
        elif opcode.name in ("BINGET", "LONG_BINGET") and argument in memo:
            strings.append(memo[argument])
    return names
