"""Tables of trained networks as evaluators, and a search by scores alone."""

from __future__ import annotations

import json
from itertools import product
from statistics import fmean

import numpy as np
import pytest

from vizoo.nas import Architecture, Choice, SearchSpace
from vizoo.nas.differentiable import search_by_score
from vizoo.nas.search import Constraint, UnreachableError
from vizoo.nas.tabular import cell_architecture, mbnet, nasbench201


@pytest.fixture(scope="module")
def cells(shared):
    return nasbench201(shared / "data/nasbench201/accuracy.npz")


@pytest.fixture(scope="module")
def blocks(shared):
    return mbnet(shared / "data/nasbench_mbnet/accuracy.npz")


def expected_best(table, column, count):
    """The mean of the best of `count` networks drawn at random with replacement, exactly."""
    values = np.sort(table.columns[column])
    ranks = np.arange(len(values) + 1) / len(values)
    return float((values * np.diff(ranks**count)).sum())


def test_published_optima(cells, blocks):
    assert len(cells.rows) == cells.space.count() == 15625
    assert len(blocks.rows) == blocks.space.count() == 6561
    for column, best, row in (
        ("cifar10_test", 94.373, 6111),
        ("cifar100_test", 73.513, 9930),
        ("imagenet16_120_test", 47.311, 857),
    ):
        assert cells.columns[column].max() == pytest.approx(best, abs=1e-3)
        assert cells.columns[column].argmax() == row
    best = min(blocks.rows, key=lambda a: blocks.errors("cifar10_test")([a])[0])
    codes = ["skip", "mb3x3e3", "mb5x5e6"]
    assert "".join(str(codes.index(value)) for value in best.values()) == "22212202"
    smallest = blocks.space.smallest()
    assert blocks.look_up(smallest, "params") == 387_882
    assert blocks.look_up(smallest, "cifar10_test") == pytest.approx(45.36, abs=0.01)


def test_expected_best_of_random_networks(cells, blocks):
    wanted = {"cifar10_test": (87.06, 93.10, 93.69, 93.85)}
    wanted["cifar100_test"] = (61.41, 69.82, 71.10, 71.55)
    wanted["imagenet16_120_test"] = (33.59, 43.39, 45.18, 45.63)
    for column, values in wanted.items():
        found = [expected_best(cells, column, count) for count in (1, 10, 50, 100)]
        assert found == pytest.approx(values, abs=0.01)
    found = [expected_best(blocks, "cifar10_test", count) for count in (1, 10, 50, 100)]
    assert found == pytest.approx((90.25, 92.43, 92.77, 92.87), abs=0.01)


def test_cells_have_the_published_names_and_counts(cells, shared):
    cases = json.loads((shared / "golden/nas/nb201_counts.json").read_text())["cases"]
    for case in cases:
        architecture = cell_architecture(case["arch"])
        assert architecture in cells.space
        assert cells.look_up(architecture, "params") == case["params_10"]
        assert cells.look_up(architecture, "flops") == case["table_flops_cifar10"]
    with pytest.raises(ValueError, match="names no cell: wanted"):
        cell_architecture("|none~0|+|none~0|none~1|")


@pytest.mark.parametrize(
    ("table", "column"), [("cells", "cifar10_test"), ("blocks", "cifar10_test")]
)
def test_scores_lead_to_better_networks_than_chance(request, table, column):
    table = request.getfixturevalue(table)
    found = [
        search_by_score(table.space, table.errors(column), evaluations=60, seed=seed)
        for seed in range(5)
    ]
    assert all(len({item.architecture for item in result.evaluated}) == 60 for result in found)
    by_chance = expected_best(table, column, 60)
    assert fmean(100 - result.score for result in found) > by_chance + 0.05
    again = search_by_score(table.space, table.errors(column), evaluations=60, seed=0)
    assert again == found[0]


def test_a_search_by_scores_of_one_architecture():
    space = SearchSpace([Choice("depth", (1,)), Choice("kernel", (3, 5))], {"kernel": []})
    result = search_by_score(space, lambda networks: [2.0] * len(networks), evaluations=9, seed=0)
    assert (result.best, result.score) == (space.smallest(), 2.0) and len(result.evaluated) == 1


def test_a_search_by_scores_keeps_to_limits_and_ends():
    space = SearchSpace([Choice(f"c{i}", (0, 1, 2)) for i in range(3)])
    limit = Constraint("size", lambda a: sum(a.values()), 3)
    objective = lambda found: [-sum(a.values()) for a in found]  # noqa: E731
    result = search_by_score(space, objective, evaluations=10, constraints=[limit], seed=0)
    assert result.score == -3 and all(limit.satisfied(i.architecture) for i in result.evaluated)
    whole = search_by_score(space, objective, evaluations=500, seed=0)
    assert whole.best == space.largest() and len(whole.evaluated) <= 27
    with pytest.raises(UnreachableError):
        limit = Constraint("size", lambda a: 1 + sum(a.values()), 0)
        search_by_score(space, objective, evaluations=10, constraints=[limit], seed=0)
    with pytest.raises(ValueError, match="none of 4 architectures had a finite score"):
        search_by_score(space, lambda found: [float("nan")] * len(found), evaluations=4, seed=0)


def test_files_that_are_no_tables(tmp_path, cells):
    with pytest.raises(FileNotFoundError, match="no such file to read a table of accuracies"):
        nasbench201(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("no")
    with pytest.raises(ValueError, match="text.npz: not a table of accuracies"):
        mbnet(tmp_path / "text.npz")
    accuracies = {n: np.zeros(5) for n in ("cifar10_test", "cifar100_test", "imagenet16_120_test")}
    np.savez(tmp_path / "few.npz", arch=np.zeros((5, 6), np.uint8), **accuracies)
    with pytest.raises(ValueError, match=r"few.npz: arch has the shape \(5, 6\)"):
        nasbench201(tmp_path / "few.npz")
    np.save(tmp_path / "bare.npy", np.zeros(3))
    with pytest.raises(ValueError, match="bare.npy: not a table of accuracies"):
        mbnet(tmp_path / "bare.npy")
    codes = np.array(list(product(range(3), repeat=8)))
    table = {"cifar10_test": np.zeros((6561, 3)), "params": np.ones(6561), "macs": np.ones(6561)}
    for code in (-1, 3, 0.5):
        np.savez(tmp_path / "codes.npz", arch=np.where(codes == 0, code, codes), **table)
        with pytest.raises(ValueError, match=r"codes.npz: arch has the shape .* from 0 to 2$"):
            mbnet(tmp_path / "codes.npz")
    np.savez(tmp_path / "float.npz", arch=codes.astype(float), **table)
    assert len(mbnet(tmp_path / "float.npz").rows) == 6561
    np.savez(tmp_path / "short.npz", arch=codes, **{**table, "macs": np.float64(3)})
    with pytest.raises(
        ValueError, match=r"short.npz: macs has the shape \(\) and .* \(6561,\) finite"
    ):
        mbnet(tmp_path / "short.npz")
    for bad in (np.zeros((15625, 3)), np.full(15625, np.nan), np.full(15625, "1.0")):
        columns = {**cells.columns, "cifar10_test": bad}
        codes = np.array(list(product(range(5), repeat=6)))
        np.savez(tmp_path / "bad.npz", arch=codes, **columns)
        with pytest.raises(ValueError, match=r"bad.npz: cifar10_test has .* \(15625,\) finite"):
            nasbench201(tmp_path / "bad.npz")
    (tmp_path / "empty.npz").touch()
    np.savez_compressed(tmp_path / "rotten.npz", arch=np.arange(9999))
    with open(tmp_path / "rotten.npz", "r+b") as file:
        file.seek(60)
        file.write(b"\xff" * 60)
    content = bytearray((tmp_path / "few.npz").read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1  # the flag of what takes a password
    (tmp_path / "locked.npz").write_bytes(content)
    for name in ("empty.npz", "rotten.npz", "locked.npz"):
        with pytest.raises(ValueError, match=f"{name}: not a table of accuracies"):
            mbnet(tmp_path / name)
    with pytest.raises(ValueError, match="no column 'cifar'"):
        cells.look_up(cells.space.smallest(), "cifar")
    with pytest.raises(ValueError):
        cells.look_up(Architecture({"edges.0_1": "none"}), "cifar10_test")
