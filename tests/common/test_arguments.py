"""Arguments that are held to annotations."""

from collections.abc import Callable
from typing import Literal

import pytest

from vizoo.common.arguments import checked


@checked("path", "word", "tell", count=1)
def draw(
    path: str,
    word: Literal["all", "none"] = "all",
    tell: Callable[[int], None] | None = None,
    count: int | None = None,
    other: int = 0,
) -> tuple:
    """Give all of it back."""
    return path, word, tell, count, other


def test_what_fits_is_passed_on():
    assert draw("a") == ("a", "all", None, None, 0)
    assert draw("a", "none", print, count=1, other="unchecked")[2:] == (print, 1, "unchecked")
    assert draw.__doc__ == "Give all of it back."


@pytest.mark.parametrize(
    ("args", "given", "says"),
    [
        ((None,), {}, "draw: path must be of type str, not None"),
        (("a", "some"), {}, r"draw: word must be of type Literal\['all', 'none'\], not 'some'"),
        (("a",), {"tell": "print"}, "draw: tell must be of type .*Callable.*, not 'print'"),
        (("a",), {"count": True}, r"draw: count must be of type int \| None, not True"),
        (("a",), {"count": 0}, "draw: count must be at least 1, not 0"),
    ],
)
def test_what_does_not_fit_is_refused(args, given, says):
    with pytest.raises(ValueError, match=f"^{says}$"):
        draw(*args, **given)
    with pytest.raises(TypeError, match="unexpected keyword argument 'foo'"):
        draw("a", foo=1)
