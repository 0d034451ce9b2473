"""Records: immutable, hashable, JSON both ways, and wrong fields named."""

import copy
import dataclasses
import json
import pickle

import pytest

from vizoo.vision.hub.record import Frozen, WeightsRecord, parse_source, thaw

FIELDS = {
    "sources": ("package:stereo/weights/x.safetensors", "hf-hub:org/net@v1/a/x.safetensors"),
    "sha256": "0a" * 32,
    "size": 12,
    "licence": "Apache-2.0",
    "trained_on": "generated scenes",
    "metrics": {"kitti": {"epe": 0.5, "bad3": 1}},
    "command": "vizoo test --config x.yaml",
    "input": {"mean": [0.5, 0.5, 0.5], "divisor": 64, "size": {"height": 1}},
    "architecture": {"max_disparity": 192},
    "subnet": {"choices": {"depth": [1, 2]}},
    "reach": 72,
}


def test_json_both_ways():
    record = WeightsRecord(**FIELDS)
    text = json.dumps(record.to_json())
    again = WeightsRecord.from_json(json.loads(text))
    assert again == record and hash(again) == hash(record) and len({again, record}) == 1
    assert json.dumps(again.to_json()) == text
    assert "training" not in record.to_json()
    for same in (copy.deepcopy(record), pickle.loads(pickle.dumps(record))):
        assert same == record and hash(same) == hash(record)


def test_nothing_in_it_changes():
    given = {"mean": [1.0]}
    record = WeightsRecord(**{**FIELDS, "input": given})
    given["mean"].append(2.0)
    assert record.input["mean"] == (1.0,)
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.size = 3
    with pytest.raises(TypeError):
        record.metrics["kitti"]["epe"] = 0
    arguments = record.arguments
    arguments["subnet"]["choices"]["depth"].append(3)
    assert record.arguments == {
        "max_disparity": 192,
        "subnet": {"choices": {"depth": [1, 2]}},
    }


def test_differences_are_seen():
    record = WeightsRecord(**FIELDS)
    for name, value in (("size", 13), ("metrics", {"kitti": {"epe": 0.4}}), ("subnet", None)):
        assert dataclasses.replace(record, **{name: value}) != record


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("sources", "package:x", "a tuple of strings"),
        ("sources", ("ftp://x/y",), "'ftp://x/y' is no source of weights"),
        ("sources", ("https://host",), "is no source"),
        ("sources", ("hf-hub:net/x.safetensors",), "is no source"),
        ("sources", ("package:../x.safetensors",), "must stay in its folder"),
        ("sources", ("package:/etc/x",), "must stay in its folder"),
        ("sources", ("hf-hub:org/net/../x",), "must stay in its folder"),
        ("sha256", "0a", "64 lower-case"),
        ("sha256", "0A" * 32, "64 lower-case"),
        ("size", 0, "a number of bytes"),
        ("size", 1.5, "a number of bytes"),
        ("licence", " ", "licence is empty"),
        ("trained_on", None, "trained_on is a string"),
        ("metrics", {"kitti": 3}, "'kitti' must map metrics to numbers"),
        ("metrics", {"kitti": {"epe": "low"}}, "'kitti' must map"),
        ("metrics", {"kitti": {"epe": float("nan")}}, "metrics must hold JSON values"),
        ("command", "", "the command line that made them"),
        ("input", {"mean": object()}, "input must hold JSON values"),
        ("architecture", {"subnet": {}}, "in the field of that name"),
        ("subnet", 3, "subnet is a mapping"),
        ("reach", 0, "reach is a positive number of pixels, not 0"),
        ("reach", "72", "reach is a positive number of pixels"),
        ("classes", "NCP", "classes are names, a list of strings"),
    ],
)
def test_wrong_fields_are_named(name, value, says):
    with pytest.raises(ValueError, match=says):
        WeightsRecord(**{**FIELDS, name: value})


def test_wrong_json_is_named():
    values = WeightsRecord(**FIELDS).to_json()
    with pytest.raises(ValueError, match="has unknown sha"):
        WeightsRecord.from_json({**values, "sha": 1})
    with pytest.raises(ValueError, match="lacks licence, size"):
        WeightsRecord.from_json({k: v for k, v in values.items() if k not in ("licence", "size")})
    for wrong in (None, [1], "x"):
        with pytest.raises(ValueError, match="a record is a mapping"):
            WeightsRecord.from_json(wrong)


def test_sources():
    source = parse_source("hf-hub:org/net@refs%2Fpr%2F1/deep/x.safetensors")
    assert (source.repository, source.revision) == ("org/net", "refs%2Fpr%2F1")
    assert (source.path, source.file_name) == ("deep/x.safetensors", "x.safetensors")
    assert parse_source("https://h.org/a/x.bin?dl=1#z").file_name == "x.bin"
    assert parse_source("package:stereo/x.safetensors").kind == "package"


def test_frozen():
    one, other = Frozen({"a": [1, {"b": 2}]}), Frozen({"a": (1, Frozen({"b": 2}))})
    assert one == other and hash(one) == hash(other) and thaw(one) == {"a": [1, {"b": 2}]}
