"""A supernet that runs with drawn weights, and the logits they are drawn from."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from toy_mixture import Chain, Counted

from vizoo.nas import Choice, activate, active, extract, search_space
from vizoo.nas.differentiable import (
    BinaryGates,
    GumbelSoftmax,
    Logits,
    Reinforce,
    Softmax,
    Uniform,
    weighted,
)
from vizoo.nas.differentiable.logits import Draw, check_weighable
from vizoo.nas.differentiable.samplers import Weights
from vizoo.nas.elastic import Operation
from vizoo.nas.space import Architecture, SearchSpace


def _generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def net():
    return Chain().eval()


@pytest.fixture
def x():
    return torch.randn(2, 4, 5, 5)


def _calls(net):
    return {name: m.calls for name, m in net.named_modules() if isinstance(m, Counted) and m.calls}


@pytest.mark.parametrize("learn", [True, False])
@pytest.mark.parametrize("sampler", [GumbelSoftmax(), Uniform(), Reinforce()])
def test_a_one_hot_draw_equals_the_active_and_the_extracted_network(net, x, sampler, learn):
    logits = Logits(search_space(net).restrict({"*.kind": ["small", "large"]}))
    for seed in range(4):
        draw = logits.draw(sampler, _generator(seed), learn=learn)
        with weighted(net, draw):
            found = net(x)
        activate(net, draw.architecture)
        assert torch.equal(found, net(x))
        assert torch.equal(found, extract(net, draw.architecture)(x))


@pytest.mark.parametrize("name", ["type", "vectors", "space", "training"])
def test_a_choice_may_be_called_as_something_of_a_module(name):
    logits = Logits(SearchSpace([Choice(name, ("a", "b"))]))
    draw = logits.draw(Softmax(), _generator())
    assert list(draw.weights) == list(logits.probabilities()) == [name]


def test_only_one_candidate_runs(net, x):
    logits = Logits(search_space(net).restrict({"*.kind": ["small", "large"]}))
    draw = logits.draw(GumbelSoftmax(), _generator(), learn=True)
    with weighted(net, draw):
        net(x)
    assert _calls(net) == {f"blocks.{i}.{draw.architecture[f'blocks.{i}.kind']}": 1 for i in (0, 1)}


def test_soft_weights_sum_all_candidates(net, x):
    logits = Logits(search_space(net).restrict({"*.kind": ["small", "large"]}), scale=1.0)
    draw = logits.draw(Softmax(), _generator())
    with weighted(net, draw):
        found = net(x)
    y = x
    for index, block in enumerate(net.blocks):
        small, large = torch.softmax(logits.vectors[f"blocks.{index}.kind"], 0)
        y = small * block.small(y) + large * block.large(y)
    torch.testing.assert_close(found, net.head(y))


def test_gradients_are_those_of_the_weighted_sum(net, x):
    """Straight-through: dL/dw of the path that ran, through the softmax of the noisy logits."""
    logits = Logits(search_space(net).restrict({"blocks.1.kind": ["large"]}), scale=1.0)
    vector = logits.vectors["blocks.0.kind"]
    noise = -torch.empty(3).exponential_(generator=_generator(2)).log()
    draw = logits.draw(GumbelSoftmax(), _generator(2), temperature=2.0)
    with weighted(net, draw):
        net(x).square().mean().backward()
    chosen = draw.weights["blocks.0.kind"].paths[0]
    assert chosen != 0  # noise would not give the same output twice
    factor = torch.ones((), requires_grad=True)
    candidate = list(net.blocks[0].children())[chosen]
    net.head(net.blocks[1].large(factor * candidate(x))).square().mean().backward()
    soft = torch.softmax((vector.detach() + noise) / 2, 0)
    wanted = factor.grad * soft[chosen] * (torch.eye(3)[chosen] - soft) / 2
    torch.testing.assert_close(vector.grad, wanted)


def test_afterwards_it_is_an_ordinary_supernet(net, x):
    draw = Logits(search_space(net)).draw(Softmax(), _generator())
    with pytest.raises(RuntimeError, match="meant"), weighted(net, draw):
        raise RuntimeError("meant")
    assert all(block.mixture is None for block in net.blocks)
    assert active(net) == draw.architecture
    activate(net, search_space(net).largest())
    net(x)
    assert set(_calls(net)) == {"blocks.0.large", "blocks.1.large"}


def test_shared_choices_share_their_weights(x):
    kind = Choice("kind", ("a", "b"))
    cells = [Operation({"a": nn.Conv2d(4, 4, 1), "b": nn.Identity()}, kind) for _ in range(3)]
    net = nn.Sequential(*cells)
    logits = Logits(search_space(net))
    assert list(logits.state_dict()) == ["kind"]
    draw = logits.draw(GumbelSoftmax(), _generator())
    with weighted(net, draw):
        assert len({id(cell.mixture[draw.architecture["kind"]]._base) for cell in cells}) == 1
        net(x).sum().backward()
    assert logits.vectors["kind"].grad is not None


def test_lists_and_names_of_outputs_are_weighed_too(x):
    class Pair(nn.Module):
        def __init__(self, factor):
            super().__init__()
            self.factor = factor

        def forward(self, x):
            return {"maps": [self.factor * x, x], "sum": (x.sum(),)}

    operation = Operation({"one": Pair(1), "three": Pair(3)}, Choice("op", ("one", "three")))
    weights = {"op": Weights(torch.tensor([0.5, 0.5], requires_grad=True), (0, 1))}
    values = {"op": ("one", "three")}
    with weighted(operation, Draw(Architecture({"op": "one"}), weights, values)):
        found = operation(x)
    torch.testing.assert_close(found["maps"][0], 2 * x)
    torch.testing.assert_close(found["sum"][0], x.sum())


def test_nested_choices_learn_where_they_run(x):
    inner = Operation({"a": nn.Conv2d(4, 4, 1), "b": nn.Conv2d(4, 4, 1)}, Choice("in", ("a", "b")))
    net = Operation({"skip": nn.Identity(), "deep": inner}, Choice("out", ("skip", "deep")))
    logits = Logits(search_space(net))
    drawn = [logits.draw(GumbelSoftmax(), _generator(seed)) for seed in range(10)]
    assert {draw.architecture["in"] for draw in drawn} == {None, "a", "b"}
    for draw in drawn:
        logits.zero_grad()
        with weighted(net, draw):
            net(x).sum().backward()
        reached = logits.vectors["in"].grad
        runs = draw.architecture["out"] == "deep"
        assert (reached is not None and bool(reached.any())) == runs


def test_a_score_is_the_log_probability_of_what_matters():
    inner = Operation({"a": nn.Identity(), "b": nn.Identity()}, Choice("in", ("a", "b")))
    net = Operation({"skip": nn.Identity(), "deep": inner}, Choice("out", ("skip", "deep")))
    logits = Logits(search_space(net), scale=1.0)
    for seed in range(6):
        draw = logits.draw(Reinforce(), _generator(seed), temperature=2.0)
        wanted = 0.0
        for name, value in draw.architecture.items():
            if value is not None:
                shares = torch.log_softmax(logits.vectors[name] / 2, 0)
                wanted += shares[logits.space.choices[name].find(value)]
        torch.testing.assert_close(draw.score, wanted)


def test_logits_are_a_state_of_their_own(net):
    logits = Logits(search_space(net), seed=1)
    again = Logits(search_space(net), seed=2)
    assert list(logits.state_dict()) == ["blocks/0/kind", "blocks/1/kind"]
    again.load_state_dict(logits.state_dict())
    for name, vector in logits.vectors.items():
        assert torch.equal(vector, again.vectors[name])
    found = logits.probabilities()
    assert list(found) == ["blocks.0.kind", "blocks.1.kind"]
    assert all(row.sum().item() == pytest.approx(1) for row in found.values())


def test_half_precision_leaves_noise_and_softmax_in_float32(net, x):
    logits = Logits(search_space(net))
    with torch.autocast("cpu", torch.bfloat16):
        draw = logits.draw(GumbelSoftmax(), _generator())
        with weighted(net, draw):
            out = net(x)
    assert out.dtype == torch.bfloat16
    assert all(weights.values.dtype == torch.float32 for weights in draw.weights.values())


def test_numbers_have_no_candidates_to_weigh():
    net = Chain(1, Choice("width", (2, 6)))
    space = search_space(net)
    with pytest.raises(ValueError, match="choice 'width' is a number of .*Reinforce"):
        check_weighable(net, space)
    check_weighable(net, space.restrict({"width": [6]}))


@pytest.mark.parametrize("seed", range(5))
def test_two_paths_give_the_output_of_the_drawn_one(net, x, seed):
    logits = Logits(search_space(net).restrict({"*.kind": ["small", "large"]}))
    draw = logits.draw(BinaryGates(), _generator(seed))
    with weighted(net, draw):
        found = net(x)
    assert set(_calls(net).values()) == {1} and len(_calls(net)) == 4
    activate(net, draw.architecture)
    torch.testing.assert_close(found, net(x))
