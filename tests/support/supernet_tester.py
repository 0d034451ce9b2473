"""Checks that every elastic network passes; a test class inherits them and builds its supernet."""

from __future__ import annotations

import copy
import functools
import random
import types

import pytest
import torch
from torch import nn

from vizoo.nas.space import Architecture, SearchSpace
from vizoo.nas.supernet import activate, active, extract, search_space
from vizoo.vision._export_formats import FORMATS
from vizoo.vision.export import export
from vizoo.vision.hub.create import create_model
from vizoo.vision.inference import optimize


class SupernetTester:
    """Inherit, and define `build` and `inputs`.

    Attributes:
        architectures: how many are tried: the largest, the smallest, the rest at random.
        compiled: which of them are compiled.
        to: the format in which the active subnet is written.
    """

    architectures = 5
    compiled = slice(2)
    to = "onnx"

    def build(self) -> nn.Module:
        """The supernet."""
        raise NotImplementedError

    def inputs(self) -> tuple[torch.Tensor, ...]:
        """Arguments of a forward pass, the same each time."""
        raise NotImplementedError

    def trained_outputs(self, net: nn.Module) -> object:
        """What a loss would see."""
        return net(*self.inputs())

    @pytest.fixture(scope="class")
    @classmethod
    def net(cls):
        torch.manual_seed(0)
        return randomized(cls().build()).eval()

    @pytest.fixture(scope="class")
    @classmethod
    def samples(cls, net):
        space, rng = search_space(net), random.Random(0)
        drawn = [space.sample(rng) for _ in range(cls.architectures - 2)]
        return [space.largest(), space.smallest(), *drawn]

    @pytest.fixture(scope="class")
    @classmethod
    def subnets(cls, net, samples):
        """The extracted networks."""
        return [extract(net, architecture) for architecture in samples]

    def test_space(self, net):
        space = search_space(net)
        assert space.count() > 1 and space.largest() != space.smallest()
        assert type(space).from_json(space.to_json()) == space

    def test_starts_as_the_largest(self, net):
        fresh, largest = copy.deepcopy(net), search_space(net).largest()
        assert active(self.build()) == largest
        activate(fresh, largest)
        assert same(run(self.build_like(net), self.inputs()), run(fresh, self.inputs()))

    def test_extracted_equals_activated(self, net, samples, subnets):
        for architecture, plain in zip(samples, subnets, strict=True):
            assert activate(net, architecture) == architecture == active(net)
            assert same(run(net, self.inputs()), run(plain, self.inputs()))

    def test_extracted_equals_activated_in_training(self, net, samples):
        for architecture in samples[:2]:
            elastic = copy.deepcopy(net).train()
            activate(elastic, architecture)
            plain = extract(elastic, architecture)
            assert all(module.training for module in plain.modules())
            assert same(run(elastic, self.inputs()), run(plain, self.inputs()))
            # Statistics were updated alike.
            again = extract(elastic, architecture)
            assert same(list(again.state_dict().values()), list(plain.state_dict().values()))

    def test_extracted_equals_activated_in_channels_last(self, net, samples):
        if any(x.dim() != 4 for x in self.inputs()):
            pytest.skip("for images only")
        elastic = copy.deepcopy(net).to(memory_format=torch.channels_last)
        inputs = [x.contiguous(memory_format=torch.channels_last) for x in self.inputs()]
        for architecture in samples[:2]:
            activate(elastic, architecture)
            assert same(run(elastic, inputs), run(extract(elastic, architecture), inputs))

    def test_extraction_keeps_the_supernet(self, net, samples):
        before = {key: value.clone() for key, value in net.state_dict().items()}
        activate(net, samples[0])
        extract(net, samples[-1])
        assert active(net) == samples[0]
        assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())

    def test_state_dict_loads_alone(self, net, samples):
        torch.manual_seed(1)
        other = self.build().eval()
        for architecture in samples[1:3]:
            plain, target = extract(net, architecture), extract(other, architecture)
            target.load_state_dict(plain.state_dict())
            assert same(run(target, self.inputs()), run(plain, self.inputs()))

    def test_extraction_owns_its_storage(self, net, subnets):
        held = {t.untyped_storage().data_ptr() for t in tensors(net)}
        for plain in subnets:
            for tensor in tensors(plain):
                assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
                assert tensor.numel() == 0 or tensor.untyped_storage().data_ptr() not in held

    def test_extraction_has_no_trace_of_search(self, net, samples, subnets):
        net.register_forward_hook(lambda *_: None)
        hooked = extract(net, samples[-1])
        net._forward_hooks.clear()
        assert not any(m._forward_hooks for m in hooked.modules())
        assert not any(traces(plain) for plain in (hooked, *subnets))

    def test_gradients_reach_what_runs(self, net, samples):
        elastic, ran = copy.deepcopy(net).train(), set()
        for module in elastic.modules():
            module.register_forward_hook(lambda module, *_: ran.add(module))
        for architecture in samples:
            activate(elastic, architecture)
            elastic.zero_grad()
            ran.clear()
            total(self.trained_outputs(elastic)).backward()
            for name, parameter in elastic.named_parameters():
                owner, _, own = name.rpartition(".")
                if elastic.get_submodule(owner) in ran and not own.startswith("matrix_"):
                    assert parameter.grad is not None, f"{name} of {architecture}"
                    assert parameter.grad.isfinite().all(), name

    def test_exports_without_the_supernet(self, net, samples, tmp_path):
        """The active subnet alone goes into the file."""
        if self.to == "onnx":
            pytest.importorskip("onnxscript")
            pytest.importorskip("onnxruntime")
        activate(net, samples[1])
        path = tmp_path / f"net{FORMATS[self.to].suffixes[0]}"
        exported = export(net, path, to=self.to, inputs=self.inputs())
        alone = tensors(extract(net, samples[1]))
        assert exported.weight_bytes == sum(x.numel() * x.element_size() for x in alone)
        assert exported.weight_bytes < sum(x.numel() * x.element_size() for x in tensors(net))
        assert active(net) == samples[1]

    def test_compiles(self, net, samples):
        torch.compiler.reset()  # networks that share a `forward` share the limit of its graphs
        compiled = torch.compile(net, backend="eager")
        for architecture in samples[self.compiled]:
            activate(net, architecture)
            assert same(run(compiled, self.inputs()), run(net, self.inputs()), 1e-4)

    def build_like(self, net: nn.Module) -> nn.Module:
        """A fresh supernet with the same weights."""
        fresh = self.build()
        fresh.load_state_dict(net.state_dict())
        return fresh.eval()


def randomized(net: nn.Module) -> nn.Module:
    """Statistics, affine weights and matrices away from the values at which faults do not show."""
    with torch.no_grad():
        for name, tensor in (*net.named_parameters(), *net.named_buffers()):
            last = name.rpartition(".")[2]
            if last == "running_mean" or (last == "bias" and tensor.dim() == 1):
                tensor.uniform_(-0.1, 0.1)
            elif last == "running_var" or (last == "weight" and tensor.dim() == 1):
                tensor.uniform_(0.5, 1.5)
            elif last.startswith("matrix_"):
                tensor.add_(torch.randn_like(tensor) * 0.1)
    return net


def run(net: nn.Module, inputs) -> object:
    with torch.no_grad():
        return net(*inputs)


def flat(output) -> list[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        return [output]
    values = output.values() if isinstance(output, dict) else output
    return [tensor for value in values for tensor in flat(value)]


def same(one, other, relative: float | None = None) -> bool:
    """Bit for bit, or up to a part of the largest value."""
    one, other = flat(one), flat(other)
    if len(one) != len(other) or any(a.shape != b.shape for a, b in zip(one, other, strict=True)):
        return False
    if relative is None:
        return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    return all(
        (a - b).abs().max() <= relative * b.abs().max() for a, b in zip(one, other, strict=True)
    )


def total(output) -> torch.Tensor:
    return sum(tensor.float().square().mean() for tensor in flat(output))


def tensors(net: nn.Module) -> list[torch.Tensor]:
    return [*net.parameters(), *net.buffers()]


def traces(root: object) -> list[str]:
    """Objects and classes of `vizoo.nas` that can be reached from `root`, by the way to them."""
    found, seen, waiting = [], set(), [("net", root)]
    while waiting:
        path, value = waiting.pop()
        if id(value) in seen or isinstance(value, type | types.ModuleType | torch.Tensor):
            continue
        seen.add(id(value))
        if type(value).__module__.startswith("vizoo.nas"):
            found.append(path)
        if isinstance(value, dict):
            waiting += [(f"{path}[{key!r}]", item) for key, item in value.items()]
            waiting += [(f"{path}.keys()", key) for key in value]
        elif isinstance(value, list | tuple | set | frozenset):
            waiting += [(f"{path}[{i}]", item) for i, item in enumerate(value)]
        elif isinstance(value, types.FunctionType):
            cells = value.__closure__ or ()
            waiting += [(f"{path}.closure", cell.cell_contents) for cell in cells]
        elif isinstance(value, types.MethodType):
            waiting.append((f"{path}.self", value.__self__))
        elif isinstance(value, functools.partial):
            waiting.append((f"{path}.partial", (value.func, value.args, value.keywords)))
        else:
            waiting += [
                (f"{path}.{key}", item) for key, item in getattr(value, "__dict__", {}).items()
            ]
    return found


def covering(space: SearchSpace) -> list[Architecture]:
    """The largest, the smallest, and others until every value of every choice is in one."""
    rng, found = random.Random(0), [space.largest(), space.smallest()]
    seen = {item for architecture in found for item in architecture.items()}
    wanted = {(choice.name, value) for choice in space for value in choice.values}

    def fresh(choice):
        unseen = [value for value in choice.values if (choice.name, value) not in seen]
        return rng.choice(unseen or choice.values)

    while len(found) < 3 or wanted - seen:
        drawn = [space.build(fresh) for _ in range(50)]
        found.append(max(drawn, key=lambda architecture: len({*architecture.items()} - seen)))
        seen |= {*found[-1].items()}
    return found


class StereoSupernetTester(SupernetTester):
    """Two views, small ones: an extraction is compared bit by bit for each architecture.

    Subnets that were cut out go to ONNX by the tester of networks.
    """

    name: str
    size = (24, 48)
    to = "torchscript"
    compiled = slice(1, 2)  # that graphs follow the activation, smaller supernets show
    test_exports_without_the_supernet = None  # for light's is, and their subnets' alone

    @pytest.fixture(scope="class")
    @classmethod
    def samples(cls, net):
        return covering(search_space(net))

    def build(self):
        return create_model(self.name)

    def inputs(self):
        generator = torch.Generator().manual_seed(1)
        return tuple(torch.rand(2, 1, 3, *self.size, generator=generator).unbind())

    def trained_outputs(self, net):
        return net.forward_stages(*self.inputs())

    def test_optimized_equals_activated(self, net, samples):
        for architecture in samples[:2]:
            activate(net, architecture)
            fast = run(optimize(net), self.inputs())
            assert same(fast, run(net, self.inputs()), 1e-3)
