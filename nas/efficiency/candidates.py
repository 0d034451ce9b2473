"""What each value of each choice costs: a sum that is smooth in the probabilities of the values.

A differentiable search asks what a mixture of networks costs, which no whole network tells. Here
every candidate of an `Operation` is counted or measured alone, on the input it gets in the network;
or the shares are fitted to the whole networks of a latency table.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ...common.counts import count, on_meta
from ...common.files import JsonFile
from ...common.timing import measure
from ..elastic.containers import ElasticOperation
from ..space import Architecture, SearchSpace
from ..supernet import activate, elastic_modules, extract, search_space
from .provenance import software
from .table import LATENCY_TABLE, LatencyTable

__all__ = ["CostTable"]

_VERSION = 1
_RIDGE = 1e-6

_Calls = dict[ElasticOperation, list[tuple[Tensor, ...]]]


@dataclass(frozen=True)
class CostTable(JsonFile):
    """A cost as a fixed part and a share of each value of each choice."""

    called = "a table of costs"
    space: SearchSpace  #: whose architectures it knows
    quantity: str  #: `parameters`, `macs`, or `latency` in milliseconds
    fixed: float  #: what every architecture costs
    costs: Mapping[str, tuple[float, ...]]  #: choice's name → the share of each of its values
    #: under which it was made; empty for counts
    conditions: Mapping[str, Any] = field(default_factory=dict)
    software: Mapping[str, str] = field(default_factory=dict)  #: versions and date

    def __post_init__(self) -> None:
        for choice in self.space:
            given = len(self.costs.get(choice.name, ()))
            if given != len(choice.values):
                raise ValueError(
                    f"choice {choice.name!r} has {len(choice.values)} values, but the table has "
                    f"{given} costs for it"
                )

    def lookup(self, name: str, value: Any) -> float:
        """The share of one value of a choice."""
        return self.costs[name][self.space.choices[name].find(value)]

    def __call__(self, architecture: Architecture) -> float:
        """What an architecture costs; a cost for `vizoo.nas.search.Constraint`."""
        shares = (self.lookup(n, v) for n, v in architecture.items() if v is not None)
        return self.fixed + sum(shares)

    @property
    def floor(self) -> float:
        """A cost that no architecture, and no mixture of them, is below."""
        least = {name: min(costs) for name, costs in self.costs.items()}
        for name in self.space.conditions:  # it may not matter, and then costs nothing
            least[name] = min(least[name], 0.0)
        return self.fixed + sum(least.values())

    def expected(self, probabilities: Mapping[str, Tensor]) -> Tensor:
        """The mean cost where values of choices are drawn independently; scalar, differentiable.

        Probabilities are (K,) by a choice's name, for its values in this table's space; choices of
        one value may be missing.
        """
        total = torch.tensor(float(self.fixed))
        for choice in self.space:
            costs = torch.tensor(self.costs[choice.name], dtype=torch.float32)
            shares = probabilities.get(choice.name, torch.ones(1))
            total = total + self._matters(choice.name, probabilities) * (shares * costs).sum()
        return total

    def within(self, space: SearchSpace) -> CostTable:
        """The table of a part of the space, as `SearchSpace.restrict` gives it."""
        costs = {c.name: tuple(self.lookup(c.name, value) for value in c.values) for c in space}
        return replace(self, space=space, costs=costs)

    @classmethod
    def counted(cls, model: nn.Module, inputs: Sequence[Tensor], quantity: str) -> CostTable:
        """Count parameters or multiply-adds of every candidate, on the meta device.

        Args:
            model: a supernet whose choices are all between modules, none within another.
            inputs: of a forward pass; only their shapes count.
            quantity: `parameters` or `macs`.

        Raises:
            ValueError: another quantity, choices of another kind, or candidates whose costs do not
                add up to those of the network of all first ones, all second ones and so on: they
                share weights or change the size of what follows.
        """
        if quantity not in ("parameters", "macs"):
            raise ValueError(f"{quantity!r} is not counted: choose parameters or macs")
        net, inputs = on_meta(model), [tensor.to("meta") for tensor in inputs]

        def cost(module: nn.Module, calls: list[tuple[Tensor, ...]]) -> float:
            counts = [getattr(count(module, *arguments), quantity) for arguments in calls]
            return counts[0] if quantity == "parameters" else sum(counts)

        table = cls._of_parts(net, inputs, quantity, cost)
        for place in range(max((len(choice.values) for choice in table.space), default=0)):
            values = {c.name: c.values[min(place, len(c.values) - 1)] for c in table.space}
            chosen = table.space.validate(values)
            whole = getattr(count(extract(net, chosen), *inputs), quantity)
            if table(chosen) != whole:
                raise ValueError(
                    f"{quantity} of candidates do not add up to a network's, {table(chosen):,.0f} "
                    f"instead of {whole:,}: they share weights or change the size of what follows; "
                    "give each its own, or fit a table to whole networks (CostTable.fitted)"
                )
        return table

    @classmethod
    def measured(
        cls,
        model: nn.Module,
        inputs: Sequence[Tensor],
        prepare: Callable[[nn.Module], Callable[..., Any]] = nn.Module.eval,
        *,
        conditions: Mapping[str, Any] | None = None,
    ) -> CostTable:
        """Time every candidate alone, ten times and 0.05 s at least; equal ones are timed once.

        Args as of `counted`, but for:
            inputs: of a forward pass, on the model's device.
            prepare: brings a network into the form it is used in.
            conditions: for the record, such as `Conditions.here(…).to_json()`.
        """
        known: dict[Any, float] = {}
        device = inputs[0].device

        def cost(module: nn.Module, calls: list[tuple[Tensor, ...]]) -> float:
            total = 0.0
            for arguments in calls:
                key = (repr(module), *(tuple(x.shape) for x in arguments))
                if key not in known:
                    call = partial(prepare(module), *arguments)
                    known[key] = measure(call, device, repetitions=10, seconds=0.05).median
                total += known[key]
            return total

        return cls._of_parts(copy.deepcopy(model).eval(), inputs, "latency", cost, conditions)

    @classmethod
    def fitted(cls, table: LatencyTable, quantity: str = "latency") -> CostTable:
        """The shares that explain whole networks of a latency table best; for choices of any kind.

        How well they do, `vizoo.nas.search.agreement` says on the table's held-out networks.
        """
        space = table.space
        features = np.array([[1.0, *space.encode(s.architecture)] for s in table.seen])
        costs = np.array([table.of(sample, quantity) for sample in table.seen], float)
        mean, widths = costs.mean(), [len(choice.values) for choice in space]
        weighed = features * (mean / costs)[:, None]  # relative errors count
        square = weighed.T @ weighed + _RIDGE * len(costs) * np.eye(features.shape[1])
        answer = np.linalg.solve(square, weighed.T @ np.full(len(costs), mean))
        parts = np.split(answer[1:], np.cumsum(widths)[:-1])
        shares = {c.name: tuple(map(float, p)) for c, p in zip(space, parts, strict=True)}
        about = table.conditions.to_json()
        return cls(space, quantity, float(answer[0]), shares, about, dict(table.software))

    @classmethod
    def _of_parts(
        cls,
        net: nn.Module,
        inputs: Sequence[Tensor],
        quantity: str,
        cost: Callable[[nn.Module, list[tuple[Tensor, ...]]], float],
        conditions: Mapping[str, Any] | None = None,
    ) -> CostTable:
        space = search_space(net)
        largest = activate(net, space.largest())
        shares = {choice.name: [0.0] * len(choice.values) for choice in space}
        for operation, calls in _calls(net, inputs).items():
            choice = operation.choice
            for place, value in enumerate(choice.values):
                shares[choice.name][place] += cost(extract(operation, {choice.name: value}), calls)
        whole = cost(extract(net, largest), [tuple(inputs)])
        running = sum(values[-1] for values in shares.values())
        costs = {name: tuple(values) for name, values in shares.items()}
        return cls(space, quantity, whole - running, costs, conditions or {}, software())

    def _matters(self, name: str, probabilities: Mapping[str, Tensor]) -> Tensor | float:
        """The probability that a choice matters; of several cases as if they were independent."""
        if name not in self.space.conditions:
            return 1.0
        unmet: Tensor | float = 1.0
        for case in self.space.conditions[name]:
            met: Tensor | float = 1.0
            for other, allowed in case.items():
                places = [self.space.choices[other].find(value) for value in allowed]
                shares = probabilities.get(other, torch.ones(1))
                met = met * self._matters(other, probabilities) * shares[places].sum()
            unmet = unmet * (1 - met)
        return 1 - unmet

    def to_json(self) -> dict[str, Any]:
        """Plain values; `from_json` reads them."""
        return {
            "version": _VERSION,
            "space": self.space.to_json(),
            "quantity": self.quantity,
            "fixed": self.fixed,
            "costs": {name: list(costs) for name, costs in self.costs.items()},
            "conditions": dict(self.conditions),
            "software": dict(self.software),
        }

    @classmethod
    def from_json(cls, data: Any) -> CostTable:
        """Read what `to_json` gave; of what a `LatencyTable` gave, the latency that is `fitted`.

        Raises:
            ValueError: it is neither, of another version, or a latency table that is not complete.
        """
        if isinstance(data, dict) and data.get("format") == LATENCY_TABLE:
            table = LatencyTable.from_json(data)
            if not table.complete:
                measured = f"{len(table.samples)} of {table.planned}"
                raise ValueError(f"an unfinished latency table: {measured} subnets are measured")
            return cls.fitted(table)
        if not isinstance(data, dict) or data.get("version") != _VERSION or "costs" not in data:
            raise ValueError(f"not a table of costs of version {_VERSION}")
        try:
            space = SearchSpace.from_json(data["space"])
            costs = {name: tuple(map(float, shares)) for name, shares in data["costs"].items()}
            fixed = float(data["fixed"])
            if not all(map(math.isfinite, (fixed, *(c for row in costs.values() for c in row)))):
                raise ValueError("a cost is not a finite number")
            about = (dict(data["conditions"]), dict(data["software"]))
            return cls(space, str(data["quantity"]), fixed, costs, *about)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"a damaged table of costs: {error!r}") from error


def _calls(net: nn.Module, inputs: Sequence[Tensor]) -> _Calls:
    """The inputs with which each operation of a supernet is called in a forward pass."""
    operations = []
    calls: _Calls = {}
    for module in elastic_modules(net):
        if not isinstance(module, ElasticOperation):
            names = ", ".join(repr(c.name) for value in module.values() for c in value.choices)
            raise ValueError(
                f"choice {names} is a number of {type(module).__name__}, whose share of the costs "
                "is not that of a candidate: fit a table to whole networks (CostTable.fitted)"
            )
        operations.append(module)

    def note(module: ElasticOperation, arguments: tuple[Tensor, ...]) -> None:
        calls.setdefault(module, []).append(tree_map(torch.zeros_like, arguments))

    with ExitStack() as hooks, torch.no_grad():
        for module in operations:
            hooks.enter_context(module.register_forward_pre_hook(note))
        net.eval()(*inputs)
    for module in operations:
        if module not in calls or any(
            isinstance(m, ElasticOperation) for m in list(module.modules())[1:]
        ):
            raise ValueError(
                f"choice {module.choice.name!r} stands within the candidate of another one, or "
                "does not run: fit a table to whole networks (CostTable.fitted)"
            )
    return calls
