"""NAS-LID: a supernet is split where its candidates want different weights.

Paper: He et al., "NAS-LID: Efficient Neural Architecture Search with Local Intrinsic Dimension",
AAAI 2023, arXiv 2211.12759.

`lid` and the other functions of tensors work on any features; `profile` measures the layers of a
network, `Splitter` decides which choice to split and how, `SplitTree` is what splits come to, and
`FewShotTraining` trains its leaves.
"""

from typing import TYPE_CHECKING

from ...common.lazy import lazy

if TYPE_CHECKING:
    from ..search.predictor import Comparison, compare
    from .estimators import distances, lid, two_nn
    from .leaves import Leaves
    from .partitions import Partition, choose_edge, mean_gaps, partition, rate, similarity
    from .profiles import gradients, named_layers, profile
    from .splitting import Splitter, joined
    from .training import FewShotTraining
    from .tree import Split, SplitTree, splittable

__all__, __getattr__, __dir__ = lazy(__name__)
