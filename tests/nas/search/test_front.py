"""Fronts read back."""

import json

import pytest

from vizoo.nas.search.front import Front
from vizoo.nas.space import Choice, SearchSpace

SPACE = SearchSpace([Choice("width", (1, 2, 3, 4, 5))])


def content(**changes):
    rows = [
        {
            "error": 1.0 / w,
            "macs": 10 * w,
            "architecture": SPACE.build(lambda choice, w=w: w).to_json(),
        }
        for w in (2, 5, 1, 4, 3)
    ]
    known = {"supernet": "s", "metric": "val/epe", "cost": "macs", "evaluated": 9, "front": rows}
    return {**known, **changes}


def load(tmp_path, data, **options):
    path = tmp_path / "front.json"
    path.write_text(json.dumps(data))
    return Front.load(path, **options)


def test_rows_by_error(tmp_path):
    front = load(tmp_path, content(), space=SPACE)
    assert [row.architecture["width"] for row in front.rows] == [5, 4, 3, 2, 1]
    assert front.rows[0].costs == {"macs": 50.0} and front.conditions == {}
    assert [row.architecture["width"] for row in front.spread(3)] == [5, 3, 1]
    assert [row.architecture["width"] for row in front.spread(2)] == [5, 1]
    assert len(front.spread(9)) == 5
    single = load(tmp_path, content(front=content()["front"][:1]))
    assert len(single.spread(3)) == 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "no front"),
        ({}, "no front"),
        (content(front=[]), "is empty"),
        (content(cost="joy"), "no cost 'joy'"),
        (content(cost="latency"), "no cost 'latency' in every row"),
        (content(front=[{"error": None}]), "damaged"),
        (content(front=[{**content()["front"][0], "error": "nan"}]), "not finite"),
    ],
)
def test_refused(tmp_path, data, message):
    with pytest.raises(ValueError, match=message):
        load(tmp_path, data)


def test_of_another_space(tmp_path):
    other = SearchSpace([Choice("width", (1, 2))])
    with pytest.raises(ValueError, match="front of another supernet"):
        load(tmp_path, content(), space=other)
    with pytest.raises(FileNotFoundError, match="no such file to read a front"):
        Front.load(tmp_path / "none.json")
