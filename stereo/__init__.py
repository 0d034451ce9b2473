"""Stereo disparity: networks, training, inference."""

DEFAULT_MODEL = "easnet_scaled.two_thirds"
"""The model whose shipped weights do best on photographs."""
