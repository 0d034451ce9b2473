"""Subnets of the shipped supernet for three latencies of this machine."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from ...stereo.result import StereoResult
    from ...vision.subnets import best
    from .pair import Sample

SUPERNET = "easnet_scaled"
# Of each search: what more would find is less than times scatter.
_EFFORT: dict[str, Any] = {"generations": 12, "rounds": 3}


@dataclass(frozen=True)
class Subnet:
    """A network that was cut out for a limit."""

    cut: best.Subnet  #: its limit, and what it costs on this machine's processor
    file: Path  #: its weights
    result: StereoResult  #: its disparity of the pair
    scores: dict[str, float]  #: as of a `pair.Finding`

    @property
    def limit(self) -> float:
        """Milliseconds that it may take."""
        return self.cut.limits["latency"]

    @property
    def command(self) -> str:
        """The command that cuts the like of it."""
        return (
            f"vizoo subnet --supernet {SUPERNET} --max-latency {self.limit:g}ms "
            f"--out {self.file.name}"
        )

    def to_json(self) -> dict[str, Any]:
        """The figures; milliseconds under ``latency``."""
        return {
            "supernet": SUPERNET,
            "limit": self.limit,
            "met": not self.cut.missed,
            "file": str(self.file),
            "architecture": self.cut.architecture.to_json(),
            "parameters": self.cut.costs["parameters"],
            "latency": self.cut.costs["measured"],
            **{name: round(value, 5) for name, value in self.scores.items()},
        }


def cut_subnets(sample: Sample, out: Path, tell: Callable[[str], Any]) -> list[Subnet]:
    """Cut a subnet for each of three limits between the supernet's fastest and slowest.

    Latencies are predicted by the table that comes with the weights, moved to this machine, and
    measured here before a subnet is taken; errors by the evaluations that come with them.
    """
    from ...nas.efficiency.table import LatencyTable
    from ...stereo.infer import StereoPredictor
    from ...vision.hub.create import beside_weights
    from ...vision.hub.weights import save_weights
    from ...vision.subnets.bench import Bench, load_supernet
    from ...vision.subnets.best import best_subnet, moved_table
    from ...vision.subnets.evaluations import evaluations_beside
    from .pair import scores

    for left in out.glob("*ms.safetensors"):  # another run's, of other limits
        if re.fullmatch(r"[0-9.]+ms", left.stem):
            left.unlink()
    net, space, _ = load_supernet(SUPERNET)
    table = LatencyTable.load(cast("Path", beside_weights(SUPERNET, ".latency.json")))
    bench = Bench.here(net, space, size=(table.conditions.height, table.conditions.width))
    table = moved_table(table, bench)
    latency = table.regressor("latency")
    evaluations = evaluations_beside(SUPERNET, space)
    objective = None if evaluations is None else evaluations.objective(0)[0]
    ends = [latency(a) for a in (space.smallest(), space.largest())]
    subnets = []
    for limit in _round_limits(*ends):
        tell(f"at most {limit:g} ms")
        cut = best_subnet(bench, {"latency": limit}, table=table, objective=objective, **_EFFORT)
        tell(f"{cut.latency:.0f} ms")
        file = save_weights(cut.network, out / f"{limit:g}ms.safetensors", supernet=SUPERNET)
        predictor = StereoPredictor(file, device="cpu")
        result = predictor(sample.left, sample.right, scale=1, check=False)
        subnets.append(Subnet(cut, file, result, scores(sample, result)))
    return subnets


def _round_limits(fastest: float, slowest: float) -> list[float]:
    """Three limits at equal ratios between two latencies, to two digits.

    Example:
        >>> _round_limits(118.0, 390.0)
        [140.0, 220.0, 350.0]
    """
    span = slowest / fastest
    return [float(f"{fastest * span**share:.2g}") for share in (0.15, 0.52, 0.91)]
