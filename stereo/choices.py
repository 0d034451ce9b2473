"""Networks to choose from: by name, or by the time that a pair may take."""

from __future__ import annotations

import copy
import math
import os
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from torch import Tensor, nn

from ..common.devices import choose_device
from ..datasets.stereo.scenes import GeneratedStereo
from ..nas.supernet import search_space
from ..vision.configs.task import FitConfig
from ..vision.hub.create import is_name, load_network
from ..vision.hub.registry import list_models
from ..vision.subnets.bench import Bench, load_supernet
from ..vision.subnets.best import (
    OWN_TABLE,
    cost_predictors,
    most_macs,
    moved_table,
    search_within,
    table_beside,
)
from ..vision.subnets.evaluations import evaluations_beside
from . import DEFAULT_MODEL
from .infer import StereoPredictor

__all__ = ["WITHIN", "Choices", "Network"]

WITHIN = "the slowest within the time limit"
_CUT = ": a subnet within the time limit"
_SIZE = (192, 384)  # height and width at which subnets are measured where no table says another
_SEARCH = {"generations": 12, "rounds": 3}  # what more would find is less than times scatter
_KEPT = 8  # subnets of each supernet
_JUDGE, _BATCHES, _SCENES = "evaluate/stereo.yaml", 10, 4  # of batch norms

Report = Callable[[str, int, int], None]


class Network(StereoPredictor):
    """Knows how long its network worked."""

    seconds = 0.0

    def _run(self, call: Callable[..., tuple[Tensor, ...]], left: Tensor, right: Tensor) -> Tensor:
        start = time.perf_counter()
        maps = super()._run(call, left, right)
        self.seconds += time.perf_counter() - start
        return maps


class Choices:
    """Networks by what they are called, opened once each, and by time limits.

    Args:
        models: as `StereoPredictor` takes them, the default one guided as there; by default all
            that have trained weights. Each is opened at once, so that none is found missing later,
            but only the first one is kept.
        device: as `StereoPredictor` takes it.

    Attributes:
        offered: what can be chosen, the first network first.
        timed: those among them that take a time limit.

    Raises:
        FileNotFoundError, ValueError: as `StereoPredictor`, of any model.
    """

    def __init__(self, models: Sequence[str] = (), device: str = "auto") -> None:
        models = models or sorted(
            list_models("stereo/*", pretrained=True), key=lambda name: name != DEFAULT_MODEL
        )
        self._sources = _called(models)
        self._device = device
        self._opened: dict[str, Network] = {}
        self._speeds: dict[str, float] = {}
        self._supernets: dict[str, _Supernet | None] = {}
        for name, source in self._sources.items():
            net = load_network(source, "stereo")
            if not self._opened:
                self._opened[name] = Network(net, device, guided=source == DEFAULT_MODEL)
            if any(len(choice.values) > 1 for choice in search_space(net)):
                self._supernets[name + _CUT] = None
        several = [WITHIN] if len(self._sources) > 1 else []
        self.timed = [*several, *self._supernets]
        self.offered = [*self._sources, *self.timed]

    def network(self, name: str) -> Network:
        """The network of a name.

        Raises:
            ValueError: there is no such name, or its weights cannot be read any more.
        """
        if name not in self._sources:
            raise ValueError(f"{name}: not among the networks of this page")
        if name not in self._opened:
            try:
                self._opened[name] = Network(self._sources[name], self._device)
            except (OSError, ValueError) as error:
                raise ValueError(f"{name}: its weights cannot be read any more") from error
        return self._opened[name]

    def choose(
        self,
        offer: str,
        limit: float | None,
        height: int,
        width: int,
        report: Report = lambda what, done, total: None,
        views: int = 1,
    ) -> tuple[str, Network]:
        """A network, and what it is called.

        Args:
            offer: one of `offered`.
            limit: milliseconds for a pair at scale 1, of those that are `timed`.
            height: of the images, pixels.
            width: of the images, pixels.
            report: called as ``report(what, done, total)`` while subnets are measured.
            views: how many are matched within the limit, 2 where the right one is too.

        Raises:
            ValueError: none of these, or no limit where one is taken.

        Warns (``UserWarning``) where nothing keeps to the limit; the fastest is given then.
        """
        if offer not in self.timed:
            return offer, self.network(offer)
        if not limit or not 0 < limit < math.inf:
            raise ValueError("give the time limit, milliseconds for a pair")
        if offer == WITHIN:
            name = self._slowest(limit, height, width, views)
            return name, self.network(name)
        supernet = self._supernets[offer]
        if supernet is None:
            name, place = offer.removesuffix(_CUT), choose_device(self._device)
            supernet = _Supernet(name, self._sources[name], str(place), report)
            self._supernets[offer] = supernet
        return supernet.within(limit, height, width, report, views)

    def _slowest(self, limit: float, height: int, width: int, views: int) -> str:
        """The slowest network that keeps to a limit by a measurement at a small size."""
        for name in self._sources.keys() - self._speeds.keys():
            self._speeds[name] = self.network(name).estimate(1000, 1000) / 1e3
        times = {name: self._speeds[name] * height * width * views for name in self._sources}
        fitting = [name for name in times if times[name] <= limit]
        if fitting:
            return max(fitting, key=times.__getitem__)
        fastest = min(times, key=times.__getitem__)
        _warn_none("network", limit, height, width, views, fastest, times[fastest])
        return fastest


class _Supernet:
    """Subnets of a supernet, each cut once for its limit, by measurements at one size."""

    def __init__(self, name: str, source: str, device: str, report: Report) -> None:
        net, space, _ = load_supernet(source)
        table = table_beside(source, net, space, device=device.partition(":")[0])
        size = _SIZE if table is None else (table.conditions.height, table.conditions.width)
        self.name, self.bench = name, Bench.here(net, space, size=size, device=device)
        if table is not None:
            report("measuring the smallest subnet, once", 0, 1)
            table = moved_table(table, self.bench)
        else:
            told = partial(report, "measuring subnets, once")
            table = self.bench.complete(self.bench.table(), report=told, **OWN_TABLE)
        self.predictors = cost_predictors(self.bench, table)
        evaluations = evaluations_beside(source, space)
        capacity = most_macs(self.predictors)
        self.objective = capacity if evaluations is None else evaluations.objective(0)[0]
        self.cut: dict[float, tuple[Network, float]] = {}

    def within(
        self, limit: float, height: int, width: int, report: Report, views: int
    ) -> tuple[str, Network]:
        """The best subnet that keeps to a limit, and what it is called.

        That is the one with the smallest error predicted from evaluations beside the weights, else
        the one with the most multiply-adds.
        """
        scale = views * height * width / math.prod(self.bench.inputs("meta")[0].shape[-2:])
        # In steps, so that another pair of nearly this size takes what was cut for this one.
        step = 10.0 ** (math.floor(math.log10(limit / scale)) - 1)
        bound = math.floor(limit / scale / step + 1e-6) * step
        if bound not in self.cut:
            while len(self.cut) >= _KEPT:
                del self.cut[next(iter(self.cut))]
            self.cut[bound] = self._searched(bound, report)
        network, milliseconds = self.cut[bound]
        if milliseconds > limit / scale:
            what = f"subnet of {self.name}"
            _warn_none(what, limit, height, width, views, "the smallest", milliseconds * scale)
        parameters = sum(values.numel() for values in network.net.parameters())
        return f"{self.name}, a subnet of {parameters / 1e6:.2g} M parameters", network

    def _searched(self, bound: float, report: Report) -> tuple[Network, float]:
        bench, latency = self.bench, self.predictors["latency"]
        architecture = bench.space.smallest()
        milliseconds = latency(architecture)
        if milliseconds <= bound:
            report("searching", 0, 1)
            architecture, costs, _ = search_within(
                bench, self.predictors, self.objective, {"latency": bound}, **_SEARCH
            )
            milliseconds = costs["measured"]["median"]
        report("estimating batch norms", 0, 1)
        return self._normed(bench.network(architecture)), milliseconds

    def _normed(self, subnet: nn.Module) -> Network:
        """A subnet with the supernet's batch norms or with its own, whichever errs less."""
        device, own = self.bench.device, copy.deepcopy(subnet)
        FitConfig.read(_JUDGE).recalibrate(own.to(device), _BATCHES, device)
        networks = [Network(net, str(device), guided=False) for net in (subnet, own)]
        scenes = [GeneratedStereo(_SCENES, *_SIZE, seed=1)[i] for i in range(_SCENES)]

        def error(network: Network) -> float:
            gaps = (network.maps(s["left"], s["right"])[:1] - s["disparity"] for s in scenes)
            return float(sum(gap.abs().mean() for gap in gaps))

        return min(networks, key=error)


def _warn_none(
    what: str, limit: float, height: int, width: int, views: int, fastest: str, milliseconds: float
) -> None:
    both = " for both views" if views == 2 else ""
    warnings.warn(
        f"no {what} takes {limit:.0f} ms or less here at {height}x{width} pixels{both}; "
        f"{fastest} takes about {milliseconds:.0f} ms",
        stacklevel=4,
    )


def _called(models: Sequence[str]) -> dict[str, str]:
    """What models are called: a name as it is, a file by the end of its path that is its own.

    Where files lie is nobody's business who chooses among them.
    """
    parts: dict[str, tuple[str, ...]] = {}
    for model in models:
        named = model.startswith("hf-hub:") or is_name(model)
        source = model if named else os.path.abspath(model.removeprefix("local-dir:"))
        parts[source] = (source,) if named else Path(source).parts
    count = 0
    called: dict[str, str] = {}
    while len(called) < len(parts):
        count += 1
        called = {str(Path(*ends[-count:])): source for source, ends in parts.items()}
    return called
