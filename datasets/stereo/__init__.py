"""Stereo data: readers of the published layouts, own pairs, generated scenes, the data module."""

from typing import TYPE_CHECKING

from ...common.lazy import lazy

if TYPE_CHECKING:
    from ..mixture import Mixture
    from .base import StereoDataset, StereoRecord
    from .datamodule import StereoDataModule
    from .kitti import KITTI2012, KITTI2015
    from .middlebury import ETH3D, Middlebury2014, MiddleburyV3
    from .pairs import PairFolders, PairList, StereoPairs
    from .sceneflow import SceneFlow
    from .scenes import GeneratedStereo, generate_scenes
    from .sintel import Sintel

__all__, __getattr__, __dir__ = lazy(__name__)
