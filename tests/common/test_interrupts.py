"""Signals that are noted, which of them are, and what insisting does."""

import os
import pty
import signal
import subprocess
import sys
import time

import pytest
from lightning.pytorch.demos.boring_classes import BoringModel
from trainers import quiet_trainer

from vizoo.common.interrupts import ended_by_sigterm, noted_signals, raised_interrupts


def send(number):
    os.kill(os.getpid(), number)


def test_signals_are_noted_and_given_back():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with noted_signals() as noted:
        send(signal.SIGTERM)
        send(signal.SIGINT)
    assert noted == [signal.SIGTERM, signal.SIGINT]
    assert {number: signal.getsignal(number) for number in before} == before


def test_the_third_one_ends_the_work():
    with pytest.raises(KeyboardInterrupt), noted_signals() as noted:
        for _ in range(4):
            send(signal.SIGTERM)
    assert noted == [signal.SIGTERM] * 3


def test_what_is_ignored_stays_so():
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with noted_signals() as noted:
            send(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert noted == []


class Interrupted(BoringModel):
    """Someone presses Ctrl+C within a batch."""

    def training_step(self, batch, index):
        send(signal.SIGINT)

    validation_step = training_step


@pytest.mark.parametrize("loop", ["fit", "validate"])
def test_a_trainer_that_is_interrupted_raises_it(loop, tmp_path):
    handler = signal.getsignal(signal.SIGINT)
    trainer = quiet_trainer(tmp_path, max_epochs=1, num_sanity_val_steps=0)
    with pytest.raises(KeyboardInterrupt), raised_interrupts():
        getattr(trainer, loop)(Interrupted())
    assert signal.getsignal(signal.SIGINT) is handler


def test_what_dies_of_a_sigterm_to_the_group_is_no_error_of_its_own():
    lost = RuntimeError("DataLoader worker (pid 7) is killed by signal: Terminated.")
    with pytest.raises(RuntimeError, match="pid 7"), ended_by_sigterm():
        raise lost
    with pytest.raises(SystemExit) as stop, ended_by_sigterm():
        try:
            send(signal.SIGTERM)
        finally:
            raise lost
    assert stop.value.code == 143 and stop.value.__suppress_context__


class Swallowing:
    """What Python can raise nothing in."""

    def __init__(self, error):
        self.error = error

    def __del__(self):
        raise self.error


def test_an_interrupt_that_python_swallows_comes_again(monkeypatch):
    others = []
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: others.append(lost.exc_type))
    with pytest.raises(KeyboardInterrupt), raised_interrupts():
        Swallowing(ValueError())
        Swallowing(KeyboardInterrupt())
        time.sleep(20)
    assert others == [ValueError]


def test_a_program_may_end_itself():
    with pytest.raises(SystemExit, match="3"), raised_interrupts():
        sys.exit(3)


CODE = """
import signal, sys, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored where the tests run under nohup
from vizoo.common.interrupts import noted_signals
with noted_signals() as noted:
    print("ready", flush=True)
    while not noted:
        time.sleep(0.02)
for stream in (sys.stdout, sys.stderr):
    print("to a terminal that is gone", file=stream, flush=True)
open(sys.argv[1], "w").write("done")
"""


def test_a_terminal_that_closes(tmp_path):
    """What is printed behind it is lost, the work is not."""
    ours, theirs = pty.openpty()
    words = [sys.executable, "-c", CODE, str(tmp_path / "file")]
    process = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    said = b""
    while not said.endswith(b"\n"):
        said += os.read(ours, 100)
    time.sleep(0.2)  # until it waits
    os.close(ours)
    process.send_signal(signal.SIGHUP)  # as a session's own terminal does
    assert process.wait(20) == 0
    assert (tmp_path / "file").read_text() == "done"
