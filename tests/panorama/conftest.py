"""Reference numbers of the mesh; they are keyed by centroids and vertices, not by our numbering."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from panorama_fixtures import small_views  # noqa: F401


@pytest.fixture(scope="session")
def golden(shared):
    """Reads a file of reference numbers by name."""
    folder = shared / "golden" / "spheredepth"
    if not folder.is_dir():
        pytest.skip("the reference numbers are not on this machine")
    return cache(lambda name: dict(np.load(folder / f"{name}.npz")))
