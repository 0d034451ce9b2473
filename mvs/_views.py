"""What each view of a scene is computed from, and which views an earlier run has finished."""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ..common.files import write_json
from ..datasets.mvs.scene import Scene

__all__ = ["Planned", "finished_views", "mark_begun", "mark_finished", "plan_views"]

_SAID = {"network": "weights", "inputs": "images or cameras", "depth_range": "depth range"}


@dataclass(frozen=True)
class Planned:
    """A view to compute.

    Attributes:
        file: name of its files, without suffix.
        sources: numbers of the views that it is matched with.
        depth_range: least and greatest depth.
        origin: where the range comes from, in words.
        record: all that the result depends on, as JSON has it.
    """

    file: str
    sources: list[int]
    depth_range: tuple[float, float]
    origin: str
    record: dict


def plan_views(scene: Scene, views: int, settings: dict) -> dict[int, Planned]:
    """Return what each view is to be computed from; views without a source are left out.

    Args:
        scene: with two views or more.
        views: that the network gets at once.
        settings: what else a result depends on, of types that JSON has.

    Raises:
        ValueError: no view has a source.
    """
    plan: dict[int, Planned] = {}
    files: set[str] = set()
    alone = []
    for index, view in enumerate(scene.views):
        sources = scene.sources(index, views - 1)
        if not sources:
            alone.append(view.name)
            continue
        span, origin = scene.depth_range(index)
        name = re.sub(r"[^\w.-]+", "_", view.name)
        while name in files:
            name += "_"
        files.add(name)
        record = {
            **settings,
            "sources": [scene.views[source].name for source in sources],
            "depth_range": [float(limit) for limit in span],
            "inputs": _digest(scene, [index, *sources]),
        }
        plan[index] = Planned(name, sources, tuple(record["depth_range"]), origin, record)
    if not plan:
        raise ValueError(f"{scene.pair_file or scene.name}: no view has a source to match it with")
    if alone:
        warnings.warn(
            f"{len(alone)} of {len(scene)} views have no source and are left out "
            f"({', '.join(alone[:3])}{', ...' if len(alone) > 3 else ''})",
            stacklevel=3,
        )
    return plan


def _digest(scene: Scene, indices: list[int]) -> str:
    """Return a short name of the images and cameras of some views."""
    digest = hashlib.sha256()
    for index in indices:
        view = scene.views[index]
        for matrix in (view.intrinsics, view.extrinsics):
            digest.update(matrix.float().cpu().contiguous().numpy().tobytes())
        if isinstance(view.image, Tensor):
            digest.update(view.image.cpu().contiguous().numpy().data)
        else:
            # By size, not by time: a copied folder is the same scene.
            size = os.path.getsize(view.image) if os.path.exists(view.image) else 0
            digest.update(f"{os.path.basename(view.image)} {size}".encode())
    return digest.hexdigest()[:16]


def finished_views(out: Path, plan: dict[int, Planned]) -> dict[int, dict]:
    """Return the summary's entries of views that are done.

    Raises:
        ValueError: one was computed from something else than is planned.
    """
    finished = {}
    for index, entry in plan.items():
        path = out / "views" / f"{entry.file}.json"
        if not path.is_file():
            continue
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            record, done = kept["settings"], dict(kept["entry"])
            maps = [out / file for file in done["files"] if file.endswith(".pfm")]
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # not ours, or of a machine that lost power: compute the view again
        if not all(file.is_file() for file in maps):
            continue
        for name, wanted in entry.record.items():
            if record.get(name) != wanted:
                raise ValueError(
                    f"{path}: computed from other {_SAID.get(name, name)} "
                    f"({_show(record.get(name))}, now {_show(wanted)}); name another --out, or "
                    "--restart to compute all views anew"
                )
        finished[index] = done
    return finished


def mark_begun(out: Path, planned: Planned) -> None:
    """Forget an earlier run's word on a view; call it before its files are written anew."""
    (out / "views" / f"{planned.file}.json").unlink(missing_ok=True)


def mark_finished(out: Path, planned: Planned, entry: dict) -> None:
    """Say that all files of a view are written; call it last."""
    write_json(out / "views" / f"{planned.file}.json", {"settings": planned.record, "entry": entry})


def _show(value: object) -> str:
    if isinstance(value, list):
        return " ".join(_show(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
