"""Training and search on many GPUs and machines.

`HookDDPStrategy` trains any task, and supernets with only their active parameters travelling; a
hook of it compresses gradients. Populations are evaluated by an `Executor`.
"""

from typing import TYPE_CHECKING

from ...common.lazy import lazy

if TYPE_CHECKING:
    from .compression.lowrank import ACPSGD, PowerSGD
    from .compression.signs import EFSign
    from .compression.sparse import GTopK, TopK
    from .curvature.eva import Eva
    from .curvature.kfac import KFACPreconditioner
    from .gradients.callbacks import BytesSent, ReplicaDriftCheck
    from .gradients.hooks import AllReduce, CommHook
    from .gradients.sharded import FSDP2Strategy
    from .gradients.strategy import HookDDPStrategy
    from .recovery.snapshot import InMemorySnapshot
    from .schedule.dear import DeARStrategy
    from .schedule.merging import MergePlan
    from .search.executor import Executor, QueueExecutor, SerialExecutor, job_store, serve
    from .search.population import Evaluator, SavedSearch
    from .search.ray import RayExecutor

__all__, __getattr__, __dir__ = lazy(__name__)
