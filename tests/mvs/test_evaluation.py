"""Scores: against itself nothing, against a shifted cloud the shift; each rule by itself."""

import numpy as np
import pytest
from scipy.io import savemat

from vizoo.mvs.evaluation import (
    DTUTruth,
    dtu_score,
    f_score,
    read_dtu_truth,
    thin,
)
from vizoo.mvs.fusion import PRESETS
from vizoo.vision.io.ply import write_ply

LATTICE = np.stack(np.meshgrid(*[np.arange(12.0)] * 3, indexing="ij"), -1).reshape(-1, 3)


def lattice_truth(**changes):
    facts = {
        "points": LATTICE,
        "mask": np.ones((30, 30, 30), bool),
        "box": np.array([[-5.0, -5, -5], [25, 25, 25]]),
        "resolution": 1.0,
        "plane": np.array([0.0, 0, 1, 100]),
    }
    return DTUTruth(**{**facts, **changes})


def test_a_cloud_against_itself_and_shifted():
    assert dtu_score(LATTICE, lattice_truth()).overall == 0
    score = dtu_score(LATTICE + [0.3, 0, 0], lattice_truth())
    assert score.accuracy == pytest.approx(0.3) and score.completeness == pytest.approx(0.3)
    assert score.thinned == score.observed == len(LATTICE) and score.far == (0, 0)
    assert f_score(LATTICE, LATTICE, 0.01).f_score == 1
    assert f_score(LATTICE + [0.3, 0, 0], LATTICE, 0.31).f_score == 1
    assert f_score(LATTICE + [0.3, 0, 0], LATTICE, 0.29).f_score == 0


def test_only_the_observed_space_counts_for_accuracy():
    """Cells are centred on the lattice of the box, as MATLAB's round(x + 1) has it."""
    mask = np.zeros((30, 30, 30), bool)
    mask[5, 5, 5] = True  # x from -0.5 to 0.5
    inside, outside = [[0.4, 0, 0]], [[0.6, 0, 0], [-0.6, 0, 0], [1e6, 0, 0], [-1e6, 0, 0]]
    score = dtu_score(np.array(inside + outside), lattice_truth(mask=mask))
    assert score.observed == 1 and score.accuracy == pytest.approx(0.4)


def test_only_the_scan_above_the_table_counts_for_completeness():
    truth = lattice_truth(plane=np.array([0.0, 0, 1, -10.5]))  # leaves the layer z = 11
    points = LATTICE[LATTICE[:, 2] == 11] - [0, 0, 0.25]
    score = dtu_score(points, truth)
    assert score.completeness == pytest.approx(0.25) and score.far[1] == 0
    assert dtu_score(points, lattice_truth()).completeness > 4


def test_far_points_are_left_out_of_the_means():
    points = np.concatenate([LATTICE + [0.1, 0, 0], [[24.0, 24, 24]]])
    score = dtu_score(points, lattice_truth())
    assert score.accuracy == pytest.approx(0.1) and score.far[0] == pytest.approx(1 / len(points))
    wide = lattice_truth(mask=np.ones((80, 80, 80), bool), box=np.array([[-5.0] * 3, [75.0] * 3]))
    points[-1] = 70  # farther than neighbours are looked for
    beyond = dtu_score(points, wide)
    assert beyond.accuracy == pytest.approx(0.1) and np.isfinite(beyond.completeness)


def thinned_one_by_one(points, spacing, seed):
    """The rule of the benchmark, literally."""
    kept = []
    for index in np.random.default_rng(seed).permutation(len(points)):
        near = np.linalg.norm(points[kept] - points[index], axis=1) <= spacing
        if not near.any():
            kept.append(index)
    return kept


@pytest.mark.parametrize("count", [1, 50, 2000])
def test_thinning_is_that_of_one_by_one(count):
    points = np.random.default_rng(1).uniform(0, 1, (count, 3)).astype(np.float32)
    for spacing, seed in ((0.1, 0), (0.05, 3), (2.0, 5)):
        found = thin(points, spacing, seed=seed)
        assert list(found) == thinned_one_by_one(points, spacing, seed)


def test_thinning_in_bounded_memory(monkeypatch):
    """A cloud that is all neighbours is gone through in smaller steps, to the same end."""
    points = np.random.default_rng(1).uniform(0, 1, (12_000, 3))
    wanted = thin(points, 0.02)
    monkeypatch.setattr("vizoo.mvs.evaluation._PAIRS", 50)
    np.testing.assert_array_equal(thin(points, 0.02), wanted)


def test_order_is_seeded():
    points = np.random.default_rng(1).uniform(0, 1, (500, 3))
    first = thin(points, 0.2, seed=1)
    np.testing.assert_array_equal(first, thin(points, 0.2, seed=1))
    assert not np.array_equal(first, thin(points, 0.2, seed=2))


def test_precision_and_recall():
    cloud = np.concatenate([LATTICE[:864] + [0.01, 0, 0], LATTICE[:864] + 100])
    score = f_score(cloud, LATTICE, 0.05)
    assert (score.precision, score.recall, score.f_score) == (0.5, 0.5, 0.5)
    assert f_score(LATTICE, LATTICE[:432], 0.05).precision == 0.25


@pytest.fixture
def dtu(tmp_path):
    """A folder as the benchmark's archives unpack, with scan 9."""
    folder = tmp_path / "MVS Data"
    (folder / "ObsMask").mkdir(parents=True)
    truth = lattice_truth()
    savemat(
        folder / "ObsMask/ObsMask9_10.mat",
        {"ObsMask": truth.mask.astype(np.uint8), "BB": truth.box, "Res": truth.resolution},
    )
    savemat(folder / "ObsMask/Plane9.mat", {"P": truth.plane[:, None]})
    with write_ply(folder / "Points/stl/stl009_total.ply") as ply:
        ply.write(truth.points, np.zeros(truth.points.shape, np.uint8))
    return tmp_path


def test_the_benchmarks_files(dtu):
    truth = read_dtu_truth(dtu, 9)
    score = dtu_score(LATTICE + [0, 0.25, 0], truth)
    assert score.overall == pytest.approx(0.25)
    assert read_dtu_truth(dtu / "MVS Data", 9).resolution == 1
    assert sum(name.startswith("dtu/scan") for name in PRESETS) == 22  # of the evaluation set


def test_damaged_files_are_named(dtu):
    with pytest.raises(FileNotFoundError, match="ObsMask7_10.mat: no such file"):
        read_dtu_truth(dtu, 7)
    file = dtu / "MVS Data/ObsMask/Plane9.mat"
    savemat(file, {"Q": 1})
    with pytest.raises(ValueError, match=r"Plane9\.mat: holds no variable P"):
        read_dtu_truth(dtu, 9)
    savemat(file, {"P": np.ones(3)})
    with pytest.raises(ValueError, match=r"Plane9\.mat: P holds four numbers, got 3"):
        read_dtu_truth(dtu, 9)
    file.write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match=r"Plane9\.mat: not a MATLAB file"):
        read_dtu_truth(dtu, 9)


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (LATTICE + 1000, "no point of the cloud lies in the observed space.*1000..1011"),
        (LATTICE[:0], r"shape \(N, 3\) with a point at least, got \(0, 3\)"),
        (LATTICE[:, :2], r"got \(1728, 2\)"),
        (LATTICE * np.nan, "not finite"),
    ],
)
def test_clouds_without_a_score(points, message):
    with pytest.raises(ValueError, match=message):
        dtu_score(points, lattice_truth())
    if "observed" not in message:
        with pytest.raises(ValueError, match=message):
            f_score(points, LATTICE, 0.1)
