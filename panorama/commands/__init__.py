"""Commands of panorama depth."""
