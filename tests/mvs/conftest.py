"""Fixtures of the tests of multi-view stereo."""

from mvs_fixtures import oracle, scene, small_pictures, textured_views  # noqa: F401
