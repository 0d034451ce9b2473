"""The networks that `vizoo demo` shows: weights by name or file, and three subnets of a supernet.

Statistics of batch normalisation fit no single subnet, so each one's are measured anew on generated
scenes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ...stereo import DEFAULT_MODEL

if TYPE_CHECKING:
    import torch
    from torch import nn

    from ...nas.search.front import Front
    from ...nas.space import Architecture
    from ...vision.hub.record import WeightsRecord

_SIZES = ("large subnet", "middle subnet", "small subnet")
_SCENES, _BATCH, _HEIGHT, _WIDTH, _SEED = 16, 4, 192, 384, 7  # for batch normalisation


@dataclass(frozen=True)
class Weights:
    """A network and where it comes from."""

    source: str  #: its spelling, such as ``easnet_extended.generated`` or a file
    name: str  #: the model's name and tag, or the file's name
    net: nn.Module  #: in evaluation mode, on the CPU
    #: what there is to say of the weights: ``trained on``, ``licence``, ``SHA-256`` …
    facts: dict[str, str]
    guided: bool = False  #: whether `vizoo infer stereo` would guide it unasked


@dataclass(frozen=True)
class Candidate:
    """A network to show and to time."""

    name: str  #: short, for tables and pictures
    net: nn.Module  #: extracted, in evaluation mode, on the CPU
    weights: Weights  #: where it comes from
    architecture: Architecture | None = None  #: of a subnet


def choose(model: str | os.PathLike[str] | None) -> list[str]:
    """The weights to show, the main ones first: what was asked for, beside the best shipped."""
    asked = DEFAULT_MODEL if model is None else os.fspath(model)
    return [asked] if asked in (DEFAULT_MODEL, _tagged(DEFAULT_MODEL)) else [asked, DEFAULT_MODEL]


def _tagged(name: str) -> str:
    """The name of a model's weights in full."""
    from ...vision.hub.registry import model_info

    entry = model_info(name)
    return name if entry.tag else entry.tagged_names[0]


def open_weights(source: str) -> Weights:
    """Load what `vision.hub.create.open_model` takes, with what is known of it."""
    from ...vision.hub.create import is_name, open_model, read_source
    from ...vision.hub.registry import model_info

    net, _ = open_model(source, task="stereo")
    if not is_name(source):
        stored = read_source(source).facts
        known = {"trained on": stored.get("trained_on", "not said in the file")}
        known["licence"] = stored.get("licence", "")
        facts = {name: str(value) for name, value in known.items()}
        return Weights(source, Path(source.removeprefix("local-dir:")).name, net, facts)
    entry = model_info(source)
    record = cast("WeightsRecord", entry.record)
    full = _tagged(source)
    facts = {
        "trained on": record.trained_on,
        "licence": record.licence,
        "training": record.training,
        "origin": record.origin,
        "size": f"{record.size / 1e6:.1f} MB",
        "SHA-256": record.sha256,
    }
    return Weights(full, full, net, facts, guided=source == DEFAULT_MODEL)


def candidates(
    opened: list[Weights], device: torch.device, tell: Callable[[str], Any]
) -> tuple[list[Candidate], Front | None]:
    """The networks to show, the main one first, and the front of the supernet among them.

    A supernet stands for three of its subnets, whose batch norms are measured on the device; only
    the first supernet does.
    """
    from ...nas.supernet import search_space

    shown: list[Candidate] = []
    front = None
    elastic = [w for w in opened if any(len(c.values) > 1 for c in search_space(w.net))]
    for weights in opened:
        if weights not in elastic:
            name = weights.name + ", guided" * weights.guided
            shown.append(Candidate(name, weights.net, weights))
        elif weights is elastic[0]:
            tell(f"three subnets of {weights.source}, batch norms measured on {_SCENES} scenes")
            subnets, front = _subnets(weights)
            _recalibrate([subnet.net for subnet in subnets], device)
            shown += subnets
    return shown, front


def _subnets(weights: Weights) -> tuple[list[Candidate], Front | None]:
    from ...nas.search.front import Front
    from ...nas.supernet import extract, search_space
    from ...vision.hub.create import beside_weights

    space = search_space(weights.net)
    path = beside_weights(weights.source, ".front.json")
    front = Front.load(path, space) if path and path.is_file() else None
    if front is not None:
        chosen = [row.architecture for row in front.spread(3)]
    else:
        middle = space.build(lambda choice: choice.values[len(choice.values) // 2])
        chosen = [space.largest(), middle, space.smallest()]
    names = _SIZES if len(chosen) == 3 else (_SIZES[0], _SIZES[-1])
    subnets = [
        Candidate(name, extract(weights.net, architecture).eval(), weights, architecture)
        for name, architecture in zip(names, chosen, strict=False)
    ]
    return subnets, front


def _recalibrate(nets: list[nn.Module], device: torch.device) -> None:
    from torch.utils.data import DataLoader

    from ...datasets.stereo import GeneratedStereo
    from ...nas.recalibration import recalibrate

    scenes = DataLoader(GeneratedStereo(_SCENES, _HEIGHT, _WIDTH, seed=_SEED), _BATCH)
    batches = [(batch["left"].to(device), batch["right"].to(device)) for batch in scenes]
    for net in nets:
        recalibrate(net.to(device), batches)
        net.cpu()
