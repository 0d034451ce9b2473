import importlib.util

import pytest


@pytest.fixture(scope="session")
def golden(shared):
    """Folder of a model's published cases, and the module that rebuilds weights and images."""
    path = shared / "golden" / "synthetic_state.py"
    if not path.is_file():
        pytest.skip("the published cases are not on this machine")
    spec = importlib.util.spec_from_file_location("synthetic_state", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return lambda name: (shared / "golden" / name, module)
