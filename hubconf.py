"""Entry points of `torch.hub`: every registered model, from a checkout that is not installed.

>>> torch.hub.load("path/to/checkout", "fadnet_plus_tiny", source="local")
>>> torch.hub.load("path/to/checkout", "create_model", "hf-hub:org/name", source="local")
"""

import importlib.util
import sys
import warnings
from collections.abc import Callable as _Callable
from pathlib import Path as _Path
from typing import Any as _Any

dependencies = [
    "torch",
    "torchvision",
    "numpy",
    "safetensors",
    "huggingface_hub",
    "filelock",
    "rich",
]

_ROOT = _Path(__file__).resolve().parent


def _package() -> _Any:
    """The package `vizoo`, which is this folder whatever its name."""
    if "vizoo" not in sys.modules:
        spec: _Any = importlib.util.spec_from_file_location(
            "vizoo", _ROOT / "__init__.py", submodule_search_locations=[str(_ROOT)]
        )
        module = importlib.util.module_from_spec(spec)
        sys.modules["vizoo"] = module
        spec.loader.exec_module(module)
    return sys.modules["vizoo"]


def _entry(name: str) -> _Callable[..., _Any]:
    """A function that builds the model; its documentation is the model's own."""
    info = vizoo.model_info(name)

    def entry(
        *, pretrained: bool = False, weights: str | None = None, **architecture: _Any
    ) -> _Any:
        given = {} if info.tag else {"pretrained": pretrained, "weights": weights}
        return vizoo.create_model(name, **given, **architecture)

    brings = "" if info.tag else "pretrained, weights, "
    entry.__name__ = entry.__qualname__ = name
    entry.__doc__ = f"{info.function.__doc__}\n\nArguments: {brings}{', '.join(info.arguments)}."
    return entry


vizoo = _package()
_place = _Path(vizoo.__file__).resolve().parent
if _place != _ROOT:
    warnings.warn(
        f"vizoo of {_place} is imported already; its models are used, not those of {_ROOT}",
        stacklevel=2,
    )
create_model = vizoo.create_model
# Names with a tag, which are no identifiers, are entries too: `torch.hub.load` takes any string.
for _name in (*vizoo.list_models(), *vizoo.list_models(pretrained=True)):
    globals()[_name] = _entry(_name)
