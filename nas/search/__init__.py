"""Search: which architecture of a space is best, by what measures, within which limits.

Everything is minimised: negate what should be large. No search knows a space by name, or a task.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .constraints import Constraint, UnreachableError, smallest_reachable
    from .evolution import SearchResult, evolve
    from .pareto import ParetoResult, evolve_pareto, pareto_front
    from .population import Evaluated, Progress, each
    from .predictor import Agreement, Predictor, agreement

__all__ = [
    "Agreement",
    "Constraint",
    "Evaluated",
    "ParetoResult",
    "Predictor",
    "Progress",
    "SearchResult",
    "UnreachableError",
    "agreement",
    "each",
    "evolve",
    "evolve_pareto",
    "pareto_front",
    "smallest_reachable",
]

_PUBLIC = {
    "Constraint": ".constraints",
    "UnreachableError": ".constraints",
    "smallest_reachable": ".constraints",
    "SearchResult": ".evolution",
    "evolve": ".evolution",
    "ParetoResult": ".pareto",
    "evolve_pareto": ".pareto",
    "pareto_front": ".pareto",
    "Evaluated": ".population",
    "Progress": ".population",
    "each": ".population",
    "Agreement": ".predictor",
    "Predictor": ".predictor",
    "agreement": ".predictor",
}


def __getattr__(name: str) -> Any:
    # The predictor needs torch; the searches do not.
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
