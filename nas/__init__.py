"""The engine of neural architecture search: knows no task."""
