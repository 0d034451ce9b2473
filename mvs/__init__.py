"""Multi-view stereo: networks, training, inference, fusion of depth maps."""

DEFAULT_MODEL = "dispmvs_tiny"
"""The model whose weights ship."""
