"""Panorama data: readers of the published layouts, the data module."""

from typing import TYPE_CHECKING

from ...common.lazy import lazy

if TYPE_CHECKING:
    from .base import PanoramaDataset, PanoramaRecord
    from .datamodule import PanoramaDataModule
    from .matterport3d import Matterport3D
    from .stanford2d3d import Stanford2D3D
    from .threed60 import ThreeD60
    from .writers import write_panoramas

__all__, __getattr__, __dir__ = lazy(__name__)
