"""The two commands: what `make` runs, and the one line that says why it cannot."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not shutil.which("make"), reason="needs make")


def run(*command: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    # Within `make test` the outer make's flags and variables are in the environment.
    clean = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    return subprocess.run(
        command, cwd=cwd, env={**clean, **environment}, capture_output=True, text=True
    )


@pytest.fixture
def fake(tmp_path):
    """Writes a shell script that stands for a Python."""

    def write(body: str) -> str:
        file = tmp_path / "python"
        file.write_text(f"#!/bin/sh\n{body}\n")
        file.chmod(0o755)
        return str(file)

    return write


def test_help_lists_every_target(root):
    done = run("make", cwd=root)
    assert done.returncode == 0
    assert [line.split()[1] for line in done.stdout.splitlines()] == [
        "help",
        "demo",
        "test",
        "lint",
        "bench",
        "clean",
    ]


def test_ci_runs_make_test(root):
    assert os.access(root / ".ci/run", os.X_OK)
    assert "make --no-print-directory test" in (root / ".ci/run").read_text()


def test_installs_once(root, tmp_path):
    """A stamp newer than pyproject.toml leaves pip alone; an older one calls it."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(root / name, tmp_path)
    shutil.copytree(root / "scripts", tmp_path / "scripts")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/.installed-test").touch()
    planned = run("make", "-n", "test", cwd=tmp_path, VENV=".venv").stdout
    assert "pytest" in planned and "pip install" not in planned
    os.utime(tmp_path / ".venv/.installed-test", (0, 0))
    planned = run("make", "-n", "test", cwd=tmp_path, VENV=".venv").stdout
    assert 'pip install --quiet -e ".[test]"' in planned


def test_no_python(root, tmp_path):
    done = run("sh", "scripts/venv.sh", cwd=root, PYTHON="no-such-python", VENV=str(tmp_path / "v"))
    assert done.returncode == 2
    assert done.stderr.startswith("vizoo: error: no Python called 'no-such-python'")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("version", ["3.9", "3.14", "3.19"])
def test_another_python(root, tmp_path, fake, version):
    python = fake(f"echo {version}")
    done = run("sh", "scripts/venv.sh", cwd=root, PYTHON=python, VENV=str(tmp_path / "v"))
    assert done.returncode == 2
    assert f"is Python {version}, vizoo needs 3.10 to 3.13" in done.stderr
    assert not (tmp_path / "v").exists()


def test_without_ensurepip(root, tmp_path, fake):
    """As on a Debian where python3-venv is not installed and nobody may install it."""
    python = fake('case "$*" in *ensurepip*) exit 1 ;; esac; echo 3.11')
    only = tmp_path / "bin"
    only.mkdir()
    for tool in ("sh", "id", "rm"):
        (only / tool).symlink_to(shutil.which(tool))
    done = run(
        "sh", "scripts/venv.sh", cwd=root, PYTHON=python, VENV=str(tmp_path / "v"), PATH=str(only)
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "apt-get install python3.11-venv" in done.stderr


def test_another_python_than_the_environment_has(root, tmp_path, fake):
    (tmp_path / "v/bin").mkdir(parents=True)
    (tmp_path / "v/bin/python").symlink_to(sys.executable)
    kept = run("sh", "scripts/venv.sh", cwd=root, PYTHON="", VENV=str(tmp_path / "v"))
    assert (kept.returncode, kept.stdout) == (0, "")
    other = "3.11" if sys.version_info[:2] == (3, 10) else "3.10"
    python = fake(f"echo {other}")
    done = run("sh", "scripts/venv.sh", cwd=root, PYTHON=python, VENV=str(tmp_path / "v"))
    assert done.returncode == 2
    assert "was made with Python" in done.stderr


def test_a_library_that_cannot_be_had(root, tmp_path):
    """The script names the package in one line and lets the installation go on."""
    script = (root / "scripts/system-libraries.sh").read_text()
    (tmp_path / "script.sh").write_text(script.replace("libudev.so.1:libudev1", "libno.so:libno"))
    only = tmp_path / "bin"
    only.mkdir()
    for tool in ("sh", "id", "uname"):
        (only / tool).symlink_to(shutil.which(tool))
    done = run("sh", "script.sh", cwd=tmp_path, PYTHON=sys.executable, PATH=str(only))
    assert done.returncode == 0
    assert done.stderr.count("\n") == 1 and "libno" in done.stderr
