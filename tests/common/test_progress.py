"""Commands that take long say how far they are where stderr is no terminal."""

import pytest

from vizoo.common import progress as module
from vizoo.common.progress import progress, progress_bar


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """A clock that every look moves on by ten seconds."""
    looks = iter(range(0, 10**6, 10))
    monkeypatch.setattr(module.time, "monotonic", lambda: next(looks))


def test_a_line_every_half_minute(capsys):
    with progress_bar("subnets") as tell:
        for done in range(9):
            tell(done, 8)
    assert capsys.readouterr().err.splitlines() == [
        "vizoo: subnets: 2 of 8, 30 s",
        "vizoo: subnets: 5 of 8, 60 s",
    ]


def test_a_line_every_half_minute_of_several_kinds(capsys):
    with progress() as report:
        for done in range(1, 5):
            report("pairs", done, 9)
        report("clouds", 1, 1)
        report("clouds", 1, 2)
    assert capsys.readouterr().err.splitlines() == [
        "vizoo: pairs: 3 of 9, 30 s",
        "vizoo: clouds: 1 of 2, 60 s",
    ]


def test_a_line_tells_the_note_and_needs_no_total_then(capsys):
    with progress() as report:
        for done in range(1, 5):
            report("frames", done, None, "4.0 a second")
        report("views", 1, None)
    assert capsys.readouterr().err == "vizoo: frames: 3, 30 s, 4.0 a second\n"
