"""Training supernets: which subnets a step trains, what they learn from, in which stages."""

from typing import TYPE_CHECKING

from ...common.lazy import lazy

if TYPE_CHECKING:
    from .sampling import LargestSampler, Sampler, SandwichSampler, UniformSampler
    from .shrinking import ProgressiveShrinking, Stage
    from .task import SupernetTask

__all__, __getattr__, __dir__ = lazy(__name__)
