"""vizoo: a vision model zoo and neural-architecture-search toolkit on PyTorch and Lightning.

>>> import vizoo
>>> net = vizoo.create_model("fadnet_plus_tiny")
>>> vizoo.list_models("stereo/*")
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .mvs.infer import MVSPredictor
    from .panorama.infer import PanoramaPredictor
    from .stereo.infer import StereoPredictor
    from .vision.classification.image_infer import ImagePredictor
    from .vision.classification.infer import CTPredictor
    from .vision.export import export
    from .vision.hub.registry import create_model, list_models, model_info
    from .vision.hub.sharing import from_pretrained, push_to_hub, save_pretrained
    from .vision.hub.weights import load_weights, save_weights

__all__ = [
    "CTPredictor",
    "ImagePredictor",
    "MVSPredictor",
    "PanoramaPredictor",
    "StereoPredictor",
    "__version__",
    "create_model",
    "export",
    "from_pretrained",
    "list_models",
    "load_weights",
    "model_info",
    "push_to_hub",
    "save_pretrained",
    "save_weights",
]

_PUBLIC = {
    "create_model": ".vision.hub.registry",
    "list_models": ".vision.hub.registry",
    "model_info": ".vision.hub.registry",
    "from_pretrained": ".vision.hub.sharing",
    "push_to_hub": ".vision.hub.sharing",
    "save_pretrained": ".vision.hub.sharing",
    "load_weights": ".vision.hub.weights",
    "save_weights": ".vision.hub.weights",
    "CTPredictor": ".vision.classification.infer",
    "ImagePredictor": ".vision.classification.image_infer",
    "MVSPredictor": ".mvs.infer",
    "PanoramaPredictor": ".panorama.infer",
    "StereoPredictor": ".stereo.infer",
    "export": ".vision.export",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value: Any = _version()
    elif name in _PUBLIC:
        value = getattr(importlib.import_module(_PUBLIC[name], __name__), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("vizoo")
    except PackageNotFoundError:
        return "0+uninstalled"
