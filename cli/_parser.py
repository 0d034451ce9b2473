"""How configs that stand one behind another are merged."""

from __future__ import annotations

from typing import Any

from jsonargparse import Namespace
from lightning.pytorch.cli import LightningArgumentParser


class Parser(LightningArgumentParser):
    """Lets an entry of a list take over nothing from an earlier config's of another class.

    jsonargparse keeps what both classes have, such as the height of a generated set for one's own,
    and has no public hook for it.
    """

    def _check_value_key(
        self, action: Any, value: Any, key: str, cfg: Namespace | None, append: bool = False
    ) -> Any:
        earlier = cfg.get(key) if cfg else None
        if cfg and isinstance(value, list) and isinstance(earlier, list):
            if not append and len(value) == len(earlier):
                cfg = cfg.clone()
                pairs = zip(earlier, value, strict=True)
                cfg[key] = [old if _class(new) in ("", _class(old)) else None for old, new in pairs]
        return super()._check_value_key(action, value, key, cfg, append=append)


def _class(entry: Any) -> str:
    """The last word of its class path, which alone will do; empty where it names no class."""
    path = entry.get("class_path") if isinstance(entry, (dict, Namespace)) else entry
    return path.rpartition(".")[2] if isinstance(path, str) else ""
