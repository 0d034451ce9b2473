"""How wrong a subnet is beside the largest one."""

from __future__ import annotations

import argparse
import contextlib
import copy
import hashlib
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..common.interrupts import ended_by_sigterm
from ..common.progress import progress_bar

if TYPE_CHECKING:
    from torch import nn

    from ..vision.configs.task import FitConfig
    from ..vision.subnets.bench import Bench

_BUILT_IN, _FOLDER = "evaluate/{task}.yaml", "evaluate/{task}_pairs.yaml"


def examiner(args: argparse.Namespace, net: nn.Module, trained: bool) -> FitConfig | None:
    """The config that measures a supernet's errors; None where there is none or none is wanted."""
    from ..vision.configs.builtin import list_configs
    from ..vision.configs.task import FitConfig
    from ..vision.hub.registry import model_info

    task = model_info(cast("dict[str, Any]", net.architecture)["name"]).task
    # Of what is too long for a path, as typed YAML may be, `Path.is_dir` raises.
    if args.evaluate is not None and os.path.isdir(args.evaluate):
        name = _FOLDER.format(task=task)
        if name not in list_configs():
            raise ValueError(f"--evaluate {args.evaluate}: of {task} a config is taken, no folder")
        os.environ["PAIRS"] = str(Path(args.evaluate).resolve())  # which that config names
        config = FitConfig.read(name)
        config.name = args.evaluate
        return config
    if args.evaluate is not None:
        return FitConfig.read(args.evaluate)
    name = _BUILT_IN.format(task=task)
    if args.no_evaluate or not trained or name not in list_configs():
        return None
    return FitConfig.read(name)


class Errors:
    """Errors of the largest subnet and of another one, on the validation data of a judge.

    Batch norms are estimated on batches of its training data, or of another config's. The report
    is what was found, as it is written.
    """

    def __init__(
        self, bench: Bench, judge: FitConfig, config: FitConfig | None, batches: int
    ) -> None:
        self.bench, self.judge, self.batches = bench, judge, batches
        self.estimating = config or judge
        self.report: dict[str, Any] = {
            "config": judge.name,
            "recalibrated_on": self.estimating.name,
            "shown": [],
            "largest": {},
            "subnet": {},
        }

    def of_largest(self, *, remember: bool = False) -> None:
        """Measure the largest subnet, or take what an earlier run found.

        Args:
            remember: look for that, and keep what is measured; for data that never change.
        """
        from ..common.files import read_json, write_json

        net = self.bench.network(self.bench.space.largest()).to(self.bench.device).eval()
        kept = self._kept(net) if remember and self.estimating is self.judge else None
        if kept is not None:
            with contextlib.suppress(OSError, ValueError):
                known = read_json(kept)
                if isinstance(known, dict) and set(known) == {"shown", "largest"}:
                    self.report |= known
                    return
        name = self.judge.name
        with progress_bar(f"errors of the largest subnet ({name})") as tell:
            tell(0, 3)
            before, shown = self._metrics(net)
            if not before:
                raise ValueError(f"{name}: its validation measures nothing; give it `val` data")
            shown = shown or list(before)
            if unknown := [metric for metric in shown if before[metric] is None]:
                raise ValueError(
                    f"{name}: {unknown[0]} of the largest subnet is not finite: give data with a "
                    "known truth, or --no-evaluate"
                )
            tell(1, 3)
            self.estimating.recalibrate(net, self.batches, self.bench.device)
            tell(2, 3)
            largest = {"before": before, "after": self._metrics(net)[0]}
            tell(3, 3)
        measured = {"shown": shown, "largest": largest}
        self.report |= measured
        if kept is not None:
            with contextlib.suppress(OSError):  # a folder that cannot be written costs time alone
                write_json(kept, measured)

    def of_subnet(self, when: str, net: nn.Module) -> None:
        """Measure a subnet `before` or `after` its batch norms were estimated."""
        net = net.to(self.bench.device).eval()
        with progress_bar(f"its errors {when} batch norms are estimated") as tell:
            tell(0, 1)
            self.report["subnet"][when] = self._metrics(net)[0]
            tell(1, 1)

    def _metrics(self, net: nn.Module) -> tuple[dict[str, float | None], list[str]]:
        """Metrics, None where one is not finite, and the names of those to show."""
        import torch

        # A third faster on a CPU; a copy, since the subnet itself is written.
        fast = copy.deepcopy(net).to(memory_format=torch.channels_last)
        with ended_by_sigterm():
            values, shown = self.judge.metrics(fast, self.bench.device)
        return {name: v if math.isfinite(v) else None for name, v in values.items()}, shown

    def _kept(self, net: nn.Module) -> Path | None:
        """Where errors of these very weights on this config lie; None where nowhere."""
        import torch

        from .. import __version__
        from ..vision.configs.builtin import resolve_config
        from ..vision.hub.download import cache_folder
        from ..vision.runtimes import fingerprint

        digest = hashlib.sha256()
        digest.update(Path(resolve_config(self.judge.name)).read_bytes())
        words = (__version__, torch.__version__, self.bench.device, self.batches)
        digest.update(repr([*map(str, words), fingerprint(net)]).encode())
        try:
            return cache_folder().with_name("evaluations") / f"{digest.hexdigest()[:16]}.json"
        except OSError:
            return None


def recalibrated(
    net: nn.Module, errors: Errors | None, config: FitConfig | None, batches: int, bench: Bench
) -> dict[str, Any] | None:
    """Estimate batch norms anew where that was asked for, and measure errors before and after."""
    if errors is None:
        return None if config is None else config.recalibrate(net, batches, bench.device)
    errors.of_subnet("before", net)
    after = copy.deepcopy(net) if config is None else net
    told = errors.estimating.recalibrate(after, batches, bench.device)
    errors.of_subnet("after", after)
    return None if config is None else told
