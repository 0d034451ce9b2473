"""Running a command in a pseudo-terminal, to see what a user would."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
from ranks import context


def run_in_terminal(command: list[str], **environment: str) -> tuple[int, str]:
    """Run a command that believes in a colour terminal.

    Args:
        command: the words.
        **environment: variables to set.

    Returns:
        The exit code, and all that it wrote, escapes and all.
    """

    def start(writer: int) -> Callable[[], int]:
        streams = {"stdin": subprocess.DEVNULL, "stdout": writer, "stderr": writer}
        process = subprocess.Popen(command, env=_settings(environment), **streams)
        os.close(writer)
        return process.wait

    return _read(start)


def run_code_in_terminal(code: str, **environment: str) -> tuple[int, str]:
    """As :func:`run_in_terminal`, some Python, by a process that has all imports done."""

    def start(writer: int) -> Callable[[], int]:
        arguments = (code, os.ttyname(writer), _settings(environment))
        process = context.Process(target=_execute, args=arguments)
        process.start()
        # Until the process has the terminal open, and it ends, somebody has to.
        threading.Thread(target=lambda: (process.join(), os.close(writer))).start()
        return lambda: process.join() or process.exitcode

    return _read(start)


def _settings(environment: dict[str, str]) -> dict[str, str]:
    settings = {"TERM": "xterm-256color", "COLUMNS": "120", **environment}
    cleared = ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
    return {name: value for name, value in os.environ.items() if name not in cleared} | settings


def _execute(code: str, terminal: str, environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    file = os.open(terminal, os.O_WRONLY | os.O_NOCTTY)
    for number in (1, 2):
        os.dup2(file, number)
    os.close(file)
    sys.stdout.reconfigure(line_buffering=True)
    exec(code, {"__name__": "__main__"})


def _read(start: Callable[[int], Callable[[], int]]) -> tuple[int, str]:
    """Exit code and words of what is started with a terminal's descriptor, and waited for."""
    pty = pytest.importorskip("pty", reason="needs pseudo-terminals")
    reader, writer = pty.openpty()
    said = b""
    with open(reader, "rb", buffering=0) as words:
        wait = start(writer)
        try:
            while part := words.read(65536):
                said += part
        except OSError:
            pass  # Linux's way of saying that nobody writes any more
    return wait(), said.decode()
