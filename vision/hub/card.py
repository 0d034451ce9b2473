"""The model card: README.md of a released folder, as the Hugging Face Hub shows it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from .record import WeightsRecord, thaw

__all__ = ["model_card"]


def model_card(name: str, task: str, record: WeightsRecord) -> str:
    """Markdown with the Hub's header, how to load, the metrics and what is known of the weights."""
    parts = [_header(name, task, record), f"# {name}", ""]
    parts += [f"Weights of the {task} network `{name}` of vizoo, trained on {record.trained_on}."]
    parts += ["", "```python", "import vizoo", ""]
    parts += ['net = vizoo.create_model("local-dir:FOLDER")  # this folder']
    parts += ['net = vizoo.create_model("hf-hub:ORG/NAME")  # on the Hugging Face Hub', "```", ""]
    if record.metrics:
        parts += ["## Metrics", "", *_metrics(record.metrics), "", "Made by:", ""]
        parts += ["```", record.command, "```", ""]
    rows = {
        "licence": record.licence,
        "trained on": record.trained_on,
        "trained by": f"`{record.training}`" if record.training else "",
        "origin": record.origin,
        "classes": ", ".join(record.classes),
        **{f"input: {key}": _value(value) for key, value in record.input.items()},
        **{f"architecture: {key}": _value(v) for key, v in record.architecture.items()},
        "subnet": _value(record.subnet) if record.subnet is not None else "",
        "reach": f"disparities up to {record.reach} pixels" if record.reach else "",
        "size": f"{record.size:,} bytes",
        "SHA-256": f"`{record.sha256}`",
    }
    parts += ["## Weights", "", "| | |", "|---|---|"]
    parts += [f"| {key} | {_cell(value)} |" for key, value in rows.items() if value]
    return "\n".join(parts) + "\n"


def _header(name: str, task: str, record: WeightsRecord) -> str:
    """The header of the Hub, which takes a licence it knows or `other`."""
    known = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.+-]*", record.licence)
    licence = [f"license: {record.licence.lower()}"]
    if not known:
        licence = ["license: other", f"license_name: {json.dumps(record.licence)}"]
    lines = ["---", *licence, "library_name: vizoo", "tags:"]
    return "\n".join([*lines, *(f"- {tag}" for tag in ("vizoo", task, name)), "---", ""])


def _metrics(metrics: Mapping[str, Mapping[str, float]]) -> list[str]:
    names = list(dict.fromkeys(name for values in metrics.values() for name in values))
    lines = [f"| data | {' | '.join(map(_cell, names))} |", f"|---|{'---:|' * len(names)}"]
    for data, values in metrics.items():
        cells = (f"{values[name]:.4g}" if name in values else "" for name in names)
        lines.append(f"| {_cell(data)} | {' | '.join(cells)} |")
    return lines


def _value(value: Any) -> str:
    return f"`{json.dumps(thaw(value))}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
