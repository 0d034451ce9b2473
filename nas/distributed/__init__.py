"""Training and search on many GPUs and machines.

`HookDDPStrategy` trains any task, and supernets with only their active parameters travelling; a
hook of it compresses gradients. Populations are evaluated by an `Executor`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .callbacks import BytesSent, ReplicaDriftCheck
    from .dear import DeARStrategy
    from .eva import Eva
    from .executor import Executor, QueueExecutor, SerialExecutor, job_store, serve
    from .hooks import AllReduce, CommHook
    from .kfac import KFACPreconditioner
    from .lowrank import ACPSGD, PowerSGD
    from .merging import MergePlan
    from .population import Evaluator, SavedSearch
    from .ray import RayExecutor
    from .sharded import FSDP2Strategy
    from .signs import EFSign
    from .snapshot import InMemorySnapshot
    from .sparse import GTopK, TopK
    from .strategy import HookDDPStrategy

__all__ = [
    "ACPSGD",
    "AllReduce",
    "BytesSent",
    "CommHook",
    "DeARStrategy",
    "EFSign",
    "Eva",
    "Evaluator",
    "Executor",
    "FSDP2Strategy",
    "GTopK",
    "HookDDPStrategy",
    "InMemorySnapshot",
    "job_store",
    "KFACPreconditioner",
    "MergePlan",
    "PowerSGD",
    "QueueExecutor",
    "RayExecutor",
    "ReplicaDriftCheck",
    "SavedSearch",
    "SerialExecutor",
    "serve",
    "TopK",
]

_PUBLIC = {
    "ACPSGD": ".lowrank",
    "AllReduce": ".hooks",
    "BytesSent": ".callbacks",
    "CommHook": ".hooks",
    "DeARStrategy": ".dear",
    "EFSign": ".signs",
    "Eva": ".eva",
    "Evaluator": ".population",
    "Executor": ".executor",
    "FSDP2Strategy": ".sharded",
    "GTopK": ".sparse",
    "HookDDPStrategy": ".strategy",
    "InMemorySnapshot": ".snapshot",
    "job_store": ".executor",
    "KFACPreconditioner": ".kfac",
    "MergePlan": ".merging",
    "PowerSGD": ".lowrank",
    "QueueExecutor": ".executor",
    "RayExecutor": ".ray",
    "ReplicaDriftCheck": ".callbacks",
    "SavedSearch": ".population",
    "SerialExecutor": ".executor",
    "serve": ".executor",
    "TopK": ".sparse",
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
