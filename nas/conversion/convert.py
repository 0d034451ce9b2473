"""`convert`: the network one has becomes a supernet whose largest subnet it is.

The network runs once; what ties its channels is learnt from the operators that it runs
(`tracing`, `rules`, `layers`). Channels that can only go together are a class (`labels`), classes
of one layer's output a group with one choice of width (`building`). Then every choice is tried: the
smaller network has to run, with channels that meet as in the large one.
"""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from numbers import Real
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from ...common.files import check_version, shortened
from ..architecture import near
from ..elastic.base import ElasticModule
from ..space import Choice, Scalar, SearchSpace
from ..supernet import search_space
from .building import Plan, build, candidates, counts_of, depth_choices, group, kernel_choice
from .importance import check_scores, class_scores
from .labels import Checked, Mismatch, Ties
from .layers import Layer, is_computed
from .tracing import Trace, trace

__all__ = ["Converted", "convert"]

_VERSION = 1
_RANDOM = 5  # architectures tried beside the smallest

_Network = TypeVar("_Network", bound=nn.Module)


@dataclass(frozen=True)
class Converted(Generic[_Network]):
    """A supernet made of a network, and what of it is fixed."""

    net: _Network  #: the supernet: the same modules, with layers that can be smaller
    space: SearchSpace  #: its choices
    fixed: Mapping[str, str]  #: name of a layer whose channels all stay, or of a choice → why
    #: for `convert`: the same choices of the same channels for a network of the same structure,
    #: whatever its weights; plain values
    plan: Mapping[str, Any]

    def __str__(self) -> str:
        lines = [repr(self.space)]
        lines += [f"{choice.name}: {', '.join(map(str, choice.values))}" for choice in self.space]
        return "\n".join([*lines, *(f"{name} stays: {why}" for name, why in self.fixed.items())])


def convert(
    net: _Network,
    example_inputs: Tensor | Sequence[Any],
    *,
    widths: Iterable[float] = (0.5, 0.75, 1.0),
    depths: bool = True,
    kernels: bool = True,
    keep: Iterable[str] = (),
    scores: Mapping[str, Tensor] | None = None,
    plan: Mapping[str, Any] | None = None,
) -> Converted[_Network]:
    """Make a network elastic: a supernet whose largest subnet computes what the network does.

    Of a width's channels the most important ones are kept, in their own order. A width is the
    number of channels of the layer that it is named after; layers that it is tied to follow.

    Args:
        net: any network; it stays as it is. What it does must not depend on values of tensors.
        example_inputs: its argument, or a tuple of its arguments; small ones will do.
        widths: shares of the channels that may be kept, rounded to what suits the layers.
        depths: whether sequences of blocks that give what they take may be shorter.
        kernels: whether convolutions larger than 3 may have smaller kernels.
        keep: names of modules that stay as they are with all within them; patterns too.
        scores: of weights by their names, as `taylor_scores` gives them, say how important a
            channel is, 0 of one that is left out; by default the magnitudes of the weights that
            write and read it.
        plan: of an earlier conversion, to be done again without trying; the arguments from
            `widths` to `scores` do not matter then.

    Raises:
        ValueError: an argument is of another kind; the network does not run with these inputs,
            depends on values of tensors, is a supernet already, has forward hooks or nothing that
            can be elastic, or is another than the plan's; or scores are of other parameters.

    Example:
        >>> made = convert(nn.Sequential(nn.Conv2d(3, 16, 3), nn.Conv2d(16, 8, 3)), image)
        >>> [choice.name for choice in made.space]
        ['0.width']
    """
    if plan is not None:
        if not isinstance(plan, Mapping):
            raise ValueError(f"plan {shortened(plan)}: give the `plan` of an earlier conversion")
        check_version(plan, _VERSION, "a conversion")
        keep, depths = plan["keep"], plan["tied"]
    if isinstance(widths, Real):
        raise ValueError(f"widths is a list of shares, such as ({widths:g}, 1)")
    if isinstance(keep, str) or not isinstance(keep, Iterable):
        raise ValueError(f"keep is a list of names, such as [{str(keep)!r}]")
    widths, keep = tuple(widths), tuple(keep)  # which are gone through several times
    _check(net, widths, keep, scores or {})
    if not isinstance(example_inputs, Tensor | tuple | list):
        raise ValueError(f"example_inputs {shortened(example_inputs)}: give a tensor or several")
    inputs = (example_inputs,) if isinstance(example_inputs, Tensor) else tuple(example_inputs)
    modes = {name: module.training for name, module in net.named_modules()}
    supernet = copy.deepcopy(net).eval()
    conversion = _Conversion(supernet, inputs, keep, depths)
    if plan is None:
        made = conversion.tried(conversion.plan(widths, kernels, scores))
    else:
        made = conversion.planned(plan)
    conversion.build(made)
    fixed = plan["fixed"] if plan else {**conversion.staying(made), **conversion.fixed}
    if not made.choices:
        kind = type(net).__name__
        first = "; ".join(f"{name or kind}: {why}" for name, why in list(fixed.items())[:4])
        raise ValueError(f"nothing of {kind} can be elastic: {first or 'no layers'}")
    for name, module in supernet.named_modules():
        module.training = modes[name]
    return Converted(supernet, search_space(supernet), fixed, conversion.to_json(made, fixed))


def _check(
    net: nn.Module, widths: Sequence[float], keep: Sequence[str], scores: Mapping[str, Tensor]
) -> None:
    if not isinstance(net, nn.Module):
        raise ValueError(f"net {shortened(net)}: give a network")
    if any(isinstance(module, ElasticModule) for module in net.modules()):
        raise ValueError(
            f"{type(net).__name__} is a supernet already: extract a subnet of it first"
        )
    for name, module in net.named_modules():
        if module._forward_hooks or module._forward_pre_hooks:
            raise ValueError(
                f"{name or type(net).__name__} has forward hooks, which subnets would lack: remove "
                "them, and do in forward() what they do"
            )
    if wrong := [share for share in widths if not isinstance(share, Real) or not 0 < share <= 1]:
        raise ValueError(f"widths are shares above 0 and up to 1, not {wrong[0]!r}")
    check_scores(net, scores)
    names = [name for name, _ in net.named_modules() if name]
    for pattern in keep:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(f"keep {pattern!r}: no such module{near(pattern, names)}")


class _Conversion:
    def __init__(
        self, net: nn.Module, inputs: tuple[Any, ...], keep: Sequence[str], depths: bool
    ) -> None:
        self.net, self.inputs, self._keep, self._tied = net, inputs, keep, depths
        ties = Ties()
        try:
            self.known: Trace = trace(net, inputs, ties)
        except Exception as error:
            name = type(net).__name__
            raise ValueError(f"{name} cannot be traced: {_told(error)}") from error
        order = {name: place for place, (name, _) in enumerate(net.named_modules())}
        layers = sorted(self.known.layers.values(), key=lambda layer: order[layer.name])
        self.layers: dict[str, Layer] = {layer.name: layer for layer in layers}
        for layer in layers:
            if self._kept(layer.name):
                layer.fix(ties, f"{layer.name} is kept")
        choices = depth_choices(net, self.known.blocks, ties) if depths else {}
        self.depths = {name: choice for name, choice in choices.items() if not self._kept(name)}
        self.classes, self.reasons = ties.classes()
        self.kinds = ties.kinds(self.classes)
        self.refused: dict[str, str] = {}  # name of a choice → why there is none
        # Name of another choice than a width, or of a layer that is not known → why it stays.
        self.fixed = {
            name: "its weight is computed, as by a parametrization"
            for name, module in net.named_modules()
            if is_computed(module)
        }

    def _kept(self, name: str) -> bool:
        parts = name.split(".")
        within = [".".join(parts[: i + 1]) for i in range(len(parts))]
        return any(fnmatchcase(outer, pattern) for outer in within for pattern in self._keep)

    def plan(
        self, widths: Sequence[float], kernels: bool, scores: Mapping[str, Tensor] | None
    ) -> Plan:
        """All that could be elastic."""
        each = class_scores(self.layers.values(), self.classes, scores)
        groups = {}
        known = candidates(self.layers, self.classes, self.reasons) if widths else {}
        for name, candidate in known.items():
            counts = counts_of(candidate, widths)
            if len(counts) > 1:
                order = each[candidate.classes].argsort(descending=True, stable=True)
                groups[name] = group(name, candidate, counts, order)
            else:
                why = f"{candidate.layer} has {len(candidate.classes)} channels to choose from"
                self.reasons |= dict.fromkeys(candidate.classes.tolist(), why)
        choices = {
            name: choice
            for name, layer in self.layers.items()
            if kernels and not self._kept(name) and (choice := kernel_choice(layer)) is not None
        }
        return Plan(groups, choices, self.depths)

    def build(self, plan: Plan) -> None:
        """Make the network elastic as a plan says and nothing else."""
        build(self.net, self.layers.values(), self.classes, self.kinds, plan)

    def tried(self, plan: Plan) -> Plan:
        """What of a plan works: each choice that does not is noted and left out."""
        if not plan.choices:
            return plan
        self.build(plan)
        space, rng = search_space(self.net), random.Random(0)
        largest = {choice.name: choice.largest for choice in space}
        depths = {choice.name for choice in plan.depths.values()}
        smallest = {choice.name: choice.smallest for choice in space}
        others = {choice.name: choice.values for choice in space if choice.name not in depths}
        most = max(map(len, others.values()), default=1)
        # In the whole depth every value: a width between others may be the one that does not fit.
        tries = [{n: v[min(i, len(v) - 1)] for n, v in others.items()} for i in range(most - 1)]
        tries += [smallest]
        tries += [{c.name: rng.choice(c.values) for c in space} for _ in range(_RANDOM)]
        for values in tries:
            while bad := self._failing(plan, largest, _without(values, self.refused)):
                alike = {_pattern(name) for name in bad}
                for name, value in _without(values, {**self.refused, **bad}).items():
                    if _pattern(name) in alike:  # which fails as well, as a rule
                        bad |= self._failing(plan, largest, {name: value})
                self.refused |= bad
                for name, why in bad.items():
                    if name in plan.groups:
                        self.reasons |= dict.fromkeys(plan.groups[name].classes.tolist(), why)
                    else:
                        self.fixed[name] = why
                plan = plan.without(bad)
        return plan

    def _failing(
        self, plan: Plan, largest: dict[str, Scalar], values: dict[str, Scalar]
    ) -> dict[str, str]:
        """Choices with which the network does not work, of some with these values; why."""
        values = {name: value for name, value in values.items() if value != largest[name]}
        if not values:
            return {}
        error = self._error(plan, {**largest, **values})
        if error is None:
            return {}
        told = _told(error)
        if isinstance(error, Mismatch):
            of = {index: n for n, g in plan.groups.items() for index in g.classes.tolist()}
            blamed = {of[index] for index in error.classes.tolist() if index in of} & values.keys()
            if blamed:
                return dict.fromkeys(blamed, f"channels that do not belong together meet: {told}")
        if len(values) == 1:
            return dict.fromkeys(values, f"it does not run smaller: {told}")
        names = list(values)
        for half in (names[: len(names) // 2], names[len(names) // 2 :]):
            if bad := self._failing(plan, largest, {name: values[name] for name in half}):
                return bad
        return {names[-1]: f"it does not run smaller together with others: {told}"}

    def _error(self, plan: Plan, values: dict[str, Scalar]) -> Exception | None:
        """What is wrong with the network of some values; None if nothing is."""
        active = torch.ones(len(self.classes), dtype=torch.bool)
        for name, one in plan.groups.items():
            active[one.classes[one.counts[values[name]] :]] = False

        @cache  # a layer's tensors share their labels
        def left(labels: Tensor) -> Tensor:
            classes = self.classes[labels]
            return classes[active[classes]]

        layers = {name: layer.mapped(left) for name, layer in self.layers.items()}
        known = Trace(layers, divisions=self.known.divisions)
        shortened = any(values[c.name] != c.largest for c in plan.depths.values())
        try:
            for module in self.net.modules():
                if isinstance(module, ElasticModule):
                    module.activate(values)
            trace(self.net, self.inputs, Checked(~self._moving(plan)), known)
        except Exception as error:
            return error
        if known.output != self.known.output:
            return ValueError("its output has another shape")
        for name, layer in known.layers.items() if not shortened else ():
            if layer.reads is not None and self.layers[name].runs and not layer.runs:
                return ValueError(f"{name} does not run then")
        return None

    def staying(self, plan: Plan) -> dict[str, str]:
        """Layers that write channels of which none can go, and why."""
        moving, reasons = self._moving(plan), {}
        for name, layer in self.layers.items():
            if layer.writes is not None and not moving[classes := self.classes[layer.writes]].any():
                why = next((w for c in classes.tolist() if (w := self.reasons.get(c))), None)
                reasons[name] = why or "widths are not asked for"
        return reasons

    def _moving(self, plan: Plan) -> Tensor:
        """(classes,) bool, of those that can go."""
        moving = torch.zeros(len(self.classes), dtype=torch.bool)
        for one in plan.groups.values():
            moving[one.classes] = True
        return moving

    def to_json(self, plan: Plan, fixed: Mapping[str, str]) -> dict[str, Any]:
        """Plain values for `planned`."""
        return {
            "version": _VERSION,
            "keep": list(self._keep),
            "tied": self._tied,
            "widths": {
                name: {
                    "counts": list(one.counts.values()),
                    "order": one.classes.argsort().argsort().tolist(),
                }
                for name, one in plan.groups.items()
            },
            "kernels": {name: list(choice.values) for name, choice in plan.kernels.items()},
            "depths": {name: list(choice.values) for name, choice in plan.depths.items()},
            "fixed": dict(fixed),
        }

    def planned(self, data: Mapping[str, Any]) -> Plan:
        known, groups = candidates(self.layers, self.classes, self.reasons), {}
        for name, wanted in data["widths"].items():
            order = torch.tensor(wanted["order"])
            fits = name in known and torch.equal(order.sort().values, torch.arange(len(order)))
            if not fits or len(known[name].classes) != len(order):
                raise ValueError(f"the plan is of another network: it has {name!r}")
            groups[name] = group(name, known[name], wanted["counts"], order)
        modules = dict(self.net.named_modules())
        for name in (*data["kernels"], *data["depths"]):
            if name not in modules:
                raise ValueError(f"the plan is of another network: it has {name!r}")
        kernels = {n: Choice(f"{n}.kernel", values) for n, values in data["kernels"].items()}
        depths = {
            n: Choice(f"{n}.depth" if n else "depth", values)
            for n, values in data["depths"].items()
        }
        return Plan(groups, kernels, depths)


def _without(values: Mapping[str, Scalar], names: Mapping[str, str]) -> dict[str, Scalar]:
    return {name: value for name, value in values.items() if name not in names}


def _pattern(name: str) -> str:
    """What names of choices in alike blocks share."""
    return re.sub(r"\d+", "N", name)


def _told(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:300]
