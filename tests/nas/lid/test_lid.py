"""Dimensions, similarities and partitions: published values, invariants, refusals."""

from __future__ import annotations

import itertools
import json
import random

import numpy as np
import pytest
import torch

from vizoo.nas.lid import (
    choose_edge,
    compare,
    distances,
    lid,
    mean_gaps,
    partition,
    rate,
    similarity,
    two_nn,
)

MEASURES = {"cosine": "cosine", "mse": "euclidean", "correcoef": "pearson"}


@pytest.fixture(scope="module")
def points(golden):
    folder, _ = golden("nas")
    arrays = np.load(folder / "lid.npz", allow_pickle=False)
    return json.loads((folder / "lid.json").read_text()), arrays


@pytest.fixture(scope="module")
def splits(golden):
    folder, _ = golden("nas")
    arrays = np.load(folder / "split.npz", allow_pickle=False)
    return json.loads((folder / "split.json").read_text()), arrays


def noise(count, size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, size, generator=generator, dtype=torch.float64)


def test_published_dimensions(points):
    cases, arrays = points
    compared = 0
    for name, case in cases.items():
        for k in (5, 10, 20):
            if f"{name}_lid_k{k}" not in arrays:
                continue
            found = lid(torch.from_numpy(arrays[name]), k).numpy()
            assert np.allclose(found, arrays[f"{name}_lid_k{k}"], rtol=1e-6, atol=0)
            assert found.mean() == pytest.approx(case[f"k{k}_exact_mean"], rel=1e-6)
            compared += 1
            if f"k{k}_published_float32" in case:
                wanted = case[f"k{k}_published_float32"]
                assert found.mean() == pytest.approx(wanted, rel=2e-3)
    assert compared == 22


def test_published_two_nearest_neighbours(points):
    cases, arrays = points
    named = {name: case for name, case in cases.items() if "twonn1" in case}
    assert len(named) == 7
    for name, case in named.items():
        found = torch.from_numpy(arrays[name])
        assert float(two_nn(found)) == pytest.approx(case["twonn1"], rel=1e-9)
        assert float(two_nn(found, last=True)) == pytest.approx(case["twonn2"], rel=1e-9)


@pytest.mark.parametrize("k", [10, 20, 50])
def test_the_unbiased_estimator_is_nearly_so(k):
    """In a plane of five dimensions, within the noise of its estimate; the paper's is higher."""
    plane = noise(5, 60, seed=1)
    means = torch.tensor(
        [
            [lid(noise(400, 5, seed) @ plane, k, e).mean() for e in ("unbiased", "paper")]
            for seed in range(4)
        ]
    ).mean(0)
    assert 4.3 < means[0] < 5.4 and means[1] > means[0] * (k - 1) / (k - 2)


@pytest.mark.parametrize("scale", [1e-5, 1e5])
def test_offset_and_scale_do_not_disturb(scale):
    x = noise(64, 30)
    wanted = lid(x, estimator="unbiased")
    assert torch.allclose(lid(x * scale, estimator="unbiased"), wanted, rtol=1e-9)
    assert torch.allclose(lid((x + 1000).float(), estimator="unbiased"), wanted, rtol=2e-3)


@pytest.mark.parametrize("estimator", ["paper", "unbiased"])
def test_equal_samples_have_no_dimension(estimator):
    assert not lid(torch.zeros(32, 9), estimator=estimator).any()
    x = noise(40, 6)
    x[3] = x[10]
    found = lid(x, estimator=estimator)
    assert found[3] == found[10] == 0 and (found > 0).sum() == 38


def test_features_are_flattened_and_many_of_them_taken_in_parts():
    x = noise(24, 2 * 3 * 3000)
    assert torch.equal(lid(x.view(24, 2, 3, 3000)), lid(x))
    exact = (x[:, None] - x[None]).square().sum(-1).sqrt()
    assert torch.allclose(distances(x), exact, rtol=1e-12)


@pytest.mark.parametrize(
    ("features", "k", "estimator", "message"),
    [
        (torch.rand(21, 4), 20, "paper", "21 samples are too few for 20 neighbours: give a batch"),
        (torch.rand(3, 4), 2, "paper", "3 samples .* give a batch of 4 or more$"),
        (torch.rand(4, 4), 3, "paper", "give a batch of 5 or more, or k of at most 2$"),
        (torch.tensor(1.0), 5, "paper", "0 samples are too few for 5 neighbours"),
        (
            1e200 * torch.rand(30, 4).double(),
            5,
            "paper",
            r"features of up to \S+ are too far apart",
        ),
        (torch.full((30, 4), torch.nan), 20, "paper", "120 of 120 features are NaN or infinite"),
        (torch.rand(30, 0), 5, "paper", r"not the shape \(30, 0\)"),
        (torch.rand(30), 5, "paper", r"not the shape \(30,\)"),
        (torch.rand(30, 4), 2, "unbiased", "k 2: the unbiased estimator needs 3 neighbours"),
        (torch.rand(30, 4), 1, "paper", "k 1: the paper estimator needs 2 neighbours"),
        (torch.eye(30), 5, "unbiased", "sample 0: its 5 nearest neighbours are all equally far"),
        (torch.eye(30), 5, "paper", "sample 0: its 5 nearest neighbours are all equally far"),
    ],
)
def test_degenerate_features_are_refused(features, k, estimator, message):
    with pytest.raises(ValueError, match=message):
        lid(features, k, estimator)


def test_two_neighbours_refuse_what_has_no_ratio():
    with pytest.raises(ValueError, match="three samples, not of 2"):
        two_nn(torch.rand(2, 2))
    with pytest.raises(ValueError, match="equally far: no dimension fits"):
        two_nn(torch.eye(5))


@pytest.mark.parametrize("last", [False, True])
def test_equal_samples_count_as_nothing_to_two_neighbours(last):
    """Far from the others they change no ratio but their own."""
    x = noise(30, 3)
    dead = torch.full((10, 3), 1e3).double()
    found = two_nn(torch.cat([x, dead]), last=last)
    assert float(found) == pytest.approx(0.75 * float(two_nn(x, last=last)), rel=1e-9)
    for alive in (0, 1):  # too few for a line
        assert two_nn(torch.cat([x[:alive], dead]), last=last) == 0


def test_equal_samples_fill_no_direction():
    assert two_nn(torch.ones(30, 2)) == 0
    with pytest.raises(ValueError, match="no dimension of each sample by 'two_nn'"):
        lid(torch.rand(30, 2), 5, "two_nn")


def test_published_similarities_and_partitions(splits):
    cases, arrays = splits
    assert len(cases) == 6
    for key, case in cases.items():
        name, measure = key.split("/")
        found = {}
        for index, edge in enumerate(case["edges"]):
            vectors = torch.from_numpy(arrays[name][index])
            alike = similarity(vectors, MEASURES[measure])
            assert np.allclose(alike, arrays[f"{name}_{measure}_{index}"], rtol=1e-6, atol=1e-9)
            found[edge["edge"]] = parted = partition(alike)
            assert sorted(map(list, parted.groups)) == sorted(edge["groups"])
            figures = (parted.intra, parted.inter, mean_gaps({"": parted})[""])
            wanted = (edge["intra_sum"], edge["inter_sum"], edge["mean_gap"])
            assert figures == pytest.approx(wanted, rel=1e-6, abs=1e-8)
            second = max(
                p.intra
                for p in (rate(alike, (g, set(range(5)) - set(g))) for g in pairs(5))
                if p.groups != parted.groups
            )
            assert parted.intra - second == pytest.approx(edge["margin_to_second_split"], abs=1e-8)
        for rule in ("largest_intra", "smallest_inter", "largest_mean_gap", "released_code"):
            assert choose_edge(found, rule) == case[f"edge_by_{rule}"]


def pairs(count):
    return [list(pair) for pair in itertools.combinations(range(count), 2)]


def test_published_spectral_partitions(splits):
    """Two means have local optima: some published labels are of one, and never of a better one."""
    cases, arrays = splits
    same = 0
    for key, case in cases.items():
        name, measure = key.split("/")
        for index, edge in enumerate(case["edges"]):
            alike = torch.from_numpy(arrays[f"{name}_{measure}_{index}"])
            found = partition(alike, "spectral", min_group=1)
            labels = edge["spectral_labels"]
            wanted = rate(alike, [[i for i in range(5) if labels[i] == n] for n in (0, 1)])
            if found.groups == wanted.groups:
                same += 1
            else:
                assert name == "network"
    assert same == 31


def choices(seed, counts, planted=0, dead=1):
    """Vectors of choices: clouds, but one of two clusters and one whose candidates are alike.

    Returns:
        Vectors, (count, 17) each, and the members of the planted choice's smaller cluster.
    """
    rng = torch.Generator().manual_seed(seed)
    found = [10 + torch.randn(count, 17, generator=rng) for count in counts]
    count = counts[planted]
    members = torch.randperm(count, generator=rng)[: count // 2]
    found[planted] = 10 + 0.4 * torch.randn(count, 17, generator=rng)
    found[planted][members] += 3 * torch.randn(17, generator=rng)
    if dead is not None:
        found[dead] = found[dead][:1] + 0.01 * torch.randn(counts[dead], 17, generator=rng)
    return found, tuple(sorted(members.tolist()))


def parted(vectors):
    return {str(index): partition(similarity(v)) for index, v in enumerate(vectors)}


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("seed", range(20))
def test_planted_edges_are_found(seed, count):
    """Of six choices with as many candidates each."""
    vectors, members = choices(seed, [count] * 6, planted=seed % 6, dead=(seed + 1) % 6)
    found = parted(vectors)
    assert choose_edge(found) == str(seed % 6)
    if count % 2:
        assert found[str(seed % 6)].groups[0] == members
    assert choose_edge(found, "released_code") != str(seed % 6)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("seed", range(20))
def test_planted_edges_are_found_among_choices_of_other_counts(seed, count):
    counts = random.Random(seed).choices(range(2, 7), k=6)
    counts[seed % 6] = count
    found = parted(choices(seed, counts, planted=seed % 6, dead=(seed + 1) % 6)[0])
    assert choose_edge(found) == str(seed % 6)


@pytest.mark.parametrize("seed", range(20))
def test_a_planted_pair_is_found_among_wide_choices(seed):
    counts = [2, 3, 4, 5, 6, 5]
    vectors, _ = choices(seed, counts)
    assert choose_edge(parted(vectors)) == "0"
    vectors[0] = 10 + 0.3 * (vectors[0] - 10)  # its two are now no less alike than others are
    assert choose_edge(parted(vectors)) != "0"


@pytest.mark.parametrize("count", [2, 3, 7, 12])
def test_exact_partitions_are_the_best_of_all(count):
    x = noise(count, 4, seed=count)
    alike = similarity(x)
    least = max(1, count // 3)
    found = partition(alike, "exact", min_group=least)
    every = [
        rate(alike, (group, set(range(count)) - set(group)))
        for size in range(least, count - least + 1)
        for group in itertools.combinations(range(count), size)
    ]
    assert found.intra == pytest.approx(max(p.intra for p in every), rel=1e-12)
    assert found.intra + found.inter == pytest.approx(float(alike.triu(1).sum()))


def test_many_candidates_are_parted_by_spectral_clustering():
    x = noise(30, 4) + 20 * (torch.arange(30) % 3 == 0)[:, None]
    for least in (None, 5):
        found = partition(similarity(x), min_group=least)
        assert found.groups[0] == tuple(range(0, 30, 3))
    assert partition(similarity(x[:13])) == partition(similarity(x[:13]), "spectral")
    assert partition(similarity(x[:12])) == partition(similarity(x[:12]), "exact")
    with pytest.raises(ValueError, match="13 candidates have too many bipartitions to try"):
        partition(similarity(x[:13]), "exact")


def test_random_partitions_are_drawn():
    alike, rng = similarity(noise(5, 3)), random.Random(0)
    drawn = {partition(alike, "random", rng=rng).groups for _ in range(200)}
    assert len(drawn) == 10 and all(len(small) == 2 for small, _ in drawn)


def test_pairs_part_by_how_unlike_they_are():
    """Among pairs alone nothing else is known; beside wider choices their groups say what is."""
    pairs = {name: partition(alike(2, value)) for name, value in (("a", 0.5), ("b", 0.25))}
    assert mean_gaps(pairs) == {"a": 0.5, "b": 0.75}
    wide = partition(torch.tensor([[1.0, 0.75, 0.5], [0.75, 1, 0.5], [0.5, 0.5, 1]]))
    assert (wide.inside, wide.across) == (0.75, 0.5)
    dead = partition(alike(4, 1.0))
    assert mean_gaps({"dead": dead, "wide": wide, **pairs}) == {
        "dead": 0,
        "wide": 0.25,
        "a": 0.25,
        "b": 0.5,
    }


def alike(count, value):
    return torch.full((count, count), value).fill_diagonal_(1)


@pytest.mark.parametrize("measure", ["cosine", "pearson"])
@pytest.mark.parametrize("seed", range(5))
def test_opposites_are_parted_by_spectral_clustering(measure, seed):
    """Similarities of −1, with which candidates may have no neighbour at all."""
    direction = noise(1, 9, seed) - noise(1, 9, seed).mean()
    sides = torch.tensor([1, -1, -1, 1, -1] + 9 * [-1])
    found = partition(similarity(sides[:, None] * direction, measure), min_group=1)
    assert found.groups[0] == (0, 3)
    lone = partition(similarity(sides[2:5, None] * direction, measure), "spectral")
    assert lone.groups == ((1,), (0, 2))


def test_spectral_clustering_of_nothing_alike():
    assert partition(alike(6, -1.0), "spectral", min_group=3).intra == -6
    with pytest.raises(ValueError, match="takes similarities of −1 or more"):
        partition(alike(6, -1.5), "spectral")


def test_vectors_of_zeros_are_like_each_other():
    vectors = torch.tensor([[0.0, 0, 0], [0, 0, 0], [1, 2, 3]])
    for measure in ("cosine", "pearson"):
        wanted = torch.tensor([[1.0, 1, 0], [1, 1, 0], [0, 0, 1]], dtype=torch.float64)
        assert torch.allclose(similarity(vectors, measure), wanted)


@pytest.mark.parametrize("length", [3, 6, 7, 10])
def test_vectors_of_one_value_are_alike_and_like_no_other_by_pearson(length):
    """Also where their mean is rounded, so that something is left without it."""
    rows = torch.tensor([[0.7], [1.1], [0.1]], dtype=torch.float64).expand(3, length)
    vectors = torch.cat([rows, torch.arange(length)[None].double()])
    wanted = torch.block_diag(torch.ones(3, 3), torch.ones(1, 1)).double()
    torch.testing.assert_close(similarity(vectors, "pearson"), wanted)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: similarity(torch.rand(3)), r"wanted vectors \(n, d\)"),
        (lambda: similarity(torch.full((2, 2), torch.nan)), "not finite"),
        (lambda: similarity(torch.rand(2, 2), "mse"), "choose euclidean, cosine or pearson"),
        (lambda: partition(torch.eye(1)), "two candidates or more"),
        (lambda: partition(torch.rand(3, 2)), "two candidates or more"),
        (lambda: partition(torch.tensor([[1.0, 2], [3, 1]])), "finite and symmetric"),
        (lambda: partition(torch.eye(5), min_group=3), "min_group 3: 5 candidates allow 1 to 2"),
        (lambda: partition(torch.eye(5), "best of all"), "choose best, exact, spectral or random"),
        (lambda: rate(torch.eye(3), ([0], [1])), "hold each of 3 candidates once"),
        (lambda: rate(torch.eye(3), ([0, 1, 2], [])), "a group is empty"),
        (lambda: choose_edge({}), "no choice is left"),
        (lambda: choose_edge({"a": partition(torch.eye(2))}, "best"), "rule 'best' is unknown"),
        (lambda: compare([1.0], [1.0]), "two or more predictions"),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_rankings_are_compared_with_the_truth():
    truth = [float(i) for i in range(20)]
    same = compare(truth, truth)
    assert (same.kendall, same.spearman) == pytest.approx((1, 1)) and same.precision[5] == 1
    opposite = compare(truth[::-1], truth)
    assert opposite.kendall == pytest.approx(-1) and opposite.precision == {5: 0, 10: 0}
    constant = compare([1.0] * 20, truth)
    assert constant.to_json()["kendall"] is None
