"""What the tests of CT data share: one small scan, and who says what."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from vizoo.datasets.ct import Chest, write_dicom

pytest.importorskip("pydicom")
pytest.importorskip("nibabel")


@pytest.fixture(scope="session")
def scan() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values (12, 20, 24), lesions, affine of a chest with opacities."""
    return Chest(1, "covid").scan((12, 20, 24))


@pytest.fixture(scope="session")
def _written(scan, tmp_path_factory) -> Path:
    return write_dicom(tmp_path_factory.mktemp("dicom") / "series", scan[0], scan[2])


@pytest.fixture
def series(_written, tmp_path) -> Path:
    """That scan as a DICOM series; a copy to do with as one likes."""
    return shutil.copytree(_written, tmp_path / "series")
