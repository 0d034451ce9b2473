"""One run of a comparison: a row's network for one seed, found, trained, tested and counted."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, cast

import torch
from torch.nn import functional as F

from ...common.counts import count
from ...common.devices import choose_device
from ...common.energy import joules
from ...common.timing import measure_in_turns
from ...vision.hub.create import create_model
from ...vision.inference import optimize
from ...vision.inputs import example_inputs
from ..task import ClassificationTask
from .candidates import Shared, cpu_minutes, fit, found
from .config import CompareConfig

__all__ = ["latencies", "run"]

_REPETITIONS = 100


def run(config: CompareConfig, name: str, seed: int, shared: Shared) -> dict[str, Any]:
    """Find, train and test the network of a row.

    Returns:
        Plain values: scores in percent, counted costs, minutes of search and training, and under
        `model` what `create_model` builds the network from.
    """
    row, data = config.rows[name], cast("Any", config.data)
    for stage in ("fit", "test"):
        data.setup(stage)  # by the config's seed, which the sets are chosen by
    data.seed = seed
    task, searched = found(config, row, seed, shared)
    start = cpu_minutes()
    epochs = config.training["epochs"] if row.epochs is None else row.epochs
    if epochs:
        fit(task, data, epochs)
    trained = cpu_minutes() - start
    counts = count(task.net, *example_inputs(task.net, *config.size, batch=config.batch))
    return {
        "row": name,
        "seed": seed,
        "digest": config.digest(name),
        **_tested(task, data),
        **counts.to_json(),
        "epochs": epochs,
        "search_minutes": round(searched, 3),
        "train_minutes": round(trained, 3),
        "model": dict(cast("dict[str, Any]", task.net.architecture)),
    }


def _tested(task: ClassificationTask, data: Any) -> dict[str, float | None]:
    """Scores on the test images, in percent; the loss is None where training diverged."""
    outputs, labels, device = [], [], choose_device("auto")
    task.to(device).eval()
    with torch.inference_mode():
        for batch in data.test_dataloader():
            there = task.transfer_batch_to_device(batch, device, 0)
            outputs.append(task.outputs(there).float().cpu())
            labels.append(batch["label"])
    task.cpu()
    logits, truth = torch.cat(outputs), torch.cat(labels)
    loss = F.cross_entropy(logits, truth).item()
    best = logits.topk(min(5, logits.shape[1])).indices == truth[:, None]
    return {
        "top1": round(100 * best[:, 0].float().mean().item(), 3),
        "top5": round(100 * best.any(1).float().mean().item(), 3),
        "loss": round(loss, 4) if math.isfinite(loss) else None,
        "tested": len(truth),
    }


def latencies(
    config: CompareConfig, runs: list[dict[str, Any]]
) -> tuple[list[float | None], list[float | None]]:
    """Milliseconds and joules of a forward pass, of each run's network as it predicts here.

    All are measured in turns, so that they compare.
    """
    keys = [repr(one["model"]) for one in runs]
    calls = {}
    for key, one in dict(zip(keys, runs, strict=True)).items():
        net = create_model(**one["model"]).eval()
        inputs = example_inputs(net, *config.size, batch=config.batch)
        calls[key] = partial(optimize(net), *inputs)
    timings = measure_in_turns(list(calls.values()), repetitions=_REPETITIONS)
    known = dict(zip(calls, timings, strict=True))
    energies = {key: joules(call).joules for key, call in calls.items()}
    return [round(known[key].median, 4) for key in keys], [energies[key] for key in keys]
