"""Stereo disparity: networks, training, inference."""

DEFAULT_MODEL = "easnet_small"
"""The model whose shipped weights do best on photographs."""
