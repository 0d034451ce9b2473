"""Conversion: from a trained network to a supernet whose largest subnet it is."""
