"""Depth of panoramas: the network on the sphere, training, inference."""
