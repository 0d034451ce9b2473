"""Configs of `vizoo fit`: the built-in ones by name, and what one describes, made."""

from typing import TYPE_CHECKING

from ...common.lazy import lazy

if TYPE_CHECKING:
    from .builtin import list_configs, resolve_config
    from .task import FitConfig

__all__, __getattr__, __dir__ = lazy(__name__)
