"""Lists: read back, malformed ones refused in one line, patients in two of them refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from vizoo.datasets.ct import CTDataModule, GeneratedCT
from vizoo.datasets.ct.layouts import ListedScan, read_scan_list, write_scan_list
from vizoo.datasets.mixture import check_disjoint, split_by_seed

CLASSES = ("a", "b")
LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=4)
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "p1", "..", "x/y", ""]), inner, max_size=3)
    ),
    max_leaves=12,
)


def test_round_trip(tmp_path):
    scans = [
        ListedScan("a", "p1", "s1", ("2.png", "10.png")),
        ListedScan("a", "p1", "s2", ("1.png",)),
        ListedScan("b", "p2", "s1", ("study.nii.gz",)),
    ]
    write_scan_list(tmp_path / "train.json", scans)
    assert read_scan_list(tmp_path / "train.json", CLASSES) == scans


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(TREES)
@example({"a": {"p1": {"s": ["1.png"]}}})
@example({"a": {"p1": {"s": ["1.png", "1.png"]}}})
def test_any_json_is_a_list_or_one_line(tmp_path, content):
    path = tmp_path / "list.json"
    path.write_text(json.dumps(content))
    try:
        scans = read_scan_list(path, CLASSES)
    except ValueError as error:
        assert str(path) in str(error) and "\n" not in str(error)
        return
    assert scans
    for scan in scans:
        assert scan.kind in CLASSES and scan.files
        assert tuple(content[scan.kind][scan.patient][scan.scan]) == scan.files
        assert not {"", "..", "x/y"} & {scan.patient, scan.scan, *scan.files}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.binary(max_size=40))
def test_any_bytes_are_refused_in_one_line(tmp_path, line, content):
    path = tmp_path / "list.json"
    path.write_bytes(content)
    assert str(path) in line(lambda: read_scan_list(path, CLASSES))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"c": {"p": {"s": ["1.png"]}}}', "class 'c' is none of a, b"),
        ('{"a": {"p": {"s": []}}}', "a/p/s: wants the names of its files"),
        ('{"a": {"p": ["1.png"]}}', "scans of a/p: wants a JSON object, got list"),
        ('{"a": {"p": {"s": ["../1.png"]}}}', "'../1.png' is no name"),
        ('{"a": {"p": {"s": ["1.png", "1.png"]}}}', "1.png is listed twice"),
        ('{"a": {"p": {"s": ["1.png"]}, "p": {}}}', "'p' stands twice in one object"),
        ("{}", "no scan in it"),
    ],
)
def test_what_is_said(tmp_path, line, text, said):
    (tmp_path / "list.json").write_text(text)
    assert said in line(lambda: read_scan_list(tmp_path / "list.json", CLASSES))


def test_absent(tmp_path, line):
    said = line(lambda: read_scan_list(tmp_path / "none.json", CLASSES), FileNotFoundError)
    assert "none.json: no such list file" in said


class Patients:
    """Samples of patients, without any reading."""

    def __init__(self, *groups):
        self.groups = list(groups)

    def __len__(self):
        return len(self.groups)

    def __getitem__(self, index):
        return self.groups[index]


def test_a_patient_in_two_lists(line):
    check_disjoint({"train": [Patients("p1", "p1"), Patients("p2")], "val": [Patients("p3")]})
    said = line(
        lambda: check_disjoint(
            {"train": [Patients("p1", "p2", "p4")], "val": [], "test": [Patients("p4", "p2", "p5")]}
        )
    )
    assert "2 patients are in both train and test, first p4" in said


def test_a_split_keeps_patients_together():
    whole = Patients(*(f"p{number // 3}" for number in range(30)))
    for seed in range(5):
        train, val = split_by_seed(whole, 0.2, seed)
        assert sorted(train.indices + val.indices) == list(range(30)) and len(val) == 6
        assert not set(train.groups) & set(val.groups)
    assert len(split_by_seed(Patients("p1", "p1", "p1", "p2"), 0.5)[0]) in (1, 3)
    with pytest.raises(ValueError, match="4 samples of 1 groups"):
        split_by_seed(Patients("p1", "p1", "p1", "p1"), 0.5)


def test_a_fit_wants_three_disjoint_sets(line):
    first, second = GeneratedCT(4, seed=1), GeneratedCT(2, seed=2)

    def setup(**sets):
        data = CTDataModule(workers=0, **sets)
        data.setup("fit")
        return data

    assert "no val data: a fit wants three" in line(lambda: setup(train=[first], test=[second]))
    assert "no test data" in line(lambda: setup(train=[first], val_share=0.5))
    said = line(lambda: setup(train=[first], val=[second], test=[second]))
    assert "2 patients are in both val and test, first generated-2-000000" in said
    said = line(lambda: setup(train=[first], val_share=0.5, test=[GeneratedCT(1, seed=1)]))
    assert "1 patients are in both" in said
    data = setup(train=[first], val_share=0.5, test=[second])
    assert len(data.sets("val")[0]) == 2
    CTDataModule(test=[second], workers=0).setup("test")
