"""What is shipped: the wheel, the sdist, the entry points, and the wheel unpacked and imported."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email import message_from_string
from pathlib import Path

import pytest
import yaml

from vizoo.vision.hub.registry import list_models, model_info

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOMS = (
    "classification",
    "cli",
    "common",
    "datasets",
    "mvs",
    "nas",
    "panorama",
    "stereo",
    "vision",
)
SHIPPED_AT_ROOT = {"__init__.py", "__main__.py", "hubconf.py"}
LEFT_AT_HOME = (".git", ".venv*", "build", "dist", "*.egg-info", "__pycache__", "demo", "runs")
LEFT_AT_HOME += (".hypothesis", ".*_cache", "*.ckpt")  # other tests write there meanwhile


@pytest.fixture(scope="module")
def source(root, tmp_path_factory) -> Path:
    """A copy of the checkout, as building in place leaves ``build/`` behind."""
    copy = tmp_path_factory.mktemp("source") / "vizoo"
    shutil.copytree(root, copy, ignore=shutil.ignore_patterns(*LEFT_AT_HOME))
    return copy


@pytest.fixture(scope="module")
def built(root, source, tmp_path_factory) -> Path:
    """A folder with the wheel and the sdist, made as pip and `build` have them made."""
    folder = tmp_path_factory.mktemp("built")
    settings = tomllib.loads((root / "pyproject.toml").read_text())["build-system"]
    code = (
        f"import {settings['build-backend']} as backend; "
        f"backend.build_wheel({str(folder)!r}); backend.build_sdist({str(folder)!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built) -> Path:
    (file,) = built.glob("vizoo-*.whl")
    return file


@pytest.fixture(scope="module")
def names(wheel) -> list[str]:
    return zipfile.ZipFile(wheel).namelist()


def _text(wheel: Path, name: str) -> str:
    archive = zipfile.ZipFile(wheel)
    (path,) = (n for n in archive.namelist() if n.endswith(f".dist-info/{name}"))
    return archive.read(path).decode()


def test_packages_are_complete(root):
    """The explicit list of pyproject.toml names every folder that holds a module."""
    settings = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {"vizoo"}
    for room in ROOMS:
        for file in (root / room).rglob("*.py"):
            folders.add(".".join(("vizoo", *file.relative_to(root).parent.parts)))
            assert (file.parent / "__init__.py").is_file(), f"{file.parent}: no __init__.py"
    assert sorted(settings["packages"]) == sorted(folders)


def test_the_wheel_holds_every_module_and_config(root, source, names):
    wanted = {f"vizoo/{f.relative_to(source)}" for f in (source / "configs").rglob("*.yaml")}
    for room in ROOMS:
        for pattern in ("*.py", "*.cu", "*.cuh", "*.html", "*.front.json"):
            wanted |= {f"vizoo/{f.relative_to(source)}" for f in (source / room).rglob(pattern)}
    assert wanted - set(names) == set()
    if any((root / "configs").rglob("*.yaml")):
        assert any(name.startswith("vizoo/configs/") for name in names)


def test_the_wheel_holds_the_trained_weights_and_stays_small(source, wheel, names):
    records = [model_info(name).record for name in list_models(pretrained=True)]
    places = {text for record in records for text in record.sources if text.startswith("package:")}
    assert places
    wanted = {f"vizoo/{text.removeprefix('package:')}" for text in places}
    kept = [f for room in ROOMS for f in (source / room).glob("weights/*")]
    wanted |= {f"vizoo/{f.relative_to(source)}" for f in kept}
    assert wanted - set(names) == set()
    assert wheel.stat().st_size < 25e6


def test_the_wheel_holds_nothing_else(names):
    tops = {name.split("/")[0] for name in names}
    assert all(top == "vizoo" or top.endswith(".dist-info") for top in tops), tops
    inside = [name.removeprefix("vizoo/") for name in names if name.startswith("vizoo/")]
    assert {name for name in inside if "/" not in name} <= SHIPPED_AT_ROOT
    rooms = {name.split("/")[0] for name in inside if "/" in name}
    assert rooms <= {"configs", *ROOMS}
    assert not [name for name in inside if re.search(r"(^|/)(tests?|conftest\.py|\.)", name)]


def test_metadata(root, wheel):
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    metadata = message_from_string(_text(wheel, "METADATA"))
    assert metadata["Name"] == "vizoo"
    assert metadata["Version"] == project["version"]
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata["License-Expression"] == "Apache-2.0"
    needs = metadata.get_all("Requires-Dist")
    # Releases 2.6.2 and 2.6.3 of lightning were malicious.
    assert [n.replace(" ", "") for n in needs if n.startswith("lightning")] == [
        "lightning<3,>=2.6.6"
    ]
    assert any(n.startswith("torch>=2.8") for n in needs)


MODULES = {
    "opencv-python-headless": "cv2",
    "pillow": "PIL",
    "pyyaml": "yaml",
    "cuda-core": "cuda",
}
"""Package to the module that it brings, where the names differ."""

BROUGHT = {"lightning_utilities"}
"""Modules of what Lightning is made of."""


def _project(root) -> dict:
    return tomllib.loads((root / "pyproject.toml").read_text())["project"]


def _packages(requirements: list[str]) -> list[str]:
    return [re.match(r"[\w.-]+", text)[0] for text in requirements]


def _statements(block: list[ast.stmt]) -> Iterator[ast.AST]:
    """Those of a block and of the blocks within it, without the expressions in them."""
    for node in block:
        yield node
        for part in ("body", "orelse", "handlers", "finalbody", "cases"):
            yield from _statements(getattr(node, part, []))


def test_every_dependency_is_used_and_every_import_is_a_dependency(root):
    """What only an extra brings is imported within a function, where its absence is said."""
    project = _project(root)
    needed = {MODULES.get(name, name) for name in _packages(project["dependencies"])}
    extras = project["optional-dependencies"]
    extra = {name for kind in extras for name in _packages(extras[kind])} - {"vizoo"}
    above, within, texts = set(), set(), []
    for room in (*ROOMS, "__main__.py"):
        files = [root / room] if room.endswith(".py") else sorted((root / room).rglob("*.py"))
        for file in files:
            texts.append(file.read_text())
            top = ast.parse(texts[-1]).body
            for node in _statements(top):
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and not node.level:
                    names = [node.module]
                else:
                    continue
                (above if node in top else within).update(n.split(".")[0] for n in names)
    # The last is for type checkers alone.
    ours = sys.stdlib_module_names | {"vizoo", "_typeshed"}
    assert above - ours - BROUGHT <= needed
    assert within - ours <= needed | extra
    by_name = {name for name in needed if re.search(rf'import_module\("{name}\b', "".join(texts))}
    assert needed <= above | within | by_name


def test_the_table_of_the_installation_is_complete(root):
    project, text = _project(root), (root / "docs/installation.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE)
    assert sorted(rows) == sorted(_packages(project["dependencies"]))
    named = re.findall(r"^\| `'vizoo\[(\w+)\]'` \|", text, re.MULTILINE)
    assert sorted(named) == sorted(project["optional-dependencies"])
    # The tests need all that the commands may need; Ray lacks wheels for some Python versions,
    # rerun and TensorRT are large.
    tested = " ".join(project["optional-dependencies"]["test"])
    for name in set(named) - {"test", "dev", "docs", "ray", "tensorrt", "viewer"}:
        assert f"vizoo[{name}]" in tested


def test_entry_points(wheel):
    scripts = _text(wheel, "entry_points.txt")
    assert "vizoo = vizoo.__main__:main" in scripts
    assert "lightning = vizoo.__main__:lightning" in scripts


def test_the_unpacked_wheel_imports(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = "import vizoo, vizoo.__main__ as door; print(vizoo.__file__, door.main, door.lightning)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path))


def test_the_sdist_builds_the_same_package(built, names):
    (file,) = built.glob("vizoo-*.tar.gz")
    with tarfile.open(file) as archive:
        inside = {"/".join(n.split("/")[1:]) for n in archive.getnames()}
    assert {n.removeprefix("vizoo/") for n in names if n.startswith("vizoo/")} <= inside
    assert {"LICENSE", "pyproject.toml"} <= inside
    assert not [n for n in inside if n.startswith(("tests", "benchmarks", "scripts", ".ci"))]


def test_the_citation_names_every_paper(root):
    citation = yaml.safe_load((root / "CITATION.cff").read_text())
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    assert str(citation["version"]) == version
    papers = " ".join(reference["title"] for reference in citation["references"])
    for name in ("FADNet:", "FADNet++", "EASNet", "Disparity", "SphereDepth", "COVID", "NAS-LID"):
        assert name in papers
    assert all(reference["authors"] for reference in citation["references"])
