"""CUDA implementations of the operators: what is allocated, and how the kernels are started.

A file here belongs to the reference of the same name in the folder above, and to a file of
``kernels/``. Functions take what the registered operators take, on tensors of any strides.
"""
