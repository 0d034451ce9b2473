"""Running a command in a pseudo-terminal, to see what a user would."""

from __future__ import annotations

import os
import subprocess


def run_in_terminal(command: list[str], **environment: str) -> tuple[int, str]:
    """Run a command that believes in a colour terminal.

    Args:
        command: the words.
        **environment: variables to set.

    Returns:
        The exit code, and all that it wrote, escapes and all.
    """
    import pytest

    pty = pytest.importorskip("pty", reason="needs pseudo-terminals")
    settings = {"TERM": "xterm-256color", "COLUMNS": "120", **environment}
    cleared = ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
    kept = {name: value for name, value in os.environ.items() if name not in cleared}
    reader, writer = pty.openpty()
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=writer, stderr=writer, env={**kept, **settings}
    ) as process:
        os.close(writer)
        said = b""
        try:
            while part := os.read(reader, 65536):
                said += part
        except OSError:
            pass  # Linux's way of saying that nobody writes any more
        finally:
            os.close(reader)
    return process.returncode, said.decode()
