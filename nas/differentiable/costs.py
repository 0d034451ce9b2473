"""What a search has to pay for slow or large networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from torch import Tensor, nn

from ..efficiency.candidates import CostTable
from ..search.constraints import Constraint
from ..space import SearchSpace
from ..supernet import search_space

__all__ = ["Cost"]


class Cost:
    """Makes the loss of the logits aware of a cost.

    Args:
        target: the cost to keep to, in the table's unit: milliseconds, values, multiply-adds.
        quantity: `parameters` or `macs`, counted on the task's `example_input_array` when the
            search begins; or what the table has.
        table: file of a `CostTable`, or of a `LatencyTable` for what explains its latencies best
            as a sum; needed for `latency`.
        weight: factor of the term that is added.
        form: with the expected cost E and the target T the loss L becomes for `hinge`
            L + weight · max(0, E/T − 1), which asks for no less than the target; for `linear`
            L + weight · E/T; for `power` L · (E/T)^weight (MnasNet; ProxylessNAS). For `log`
            L · weight · log(E)^0.6 (FBNet, whose weight is 0.2), which takes costs above 1 only.
    """

    def __init__(
        self,
        target: float,
        quantity: Literal["parameters", "macs", "latency"] = "macs",
        table: str | None = None,
        weight: float = 1.0,
        form: Literal["hinge", "linear", "power", "log"] = "hinge",
    ) -> None:
        if not (target > 0 and weight > 0):
            raise ValueError(
                f"a cost needs a positive target and weight, not {target} and {weight}"
            )
        if form not in ("hinge", "linear", "power", "log"):
            raise ValueError(f"a cost is hinge, linear, power or log, not {form!r}")
        if quantity == "latency" and table is None:
            raise ValueError("a cost in latency needs a table: a file of `vizoo latency build`")
        self.target, self.quantity, self.weight, self.form = target, quantity, weight, form
        self._file = table
        self.table: CostTable | None = None

    def prepare(self, model: nn.Module, inputs: Sequence[Tensor], space: SearchSpace) -> None:
        """Read the table, or count it on inputs of the supernet, for a part of its space.

        Raises:
            ValueError: there is nothing to count on, or the table is of another space or quantity,
                or has costs of which the form makes no loss: of 1 or less for `log`, of 0 or less
                for `power`.
        """
        if self._file is None:
            if not inputs:
                raise ValueError(
                    f"no inputs on which {self.quantity} could be counted: give the task an "
                    "example_input_array, or the cost a table"
                )
            table = CostTable.counted(model, inputs, self.quantity)
        else:
            table = CostTable.load(self._file)
            if table.quantity != self.quantity:
                raise ValueError(
                    f"{self._file}: a table of {table.quantity}, and the search's cost is "
                    f"{self.quantity}"
                )
            if table.space != search_space(model):
                raise ValueError(f"{self._file}: a table for another search space")
        table = table.within(space)
        if self.form == "log" and table.floor <= 1:
            raise ValueError(
                f"a cost of the form log takes costs above 1, but the {self.quantity} may be as "
                f"low as {table.floor:.3g}: take the form hinge, linear or power, or give table "
                "and target in a smaller unit"
            )
        if self.form == "power" and table.floor <= 0:
            raise ValueError(
                f"a cost of the form power takes costs above 0, but the {self.quantity} may be as "
                f"low as {table.floor:.3g}: take the form hinge or linear"
            )
        self.table = table

    @property
    def constraint(self) -> Constraint:
        """The target as a limit, for `derive`."""
        unit = "ms" if self.quantity == "latency" else ""
        return Constraint(self.quantity, self._known, self.target, unit)

    def expected(self, probabilities: Mapping[str, Tensor]) -> Tensor:
        """The mean cost; scalar, on the CPU."""
        return self._known.expected(probabilities)

    def __call__(self, loss: Tensor, expected: Tensor) -> Tensor:
        """The loss of the logits, scalar, with the cost that is expected, scalar, in it."""
        expected = expected.to(loss.device)
        ratio = expected / self.target
        if self.form == "hinge":
            return loss + self.weight * (ratio - 1).clamp(min=0)
        if self.form == "linear":
            return loss + self.weight * ratio
        if self.form == "power":
            return loss * ratio**self.weight
        return loss * self.weight * expected.log() ** 0.6

    @property
    def _known(self) -> CostTable:
        if self.table is None:
            raise ValueError("the cost has no table yet: call prepare first")
        return self.table
