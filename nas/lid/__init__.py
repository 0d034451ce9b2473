"""NAS-LID: a supernet is split where its candidates want different weights.

Paper: He et al., "NAS-LID: Efficient Neural Architecture Search with Local Intrinsic Dimension",
AAAI 2023, arXiv 2211.12759.

`lid` and the other functions of tensors work on any features; `profile` measures the layers of a
network, `Splitter` decides which choice to split and how, `SplitTree` is what splits come to, and
`FewShotTraining` trains its leaves.
"""

import importlib
from typing import TYPE_CHECKING, Any

from .estimators import distances, lid, two_nn
from .leaves import Leaves
from .partition import Partition, choose_edge, mean_gaps, partition, rate
from .profile import gradients, named_layers, profile
from .similarity import similarity
from .splitting import Splitter, joined
from .tree import Split, SplitTree, splittable

if TYPE_CHECKING:
    from .ranking import Comparison, compare
    from .training import FewShotTraining

__all__ = [
    "Comparison",
    "FewShotTraining",
    "Leaves",
    "Partition",
    "Split",
    "SplitTree",
    "Splitter",
    "choose_edge",
    "compare",
    "distances",
    "gradients",
    "joined",
    "lid",
    "mean_gaps",
    "named_layers",
    "partition",
    "profile",
    "rate",
    "similarity",
    "splittable",
    "two_nn",
]

_LATE = {"Comparison": ".ranking", "FewShotTraining": ".training", "compare": ".ranking"}


def __getattr__(name: str) -> Any:
    # Training needs Lightning, which takes seconds to import; the rest needs torch alone.
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_LATE[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
