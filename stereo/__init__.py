"""Stereo disparity: networks, training, inference."""

DEFAULT_MODEL = "easnet_scaled.two_thirds"
"""The weights that, guided, are good on photographs of every kind, in little time."""
