"""CUDA implementations of the operators: what is allocated, and how the kernels are started.

A file here belongs to the reference of the same name in the folder above, and to a file of
``kernels/``. Functions take what the registered operators take, on tensors of any strides, and
write every number of what they return.
"""

from . import correlation, epipolar, mesh, regression, volume, warp

__all__ = ["KERNELS"]

KERNELS = {
    "banded": correlation.BANDED,
    "sliced": correlation.SLICED,
    "correlation": correlation.KERNELS,
    "epipolar": epipolar.KERNELS,
    "mesh": mesh.KERNELS,
    "regression": regression.KERNELS,
    "volume": volume.KERNELS,
    "warp": warp.KERNELS,
}
"""For each file of ``kernels/`` its functions; ``{}`` stands for any of the number types."""
