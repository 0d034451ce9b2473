"""The networks that `vizoo demo` shows: weights by name or file, and three subnets of a supernet.

Statistics of batch normalisation fit no single subnet of a supernet, so each subnet's are measured
anew on generated scenes before it is shown.
"""

from __future__ import annotations

import functools
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

__all__ = ["Candidate", "Weights", "candidates", "choose", "open_weights"]

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
    #: where a front of its subnets would lie; None if that is no place on this machine
    front: Path | None
    guided: bool = False  #: whether `vizoo infer stereo` would guide it unasked

    @property
    def elastic(self) -> bool:
        """Whether it is a supernet."""
        from ...nas.supernet import search_space

        return any(len(choice.values) > 1 for choice in search_space(self.net))


@dataclass(frozen=True)
class Candidate:
    """A network to show and to time."""

    name: str  #: short, for tables and pictures
    net: nn.Module  #: extracted, in evaluation mode, on the CPU
    weights: Weights  #: where it comes from
    architecture: Architecture | None = None  #: of a subnet


def choose(model: str | os.PathLike[str] | None) -> list[str]:
    """The weights to show, the main ones first: what was asked for, beside the best shipped.

    Raises:
        ValueError: nothing was asked for and nothing is shipped.
    """
    from ...vision.hub.registry import model_info

    shipped = [DEFAULT_MODEL] if model_info(DEFAULT_MODEL).weights else []
    if model is None and not shipped:
        raise ValueError(
            "no trained stereo weights come with this version; `vizoo demo --model FILE` shows "
            "weights of yours"
        )
    if model is None:
        return shipped
    asked = os.fspath(model)
    return [asked, *(name for name in shipped if asked not in (name, _tagged(name)))]


def _tagged(name: str) -> str:
    """The name of a model's weights in full."""
    from ...vision.hub.registry import model_info

    entry = model_info(name)
    return name if entry.tag else entry.tagged_names[0]


def open_weights(source: str) -> Weights:
    """Load what `vision.hub.create.open_model` takes, with what is known of it.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: no such model, no trained weights for it, or weights of no stereo model.
        OSError: its weights cannot be had.
    """
    from ...vision.hub.create import beside_weights, is_name, open_model, read_source
    from ...vision.hub.registry import model_info

    net, _ = open_model(source, task="stereo")
    front = beside_weights(source, ".front.json")
    if not is_name(source):
        stored = read_source(source).facts
        known = {"trained on": stored.get("trained_on", "not said in the file")}
        known["licence"] = stored.get("licence", "")
        facts = {name: str(value) for name, value in known.items()}
        return Weights(source, Path(source.removeprefix("local-dir:")).name, net, facts, front)
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
    return Weights(full, full, net, facts, front, guided=source == DEFAULT_MODEL)


def candidates(
    opened: list[Weights], device: torch.device, tell: Callable[[str], Any]
) -> tuple[list[Candidate], Front | None]:
    """The networks to show, the main one first, and the front of the supernet among them.

    Args:
        opened: a supernet stands for three of its subnets; only the first supernet does.
        device: where batch normalisation is measured.
        tell: called with what takes time.

    Raises:
        ValueError: a front that cannot be read, or of another supernet.
    """
    shown: list[Candidate] = []
    front = None
    elastic = [weights for weights in opened if weights.elastic]
    for weights in opened:
        if weights not in elastic:
            name = weights.name + ", guided" * weights.guided
            shown.append(Candidate(name, weights.net, weights))
        elif weights is elastic[0]:
            tell(f"three subnets of {weights.source}, batch norms measured on {_SCENES} scenes")
            subnets, front = _subnets(weights)
            _recalibrate_on_scenes([subnet.net for subnet in subnets], device)
            shown += subnets
    return shown, front


def _subnets(weights: Weights) -> tuple[list[Candidate], Front | None]:
    from ...nas.search.front import Front
    from ...nas.supernet import extract, search_space

    space = search_space(weights.net)
    front = Front.load(weights.front, space) if weights.front and weights.front.is_file() else None
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


def _recalibrate_on_scenes(nets: list[nn.Module], device: torch.device) -> None:
    """Measure the statistics of batch normalisation of each network on generated scenes."""
    from ...nas.recalibration import recalibrate

    batches = [tuple(view.to(device) for view in batch) for batch in _batches()]
    for net in nets:
        net.to(device)
        recalibrate(net, batches)
        net.cpu()


@functools.cache
def _batches() -> list[tuple[torch.Tensor, ...]]:
    from torch.utils.data import DataLoader

    from ...datasets.stereo import GeneratedStereo

    scenes = GeneratedStereo(_SCENES, _HEIGHT, _WIDTH, seed=_SEED)
    return [(batch["left"], batch["right"]) for batch in DataLoader(scenes, _BATCH)]
