"""Gradients that travel small: signs, sparse, of low rank, and what their compressors share."""
