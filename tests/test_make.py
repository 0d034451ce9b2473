"""The two commands: what `make` runs, and the one line that says why it cannot."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
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


@pytest.fixture
def environment(tmp_path):
    """Makes an environment whose pip is a shell script."""

    def make(pip: str) -> Path:
        python = tmp_path / "environment/bin/python"
        python.parent.mkdir(parents=True)
        python.write_text(f'#!/bin/sh\ncase "$*" in "-m pip "*) ;; *) exit 0 ;; esac\n{pip}\n')
        python.chmod(0o755)
        return tmp_path / "environment"

    return make


def test_help_lists_every_target(root):
    done = run("make", cwd=root)
    assert done.returncode == 0
    assert [line.split()[1] for line in done.stdout.splitlines()] == [
        "help",
        "demo",
        "test",
        "lowest",
        "lint",
        "docs",
        "bench",
        "clean",
    ]


def test_ci_runs_make_lint_and_test(root):
    assert os.access(root / ".ci/run", os.X_OK)
    *_, lint, test = (root / ".ci/run").read_text().splitlines()
    assert (lint, test) == ("make --no-print-directory lint", "make --no-print-directory test")


def test_installs_once(root, tmp_path):
    """A stamp newer than pyproject.toml leaves pip alone; an older one calls it."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(root / name, tmp_path)
    shutil.copytree(root / "scripts", tmp_path / "scripts")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/.installed-test").touch()
    planned = run("make", "-n", "test", cwd=tmp_path, VENV=".venv").stdout
    assert "pytest" in planned and "install.sh" not in planned
    os.utime(tmp_path / ".venv/.installed-test", (0, 0))
    planned = run("make", "-n", "test", cwd=tmp_path, VENV=".venv").stdout
    assert 'sh scripts/install.sh ".[test]"' in planned


@pytest.mark.parametrize(
    ("stamp", "extras"),
    [(".installed", ""), (".installed-test", "[test]"), (".installed-dev", "[dev]")],
)
def test_every_stamp_is_made_by_the_script(root, tmp_path, environment, stamp, extras):
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(root / name, tmp_path)
    shutil.copytree(root / "scripts", tmp_path / "scripts")
    venv = environment('echo "$*" >pip-was-told')
    done = run("make", f"{venv}/{stamp}", cwd=tmp_path, VENV=str(venv), PYTHONDONTWRITEBYTECODE="")
    assert done.returncode == 0 and (venv / stamp).exists()
    told = (tmp_path / "pip-was-told").read_text().split()
    assert told == ["-m", "pip", "install", "--quiet", "--no-compile", "-e", f".{extras}"]


def test_all_is_compiled_where_python_may_not_keep_bytecode(root, tmp_path, environment):
    venv = environment(f'echo "$*" >{tmp_path}/pip-was-told')
    run("sh", "scripts/install.sh", cwd=root, VENV=str(venv), PYTHONDONTWRITEBYTECODE="1")
    assert " --compile " in (tmp_path / "pip-was-told").read_text()


def test_an_installation_says_how_far_it_is(root, tmp_path, environment):
    said = tmp_path / "said"
    venv = environment(
        "head -c 100000000 /dev/zero >$TMPDIR/wheel; echo waiting for a server\n"
        "for look in $(seq 300); do\n"
        f"    sed '1,/server/d' '{said}' | grep -q fetched && break\n"
        "    sleep 0.1\n"
        "done"
    )
    script = f"sh scripts/install.sh >{said}"
    done = run("sh", "-c", script, cwd=root, VENV=str(venv), EVERY="1")
    assert (done.returncode, done.stderr) == (0, "")
    first, *between, last = said.read_text().splitlines()
    assert first.startswith(f"installing into {venv}: up to 7 GB")
    assert re.fullmatch(r"installed in \d+ s", last)
    assert len(between) >= 2
    for line in between:
        assert re.match(r"  \.\.\. \d+ s: 0\.\d GB fetched, 0\.0 GB installed", line)
    assert sum(line.endswith("; waiting for a server") for line in between) == 1
    assert "0.1 GB fetched" in between[-1]
    assert sorted(file.name for file in venv.iterdir()) == ["bin"]


def test_pips_own_words_are_shown_where_it_fails(root, environment):
    venv = environment("echo to stdout; echo ERROR: no space >&2; exit 3")
    done = run("sh", "scripts/install.sh", ".[test]", cwd=root, VENV=str(venv))
    assert done.returncode == 3
    *words, last = done.stderr.splitlines()
    assert words == ["to stdout", "ERROR: no space"]
    assert last.startswith("vizoo: error: pip could not install .[test]")
    assert "installed in" not in done.stdout


def test_of_pips_warnings_only_conflicts_are_shown(root, environment):
    venv = environment("echo WARNING: of no use; echo ERROR: a 1 requires b 2 >&2")
    done = run("sh", "scripts/install.sh", cwd=root, VENV=str(venv))
    assert (done.returncode, done.stderr) == (0, "ERROR: a 1 requires b 2\n")
    assert "WARNING" not in done.stdout


def test_a_later_installation_promises_less(root, environment):
    venv = environment("exit 0")
    (venv / ".installed").touch()
    done = run("sh", "scripts/install.sh", cwd=root, VENV=str(venv))
    assert "what is not there yet" in done.stdout and "GB" not in done.stdout


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stopped_installation_stops_pip(root, tmp_path, environment, sent, code):
    venv = environment(f"echo $$ >{tmp_path}/pid; exec sleep 60")
    script = subprocess.Popen(
        ["sh", "scripts/install.sh"],
        cwd=root,
        env={**os.environ, "VENV": str(venv)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_hear_interrupts,
    )
    pip = _pid(tmp_path / "pid")
    script.send_signal(sent)
    _, said = script.communicate(timeout=30)
    assert script.returncode == code and "installation stopped" in said
    with pytest.raises(ProcessLookupError):
        os.kill(pip, 0)
    assert sorted(file.name for file in venv.iterdir()) == ["bin"]


def test_an_interrupted_make_leaves_no_stamp(root, tmp_path, environment):
    """Ctrl+C in a terminal: everything that make started gets the signal."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(root / name, tmp_path)
    shutil.copytree(root / "scripts", tmp_path / "scripts")
    venv = environment(f"echo $$ >{tmp_path}/pid; exec sleep 60")
    clean = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    make = subprocess.Popen(
        ["make", f"{venv}/.installed"],
        cwd=tmp_path,
        env={**clean, "VENV": str(venv)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=_hear_interrupts,
    )
    pip = _pid(tmp_path / "pid")
    os.killpg(make.pid, signal.SIGINT)
    assert make.wait(timeout=30) != 0
    with pytest.raises(ProcessLookupError):
        os.kill(pip, 0)
    assert not (venv / ".installed").exists()


def _hear_interrupts() -> None:
    """A test run in the background is deaf to Ctrl+C, and so would be what it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _pid(file: Path) -> int:
    """What a process writes into a file as soon as it runs."""
    for _ in range(300):
        if file.is_file() and file.read_text().endswith("\n"):
            return int(file.read_text())
        time.sleep(0.1)
    raise TimeoutError(file)


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
