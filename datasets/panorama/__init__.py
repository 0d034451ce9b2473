"""Panorama data: readers of the published layouts, the data module."""

from typing import TYPE_CHECKING

from ...common.lazy import lazy

if TYPE_CHECKING:
    from .base import Matterport3D, PanoramaDataset, PanoramaRecord, Stanford2D3D, ThreeD60
    from .datamodule import PanoramaDataModule
    from .writers import write_panoramas

__all__, __getattr__, __dir__ = lazy(__name__)
