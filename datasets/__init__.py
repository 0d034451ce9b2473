"""Readers of published layouts, generated worlds, and data modules for training."""
