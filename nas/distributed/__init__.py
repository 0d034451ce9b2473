"""Training and search on many GPUs and machines.

`HookDDPStrategy` trains any task, and supernets with only their active parameters travelling; a
hook of it compresses gradients. Populations are evaluated by an `Executor`.
"""

from typing import TYPE_CHECKING

from ...common.lazy import lazy

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

__all__, __getattr__, __dir__ = lazy(
    __name__,
    {
        ".callbacks": ["BytesSent", "ReplicaDriftCheck"],
        ".dear": ["DeARStrategy"],
        ".eva": ["Eva"],
        ".executor": ["Executor", "QueueExecutor", "SerialExecutor", "job_store", "serve"],
        ".hooks": ["AllReduce", "CommHook"],
        ".kfac": ["KFACPreconditioner"],
        ".lowrank": ["ACPSGD", "PowerSGD"],
        ".merging": ["MergePlan"],
        ".population": ["Evaluator", "SavedSearch"],
        ".ray": ["RayExecutor"],
        ".sharded": ["FSDP2Strategy"],
        ".signs": ["EFSign"],
        ".snapshot": ["InMemorySnapshot"],
        ".sparse": ["GTopK", "TopK"],
        ".strategy": ["HookDDPStrategy"],
    },
)
