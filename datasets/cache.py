"""Keeping samples that were made or prepared once, so that later epochs only read them."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load, save
from torch import Tensor
from torch.utils.data import Dataset

from ..vision.io.images import to_bytes
from .files import expand_path
from .shelf import Shelf

__all__ = ["FileDataset", "Kept", "MadeDataset", "SampleCache", "Series", "source_name"]

_READERS_VERSION = 5  # raise it with every change of what readers make of a file
_TIMES = float(np.float32(1 / 255))  # by which `read_image` makes floats of bytes


class SampleCache:
    """Samples of a data set as they were read or made, before any augmentation, without loss.

    In a folder of its own they are packed. On a shelf that others share they are as they are, but
    for pictures in steps of 1/255, which are bytes there: reading such a one takes a fraction of
    decoding an image.

    Args:
        folder: where caches lie; variables and ``~`` are expanded. None: nothing is kept.
        name: of this set's folder in it, or a function of a sample's index; whatever changes the
            samples changes the name. None: they are never kept.
        pictures: entries (..., 3, H, W) in steps of 1/255, which are kept as bytes.
    """

    def __init__(
        self, folder: str | None, name: str | Callable[[int], str] | None, pictures: Sequence[str]
    ) -> None:
        self.name, self.pictures = name, tuple(pictures)
        self.shelf = None if folder is None else Shelf(expand_path(folder))
        self.packed = True

    def on(self, shelf: Shelf) -> SampleCache:
        """The cache on a shelf, as long as it has no folder of its own."""
        if self.shelf is not None or self.name is None:
            return self
        other = copy.copy(self)
        other.shelf, other.packed = shelf, False
        return other

    def recall(self, index: int, make: Callable[[int], dict[str, Tensor]]) -> dict[str, Tensor]:
        """Sample ``index``, read if it is there, else made by ``make(index)`` and kept."""
        if self.shelf is None or self.name is None:
            return make(index)
        stem = f"{self.name}/{index:06d}" if isinstance(self.name, str) else self.name(index)
        name = f"{stem}.{'safetensors' if self.packed else 'sample'}"
        if (data := self.shelf.read(name)) is not None:
            try:
                return _unpacked(data) if self.packed else _plain_sample(data)
            except MemoryError:
                raise
            except Exception:  # a decoder meets damage in many ways
                self.shelf.drop(name)
        sample = make(index)
        if not self.shelf.full:
            write = _packed if self.packed else _plain_bytes
            self.shelf.write(name, write(sample, self.pictures))
        return sample


def source_name(files: Iterable[str | os.PathLike[str]], *arguments: object) -> str:
    """Names a sample by the files that it is read from, their sizes and times, and how.

    Raises:
        FileNotFoundError: a file has gone.
    """
    states = []
    for file in files:
        try:
            state = os.stat(file)
        except FileNotFoundError:
            raise FileNotFoundError(f"{file}: no such file") from None
        states.append((os.path.abspath(file), state.st_size, state.st_mtime_ns))
    text = repr((_READERS_VERSION, arguments, states))
    digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    return f"{digest[:2]}/{digest[2:]}"


class Kept:
    """A data set whose samples, as read or made, may be kept on a shelf.

    Attributes:
        cache: keeps the samples.
    """

    cache: SampleCache

    def keep_on(self, shelf: Shelf) -> None:
        """Keep samples there, unless the set has a folder of its own for them."""
        self.cache = self.cache.on(shelf)


class FileDataset(Kept, Dataset):
    """Samples that are read from files, each recalled from a cache.

    A subclass sets the attributes and defines `_read`.

    Attributes:
        records: the files of each sample, with its ``name``.
        transform: called with each sample, returns the sample to use.
    """

    records: list[Any]
    transform: Callable[[dict], dict] | None

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> dict[str, Tensor | str]:
        """Read one sample.

        Raises:
            FileNotFoundError: a file has gone since the data set was made.
            ValueError: a file is damaged or does not fit the others; the message names it.
        """
        name = self.records[index].name
        sample = {**self.cache.recall(index, self._read), "name": name}
        return sample if self.transform is None else self.transform(sample)

    def _read(self, index: int) -> dict[str, Tensor]:
        raise NotImplementedError


class Series(Dataset):
    """Samples that are made from their number.

    A subclass sets the attributes.

    Attributes:
        length: number of samples.
        seed: names the series of them.
        what: what they show, or their size, in words.
    """

    series = "generated"
    """What names of samples begin with."""

    length: int
    seed: int
    what: str = "samples"

    def __len__(self) -> int:
        return self.length

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.length} of {self.what}, seed {self.seed})"

    def name(self, index: int) -> str:
        """What a sample is called."""
        return f"{self.series}-{self.seed}-{index:06d}"

    def _number(self, index: int) -> int:
        """An index as one from the front."""
        if not -self.length <= index < self.length:
            raise IndexError(f"{type(self).__name__}: index {index} of {self.length}")
        return int(index) % self.length


class MadeDataset(Kept, Series):
    """A series of which each sample is recalled from a cache; a subclass defines `_make`."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Sample ``index``.

        Raises:
            IndexError: beyond the ends, so that the data set can be iterated.
        """
        index = self._number(index)
        return {**self.cache.recall(index, self._make), "name": self.name(index)}

    def _make(self, index: int) -> dict[str, Tensor]:
        raise NotImplementedError


def _plain_bytes(sample: Mapping[str, Tensor], pictures: Sequence[str]) -> bytes:
    """A check sum, what the entries are, and their values one after the other."""
    head, parts = [], []
    for name, value in sample.items():
        steps, kind = _as_bytes(value) if name in pictures else (value, "")
        head.append([name, kind, str(steps.dtype).removeprefix("torch."), list(value.shape)])
        parts.append(_flat(steps.contiguous()).data)
    text = json.dumps(head).encode()
    body = b"".join([struct.pack("<I", len(text)), text, *parts])
    return struct.pack("<I", zlib.crc32(body)) + body


def _plain_sample(data: bytes) -> dict[str, Tensor]:
    whole = memoryview(data)
    check, length = struct.unpack_from("<II", whole)
    if check != zlib.crc32(whole[4:]):
        raise ValueError("damaged")
    at, sample = 8 + length, {}
    for name, kind, dtype, shape in json.loads(bytes(whole[8:at])):
        value = torch.empty(shape, dtype=getattr(torch, dtype))
        flat = _flat(value)
        flat[:] = np.frombuffer(whole, np.uint8, flat.size, at)
        at += flat.size
        sample[name] = _FLOATS[kind](value)
    return sample


def _flat(value: Tensor) -> np.ndarray:
    """The bytes of a contiguous tensor."""
    return value.view(-1).view(torch.uint8).numpy()


_FLOATS: dict[str, Callable[[Tensor], Tensor]] = {
    "": lambda value: value,
    "times": lambda value: value.float().mul_(_TIMES).clamp_(max=1),
    "over": lambda value: value.float() / 255,
}


def _as_bytes(picture: Tensor) -> tuple[Tensor, str]:
    """A picture as bytes and how floats are made of them, if these are the same floats."""
    if picture.dtype == torch.float32:
        steps = (picture * 255 + 0.5).clamp(0, 255).byte()
        for kind in ("times", "over"):
            if torch.equal(_FLOATS[kind](steps), picture):
                return steps, kind
    return picture, ""


def _packed(sample: Mapping[str, Tensor], pictures: Sequence[str]) -> bytes:
    """PNG of pictures, steps of other values without their redundance; less than half as a rule."""
    packed, forms = {}, {}
    for name, value in sample.items():
        picture = name in pictures
        data = _pack_picture(value) if picture else _pack(value)
        packed[name] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        kind = "picture" if picture else str(value.dtype).removeprefix("torch.")
        forms[name] = [kind, list(value.shape)]
    return save(packed, metadata={"forms": json.dumps(forms)})


def _unpacked(data: bytes) -> dict[str, Tensor]:
    entries = load(data)
    length = int.from_bytes(data[:8], "little")
    forms = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["forms"])
    sample = {}
    for name, (kind, shape) in forms.items():
        content = entries[name].numpy().tobytes()
        if kind == "picture":
            sample[name] = _unpack_picture(content, shape)
        else:
            sample[name] = _unpack(content, getattr(torch, kind), shape)
    return sample


def _pack_picture(picture: Tensor) -> bytes:
    """PNG of pictures one below the other."""
    *_, channels, height, width = picture.shape
    planes = picture.reshape(-1, channels, height, width).transpose(0, 1).flatten(1, 2)
    buffer = io.BytesIO()
    Image.fromarray(to_bytes(planes)).save(buffer, "png", compress_level=1)
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
