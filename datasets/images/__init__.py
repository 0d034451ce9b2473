"""Images with labels: folders, lists, box files, generated lesions, the data module."""

from typing import TYPE_CHECKING

from ...common.lazy import lazy

if TYPE_CHECKING:
    from .boxes import CocoImages, VocImages
    from .datamodule import ImageDataModule
    from .dataset import ImageDataset, ImageRecord
    from .generated import GeneratedLesions
    from .layouts import ImageFolders, ListedImages
    from .preparation import ImagePreset
    from .splits import split_groups
    from .transforms import ImageAugmentation

__all__, __getattr__, __dir__ = lazy(__name__)
