"""Operators that PyTorch lacks and that the tasks share.

For each there is one Python function, which checks its arguments and calls one operator of the
library ``vizoo`` in ``torch.library``, so that autograd, autocast, ``torch.compile`` and
``opcheck`` work. Under ``torch.export``, ONNX export, tracing and ``torch.func`` the function
writes standard operators instead, with dynamic height and width.

An operator may have two implementations:

- PyTorch, in the files beside this one: runs anywhere, and is what the other is tested against;
- CUDA C++, in ``kernels/*.cu``, taken for CUDA tensors of any strides by the same operator; what
  starts it stands beside the reference, and ``_kernels.py`` says when it is taken.

``correlation``, ``correlation_2d``, ``group_wise_correlation``, ``concat_volume``,
``epipolar_correlation``, ``mesh_convolution`` and ``gather_faces`` are opaque operators with a
backward operator each.
``warp_by_disparity`` and ``soft_argmin`` are composites of PyTorch's own kernels, which the
compiler may fuse; on CUDA tensors they call opaque operators with kernels.
"""

from .correlation import correlation, correlation_2d, group_wise_correlation
from .epipolar import epipolar_correlation
from .mesh import gather_faces, inverse_table, mesh_convolution
from .regression import soft_argmin
from .volume import concat_volume
from .warp import warp_by_disparity

__all__ = [
    "concat_volume",
    "correlation",
    "correlation_2d",
    "epipolar_correlation",
    "gather_faces",
    "group_wise_correlation",
    "inverse_table",
    "mesh_convolution",
    "soft_argmin",
    "warp_by_disparity",
]
