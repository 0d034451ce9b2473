"""Chest CT: readers of scans and published layouts, generated scans, the data module."""

from typing import TYPE_CHECKING

from ...common.lazy import lazy

if TYPE_CHECKING:
    from .chest import Chest
    from .datamodule import CTDataModule
    from .dataset import CTDataset, ScanRecord
    from .dicom import list_series, read_dicom
    from .dicom_writer import write_dicom
    from .generated import GeneratedCT
    from .layouts import CCCCII, COVIDCTset, ListedScans, MosMed
    from .nifti import read_nifti, write_nifti
    from .pictures import read_slices
    from .preparation import CTPreset, prepare, to_scan, to_slices
    from .reading import read_scan
    from .transforms import VolumeAugmentation
    from .volume import CTVolume
    from .writers import write_scans

__all__, __getattr__, __dir__ = lazy(__name__)
