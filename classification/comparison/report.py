"""What a comparison writes: a table as timm's, a page, and all of it as JSON."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, cast

from ...common.files import write_csv, write_json, write_text
from ...nas.search import pareto_front
from ...vision.viz.page import render
from ...vision.viz.plot import Series, front_plot
from .config import CompareConfig
from .significance import differences

__all__ = ["write_report"]

# Those of timm's `results-*.csv`, param_count in millions; then ours.
_TIMM = "model top1 top1_err top5 top5_err param_count img_size crop_pct interpolation".split()
_OURS = "group seeds top1_std macs memory latency joules search_minutes train_minutes".split()
_AVERAGED = (
    "top1 top5 loss parameters macs memory latency joules search_minutes train_minutes".split()
)
_FRONTS = {"latency": (1.0, "latency [ms]"), "parameters": (1e6, "parameters [millions]")}


def write_report(
    config: CompareConfig,
    runs: Sequence[Mapping[str, Any]],
    measured: Mapping[str, Sequence[float | None]],
    failed: Mapping[str, str],
    folder: Path,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Write `results.csv`, `report.html` and `comparison.json`.

    Args:
        config: what was compared.
        runs: what `run` gave.
        measured: `latency` and `joules` of each run.
        failed: runs that failed, and why.
        folder: where to write.

    Returns:
        The rows, the most accurate first, and the differences of pairs.
    """
    by_row: dict[str, list[dict[str, Any]]] = {}
    for one, latency, joules in zip(runs, measured["latency"], measured["joules"], strict=True):
        by_row.setdefault(one["row"], []).append({**one, "latency": latency, "joules": joules})
    rows = [_row(config, name, group) for name, group in by_row.items()]
    rows.sort(key=lambda row: -row["top1"])
    fronts = {cost: pareto_front([(row[cost], -row["top1"]) for row in rows]) for cost in _FRONTS}
    for place, row in enumerate(rows):
        row["fronts"] = [cost for cost, front in fronts.items() if place in front]
    pairs = differences({row["row"]: row["scores"] for row in rows})
    write_csv(folder / "results.csv", [*_TIMM, *_OURS], [_cells(config, row) for row in rows])
    content = {"config": config.name, "rows": rows, "differences": pairs, "failed": dict(failed)}
    write_json(folder / "comparison.json", content)
    write_text(folder / "report.html", _page(config, rows, pairs, failed, runs))
    return rows, pairs


def _row(config: CompareConfig, name: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The means over the seeds of a row, and the deviation of its accuracy."""
    settings, scores = config.rows[name], [one["top1"] for one in runs]
    row: dict[str, Any] = {"row": name, "group": settings.group, "note": settings.note}
    for key in _AVERAGED:
        values = [one[key] for one in runs]
        row[key] = None if None in values else round(mean(values), 4)
    return {
        **row,
        "scores": scores,
        "top1_std": round(stdev(scores), 3) if len(scores) > 1 else None,
        "seeds": len(runs),
    }


def _cells(config: CompareConfig, row: Mapping[str, Any]) -> list[Any]:
    preset = cast("Any", config.data).sets("test")[0].preset
    timm = {
        "model": row["row"],
        **{name: row[name] for name in ("top1", "top5")},
        **{f"{name}_err": round(100 - row[name], 4) for name in ("top1", "top5")},
        "param_count": round(row["parameters"] / 1e6, 3),
        "img_size": preset.size[0],
        "crop_pct": preset.crop,
        "interpolation": preset.interpolation,
    }
    return [*(timm[name] for name in _TIMM), *(row[name] for name in _OURS)]


def _page(
    config: CompareConfig,
    rows: Sequence[Mapping[str, Any]],
    pairs: Sequence[Mapping[str, Any]],
    failed: Mapping[str, str],
    runs: Sequence[Mapping[str, Any]],
) -> str:
    fronts = {}
    for cost, (unit, label) in _FRONTS.items():
        points = {row["row"]: (row[cost] / unit, 100 - row["top1"]) for row in rows}
        best = [points[row["row"]] for row in rows if cost in row["fronts"]]
        every = Series("every row", list(points.values()), list(points))
        fronts[label] = front_plot(Series("Pareto front", best), every, label, "error [%]")
    return render(
        Path(__file__).with_name("page.html"),
        {
            "title": "Networks made by hand and networks that were searched",
            "config": config.name,
            "rows": rows,
            "tested": runs[0]["tested"],
            "trained": len(cast("Any", config.data).sets("train")[0]),
            "epochs": config.training["epochs"],
            "seeds": len(config.seeds),
            "size": f"{config.size[0]} × {config.size[1]}",
            "batch": config.batch,
            "fronts": fronts,
            "pairs": [pair for pair in pairs if pair["beyond"]],
            "compared": len(pairs),
            "failed": failed,
            "today": datetime.date.today().isoformat(),
        },
    )
