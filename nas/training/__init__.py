"""Training supernets: which subnets a step trains, what they learn from, in which stages."""

from .sampling import LargestSampler, Sampler, SandwichSampler, UniformSampler
from .shrinking import ProgressiveShrinking, Stage
from .task import SupernetTask

__all__ = [
    "LargestSampler",
    "ProgressiveShrinking",
    "Sampler",
    "SandwichSampler",
    "Stage",
    "SupernetTask",
    "UniformSampler",
]
