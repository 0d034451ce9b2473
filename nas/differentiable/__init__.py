"""Differentiable search: logits of a supernet's choices that learn by gradients.

Any network with an `Operation` among its layers can be searched, by any task:

>>> from vizoo.nas.differentiable import DifferentiableSearch, GumbelSoftmax, HalvedData, Linear
>>> search = DifferentiableSearch(task, GumbelSoftmax(), Linear(10, 0.1))
>>> trainer.fit(search, HalvedData(data))
>>> net = extract(task.net, search.result)
"""

from typing import TYPE_CHECKING

from ...common.lazy import lazy

if TYPE_CHECKING:
    from .costs import Cost
    from .data import HalvedData
    from .derivation import derive, draw_architectures, most_likely
    from .logits import Draw, Logits, weighted
    from .samplers import (
        BinaryGates,
        Dirichlet,
        GumbelSoftmax,
        MixtureSampler,
        Reinforce,
        Sigmoid,
        Softmax,
        Uniform,
        Weights,
        gumbel_softmax,
    )
    from .schedules import Constant, Exponential, Linear, Schedule
    from .score import search_by_score
    from .task import DifferentiableSearch

__all__, __getattr__, __dir__ = lazy(__name__)
