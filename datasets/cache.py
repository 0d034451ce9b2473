"""Keeping samples that were made or prepared once, so that later epochs only read them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..vision.io.files import atomic_write

__all__ = ["SampleCache"]


class SampleCache:
    """Samples of a data set as files, one each.

    Args:
        folder: where caches lie; variables and ``~`` are expanded. None: nothing is kept.
        name: of this set's folder in it; whatever changes the samples changes the name.
        pictures: entries in steps of 1/255, which are kept as bytes.
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
                kept = load_file(path)
                for name in self.pictures:
                    kept[name] = kept.pop(f"{name}_bytes").float() / 255
                return kept
            except (SafetensorError, OSError, KeyError):
                path.unlink(missing_ok=True)
        sample = make(index)
        kept = {name: value.contiguous() for name, value in sample.items()}
        for name in self.pictures:
            kept[f"{name}_bytes"] = (kept.pop(name) * 255).round().byte()
        with atomic_write(path) as temporary:
            save_file(kept, temporary)
        return sample
