"""Augmentation of CT volumes, called as ``vizoo.datasets.stereo.transforms``.

They are mirrored, and beyond that changed through MONAI.
"""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Generator, Tensor

from ...common.extras import from_extra

__all__ = ["VolumeAugmentation"]

_GEOMETRY = ("affine", "shape", "grid", "slices")
_SEEDS = 1 << 31


class VolumeAugmentation:
    """Mirror a volume along each axis half of the time and, if `full`, change it further.

    Entries of four dimensions change together. The scan's geometry no longer holds and is left
    out.

    Args:
        full: whether to go beyond mirrors, with probability 0.5 each: turned by up to 10 degrees in
            the axial plane, scaled by 0.9 to 1.1 and moved by up to 5 % there; blurred by up to 1
            pixel; noise of a standard deviation up to 0.03.

    Raises:
        ImportError: `full` without MONAI.
    """

    def __init__(self, full: bool = False) -> None:
        self.full = full
        if full:
            _monai()

    def __call__(self, sample: dict, generator: Generator | None = None) -> dict:
        """The sample with its volume and all maps of it changed alike, by draws of `generator`."""
        draws = torch.rand(3, generator=generator)
        axes = [axis for axis in (1, 2, 3) if draws[axis - 1] < 0.5]
        kept = {name: value for name, value in sample.items() if name not in _GEOMETRY}
        maps = [
            name for name, value in kept.items() if isinstance(value, Tensor) and value.ndim == 4
        ]
        changed = {name: kept[name].flip(axes) for name in maps}
        if self.full:
            seed = int(torch.randint(_SEEDS, (), generator=generator))
            changed = _other(changed, seed)
        return {**kept, **changed}


def _other(maps: dict[str, Tensor], seed: int) -> dict[str, Tensor]:
    transforms = _monai()
    names = list(maps)
    height, width = maps["volume"].shape[2:]
    modes = ["nearest" if maps[name].dtype == torch.bool else "bilinear" for name in names]
    turn = transforms.RandAffined(
        names,
        prob=0.5,
        rotate_range=(0.1745, 0, 0),
        scale_range=(0, 0.1, 0.1),
        translate_range=(0, 0.05 * height, 0.05 * width),
        mode=modes,
        padding_mode="zeros",
    )
    blur = transforms.RandGaussianSmoothd(["volume"], (0, 0), (0, 1), (0, 1), prob=0.5)
    noise = transforms.RandGaussianNoised(["volume"], prob=0.5, std=0.03)
    change = transforms.Compose([turn, blur, noise])
    change.set_random_state(seed=seed)
    changed = change({name: value.float() for name, value in maps.items()})
    plain = {name: changed[name].as_tensor().contiguous() for name in names}
    plain["volume"] = plain["volume"].clamp(0, 1)
    return {name: value.to(maps[name].dtype) for name, value in plain.items()}


def _monai() -> ModuleType:
    return from_extra("ct", "monai.transforms", "augmentation 'full'")
