"""Second-order steps: gradients changed by the curvature of layers."""
