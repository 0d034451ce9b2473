"""What runs of a predictor say as JSON: the same keys for the same things, whatever the task.

A summary has ``model``, ``device``, ``dtype``, ``runtime``, ``kind`` and ``items``; what else it
has is the task's. An item has ``name``, the first part of its files' names, ``size`` (height,
width; of scans the slices before them), ``seconds``, ``warnings``, ``files`` and the results, or
``name`` and ``error``; of commands that take many also ``replaced``, how many of its files an
earlier run had written. Where Ctrl+C ended the run, the summary has ``interrupted`` and those items
that were finished.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["item_summary", "run_summary", "spread"]


def run_summary(
    predictor: Any,
    model: str | os.PathLike[str],
    kind: str,
    items: Sequence[Mapping[str, Any]],
    **facts: Any,
) -> dict[str, Any]:
    """The summary of a run.

    Args:
        predictor: with its `device`, `dtype`, and `runtime` and `guided` where these are choices.
        model: as it was asked for.
        kind: what the items are, such as ``pairs``; they stand under this key too, where scripts
            of earlier versions look for them.
        items: what `item_summary` made, or ``name`` and ``error``.
        facts: what else there is to say.
    """
    guided = {"guided": predictor.guided} if hasattr(predictor, "guided") else {}
    return {
        "model": os.fspath(model),
        **guided,
        "device": str(predictor.device),
        "dtype": str(predictor.dtype).removeprefix("torch."),
        "runtime": getattr(predictor, "runtime", "torch"),
        **facts,
        "kind": kind,
        "items": list(items),
        kind: list(items),
    }


def item_summary(
    name: str,
    result: Mapping[str, Any],
    seconds: float,
    files: Iterable[str | os.PathLike[str]] = (),
    warnings: Iterable[str] = (),
) -> dict[str, Any]:
    """The summary of one thing: `name` is the first part of its files' names.

    A result has its ``size`` and what else its ``summary`` says; the predictor took the seconds.
    """
    return {
        "name": name,
        **result,
        "seconds": round(seconds, 4),
        "warnings": list(warnings),
        "files": [os.fspath(file) for file in files],
    }


def spread(values: np.ndarray) -> dict[str, float]:
    """Least, middle and greatest value."""
    low, middle, high = (float(value) for value in np.quantile(values, (0, 0.5, 1)))
    return {"min": low, "median": middle, "max": high}
