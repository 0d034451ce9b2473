"""Depth of panoramas: the network on the sphere, training, inference."""

DEFAULT_MODEL = "spheredepth_small"
"""The model whose weights ship."""
