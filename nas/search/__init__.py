"""Search: which architecture of a space is best, by what measures, within which limits.

Everything is minimised: negate what should be large. No search knows a space by name, or a task.
"""

from typing import TYPE_CHECKING

from ...common.lazy import lazy

if TYPE_CHECKING:
    from .constraints import Constraint, UnreachableError, smallest_reachable
    from .evolution import ParetoResult, SearchResult, evolve, evolve_pareto, pareto_front
    from .optuna import SAMPLERS, Mirror, propose
    from .population import Evaluated, Progress, each
    from .predictor import Agreement, Predictor, agreement

__all__, __getattr__, __dir__ = lazy(__name__)
