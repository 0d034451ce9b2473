"""Seconds an epoch of reading takes, without a cache of samples and with one.

python -m benchmarks.data_cache images FOLDER [--side 32]      a folder for each class
python -m benchmarks.data_cache stereo FOLDER [--copies 200]   pairs with true disparities
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path

from benchmarks._machine import arguments, start, table
from vizoo.datasets.images import ImageDataModule, ImageFolders, ImagePreset
from vizoo.datasets.stereo import PairFolders, StereoDataModule


def main() -> None:
    parser = arguments(__doc__, workers=0, epochs=3)
    parser.add_argument("kind", choices=["images", "stereo"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--side", type=int, default=32, help="of images, as they are prepared")
    parser.add_argument("--copies", type=int, default=1, help="of the folder, of pairs")
    options, console = start(parser)
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["VIZOO_HOME"] = f"{scratch}/home"
        folder = options.folder
        if options.copies > 1:
            for number in range(options.copies):
                shutil.copytree(folder, f"{scratch}/pairs/{number:04d}")
            folder = f"{scratch}/pairs"
        for cache in (None, "disk", "memory"):
            data = _data(options, str(folder), cache)
            data.setup("fit")
            loader = data.train_dataloader()
            times = []
            for epoch in range(options.epochs):
                loader.sampler.set_epoch(epoch)
                begin = time.perf_counter()
                for _ in loader:
                    pass
                times.append(time.perf_counter() - begin)
            kept = 0 if cache is None else int((data._shelf.folder / ".bytes").read_text())
            shown = [f"{seconds:.1f} s" for seconds in times]
            rows.append([cache or "none", *shown, str(len(loader.sampler)), f"{kept / 1e6:.0f} MB"])
            del loader
    epochs = [f"epoch {n + 1}" for n in range(options.epochs)]
    console.print(table(["cache", *epochs, "samples", "kept"], rows))


def _data(
    options: argparse.Namespace, folder: str, cache: str | None
) -> ImageDataModule | StereoDataModule:
    settings = {"workers": options.workers, "cache": cache}
    if options.kind == "images":
        preset = ImagePreset((options.side, options.side), crop=1.0, scale=(1, 1))
        train = [lambda: ImageFolders(folder, preset=preset)]
        return ImageDataModule(train=train, augmentation="none", batch_size=128, **settings)
    train = [lambda: PairFolders(folder)]
    sizes = {"crop_height": 256, "crop_width": 512}
    return StereoDataModule(train=train, augmentation="crop", **sizes, **settings)


if __name__ == "__main__":
    main()
