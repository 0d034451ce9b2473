"""Images with labels: folders, lists, box files, generated lesions, the data module."""

from typing import TYPE_CHECKING

from ...common.lazy import lazy

if TYPE_CHECKING:
    from .boxes import CocoImages, VocImages
    from .datamodule import ImageDataModule
    from .dataset import ImageDataset, ImageRecord
    from .layouts import ImageFolders, ListedImages, split_groups
    from .lesions import GeneratedLesions
    from .preparation import ImagePreset
    from .transforms import ImageAugmentation

__all__, __getattr__, __dir__ = lazy(__name__)
