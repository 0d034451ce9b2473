"""What a trained classifier says of itself: its classes, and how its inputs are prepared."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, TypeVar

from torch import nn

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["classes_and_preset"]

_Preset = TypeVar("_Preset", bound="DataclassInstance")


def classes_and_preset(
    net: nn.Module, preset: type[_Preset], inputs: str, source: str
) -> tuple[tuple[str, ...], _Preset]:
    """The names of a network's classes and the preset of its training, of a dataclass.

    Errors call the network `source`, and what it classifies `inputs`, such as ``images``.

    Raises:
        ValueError: it does not know them, or they are not those of a network for such inputs.
    """
    classes, facts = tuple(getattr(net, "classes", ())), dict(getattr(net, "input", {}))
    if not classes or not facts:
        missing = "the names of its classes" if not classes else f"how its {inputs} were prepared"
        raise ValueError(
            f"{source}: does not say {missing}, as checkpoints of `vizoo fit` do: train it with "
            "ClassificationTask, or save it by save_weights(net, path, classes=..., input=...)"
        )
    if unknown := sorted(set(facts) - {field.name for field in dataclasses.fields(preset)}):
        raise ValueError(
            f"{source}: not a classifier of {inputs}: its input has {', '.join(unknown)}"
        )
    last = getattr(net, "get_classifier", lambda: None)()
    outputs = getattr(last, "out_features", len(classes))
    if outputs != len(classes):
        raise ValueError(f"{source}: {outputs} outputs, but {len(classes)} names of classes")
    try:
        return classes, preset(**facts)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{source}: its input is damaged: {error}") from error
