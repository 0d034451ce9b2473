"""Subnets of supernets: measured on this machine, and cut out for limits."""
