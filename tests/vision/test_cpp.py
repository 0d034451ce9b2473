"""The C++ example, compiled and run as the guide on export says."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from vizoo.vision._export_formats import FORMATS
from vizoo.vision.export import export
from vizoo.vision.hub.create import create_model
from vizoo.vision.io.images import read_image
from vizoo.vision.io.pfm import read_pfm

EXAMPLE = "docs/examples/disparity.cpp"


@pytest.fixture
def folder(root, tmp_path, monkeypatch):
    """With the example and a network, where `python` is this one."""
    openvino = pytest.importorskip("openvino")
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    if not (Path(openvino.__path__[0]) / "include/openvino/openvino.hpp").is_file():
        pytest.skip("this openvino has no C++ headers")
    shutil.copy(root / EXAMPLE, tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    torch.manual_seed(0)
    net = create_model("fadnet_plus_micro").eval()
    export(net, tmp_path / "fast.xml", to="openvino", size=(64, 128), dynamic=True)
    return tmp_path


def guide(root):
    """The commands of the guide: how it is compiled, and how it is called."""
    blocks = re.findall(r"```sh\n(.*?)```", (root / "docs/guides/export.md").read_text(), re.DOTALL)
    (block,) = (block for block in blocks if "g++" in block)
    compiling, _, call = block.rstrip().rpartition("\n")
    return compiling, call


def sh(command, folder):
    return subprocess.run(["sh", "-ec", command], cwd=folder, capture_output=True, text=True)


@pytest.mark.slow
def test_the_example_predicts_what_python_does(root, folder):
    from PIL import Image

    compiling, call = guide(root)
    done = sh(compiling, folder)
    assert done.returncode == 0, done.stderr
    size, pixels = (72, 136), torch.randint(0, 256, (2, 72, 136, 3), dtype=torch.uint8)
    for name, picture in zip(("left", "right"), pixels, strict=True):
        Image.fromarray(picture.numpy()).save(folder / f"{name}.ppm")
    # Programs such as GIMP write a comment into the header.
    left = folder / "left.ppm"
    left.write_bytes(left.read_bytes().replace(b"P6\n", b"P6\n# by a program\n", 1))
    done = sh(call, folder)
    assert done.returncode == 0, done.stderr
    run, _ = FORMATS["openvino"].read(folder / "fast.xml", torch.float32)
    wanted = run(tuple(read_image(folder / f"{name}.ppm")[None] for name in ("left", "right")))[0]
    found = torch.from_numpy(read_pfm(folder / "disparity.pfm").copy())
    assert found.shape == size
    # Another number of threads sums in another order.
    assert (found - wanted).abs().mean() < 1e-4 * wanted.std()
    (folder / "right.ppm").write_bytes(left.read_bytes()[:-1])
    done = sh(call, folder)
    assert (done.returncode, done.stderr) == (1, "right.ppm: ends too early\n")
    Image.new("RGB", (136, 71)).save(folder / "right.ppm")
    done = sh(call, folder)
    assert (done.returncode, done.stderr) == (1, "pictures differ in size\n")


def test_the_example_is_short(root):
    assert len((root / EXAMPLE).read_text().splitlines()) <= 60
