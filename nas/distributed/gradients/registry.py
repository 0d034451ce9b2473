"""The hooks by name, as a config calls them."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from ..compression.lowrank import ACPSGD, PowerSGD
from ..compression.signs import EFSign
from ..compression.sparse import GTopK, TopK
from .hooks import AllReduce, CommHook

__all__ = ["HOOKS", "make_hook"]

HOOKS: dict[str, Callable[[], CommHook]] = {
    "dense": AllReduce,
    "fp16": lambda: AllReduce("float16"),
    "bf16": lambda: AllReduce("bfloat16"),
    "subnet": lambda: AllReduce(active_only=True),
    "topk": TopK,
    "gaussiank": lambda: TopK(selector="gaussian"),
    "lags": lambda: TopK(per_layer=True),
    "gtopk": GTopK,
    "acpsgd": ACPSGD,
    "powersgd": PowerSGD,
    "efsign": EFSign,
}


def make_hook(hook: str | CommHook) -> CommHook:
    """The hook of a name, with its default arguments; a hook stays as it is.

    Raises:
        ValueError: an unknown name.
    """
    if isinstance(hook, CommHook):
        return hook
    if hook not in HOOKS:
        near = difflib.get_close_matches(str(hook), HOOKS, n=1)
        meant = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError(f"there is no hook {hook!r}{meant}: choose {', '.join(HOOKS)}")
    return HOOKS[hook]()
