"""Multi-view-stereo data: scenes of the published layouts, the data module."""

from typing import TYPE_CHECKING

from ...common.lazy import lazy

if TYPE_CHECKING:
    from .blendedmvs import BlendedMVS
    from .datamodule import MVSDataModule
    from .dataset import MVSDataset
    from .dtu import DTU
    from .layouts import SceneFolders, open_scene
    from .scene import Scene, View, derive_range, truth_points
    from .writers import write_scene

__all__, __getattr__, __dir__ = lazy(__name__)
