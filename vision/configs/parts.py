"""Making what a config of `vizoo fit` describes, without its trainer."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningArgumentParser

from .messages import condense

__all__ = ["instantiate"]

_KINDS: dict[str, type[LightningModule] | type[LightningDataModule]] = {
    "model": LightningModule,
    "data": LightningDataModule,
}


def instantiate(name: str, content: Mapping[str, Any], parts: Sequence[str]) -> Any:
    """Make parts of a config, of ``model`` and ``data``; messages call it by its name.

    Returns:
        A namespace with each.

    Raises:
        ValueError: a part is missing or cannot be made.
    """
    parser = LightningArgumentParser(exit_on_error=False)
    for part in parts:
        if part not in content:
            raise ValueError(f"{name}: the config has no `{part}`; give one of `vizoo fit`")
        parser.add_lightning_class_args(_KINDS[part], part, subclass_mode=True)
    try:
        parsed = parser.parse_object({part: content[part] for part in parts})
        # jsonargparse renames the method in 5.
        return getattr(parser, "instantiate", parser.instantiate_classes)(parsed)
    except (argparse.ArgumentError, TypeError, ValueError, KeyError) as error:
        raise ValueError(f"{name}: {condense(str(error))}") from error
