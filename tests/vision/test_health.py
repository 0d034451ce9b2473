"""What is looked at on a machine, and what is said to do."""

import pytest

from vizoo.vision import health


def test_looks_for_the_compiler(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    ok, found, remedy = health._CHECKS["C++ compiler"]()
    assert not ok and found == "no no-such-compiler" and "apt install" in remedy
    monkeypatch.setenv("CXX", "sh")
    assert health._CHECKS["C++ compiler"]()[0]


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("libGL.so.1: cannot open shared object file: No such file", "apt-get install libgl1 "),
        ("No module named 'open3d'", "pip install open3d"),
    ],
)
def test_remedies(monkeypatch, message, says):
    def fail(name):
        raise ImportError(message)

    monkeypatch.setattr(health.importlib, "import_module", fail)
    assert says in health._package("open3d", "open3d")[2]


def test_names_what_each_missing_extra_is_for(monkeypatch):
    monkeypatch.setattr(health, "find_spec", lambda name: None)
    for extra, (purpose, modules) in health._EXTRAS.items():
        for module in modules:
            ok, found, remedy = health._CHECKS[module]()
            assert not ok and found == f"not installed; for {purpose}"
            assert remedy == f"pip install 'vizoo[{extra}]'"
