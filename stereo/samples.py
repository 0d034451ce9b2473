"""Pairs to calibrate and measure a network of eight bits by."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import nn

from ..datasets.stereo.pairs import PairFolders
from ..datasets.stereo.scenes import GeneratedStereo
from ..vision.configs.task import FitConfig
from ..vision.int8 import Sample

__all__ = ["calibration_samples"]

_SEED = 2  # of generated validation in the configs
_SIZE = (256, 512)
_RANGE = 192.0


def calibration_samples(
    net: nn.Module, source: str | None = None, size: tuple[int, int] | None = None, count: int = 16
) -> list[Sample]:
    """Pairs for `vizoo.export` with ``precision="int8"``, with truth where there is any.

    Args:
        net: of generated scenes it is asked for its reach; their disparities are within that, and
            within a quarter of the width.
        source: a folder of pairs, a config of `vizoo fit` whose validation is taken, or None for
            generated scenes.
        size: height and width of generated scenes; None takes 256x512.
        count: so many at most.

    Raises:
        FileNotFoundError: no such folder or config, or no pairs in it.
        ValueError: a config without validation pairs.
    """
    if source is None:
        height, width = size or _SIZE
        # Where much of a scene is outside the other view, errors say nothing of eight bits.
        reach = min(getattr(net, "reach", None) or _RANGE, width / 4)
        scenes = GeneratedStereo(count, height, width, seed=_SEED, max_disparity=reach)
        pairs: Iterable[Any] = map(scenes.__getitem__, range(count))
    elif Path(source).is_dir():
        folder = PairFolders(source, needs_truth=False)
        pairs = map(folder.__getitem__, range(len(folder)))
    else:
        data = FitConfig.read(source).data
        data.setup("validate")
        loader = data.val_dataloader()
        batches = itertools.chain(*loader) if isinstance(loader, list) else loader
        names = ("left", "right", "disparity", "valid")
        pairs = ({n: b[n][i] for n in names} for b in batches for i in range(len(b["left"])))
    samples = [_sample(pair) for pair in itertools.islice(pairs, count)]
    if len(samples) < 2:
        raise ValueError(f"{source}: int8 takes two pairs at least, and here are {len(samples)}")
    return samples


def _sample(pair: dict) -> Sample:
    truth = pair["disparity"].where(pair["valid"], float("nan"))[None]
    views = pair["left"][None], pair["right"][None]
    return Sample(views, truth if pair["valid"].any() else None)
