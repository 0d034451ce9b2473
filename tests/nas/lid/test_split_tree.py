"""Trees of splits part a space; profiles and splits leave their supernet as it is."""

from __future__ import annotations

import copy
import json
import random
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from search_spaces import easnet_space, small_space, spaces
from torch import nn
from toy_regression import Net

from vizoo.nas.elastic import Operation
from vizoo.nas.lid import (
    Leaves,
    Split,
    Splitter,
    SplitTree,
    gradients,
    joined,
    lid,
    named_layers,
    profile,
    splittable,
    two_nn,
)
from vizoo.nas.space import Choice, SearchSpace
from vizoo.nas.supernet import activate, active, search_space

BATCH = torch.randn(12, 4, 6, 6, generator=torch.Generator().manual_seed(0))


def random_tree(space, rng, levels):
    tree = SplitTree(space)
    for _ in range(levels):
        for leaf in tree.leaves:
            if names := splittable(tree.space_of(leaf)):
                choice = tree.space_of(leaf).choices[rng.choice(names)]
                values = rng.sample(choice.values, len(choice.values))
                cut = rng.randint(1, len(values) - 1)
                tree.split(leaf, Split(choice.name, (tuple(values[:cut]), tuple(values[cut:]))))
    return tree


@given(spaces(), st.randoms(use_true_random=False))
def test_leaves_are_disjoint_and_cover_the_space(space, rng):
    tree = random_tree(space, rng, 3)
    if space.count() > 2000:
        return
    leaves = {name: tree.space_of(name) for name in tree.leaves}
    assert sum(leaf.count() for leaf in leaves.values()) == space.count()
    for architecture in space.enumerate():
        holding = [name for name, leaf in leaves.items() if architecture in leaf]
        assert holding == [tree.leaf_of(architecture)]
    assert SplitTree.from_json(json.loads(json.dumps(tree.to_json()))).to_json() == tree.to_json()


def test_choices_that_part_a_space():
    space = easnet_space()
    names = splittable(space)
    assert "s" in names and "ks.0.0" in names and "ks.0.3" not in names and "d.3" not in names
    assert "d.3" in splittable(space.restrict({"s": [4]}))


def test_trees_are_files(tmp_path):
    tree = random_tree(small_space(), random.Random(0), 2)
    tree.checkpoints["0"], tree.about = "0.ckpt", {"epochs": [1]}
    path = tree.save(tmp_path / "tree.json")
    found = SplitTree.load(path, small_space())
    assert found.to_json() == tree.to_json() and found.checkpoints == {"0": "0.ckpt"}
    assert found.path_splits("01") == [found.splits["root"], found.splits["0"]]
    with pytest.raises(ValueError, match="tree.json: this tree parts another search space"):
        SplitTree.load(path, easnet_space())


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"format": "x"}, "not a tree of splits"),
        ({"version": 2}, "a tree of splits of version 2"),
        ({"splits": []}, "no splits, checkpoints and about by name"),
        ({"about": None}, "no splits, checkpoints and about by name"),
        ({"checkpoints": {"root": None}}, "None is no file of node 'root'"),
        ({"splits": {"root": {}}}, "not a split: KeyError"),
        ({"splits": {"00": {"choice": "depth", "groups": [[1], [2]]}}}, "has no node '00'"),
        (
            {"splits": {"root": {"choice": "depth", "groups": [[1], [2]]}}},
            "not two to ten groups that hold each value of 'depth' once; it has",
        ),
        (
            {"splits": {"root": {"choice": "blocks.1.width", "groups": [[8], [16, 24]]}}},
            "cannot be split by 'blocks.1.width': only by a choice that matters in all",
        ),
        (
            {"splits": {"root": {"choice": "depth", "groups": [[1, 2, 3]]}}},
            r"\[\[1, 2, 3\]\] are not two to ten groups",
        ),
        ({"checkpoints": {"5": "a"}}, "has no node '5'"),
    ],
)
def test_damaged_trees_are_refused(tmp_path, damage, message):
    content = SplitTree(small_space()).to_json() | damage
    (tmp_path / "tree.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message) as found:
        SplitTree.load(tmp_path / "tree.json")
    assert str(found.value).startswith(str(tmp_path / "tree.json"))


def test_a_split_node_is_not_split_again():
    tree = SplitTree(small_space())
    assert tree.split("root", Split("depth", ((1,), (2, 3)))) == ("0", "1")
    with pytest.raises(ValueError, match="node 'root' is split already"):
        tree.split("root", Split("depth", ((1,), (2, 3))))
    assert "blocks.1.width" in splittable(tree.space_of("1"))


def test_leaves_take_their_own_weights():
    net = Net()
    tree = SplitTree(search_space(net))
    tree.split("root", Split("depth", ((1,), (2,))))
    tree.checkpoints |= {"root": "root.ckpt", "1": "1.ckpt"}
    states = {name: Net().state_dict() for name in ("root.ckpt", "1.ckpt")}
    reads = []

    def read(file):
        reads.append(file)
        return states[file], None

    leaves, space = Leaves(tree, net, read), tree.space
    for architecture, file in ((space.smallest(), "root.ckpt"), (space.largest(), "1.ckpt")):
        assert leaves.activate(architecture) == active(net) == architecture
        held = net.state_dict()
        assert all(torch.equal(held[name], value) for name, value in states[file].items())
    leaves.activate(space.largest())
    assert reads == ["root.ckpt", "1.ckpt"]
    del tree.checkpoints["root"]
    with pytest.raises(ValueError, match="node '0' of the tree has no checkpoint"):
        Leaves(tree, net, read)


def test_more_groups_than_digits_are_refused():
    space = SearchSpace([Choice("wide", tuple(range(11)))])
    with pytest.raises(ValueError, match="are not two to ten groups"):
        SplitTree(space).split("root", Split("wide", tuple((i,) for i in range(11))))


def test_leaves_refuse_weights_of_another_network():
    net = Net()
    tree = SplitTree(search_space(net))
    tree.checkpoints["root"] = "root.ckpt"
    state = net.state_dict()
    state["blocks.0.project.bias"] = torch.zeros(5)
    del state["blocks.1.norm.weight"]
    refused = "root.ckpt: weights of another network: 2 tensors are missing, .* such as blocks.0.pr"
    with pytest.raises(ValueError, match=refused):
        Leaves(tree, net, lambda _: (state, None)).activate(tree.space.largest())


def test_a_profile_is_of_every_layers_output():
    net = Net().eval()
    layers = named_layers(net, ["blocks.*", "blocks.*.expand"])
    assert list(layers) == ["blocks.0", "blocks.0.expand", "blocks.1", "blocks.1.expand"]
    activate(net, search_space(net).restrict({"depth": [1]}).largest())
    found = profile(net, BATCH, layers, k=5, running_statistics=True)
    assert found[2:].isnan().all()  # they do not run
    with torch.no_grad():
        wanted = [net.blocks[0](BATCH), net.blocks[0].expand(BATCH)]
    assert torch.equal(found[:2], torch.stack([lid(x, 5).mean() for x in wanted]))


@pytest.mark.parametrize("what", ["profile", "gradients", "lid", "gradient"])
@pytest.mark.parametrize("training", [True, False])
def test_the_supernet_stays_as_it_is(what, training):
    net = Net().train(training)
    net.blocks[0].norm.eval()  # modes may differ from layer to layer
    space = search_space(net)
    activate(net, space.smallest())
    net(BATCH).mean().backward()
    state = copy.deepcopy(net.state_dict())
    grads = [None if p.grad is None else p.grad.clone() for p in net.parameters()]
    modes = [module.training for module in net.modules()]
    if what == "profile":
        first = profile(net, BATCH, k=5)
        again = profile(net, BATCH, k=5)
        assert torch.allclose(first, again, rtol=0, atol=0, equal_nan=True)
        assert not first.requires_grad
    elif what == "gradients":
        assert gradients(net, BATCH, lambda net, x: net(x).square().mean())
    else:
        splitter = Splitter(what, k=5, batches=1, batch_size=12)
        splitter.split(net, space, [BATCH], loss=lambda net, x: net(x).square().mean())
    assert all(torch.equal(state[name], value) for name, value in net.state_dict().items())
    assert [module.training for module in net.modules()] == modes
    assert active(net) == space.smallest()
    assert not any(module._forward_hooks for module in net.modules())
    for parameter, grad in zip(net.parameters(), grads, strict=True):
        assert parameter.grad is grad is None or torch.equal(parameter.grad, grad)


def test_the_state_comes_back_after_an_error():
    net = Net().train()
    bad = BATCH.clone()
    bad[0, 0, 0, 0] = torch.nan
    with pytest.raises(ValueError, match="layer 'blocks.0': .* features are NaN or infinite"):
        profile(net, bad, k=5)
    assert all(m.training for m in net.modules())
    assert int(net.blocks[0].norm.num_batches_tracked) == 0
    with pytest.raises(ValueError, match="layer 'blocks.0': 12 samples are too few for 20"):
        profile(net, BATCH)


def test_samples_without_a_dimension_are_left_out_of_a_profile():
    """Where a layer is dead for nearly all samples, the few others are equally far from those."""
    net = nn.Sequential(nn.ReLU())
    batch = -torch.rand(30, 4)
    batch[3] = torch.tensor([1.0, 0.0, 2.0, 0.0])
    assert profile(net, batch, dict(net.named_children()), k=5).tolist() == [0.0]
    with pytest.raises(ValueError, match="layer '0': the 5 nearest neighbours of every sample are"):
        profile(net, torch.eye(30), dict(net.named_children()), k=5)


@pytest.mark.parametrize("estimator", ["paper", "unbiased", "two_nn"])
def test_a_layer_that_is_dead_for_most_samples_has_a_small_dimension(estimator):
    net = nn.Sequential(nn.Identity(), nn.ReLU())
    batch = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    alive, settings = batch.relu(), {"k": 5, "estimator": estimator}
    batch[10:] = -torch.rand(20, 4)
    first, dead = profile(net, batch, dict(net.named_children()), **settings).tolist()
    whole = float(profile(net[1:], alive, dict(net[1:].named_children()), **settings))
    assert first > 0 and 0 < dead < whole


def test_a_profile_holds_one_output_at_a_time():
    """Of a deep chain the outputs are gone when the next but one is measured."""
    import weakref

    alive, most = [], []

    class Layer(nn.Module):
        def forward(self, x):
            y = x + 1
            alive.append(weakref.ref(y))
            most.append(sum(ref() is not None for ref in alive))
            return y

    net = nn.Sequential(*(Layer() for _ in range(8)))
    profile(net, BATCH, dict(net.named_children()), k=5)
    assert max(most) <= 2


def test_a_profile_by_two_neighbours():
    net = Net().eval()
    layers = named_layers(net, ["blocks.*"])
    found = profile(net, BATCH, layers, k=50, estimator="two_nn", running_statistics=True)
    with torch.no_grad():
        first = net.blocks[0](BATCH)
        wanted = [two_nn(first), two_nn(net.blocks[1](first))]
    assert torch.equal(found, torch.stack(wanted)) and found.min() > 0

    split = Splitter(k=50, estimator="two_nn", batches=1, batch_size=12)
    assert split.split(net, search_space(net), [BATCH]).scores
    with pytest.raises(ValueError, match="2 neighbours need batches of 3 samples"):
        Splitter(estimator="two_nn", batch_size=2)


def test_outputs_of_different_numbers_of_samples_are_refused():
    class Both(nn.Module):
        def forward(self, x):
            return x, x[:3]

    net = nn.ModuleDict({"both": Both()})
    with pytest.raises(ValueError, match=r"layer 'both': its outputs have 3 and 12 samples: name"):
        profile(net, BATCH, dict(net), k=5, forward=lambda net, x: net["both"](x))


@pytest.mark.parametrize("shape", [(), (12,)])
def test_outputs_without_samples_or_features_are_refused(shape):
    class Reduced(nn.Module):
        def forward(self, x):
            return x.mean() if shape == () else x.mean((1, 2, 3))

    net = nn.ModuleDict({"reduced": Reduced()})
    with pytest.raises(ValueError, match=r"layer 'reduced': its output has the shape \(.*name oth"):
        profile(net, BATCH, dict(net), k=5, forward=lambda net, x: net["reduced"](x))


class Mean(nn.Module):
    """Leaves one number of a channel."""

    def forward(self, x):
        return x.mean((2, 3), keepdim=True).expand_as(x)


class Filters(nn.Module):
    """One choice whose values come in two kinds, and one whose values are all alike."""

    def __init__(self):
        super().__init__()
        kinds = {f"filter{i}": nn.Conv2d(4, 4, 1) for i in range(2)}
        kinds |= {f"mean{i}": Mean() for i in range(2)}
        same = {f"same{i}": nn.Identity() for i in range(4)}
        self.first = Operation(same, Choice("same", tuple(same)))
        self.second = Operation(kinds, Choice("kinds", tuple(kinds)))

    def forward(self, x):
        return self.second(self.first(x))


def test_kinds_of_filters_are_told_apart():
    torch.manual_seed(0)
    net = Filters()
    split = Splitter(k=5, batches=2, batch_size=12).split(
        net, search_space(net), [BATCH, BATCH.flip(0)]
    )
    assert split.choice == "kinds"
    assert set(split.groups) == {("filter0", "filter1"), ("mean0", "mean1")}
    assert split.scores["same"]["gap"] == pytest.approx(0, abs=1e-9)


def test_paths_stay_in_their_part():
    net = Net()
    space = search_space(net).restrict({"blocks.0.width": [2], "depth": [1]})
    seen = []

    def forward(net, batch):
        seen.append(active(net))
        return net(batch)

    splitter = Splitter(k=5, batches=4, batch_size=12)
    splitter.split(net, space, [BATCH] * 4, forward=forward)
    assert seen and all(architecture in space for architecture in seen)


def test_choices_with_too_few_values_for_groups_are_left_alone():
    space = SearchSpace([Choice("pair", (1, 2)), Choice("four", (1, 2, 3, 4))])
    assert Splitter().candidates(space) == ("pair", "four")
    brackets = SearchSpace([Choice("width[0]", (2, 4)), Choice("width[1]", (2, 4))])
    assert Splitter(choices=["width[0]"]).candidates(brackets) == ("width[0]",)
    assert Splitter(min_group=2).candidates(space) == ("four",)
    with pytest.raises(ValueError, match="nothing to split: no choice of .* has 6 values or more"):
        Splitter(min_group=3).candidates(space)


def test_levels_are_what_halves_allow():
    space = SearchSpace([Choice("pair", (1, 2)), Choice("five", (1, 2, 3, 4, 5))])
    splitter = Splitter("random")
    assert splitter.levels(space) == 3 and Splitter(min_group=1).levels(space) == 2
    for seed in range(10):  # so many there always are
        tree = SplitTree(space)
        for _ in range(3):
            for leaf in tree.leaves:
                done = {split.choice for split in tree.path_splits(leaf)}
                splitter = Splitter("random", seed=seed)
                found = splitter.split(None, tree.space_of(leaf), [], done=done, salt=leaf)
                tree.split(leaf, found)


def test_levels_do_not_count_on_clusters():
    """One may hold a single value; halves of so many values are drawn at random alone."""
    space = SearchSpace([Choice("wide", tuple(range(16)))])
    assert Splitter().levels(space) == Splitter(method="spectral").levels(space) == 1
    assert Splitter("random").levels(space) == Splitter(method="random").levels(space) == 4


def test_importing_needs_no_lightning():
    """Which only training does; and rankings need torchmetrics."""
    program = (
        "import sys, vizoo.nas.lid\n"
        "heavy = {'lightning', 'torchmetrics', 'torchvision'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    exec("from vizoo.nas.lid import *", {})


def test_too_many_values_for_all_bipartitions_are_refused_first():
    space = SearchSpace([Choice("wide", tuple(range(13)))])
    assert Splitter().candidates(space) == ("wide",)
    with pytest.raises(ValueError, match="choice 'wide' has 13 values, too many bipartitions"):
        Splitter(method="exact").candidates(space)


def test_batches_are_joined():
    batches = [{"x": torch.full((4,), float(i)), "name": [str(i)] * 4} for i in range(5)]
    first, second = joined(batches, 8)
    assert first["x"].tolist() == [0.0] * 4 + [1.0] * 4 and second["name"] == ["2"] * 4 + ["3"] * 4
    few = list(joined(batches[:2], 100))  # all that there is
    assert len(few) == 1 and few[0]["x"].tolist() == [0.0] * 4 + [1.0] * 4
    assert list(joined([], 8)) == []
    pairs = joined([[torch.zeros(2, 1), torch.ones(2)]] * 3, 6)
    assert [t.shape[0] for t in next(pairs)] == [6, 6]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"criterion": "lids"}, "criterion 'lids' is unknown: choose lid, gradient, random"),
        ({"measure": "mse"}, "measure 'mse' is unknown: choose euclidean, cosine, pearson"),
        ({"method": "all"}, "method 'all' is unknown: choose best, exact, spectral, random"),
        ({"rule": "best"}, "rule 'best' is unknown: choose largest_mean_gap, "),
        ({"estimator": "mle"}, "estimator 'mle' is unknown: choose paper, unbiased"),
        ({"batches": 0}, "batches 0 and batch_size 128 must be at least 1"),
        ({"criterion": "gradient", "batch_size": 0}, "batches 50 and batch_size 0 must be at"),
        ({"k": 1}, "k 1: the paper estimator needs 2 neighbours or more"),
        ({"k": 2, "estimator": "unbiased"}, "k 2: the unbiased estimator needs 3 neighbours"),
        ({"min_group": 0}, "min_group 0: must be at least 1"),
        ({"batch_size": 21}, "batch_size 21: 20 neighbours need batches of 22 samples"),
    ],
)
def test_splitters_that_do_not_fit(settings, message):
    with pytest.raises(ValueError, match=message):
        Splitter(**settings)


def test_splits_that_cannot_be_found():
    net = Net()
    space = search_space(net)
    with pytest.raises(ValueError, match="no batch to find a split on: there are no training data"):
        Splitter(k=5).split(net, space, [])
    with pytest.raises(ValueError, match="needs a loss"):
        Splitter("gradient").split(net, space, [BATCH])
    with pytest.raises(ValueError, match="nothing to split"):
        Splitter(k=5).split(net, SearchSpace([Choice("depth", (1,))]), [BATCH])
    with pytest.raises(ValueError, match="the network has nothing elastic: name the layers"):
        named_layers(nn.Sequential(nn.Linear(2, 2)))
