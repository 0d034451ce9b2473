"""Multi-view stereo: networks, training, inference, fusion of depth maps."""
