"""Numbers that depend on choices."""

from __future__ import annotations

import copy

import pytest

from vizoo.nas.elastic.base import parts
from vizoo.nas.space import Architecture, Choice
from vizoo.nas.values import (
    Central,
    Place,
    Selection,
    Value,
    choices_of,
    concat,
    maximum,
    resolve,
    segments,
)

width = Choice("width", (16, 24, 32))
ratio = Choice("ratio", (0.5, 1.0))
kernel = Choice("kernel", (3, 5, 7))
a = Architecture({"width": 16, "ratio": 0.5, "kernel": 7})


@pytest.mark.parametrize(
    ("value", "largest", "resolved"),
    [
        (5, 5, 5),
        (width, 32, 16),
        (width * 2, 64, 32),
        (2 * width + 1, 65, 33),
        (width - 4, 28, 12),
        (64 - width, 48, 48),
        (1 + width // 8, 5, 3),
        (kernel // 2, 3, 3),
        (width.map(lambda w: (w * 3 + 7) // 8 * 8), 96, 48),
        (ratio.map(lambda r: round(64 * r)), 64, 32),
        (width * kernel, 224, 112),
        ((width * 2).map(lambda w: w + 1), 65, 33),
        (concat(width, 1, width * 2), 97, 49),
        (concat(width, kernel) * 2, 78, 46),
        (concat(width, concat(kernel, 3)).map(lambda c: c // 2), 21, 13),
    ],
)
def test_arithmetic(value, largest, resolved):
    assert maximum(value) == largest
    assert resolve(value, a) == resolved
    assert type(resolve(value, a)) is int
    assert resolve(copy.deepcopy(value), a) == resolved


def test_what_does_not_matter_is_the_largest():
    unused = a.replace(width=None)
    assert resolve(width, unused) == 32
    assert resolve(width * kernel, unused) == 224
    # The largest number, not the number of the largest value.
    assert resolve(64 - width, unused) == maximum(64 - width) == 48
    assert resolve(concat(width, kernel), unused) == 39


def test_parts_of_a_concatenation():
    joined = concat(width, concat(kernel, 3), width * 2)
    assert segments(joined) == [width, kernel, 3, joined.operands[3]]
    assert [resolve(part, a) for part in segments(joined)] == [16, 7, 3, 32]
    assert segments(width) == [width] and segments(4) == [4]
    # Each part at its largest, though they are never so together.
    assert maximum(concat(width, 64 - width)) == 80
    assert concat(1, 2) == 3 and concat(width) is width and not isinstance(concat(4), Value)


def test_choices():
    assert choices_of(width * kernel + width) == (width, kernel)
    assert choices_of(concat(1, kernel, width)) == (kernel, width)
    assert choices_of(width) == (width,) and choices_of(3) == ()


def test_values_compare_by_what_they_are():
    assert width * 2 == Choice("width", (16, 24, 32)) * 2
    assert width * 2 != width * 3
    assert len({concat(width, 1), concat(width, 1)}) == 1


def test_errors_are_one_line():
    with pytest.raises(ValueError, match="no choice 'width'"):
        resolve(width * 2, Architecture({"kernel": 3}))
    for value in (
        ratio,
        width.map(lambda w: w / 2),
        Choice("on", (False, True)),
        Choice("o", "a b".split()),
    ):
        with pytest.raises(ValueError, match=r"needs an int.*use \.map"):
            maximum(value)


def test_selections_say_where_positions_lie():
    width = Choice("w", (1, 2, 4))
    places = [Place(width, 4), Place(), Place(width, 1), Place(width, 4), Place(width, 2)]
    selection = Selection(tuple(places))
    assert maximum(selection) == selection.at({"w": None}) == 5
    assert resolve(selection, {"w": 2}) == 3
    assert selection.runs({"w": 1}) == ((1, 2),)
    assert selection.runs({"w": 2}) == ((1, 2), (4, 1))
    assert parts(selection, None) == ((0, 5),)
    central = Central(Choice("k", (3, 5, 7)))
    assert (maximum(central), central.runs({"k": 3}), central.runs({})) == (7, ((2, 3),), ((0, 7),))
