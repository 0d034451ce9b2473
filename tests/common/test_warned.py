"""Warnings as values, each once, and of one's own thread where that is asked for."""

from __future__ import annotations

import threading
import warnings

import pytest

from vizoo.cli._work import say_warnings
from vizoo.common.warned import collect_warnings


def test_those_for_the_user_each_once():
    with collect_warnings() as notes:
        for text in ("one", "two", "one"):
            warnings.warn(text, stacklevel=1)
        warnings.warn("of a library", DeprecationWarning, stacklevel=1)
    assert notes == ["one", "two"]


def test_what_was_said_before_an_error_is_said(capsys):
    with pytest.raises(ValueError, match="after it"), say_warnings():
        warnings.warn("before it", stacklevel=1)
        raise ValueError("after it")
    assert capsys.readouterr().err == "vizoo: warning: before it\n"


@pytest.mark.parametrize("own", [True, False])
def test_those_of_other_threads(own):
    def other():
        warnings.warn("theirs", stacklevel=1)

    with warnings.catch_warnings(record=True) as outside:
        with collect_warnings(own_thread=own) as notes:
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
            warnings.warn("mine", stacklevel=1)
    assert notes == (["mine"] if own else ["theirs", "mine"])
    assert [str(warning.message) for warning in outside] == (["theirs"] if own else [])
