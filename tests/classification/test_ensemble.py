"""Ensembles: what each rule says, that fitted ones fit, classes in any order, the file."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch.nn import functional as F

from vizoo.classification.ensemble import METHODS, Combination, align, fit_combination, report_on
from vizoo.classification.ensemble_file import (
    EnsembleFile,
    ListedMember,
    read_ensemble,
    write_ensemble,
)

NAN = math.nan


def logs(rows):
    return torch.tensor(rows).log()


@pytest.fixture
def members():
    """Three members of three classes: one good, one too sure of itself, one that knows little."""
    torch.manual_seed(0)
    labels = torch.randint(3, (400,))
    truth = F.one_hot(labels, 3).float()
    strength = ((2.0, 1.0), (1.5, 4.0), (0.2, 1.0))
    found = [scale * (much * truth + torch.randn(400, 3)) for much, scale in strength]
    return torch.stack(found).log_softmax(2), labels


def loss(probabilities, labels):
    return float(F.nll_loss(probabilities.log(), labels))


def test_mean_and_weighted_by_hand():
    both = logs([[[0.8, 0.2]], [[0.4, 0.6]]])
    assert Combination()(both)[0].tolist() == pytest.approx([0.6, 0.4])
    weighted = Combination("weighted", (0.25, 0.75))
    assert weighted(both)[0].tolist() == pytest.approx([0.5, 0.5])


def test_the_vote_and_its_ties():
    three = logs([[[0.5, 0.3, 0.2]], [[0.5, 0.3, 0.2]], [[0.01, 0.98, 0.01]]])
    assert Combination("vote")(three).argmax() == 0  # the mean prefers the other class
    assert Combination()(three).argmax() == 1
    tie = logs([[[0.6, 0.4, 0.0]], [[0.1, 0.9, 0.0]]])
    assert Combination("vote")(tie).argmax() == 1
    assert Combination("vote")(tie).sum() == pytest.approx(1)


def test_fitted_weights_are_no_worse_than_the_best_member(members):
    found, labels = members
    combined = fit_combination("weighted", found, labels)
    assert sum(combined.weights) == pytest.approx(1) and min(combined.weights) >= 0
    best = min(loss(each.exp(), labels) for each in found)
    assert loss(combined(found), labels) <= best + 1e-6
    assert loss(combined(found), labels) <= loss(Combination()(found), labels) + 1e-6
    # A copy of one's best member adds nothing, and a member that is always wrong gets nothing.
    wrong = found[0].roll(1, 1) * 3
    weights = fit_combination("weighted", torch.stack((found[0], wrong)), labels).weights
    assert weights[1] < 0.05


def test_stacking_learns_what_a_mean_cannot(members):
    """A member that mixes up its classes is as good as the right one."""
    found, labels = members
    confused = torch.stack((found[0].roll(1, 1), found[2]))
    stacked = fit_combination("stacking", confused, labels)
    right = (stacked(confused).argmax(1) == labels).float().mean()
    assert right > (found[0].argmax(1) == labels).float().mean() - 0.03
    assert (Combination()(confused).argmax(1) == labels).float().mean() < 0.5
    assert stacked(confused).sum(1).allclose(torch.ones(400))


@pytest.mark.parametrize("method", METHODS)
def test_who_abstains_leaves_it_to_the_others(members, method):
    found, labels = members
    silent = torch.full_like(found[:1], NAN)
    quiet = torch.cat((found, silent))
    fitted = fit_combination(method, quiet, labels)
    probabilities = fitted(quiet)
    assert probabilities.isfinite().all()
    torch.testing.assert_close(probabilities.sum(1), torch.ones(400))
    if method in ("mean", "vote"):
        torch.testing.assert_close(probabilities, fitted(found))
    nobody = fitted(torch.full((4, 2, 3), NAN))
    assert nobody.isfinite().all()
    if method != "stacking":
        assert nobody.allclose(torch.full((2, 3), 1 / 3))


def test_a_weightless_member_answers_where_it_is_alone():
    both = logs([[[0.9, 0.1], [0.9, 0.1]], [[0.3, 0.7], [0.3, 0.7]]])
    both[0, 1] = NAN
    found = Combination("weighted", (1.0, 0.0))(both)
    torch.testing.assert_close(found, torch.tensor([[0.9, 0.1], [0.3, 0.7]]))


def test_classes_are_aligned_by_name():
    row = torch.tensor([[0.1, 0.2, 0.7]])
    assert align(row, ("c", "a", "b"), ("a", "b", "c")).tolist()[0] == pytest.approx(
        [0.2, 0.7, 0.1]
    )
    with pytest.raises(
        ValueError, match="other classes than a, d, c: it lacks d; it has besides b"
    ):
        align(row, ("a", "b", "c"), ("a", "d", "c"))


def test_report(members):
    found, labels = members
    quiet = found.clone()
    quiet[1, :100] = NAN
    report = report_on(quiet, labels, Combination())
    right = (found.argmax(2) == labels)[[0, 2]].any(0)
    assert report["samples"] == 400 and right.float().mean() <= report["oracle"] <= 1
    assert report["members"][1]["answered"] == 0.75 and "answered" not in report["members"][0]
    for scores in (*report["members"], report["ensemble"]):
        assert {"accuracy", "loss", "ece"} <= set(scores) and scores["accuracy"] <= report["oracle"]
    quiet[:, :100] = NAN
    right = (Combination()(found[:, 100:]).argmax(1) == labels[100:]).sum() / 400
    ensemble = report_on(quiet, labels, Combination())["ensemble"]
    assert ensemble["accuracy"] == pytest.approx(float(right))  # none of those that none answers


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("median",), "median"),
        (("weighted",), "weights"),
        (("weighted", (0.5, 0.6)), "their sum is 1"),
        (("weighted", (-0.5, 1.5)), "negative"),
    ],
)
def test_combinations_that_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Combination(*arguments)


def test_numbers_of_members_and_classes_have_to_fit(members):
    found, labels = members
    with pytest.raises(ValueError, match="2 weights for 3 members"):
        Combination("weighted", (0.5, 0.5))(found)
    with pytest.raises(ValueError, match="stacking was fitted to 3 classes and 6 columns"):
        fit_combination("stacking", found[:2], labels)(found)


@pytest.mark.parametrize("method", METHODS)
def test_the_file_keeps_everything(members, method, tmp_path):
    found, labels = members
    combination = fit_combination(method, found, labels)
    (tmp_path / "nets").mkdir()
    for name in ("a", "b", "c"):
        (tmp_path / f"nets/{name}.ckpt").write_bytes(name.encode())
    listed = tuple(ListedMember(str(tmp_path / f"nets/{n}.ckpt"), 1.5) for n in "abc")
    report = {"val": report_on(found, labels, combination)}
    ensemble = EnsembleFile(("x", "y", "z"), listed, combination, True, report)
    write_ensemble(tmp_path / "ensemble.json", ensemble)
    (tmp_path / "moved").mkdir()
    for name in ("nets", "ensemble.json"):
        (tmp_path / name).rename(tmp_path / "moved" / name)
    again = read_ensemble(tmp_path / "moved/ensemble.json")
    assert (again.classes, again.flips, again.report) == (("x", "y", "z"), True, report)
    torch.testing.assert_close(again.combination(found), combination(found))
    assert [member.source for member in again.members] == [
        str(tmp_path / f"moved/nets/{name}.ckpt") for name in "abc"
    ]
    assert json.loads((tmp_path / "moved/ensemble.json").read_text())["members"][0]["sha256"]


def test_a_file_in_a_folder_that_is_a_link(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "far/away").mkdir(parents=True)
    (tmp_path / "link").symlink_to("far/away")
    (tmp_path / "a.ckpt").write_bytes(b"a")
    (tmp_path / "b.ckpt").symlink_to("a.ckpt")
    listed = tuple(map(ListedMember, ("a.ckpt", "link/../../b.ckpt")))
    write_ensemble("link/e.json", EnsembleFile(("x", "y"), listed, Combination()))
    sources = [member.source for member in read_ensemble("link/e.json").members]
    assert [source.rpartition("/")[2] for source in sources] == ["a.ckpt", "b.ckpt"]


def test_files_that_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no.json: no such file to read an ensemble"):
        read_ensemble(tmp_path / "no.json")
    (tmp_path / "a.ckpt").write_bytes(b"a")
    path = tmp_path / "e.json"
    members = (ListedMember(str(tmp_path / "a.ckpt")),)
    write_ensemble(path, EnsembleFile(("x", "y"), members, Combination()))
    good = path.read_text()
    for bad in ("{}", "[]", "{", good.replace('"mean"', '"median"'), good.replace("classes", "no")):
        path.write_text(bad)
        with pytest.raises(ValueError, match="e.json: not an ensemble of `vizoo ensemble`"):
            read_ensemble(path)
    path.write_text(good)
    (tmp_path / "a.ckpt").write_bytes(b"b")
    with pytest.raises(ValueError, match="a.ckpt is another file than when it was written"):
        read_ensemble(path)
    (tmp_path / "a.ckpt").unlink()
    with pytest.raises(FileNotFoundError, match="its member .*a.ckpt is missing"):
        read_ensemble(path)
