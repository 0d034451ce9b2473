"""Searches whose evaluations run in many processes."""
