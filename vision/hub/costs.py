"""Parameters and multiply-adds of registered networks, counted once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from ...common.counts import count
from ...common.files import read_json, write_json
from ...common.progress import progress_bar
from ...common.system import installed_version, source_digest
from ..inputs import example_inputs
from .create import create_model
from .download import cache_folder
from .registry import model_info

__all__ = ["registered_costs"]

_ROOT = Path(__file__).parents[2]
_LIBRARIES = "torch", "torchvision", "timm"


def registered_costs(names: Sequence[str], height: int, width: int) -> dict[str, list[int]]:
    """Parameters and multiply-adds of networks, with a progress bar where any are to be counted.

    Those of this package's networks are kept beside downloaded weights for as long as its sources,
    PyTorch, torchvision and timm stay as they are. Where nothing can be kept, all are counted.

    Args:
        names: of registered networks, without tags.
        height: of the images, pixels, at which multiply-adds are counted; batch 1.
        width: likewise.

    Raises:
        ValueError: a name is not registered.
    """
    sources, kept = _sources(), {}
    with suppress(OSError, ValueError):
        kept = read_json(_file(height, width), "counts", lambda data: _counts(data, sources))
    costs = {name: kept[name] for name in names if name in kept and _is_ours(name)}
    if not (missing := [name for name in names if name not in costs]):
        return costs
    with progress_bar("networks") as tell:
        for number, name in enumerate(missing, 1):
            costs[name] = _counted(name, height, width)
            tell(number, len(missing))
    kept |= {name: costs[name] for name in missing if _is_ours(name)}
    with suppress(OSError):
        write_json(_file(height, width), {"sources": sources, "counts": kept})
    return costs


def _file(height: int, width: int) -> Path:
    return cache_folder().with_name("models") / f"{height}x{width}.json"


def _sources() -> list[str]:
    """All that counts depend on."""
    rooms = sorted(file.parent for file in _ROOT.glob("*/__init__.py"))
    libraries = [f"{name} {installed_version(name)}" for name in ("vizoo", *_LIBRARIES)]
    return libraries + [source_digest(room, "**/*.py") for room in rooms]


def _counts(data: Any, sources: list[str]) -> dict[str, list[int]]:
    if not isinstance(data, dict) or data.get("sources") != sources:
        raise ValueError("counts of other sources")
    counts: Any = data.get("counts")
    pairs = counts.values() if isinstance(counts, dict) else [None]
    if not all(isinstance(pair, list) and [*map(type, pair)] == [int, int] for pair in pairs):
        raise ValueError("no pairs of counts")
    return counts


def _is_ours(name: str) -> bool:
    return model_info(name).module.startswith(__name__.partition("vision.")[0])


def _counted(name: str, height: int, width: int) -> list[int]:
    """Without computing or allocating anything: on the meta device."""
    with torch.device("meta"):
        net = create_model(name)
    costs = count(net, *example_inputs(net, height, width, device="meta"))
    return [costs.parameters, costs.macs]
