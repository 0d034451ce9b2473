"""Chest CT: readers of scans and published layouts, generated scans, the data module."""

from typing import TYPE_CHECKING

from ...common.lazy import lazy

if TYPE_CHECKING:
    from .chest import Chest, GeneratedCT
    from .datamodule import CTDataModule
    from .dataset import CTDataset, ScanRecord
    from .dicom import list_series, read_dicom
    from .layouts import CCCCII, COVIDCTset, ListedScans, MosMed
    from .nifti import read_nifti, write_nifti
    from .preparation import CTPreset, prepare, to_scan, to_slices
    from .reading import read_scan, read_slices
    from .transforms import VolumeAugmentation
    from .volume import CTVolume
    from .writers import write_dicom, write_scans

__all__, __getattr__, __dir__ = lazy(__name__)
