"""Keeping samples that were made or prepared once, so that later epochs only read them."""

from __future__ import annotations

import io
import json
import os
import shutil
import warnings
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.utils.data import Dataset

from ..common.files import atomic_write

__all__ = ["MadeDataset", "SampleCache"]

_DAMAGED = (ValueError, RuntimeError, SyntaxError, zlib.error)  # of Pillow, PyTorch, zlib
_FREE = 0.1  # share of the disk that caches leave


class SampleCache:
    """Samples of a data set as files, one each, packed without loss.

    Once nine tenths of the disk are full, no more samples are kept.

    Args:
        folder: where caches lie; variables and ``~`` are expanded. None: nothing is kept.
        name: of this set's folder in it; whatever changes the samples changes the name.
        pictures: entries (..., 3, H, W) in steps of 1/255, which are kept as bytes.
    """

    def __init__(self, folder: str | None, name: str, pictures: Sequence[str]) -> None:
        self.folder = None
        if folder is not None:
            self.folder = Path(os.path.expandvars(folder)).expanduser() / name
        self.pictures = tuple(pictures)

    def recall(self, index: int, make: Callable[[int], dict[str, Tensor]]) -> dict[str, Tensor]:
        """Sample ``index``, read if it is there, else made by ``make(index)`` and kept."""
        if self.folder is None:
            return make(index)
        path = self.folder / f"{index:06d}.safetensors"
        if path.is_file():
            try:
                return _read(path)
            except OSError:
                return make(index)  # the file may be whole
            except (SafetensorError, LookupError, TypeError, AttributeError, *_DAMAGED):
                path.unlink(missing_ok=True)
        sample = make(index)
        disk = shutil.disk_usage(next(f for f in (self.folder, *self.folder.parents) if f.is_dir()))
        if disk.free > _FREE * disk.total:
            try:
                with atomic_write(path) as temporary:
                    self._write(temporary, sample)
            except OSError as error:
                warnings.warn(f"cache {self.folder}: {error}; samples are not kept", stacklevel=2)
                self.folder = None
        return sample

    def _write(self, path: Path, sample: dict[str, Tensor]) -> None:
        packed, forms = {}, {}
        for name, value in sample.items():
            picture = name in self.pictures
            data = _pack_picture(value) if picture else _pack(value)
            packed[name] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            kind = "picture" if picture else str(value.dtype).removeprefix("torch.")
            forms[name] = [kind, list(value.shape)]
        save_file(packed, path, metadata={"forms": json.dumps(forms)})


class MadeDataset(Dataset):
    """Samples that are made from their number, each recalled from a cache.

    A subclass sets the attributes and defines `_make`.

    Attributes:
        length: number of samples.
        seed: names the series of them.
        cache: keeps what was made.
    """

    series = "generated"
    """What names of samples begin with."""

    length: int
    seed: int
    cache: SampleCache

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Sample ``index``.

        Raises:
            IndexError: beyond the ends, so that the data set can be iterated.
        """
        if not -self.length <= index < self.length:
            raise IndexError(f"{type(self).__name__}: index {index} of {self.length}")
        index = int(index) % self.length
        return {**self.cache.recall(index, self._make), "name": self.name(index)}

    def name(self, index: int) -> str:
        """What a sample is called."""
        return f"{self.series}-{self.seed}-{index:06d}"

    def _make(self, index: int) -> dict[str, Tensor]:
        raise NotImplementedError


def _read(path: Path) -> dict[str, Tensor]:
    sample = {}
    with safe_open(path, "pt") as file:
        for name, (kind, shape) in json.loads(file.metadata()["forms"]).items():
            data = file.get_tensor(name).numpy().tobytes()
            if kind == "picture":
                sample[name] = _unpack_picture(data, shape)
            else:
                sample[name] = _unpack(data, getattr(torch, kind), shape)
    return sample


def _pack_picture(picture: Tensor) -> bytes:
    """PNG of pictures one below the other."""
    *_, channels, height, width = picture.shape
    rows = (picture * 255).round().byte().view(-1, channels, height, width).permute(0, 2, 3, 1)
    buffer = io.BytesIO()
    image = Image.fromarray(np.ascontiguousarray(rows.reshape(-1, width, channels).numpy()))
    image.save(buffer, "png", compress_level=1)
    return buffer.getvalue()


def _unpack_picture(data: bytes, shape: list[int]) -> Tensor:
    *_, channels, height, width = shape
    with Image.open(io.BytesIO(data)) as image:
        rows = torch.from_numpy(np.array(image)).view(-1, height, width, channels)
    return rows.permute(0, 3, 1, 2).reshape(shape).float() / 255


def _pack(value: Tensor) -> bytes:
    """Steps along the rows, their bytes of one rank together: smooth maps have few of the first."""
    if value.dtype == torch.bool:
        return zlib.compress(np.packbits(value.numpy()).tobytes(), 1)
    numbers = value.contiguous().view(-1).numpy()
    if numbers.itemsize in (4, 8):
        numbers = numbers.view(f"i{numbers.itemsize}")
        numbers = np.diff(numbers, prepend=numbers.dtype.type(0))
    planes = numbers.view(np.uint8).reshape(-1, numbers.itemsize).T
    return zlib.compress(np.ascontiguousarray(planes).tobytes(), 1)


def _unpack(data: bytes, dtype: torch.dtype, shape: list[int]) -> Tensor:
    raw = np.frombuffer(zlib.decompress(data), np.uint8)
    size = int(np.prod(shape))
    if dtype == torch.bool:
        return torch.from_numpy(np.unpackbits(raw, count=size).astype(bool)).view(shape)
    item = torch.empty((), dtype=dtype).element_size()
    numbers = np.ascontiguousarray(raw.reshape(item, size).T)
    if item in (4, 8):
        numbers = np.cumsum(numbers.view(f"i{item}")[:, 0], dtype=f"i{item}")
    return torch.from_numpy(numbers.reshape(-1)).view(dtype).view(shape)
