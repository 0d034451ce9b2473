"""One table of system libraries, for messages and for the script that installs them."""

import re

import pytest

from vizoo.common.system import _DEBIAN, missing_library


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("libusb-1.0.so.0: cannot open shared object file", "apt-get install libusb-1.0-0 "),
        ("libGL.so.1: cannot open shared object file: No such file", "apt-get install libgl1 "),
        ("libodd.so.3: cannot open shared object file", "package that has libodd.so.3"),
        ("No module named 'open3d'", "None"),
    ],
)
def test_remedies(message, says):
    assert says in str(missing_library(ImportError(message)))


def test_the_script_installs_the_same(root):
    script = (root / "scripts/system-libraries.sh").read_text()
    libraries = re.search(r'libraries="([^"]*)"', script)[1]
    assert dict(pair.split(":") for pair in libraries.split()) == _DEBIAN
