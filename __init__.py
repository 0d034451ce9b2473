"""vizoo: a vision model zoo and neural-architecture-search toolkit on PyTorch and Lightning.

>>> import vizoo
>>> net = vizoo.create_model("fadnet_plus_tiny")
>>> vizoo.list_models("stereo/*")
"""

from typing import TYPE_CHECKING, Any

from .common.lazy import lazy as _lazy
from .common.renamed import install as _install

if TYPE_CHECKING:
    from .classification.comparison.compare import Comparison, compare
    from .classification.ct_infer import CTPredictor
    from .classification.image_infer import ImagePredictor
    from .mvs.infer import MVSPredictor
    from .mvs.reconstruction import reconstruct
    from .panorama.infer import PanoramaPredictor
    from .stereo.infer import StereoPredictor
    from .vision.configs.task import FitConfig
    from .vision.export import export
    from .vision.hub.create import create_model
    from .vision.hub.registry import list_models, model_info
    from .vision.hub.sharing import from_pretrained, push_to_hub, save_pretrained
    from .vision.hub.weights import load_weights, save_weights
    from .vision.speed import benchmark
    from .vision.subnets.bench import latency_table
    from .vision.subnets.best import best_subnet
    from .vision.subnets.front import search
    from .vision.subnets.leaves import open_supernet, open_tree
    from .vision.subnets.ranking import rank, split

_NAMES, _get, __dir__ = _lazy(__name__)
__all__ = ["__version__", *_NAMES]
_install()


def __getattr__(name: str) -> Any:
    if name != "__version__":
        return _get(name)
    from .common.system import installed_version

    return installed_version()
