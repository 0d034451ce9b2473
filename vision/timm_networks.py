"""What timm says of its image networks, without building them."""

from __future__ import annotations

import difflib
from typing import Any

import timm
from timm.data import resolve_data_config, resolve_model_data_config

__all__ = ["check_timm_name", "timm_input"]


def check_timm_name(name: str) -> None:
    """Raise a ValueError that names the nearest networks unless timm has this one."""
    if timm.is_model(name):
        return
    bare = name.partition(".")[0].lower().replace("-", "_")
    near = difflib.get_close_matches(bare, timm.list_models(), n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else "timm.list_models() names them"
    raise ValueError(f"timm has no network {name!r}; {hint}")


def timm_input(name: str) -> dict[str, Any]:
    """How timm prepares images for one of its networks.

    Returns:
        ``size``, (height, width) in pixels; ``crop``, the share of the shorter side that is seen;
        ``interpolation``, ``bicubic`` or ``bilinear``.

    Raises:
        ValueError: timm has no such network.
    """
    check_timm_name(name)
    known = timm.get_pretrained_cfg(name)
    if known is None:  # a former name
        config = resolve_model_data_config(timm.create_model(name, pretrained=False))
    else:
        config = resolve_data_config(pretrained_cfg=known.to_dict())
    interpolation = config["interpolation"]
    return {
        "size": tuple(config["input_size"][1:]),
        "crop": config["crop_pct"],
        "interpolation": interpolation if interpolation == "bilinear" else "bicubic",
    }
