"""Weights of candidates: published numbers, gradients, one path, temperatures."""

from __future__ import annotations

import json

import pytest
import torch

from vizoo.nas.differentiable import (
    BinaryGates,
    Constant,
    Dirichlet,
    Exponential,
    GumbelSoftmax,
    Linear,
    Reinforce,
    Sigmoid,
    Softmax,
    Uniform,
    gumbel_softmax,
)

LEARNING = [Softmax(), Sigmoid(), GumbelSoftmax(False), GumbelSoftmax(), BinaryGates(), Dirichlet()]
ALL = [*LEARNING, Uniform(), Reinforce()]


def _name(sampler):
    return type(sampler).__name__ + ("Soft" if getattr(sampler, "hard", None) is False else "")


def _generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def logits():
    return torch.tensor([0.3, -0.2, 0.9, 0.1], requires_grad=True)


def test_gumbel_softmax_gives_published_weights_and_gradients(shared):
    cases = json.loads((shared / "golden/nas/gumbel.json").read_text())["cases"]
    assert len(cases) > 3
    for case in cases:
        noise, factors = (
            torch.tensor(case[name], dtype=torch.float64)
            for name in ("gumbel_noise", "coefficients")
        )
        for kind in ("soft", "hard"):
            logits = torch.tensor(case["logits"], dtype=torch.float64, requires_grad=True)
            weights = gumbel_softmax(logits, noise, case["tau"], hard=kind == "hard")
            (weights * factors).sum().backward()
            for found, name in ((weights.detach(), "weights"), (logits.grad, "gradient")):
                wanted = torch.tensor(case[f"{kind}_{name}"], dtype=torch.float64)
                torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("sampler", ALL, ids=_name)
def test_the_generator_alone_decides(sampler, logits):
    first = sampler.draw(logits, _generator(3), 1.0, True)
    torch.rand(5)
    again = sampler.draw(logits, _generator(3), 1.0, True)
    assert torch.equal(first.values, again.values) and first.paths == again.paths
    others = [sampler.draw(logits, _generator(seed), 1.0, True) for seed in range(20)]
    if not isinstance(sampler, Softmax | Sigmoid):
        assert len({tuple(found.values.tolist()) for found in others}) > 1


@pytest.mark.parametrize("sampler", LEARNING, ids=_name)
def test_every_logit_gets_a_gradient(sampler, logits):
    reached = torch.zeros(4, dtype=torch.bool)
    for seed in range(30):
        logits.grad = None
        weights = sampler.draw(logits, _generator(seed), 1.0, True).values
        (weights * torch.tensor([1.0, -2.0, 3.0, 0.5])).sum().backward()
        assert (logits.grad != 0).sum() >= 2
        reached |= logits.grad != 0
    assert reached.all()


@pytest.mark.parametrize("sampler", ALL, ids=_name)
def test_weights_and_paths_agree(sampler, logits):
    for seed in range(30):
        found = sampler.draw(logits, _generator(seed), 0.7, True)
        values = found.values.detach()
        assert values.argmax() == found.paths[0] and (values >= 0).all()
        unused = [index for index in range(4) if index not in found.paths]
        assert (values[unused] == 0).all()
        if sampler.one_path:  # exactly, not up to rounding
            assert values[found.paths[0]] == 1 and values.sum() == 1
            weights_step = sampler.draw(logits.detach(), _generator(seed), 0.7, False)
            assert len(weights_step.paths) == 1
        else:
            assert len(found.paths) == 4
            assert isinstance(sampler, Sigmoid) or values.sum() == pytest.approx(1)


@pytest.mark.parametrize("sampler", [GumbelSoftmax(), BinaryGates(), Reinforce()], ids=_name)
def test_paths_are_drawn_by_their_probability(sampler, logits):
    generator, count = _generator(), 4000
    drawn = [sampler.draw(logits.detach(), generator, 1.0, False).paths[0] for _ in range(count)]
    shares = torch.bincount(torch.tensor(drawn), minlength=4) / count
    torch.testing.assert_close(shares, torch.softmax(logits.detach(), 0), atol=0.03, rtol=0)


def test_two_gates_compete_and_the_others_keep_their_probability(logits):
    sampler = BinaryGates()
    found = sampler.draw(logits, _generator(1), 1.0, True)
    one, other = found.paths
    (found.values * torch.tensor([1.0, -2.0, 3.0, 0.5])).sum().backward()
    pair = torch.softmax(logits.detach()[[one, other]], 0)
    outputs = torch.tensor([1.0, -2.0, 3.0, 0.5])[[one, other]]
    wanted = pair * (outputs - (pair * outputs).sum())
    torch.testing.assert_close(logits.grad[[one, other]], wanted)
    before = logits.detach().clone()
    after = before.clone()
    after[one] += 0.5
    after[other] -= 0.1
    sampler.after_step(after, before, found.paths)
    rest = [index for index in range(4) if index not in found.paths]
    old, new = torch.softmax(before, 0), torch.softmax(after, 0)
    torch.testing.assert_close(new[rest], old[rest])
    assert new[one] > old[one]


def test_gates_that_do_not_run_keep_their_probability_whatever_the_optimiser_remembers():
    sampler, generator = BinaryGates(), _generator()
    logits = torch.nn.Parameter(torch.tensor([0.3, -0.2, 0.9, 0.1]))
    optimizer = torch.optim.Adam([logits], lr=0.1, betas=(0.5, 0.999), weight_decay=1e-2)
    for _ in range(6):
        found = sampler.draw(logits, generator, 1.0, True)
        optimizer.zero_grad()
        (found.values * torch.tensor([1.0, -2.0, 3.0, 0.5])).sum().backward()
        before = logits.detach().clone()
        optimizer.step()
        with torch.no_grad():
            sampler.after_step(logits, before, found.paths)
        rest = [index for index in range(4) if index not in found.paths]
        old, new = torch.softmax(before, 0), torch.softmax(logits.detach(), 0)
        torch.testing.assert_close(new[rest], old[rest])
        assert not torch.equal(logits.detach(), before)


@pytest.mark.parametrize("sampler", ALL, ids=_name)
def test_probabilities(sampler, logits):
    found = sampler.probabilities(logits)
    assert found.sum().item() == pytest.approx(1)
    if sampler.learns:
        assert found.argsort().tolist() == logits.argsort().tolist()
        found[0].backward()
        assert logits.grad[0] > 0


def test_low_temperatures_sharpen(logits):
    generators = [_generator(5) for _ in range(2)]
    sampler = GumbelSoftmax(hard=False)
    soft, sharp = (
        sampler.draw(logits, g, tau, True).values.max()
        for g, tau in zip(generators, (10.0, 0.1), strict=True)
    )
    assert soft < 0.5 < sharp


def test_dirichlet_is_held_near_even(logits):
    assert Dirichlet(0.5).penalty(logits).item() == pytest.approx(
        0.5 * sum((torch.nn.functional.elu(logits)) ** 2).item()
    )
    assert Softmax().penalty(logits) is None


def test_dirichlet_leaves_the_generators_of_gpus_alone(logits, monkeypatch):
    seeded = []
    monkeypatch.setattr("torch.cuda.manual_seed_all", seeded.append)
    before = torch.get_rng_state()
    Dirichlet().draw(logits, _generator(), 1.0, True)
    assert not seeded and torch.equal(torch.get_rng_state(), before)


def test_temperatures():
    assert Constant(2).at(7, None) == 2
    linear = Linear(10, 0.1)
    assert [linear.at(epoch, 100) for epoch in (0, 99, 200)] == pytest.approx([10, 0.1, 0.1])
    assert Exponential(5, 0.956).at(10, None) == pytest.approx(5 * 0.956**10)
    with pytest.raises(ValueError, match="needs an end: set trainer.max_epochs"):
        linear.at(0, None)
    with pytest.raises(ValueError, match="end has to be positive, not 0"):
        Linear(1, 0)
