"""Snapshots of a training in memory, to go on from when a process is lost."""
