"""A latency table: measured subnets and operators, and what they predict of others.

The file is JSON and says under which conditions it was measured; figures of another device, type
or input size are refused, not scaled. It holds measurements only: predictors are fitted when it
is read, and their errors are those on the held-out subnets, which they have not seen.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...common.counts import Counts
from ...common.files import JsonFile, check_version
from ...common.quantities import KINDS
from ...common.timing import Timing
from ..search.predictor import Agreement, agreement
from ..space import Architecture, SearchSpace
from .operators import line
from .provenance import Conditions
from .regressor import CostRegressor

__all__ = ["QUANTITIES", "LatencyTable", "Sample"]

LATENCY_TABLE, _VERSION = "vizoo latency table", 1
QUANTITIES = tuple(KINDS)
"""What is known of every sample: milliseconds, values, multiply-adds, bytes."""


@dataclass(frozen=True)
class Sample:
    """One measured subnet."""

    architecture: Architecture  #: canonical
    timing: Timing  #: as it was at that time
    ratio: float  #: to the reference subnet, measured in turns with it
    reference: float  #: the reference's own milliseconds at that time
    counts: Counts  #: parameters, multiply-adds, memory
    operators: float  #: milliseconds of its operators, each measured alone, together; or 0
    held_out: bool = False  #: predictors do not see it; it tells their error
    joules: float | None = None  #: of one pass, where they can be measured

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "architecture": self.architecture.to_json(),
            "timing": self.timing.to_json(),
            "ratio": self.ratio,
            "reference": self.reference,
            **self.counts.to_json(),
            "operators": self.operators,
            "held_out": self.held_out,
            "joules": self.joules,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Sample:
        """What `to_json` wrote."""
        return cls(
            Architecture.from_json(content["architecture"]),
            Timing(**content["timing"]),
            float(content["ratio"]),
            float(content["reference"]),
            Counts(content["parameters"], content["macs"], content["memory"]),
            content["operators"],
            content["held_out"],
            content.get("joules"),
        )


@dataclass
class LatencyTable(JsonFile):
    """Measurements of subnets of one supernet under one set of conditions."""

    called = "a latency table"
    model: dict[str, Any]  #: the supernet's name and arguments
    space: SearchSpace  #: its search space
    conditions: Conditions  #: device, type, threads, input size
    software: dict[str, str]  #: versions and date of the beginning
    samples: list[Sample] = field(default_factory=list)  #: measured subnets
    #: operator key to milliseconds; None for one that cannot run alone
    entries: dict[str, float | None] = field(default_factory=dict)
    planned: int = 0  #: how many samples it shall have
    energy: str = "not measured"  #: what counted the samples' joules, or why there are none
    #: of int8, the parts that are a choice of the space, see `vision.subnets.bench.latency_table`
    mixed: dict[str, float] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether all samples that were planned are measured."""
        return 0 < self.planned <= len(self.samples)

    @property
    def reference(self) -> float:
        """Milliseconds of the reference subnet: the median of all the times it was measured."""
        return statistics.median(sample.reference for sample in self.samples)

    def of(self, sample: Sample, quantity: str = "latency") -> float:
        """One of a sample's `QUANTITIES`; its latency is corrected for drift by the reference's."""
        if quantity == "latency":
            return sample.ratio * self.reference
        return getattr(sample.counts, quantity)

    def regressor(self, quantity: str = "latency") -> CostRegressor:
        """The predictor of a quantity from an architecture alone; no network is built for it.

        Counts, which are exact, are learnt from held-out samples too.
        """
        if quantity not in QUANTITIES:
            raise ValueError(f"{quantity!r} is not in the table; it has {', '.join(QUANTITIES)}")
        samples = self.seen if quantity == "latency" else self.samples
        return CostRegressor.fit(
            self.space,
            [sample.architecture for sample in samples],
            [self.of(sample, quantity) for sample in samples],
        )

    @property
    def seen(self) -> list[Sample]:
        """The samples that predictors of the latency are fitted to."""
        return [sample for sample in self.samples if not sample.held_out]

    @property
    def held_out(self) -> list[Sample]:
        """The samples that tell their error."""
        return [sample for sample in self.samples if sample.held_out]

    def moved(self, conditions: Conditions, reference: float) -> LatencyTable:
        """The same subnets as another machine would have measured them; without single operators.

        Latencies of subnets are taken to stand in the same ratios there: good enough to aim a
        search by, whose result is then measured.

        Args:
            conditions: of the other machine; size, type and kind of device must be the same.
            reference: milliseconds of the reference subnet there.

        Raises:
            ValueError: it is a table of another size, type or kind of device.
        """
        theirs = replace(
            self.conditions, device_name=conditions.device_name, threads=conditions.threads
        )
        if difference := theirs.difference(conditions):
            raise ValueError(
                f"a latency table of {difference} serves no other machine either; build one for "
                "these conditions (`vizoo latency build`)"
            )
        factor = reference / self.reference
        samples = [
            replace(
                sample,
                timing=sample.timing.scaled(factor),
                reference=reference,
                operators=factor * sample.operators,
                joules=None,
            )
            for sample in self.samples
        ]
        unknown = type(self).energy
        return replace(self, conditions=conditions, samples=samples, entries={}, energy=unknown)

    def errors(self) -> dict[str, Agreement]:
        """Agreement of both latency predictors with the held-out subnets; empty below two."""
        left, seen = self.held_out, self.seen
        if len(left) < 2 or len(seen) < 3:
            return {}
        measured = [self.of(sample) for sample in left]
        whole = self.regressor().predict([sample.architecture for sample in left]).tolist()
        agreements = {"regressor": agreement(whole, measured)}
        if self.entries:
            predicted = line([s.operators for s in seen], [self.of(s) for s in seen])
            agreements["operators"] = agreement([predicted(s.operators) for s in left], measured)
        return agreements

    def check(
        self,
        model: Mapping[str, Any],
        space: SearchSpace,
        conditions: Conditions,
        smallest: Counts,
        source: str,
    ) -> None:
        """Refuse a table that does not speak of this supernet and these conditions.

        The costs of its smallest subnet are compared too: arguments that are not in the space,
        such as a range of disparities, change those of all. The error calls the table `source`.

        Raises:
            ValueError: in which way it differs.
        """
        if not self.space.holds(space):
            raise ValueError(
                f"{source}: a table of {self.model.get('name')}, whose search space is not that "
                f"of {model.get('name')}; build one for it (`vizoo latency build`)"
            )
        if difference := self.conditions.difference(conditions):
            raise ValueError(
                f"{source}: measured under other conditions: {difference}; "
                "build one for these (`vizoo latency build`)"
            )
        if not self.complete:
            raise ValueError(
                f"{source}: unfinished, {len(self.samples)} of {self.planned} subnets are "
                "measured; the same `vizoo latency build` goes on with it"
            )
        own = next((s.counts for s in self.samples if s.architecture == space.smallest()), smallest)
        if (own.parameters, own.macs) != (smallest.parameters, smallest.macs):
            raise ValueError(
                f"{source}: a table of {_called(self.model)}, whose subnets cost other than those "
                f"of {_called(model)}; build one for it (`vizoo latency build`)"
            )

    def to_json(self) -> dict[str, Any]:
        """Plain values for `from_json`; the errors are for readers, not read back."""
        errors = self.errors() if self.complete else {}
        return {
            "format": LATENCY_TABLE,
            "version": _VERSION,
            "model": self.model,
            "conditions": self.conditions.to_json(),
            "software": self.software,
            "planned": self.planned,
            "energy": self.energy,
            "mixed": self.mixed,
            "errors": {name: value.to_json() for name, value in errors.items()},
            "space": self.space.to_json(),
            "samples": [sample.to_json() for sample in self.samples],
            "operators": self.entries,
        }

    @classmethod
    def from_json(cls, content: Any) -> LatencyTable:
        """Read what `to_json` gave.

        Raises:
            ValueError: it is not that, or of another version.
        """
        if not isinstance(content, dict) or content.get("format") != LATENCY_TABLE:
            raise ValueError("not a latency table; `vizoo latency build` writes them")
        check_version(content, _VERSION, cls.called)
        try:
            return cls(
                dict(content["model"]),
                SearchSpace.from_json(content["space"]),
                Conditions.from_json(content["conditions"]),
                content["software"],
                [Sample.from_json(sample) for sample in content["samples"]],
                content["operators"],
                content["planned"],
                content.get("energy", cls.energy),
                dict(content.get("mixed", {})),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"a damaged latency table: {error!r}") from error


def _called(model: Mapping[str, Any]) -> str:
    arguments = ", ".join(f"{name}={value}" for name, value in model.items() if name != "name")
    return f"{model.get('name')}({arguments})"
