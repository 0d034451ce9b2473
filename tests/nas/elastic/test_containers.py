"""Elastic sequences and operations."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import nn

from vizoo.nas import Choice, elastic

N = Choice("n", (1, 2, 3))


def layers(count=3):
    return [nn.Linear(2, 2) for _ in range(count)]


def test_without_length_they_are_torch_containers():
    assert type(elastic.Sequential(*layers())) is nn.Sequential
    assert type(elastic.ModuleList(layers())) is nn.ModuleList
    assert len(elastic.Sequential(*layers(), length=2)) == 2
    assert len(elastic.ModuleList(layers(), length=0)) == 0
    with pytest.raises(ValueError, match="3 modules cannot have a length of 4"):
        elastic.Sequential(*layers(), length=4)


def test_sequential_runs_the_leading_modules():
    net, x = elastic.Sequential(*layers(), length=N), torch.rand(4, 2)
    assert isinstance(net, nn.Sequential)
    for n in N.values:
        net.activate({"n": n})
        wanted = x
        for index in range(n):
            wanted = net.get_submodule(str(index))(wanted)
        assert torch.equal(net(x), wanted)
        plain = net.export({"n": n})
        assert type(plain) is nn.Sequential and len(plain) == len(net) == n
        assert torch.equal(plain(x), wanted)


def test_sequential_is_not_unrolled_by_compilers():
    """That of PyTorch runs all modules of a sequence whose forward pass is `nn.Sequential`'s."""
    net = elastic.Sequential(*layers(), length=N)
    assert type(net).forward is not nn.Sequential.forward


def test_nothing_runs_at_length_zero():
    net = elastic.Sequential(*layers(2), length=Choice("n", (0, 2)))
    net.activate({"n": 0})
    x = torch.rand(1, 2)
    assert net(x) is x and len(net.export({"n": 0})) == 0


def test_named_modules_keep_their_names():
    named = OrderedDict(zip("abc", layers(), strict=True))
    net = elastic.Sequential(named, length=N)
    assert list(net.export({"n": 2}).state_dict()) == ["a.weight", "a.bias", "b.weight", "b.bias"]


def test_a_part_of_a_sequence_runs():
    modules, x = layers(), torch.rand(1, 2)
    net = elastic.Sequential(*modules, length=N)
    net.activate({"n": 2})
    assert torch.equal(net[1:](x), modules[1](x))


def test_module_list_shows_the_active_modules():
    modules = layers()
    net = elastic.ModuleList(modules, length=N)
    assert isinstance(net, nn.ModuleList)
    net.activate({"n": 2})
    assert len(net) == 2 and list(net) == modules[:2]
    assert net[1] is net[-1] is modules[1] and list(net[1:]) == modules[1:2]
    with pytest.raises(IndexError):
        net[2]
    assert len(list(net.parameters())) == 6  # all, for optimisers and checkpoints
    assert type(net.export({"n": 1})) is nn.ModuleList and len(net.export({"n": 1})) == 1
    net.activate({"n": None})  # does not matter: the largest
    assert len(net) == 3
    assert "active: 3 of 3" in repr(elastic.Sequential(*layers(), length=N))


def test_flags_of_containers():
    net = elastic.Sequential(nn.BatchNorm1d(2).eval(), nn.BatchNorm1d(2), length=Choice("n", (2,)))
    plain = net.export(None)
    assert plain.training and not plain[0].training and plain[1].training


@pytest.mark.parametrize("length", [Choice("n", (1, 2)), Choice("n", (-1, 3)), Choice("n", (4,))])
def test_length_has_to_reach_the_number_of_modules(length):
    with pytest.raises(ValueError, match="a sequence of 3 modules needs a length"):
        elastic.Sequential(*layers(), length=length)


def test_length_depends_on_one_choice():
    with pytest.raises(ValueError, match="one choice, not on 'n', 'm'"):
        elastic.ModuleList(layers(), length=N + Choice("m", (-1, 0)))
    net = elastic.ModuleList(layers(6), length=N * 2)
    assert "0" not in net.conditions() and net.conditions()["3"] == {"n": (2, 3)}


def test_operation_runs_the_chosen_candidate():
    candidates = {"skip": nn.Identity(), "linear": nn.Linear(2, 2)}
    choice = Choice("op", ("skip", "linear"))
    net, x = elastic.Operation(candidates, choice), torch.rand(3, 2)
    assert torch.equal(net(x), candidates["linear"](x))
    net.activate({"op": "skip"})
    assert net(x) is x
    found = net.export({"op": "linear"})
    assert type(found) is nn.Linear and torch.equal(found(x), candidates["linear"](x))
    assert net.conditions() == {"skip": {"op": ("skip",)}, "linear": {"op": ("linear",)}}
    assert elastic.Operation(candidates, "skip") is candidates["skip"]


def test_operation_names_have_to_agree():
    with pytest.raises(ValueError, match=r"to be \['a', 'b'\], not \['a'\]"):
        elastic.Operation({"a": nn.Identity()}, Choice("op", ("a", "b")))
    with pytest.raises(ValueError, match="'c' is not among the candidates"):
        elastic.Operation({"a": nn.Identity()}, "c")
