"""Training and search on many GPUs and machines.

`HookDDPStrategy` trains any task, and supernets with only their active parameters travelling; a
hook of it compresses gradients. Populations are evaluated by an `Executor`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .callbacks import BytesSent, ReplicaDriftCheck
    from .executor import Executor, QueueExecutor, SerialExecutor, job_store, serve
    from .hooks import AllReduce, CommHook
    from .population import Evaluator, SavedSearch
    from .ray import RayExecutor
    from .strategy import HookDDPStrategy

__all__ = [
    "AllReduce",
    "BytesSent",
    "CommHook",
    "Evaluator",
    "Executor",
    "HookDDPStrategy",
    "QueueExecutor",
    "RayExecutor",
    "ReplicaDriftCheck",
    "SavedSearch",
    "SerialExecutor",
    "job_store",
    "serve",
]

_PUBLIC = {
    "AllReduce": ".hooks",
    "BytesSent": ".callbacks",
    "CommHook": ".hooks",
    "Evaluator": ".population",
    "Executor": ".executor",
    "HookDDPStrategy": ".strategy",
    "QueueExecutor": ".executor",
    "RayExecutor": ".ray",
    "ReplicaDriftCheck": ".callbacks",
    "SavedSearch": ".population",
    "SerialExecutor": ".executor",
    "job_store": ".executor",
    "serve": ".executor",
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
