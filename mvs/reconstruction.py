"""A whole scene: a depth map for every view, then one cloud; resumed where it was interrupted.

The folder of results::

    depth/NAME.pfm, .png        depth and its picture
    confidence/NAME.pfm, .png   how sure each pixel is, 0 to 1
    views/NAME.json             what the view was computed from; written last, so it marks it done
    cloud.ply, cloud.png        the fused cloud, and how it looks from one of the cameras
    mesh.ply                    if asked for
    classical/                  the same by a plane sweep, if asked for
    summary.json                all of this in numbers
"""

from __future__ import annotations

import hashlib
import os
import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..common.arguments import checked
from ..common.files import few, read_json, write_json
from ..common.summaries import item_summary, run_summary
from ..common.system import installed_version
from ..datasets.files import check_choice
from ..datasets.mvs.cameras import resize_intrinsics
from ..datasets.mvs.scene import Scene, readable, resize
from ..vision.io.images import to_bytes, write_image
from ..vision.io.pfm import read_pfm
from ..vision.io.ply import open3d
from ..vision.viz.cloud import cloud_picture
from .classical import PlaneSweep
from .clouds import TSDFMesh, refine_file
from .fusion import (
    DEFAULT,
    PRESETS,
    DepthView,
    FusedView,
    Thresholds,
    check_agreement,
    fuse_to_file,
)
from .infer import MVSPredictor, view_seed

__all__ = ["reconstruct"]

_LONGEST = 1920  # pixels; the largest images of the published evaluations
_SHOWN = 1_500_000  # points in the picture of the cloud


@checked("predictor", "scene", "out", "views", "size", "thresholds", "seed", "voxel", "mesh")
def reconstruct(
    predictor: MVSPredictor,
    scene: Scene,
    out: str | os.PathLike,
    *,
    views: int = 5,
    size: tuple[int, int] | None = None,
    thresholds: Thresholds | Mapping[str, float] | None = None,
    seed: int = 0,
    restart: bool = False,
    voxel: float | None = None,
    normals: bool = False,
    mesh: float | None = None,
    classical: bool = False,
    report: Callable[[str, int, int], None] | None = None,
) -> dict:
    """Find the depth of every view of a scene and fuse them into a cloud.

    Views that an earlier, interrupted call finished in the same folder are not computed again. One
    whose photograph cannot be read is left out, and has an ``error`` in the summary, at its end.
    Ctrl+C leaves a ``summary.json`` of the views so far, with ``interrupted``, where no earlier
    call's cloud is in the folder.

    Args:
        predictor: with its network.
        scene: what to reconstruct.
        out: folder of the results.
        views: that the network gets at once: one and its best sources.
        size: (height, width) to resize the images to; by default theirs, at most 1920 along the
            longer side.
        thresholds: of fusion; by default those of the scene's data set, else two other views that
            agree within 1 pixel and 1 %. A mapping replaces some of these: ``{"pixels": 0.5}``.
        seed: of the random depths that the search starts from, where it is not guided.
        restart: compute all views anew.
        voxel: thin the cloud to one point a cube of this side (needs Open3D).
        normals: write normals into the cloud (needs Open3D).
        mesh: also make a mesh with cells of this side (needs Open3D).
        classical: also reconstruct by a plane sweep, in the folder ``classical``, to compare with.
        report: called as ``report("photographs", "ranges", "views" or "fusion", done, total)``.

    Returns:
        The summary, as written to ``summary.json``; its cloud is None where no view that has
        sources is a source of another. With `classical` it has ``classical``: that one's summary,
        and by view the share of pixels whose depth is within 5 % of the sweep's.

    Raises:
        ValueError: an argument of a wrong type or out of range, the views in the folder were
            computed from other settings (the first that differs is named), images differ in size
            and ``size`` is not given, fewer than two can be read, a threshold is unknown or asks
            for more views than any view has sources, or nothing is left after fusion (the message
            says which filter removed how many).
        ImportError: Open3D is needed and cannot be had.

    Warns (``UserWarning``) of what was assumed, of what could not be read, and of depth of other
    views in the folder.
    """
    out = Path(out)
    if views < 2:
        raise ValueError(f"multi-view stereo needs 2 views or more, got {views}")
    for key in thresholds if isinstance(thresholds, Mapping) else ():
        check_choice("threshold", key, ("views", "pixels", "relative"))
    for name, value in (("size", size), ("voxel", voxel), ("mesh", mesh)):
        if value is not None and not np.min(value) > 0:
            raise ValueError(f"{name} {value}: must be above 0")
    if voxel is not None or normals or mesh is not None:
        open3d()
    report = report or (lambda what, done, total: None)
    scene, unread = readable(scene, partial(report, "photographs"))
    size = _default_size(scene) if size is None else size
    settings = {
        "network": predictor.fingerprint,
        "dtype": str(predictor.dtype).removeprefix("torch."),
        "size": list(size),
        "seed": 0 if predictor.guided else seed,  # guided, nothing is random
    }
    plan = _plan_views(scene, views, settings, None if restart else out, report)
    _say_ranges(scene, plan)
    _say_others(out, plan)
    scene = _settled(scene, plan)
    fusible = any(source in plan for index in plan for source in scene.sources(index))
    chosen = _thresholds(scene, plan, thresholds) if fusible else None
    if restart:
        # All at once, so that what an interrupted restart leaves can be resumed.
        for folder in (out, out / "classical") if classical else (out,):
            for entry in plan.values():
                _mark(folder, entry.file).unlink(missing_ok=True)
    done = {} if restart else _finished_views(out, plan)
    entries: dict[int, dict] = {}
    fused: dict = {"points": 0, "fusion": None, "cloud": None, "picture": None}
    made = {"voxel": voxel, "normals": normals, "mesh": mesh}

    def told() -> dict:
        items = [{**e, "files": [str(out / file) for file in e["files"]]} for e in entries.values()]
        items += [{"name": name, "error": error} for name, error in unread.items()]
        facts = {"scene": scene.name, "layout": scene.layout, "offset": list(scene.offset)}
        facts |= {"size": list(size), **fused}
        return run_summary(predictor, predictor.model, "views", items, **facts)

    try:
        for index, computed in _compute(predictor, scene, plan, done, out, size, seed, report):
            entries[index] = computed
        if chosen is None:
            _say_unfused(scene, made)
        else:
            fused |= _fuse(scene, plan, entries, out, size, chosen, predictor, mesh, report)
            if voxel is not None or normals:
                poses = torch.stack([view.extrinsics for view in scene.views]) if normals else None
                fused["points"] = refine_file(out / "cloud.ply", voxel=voxel, cameras=poses)
    except KeyboardInterrupt:
        if entries and not _earlier_results(out):
            write_json(out / "summary.json", {"interrupted": True, **told()})
        raise
    summary = told()
    names = [name for name in ("cloud", "picture", "mesh") if summary.get(name)]
    for file in _earlier_results(out) - {Path(summary[name]).name for name in names}:
        (out / file).unlink(missing_ok=True)
    write_json(out / "summary.json", summary)
    if classical:
        how = {"views": views, "size": size, "thresholds": thresholds, "restart": restart, **made}
        other = _swept(scene, out / "classical", str(predictor.device), {**how, "report": report})
        both = zip(summary["views"], other["views"], strict=False)  # the unread ones come last
        agreed = {a["name"]: _agreement(a["files"][0], b["files"][0]) for a, b in both}
        summary["classical"] = {**other, "agreed": agreed}
        write_json(out / "summary.json", summary)
    return summary


def _say_unfused(scene: Scene, made: dict[str, Any]) -> None:
    left = ", ".join(name for name, value in made.items() if value not in (None, False))
    warnings.warn(
        f"{scene.name}: no view that has sources is a source of another: there is depth, and "
        "nothing to fuse it with" + (f" (left out: {left})" if left else ""),
        stacklevel=3,
    )


def _swept(scene: Scene, out: Path, device: str, how: dict[str, Any]) -> dict:
    """The same by a plane sweep; what there is to say of the scene was said."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return reconstruct(MVSPredictor(PlaneSweep(), device), scene, out, **how)
        except ValueError as error:
            raise ValueError(f"{out}: {error}") from error


def _earlier_results(out: Path) -> set[str]:
    """Names of the cloud, its picture and the mesh that an earlier run's summary names."""
    try:
        kept = read_json(out / "summary.json")
        named = {Path(kept[key]).name for key in ("cloud", "picture", "mesh") if kept.get(key)}
    except (OSError, ValueError, TypeError, AttributeError):
        return set()
    return named & {"cloud.ply", "cloud.png", "mesh.ply"}


def _mark(out: Path, name: str) -> Path:
    """The file that marks a view as done."""
    return out / "views" / f"{name}.json"


def _agreement(first: str, second: str) -> float:
    """Share of the pixels of a depth map in a file that are within 5 % of another's."""
    mine, yours = read_pfm(first), read_pfm(second)
    return round(float((np.abs(mine - yours) < 0.05 * yours).mean()), 4)


def _default_size(scene: Scene) -> tuple[int, int]:
    """Return (height, width) that all images have, made smaller if that is very large."""
    sizes = [scene.size(index) for index in range(len(scene))]
    other = next((i for i, size in enumerate(sizes) if size != sizes[0]), None)
    if other is not None:
        first, second = (f"{sizes[i][0]}x{sizes[i][1]}" for i in (0, other))
        raise ValueError(
            f"{scene.views[other].describe()}: {second} pixels, but "
            f"{scene.views[0].describe()} has {first}; give one size for all"
        )
    height, width = sizes[0]
    scale = _LONGEST / max(height, width)
    if scale >= 1:
        return height, width
    smaller = round(height * scale), round(width * scale)
    warnings.warn(
        f"images of {height}x{width} are resized to {smaller[0]}x{smaller[1]} (height x width); "
        "size chooses another",
        stacklevel=3,
    )
    return smaller


def _say_ranges(scene: Scene, plan: dict[int, _Planned]) -> None:
    assumed = [i for i in plan if scene.views[i].depth_range is None]
    if not assumed:
        return
    spans = [plan[i].depth_range for i in assumed]
    origins = Counter(plan[i].origin for i in assumed).most_common()
    told = "; ".join(f"{count} {origin}" if origins[1:] else origin for origin, count in origins)
    warnings.warn(
        f"no depth range is given for {len(assumed)} of {len(plan)} views: assumed "
        f"{min(s[0] for s in spans):.4g} to {max(s[1] for s in spans):.4g} ({told}); "
        "Scene.with_range, or --range, sets it",
        stacklevel=3,
    )


def _say_others(out: Path, plan: dict[int, _Planned]) -> None:
    planned = {entry.file for entry in plan.values()}
    if others := sorted({mark.stem for mark in (out / "views").glob("*.json")} - planned):
        warnings.warn(
            f"{out}: depth of an earlier run, not of this one, stays there: {few(others)}",
            stacklevel=3,
        )


def _compute(
    predictor: MVSPredictor,
    scene: Scene,
    plan: dict[int, _Planned],
    done: dict[int, dict],
    out: Path,
    size: tuple[int, int],
    seed: int,
    report: Callable[[str, int, int], None],
) -> Iterator[tuple[int, dict]]:
    """Compute what is not done; yield the number of each view and its entry of the summary."""
    samples = _samples(scene, {i: e.sources for i, e in plan.items() if i not in done}, size)
    for count, (index, entry) in enumerate(plan.items()):
        report("views", count, len(plan))
        if index in done:
            yield index, {**done[index], "resumed": True}
            continue
        name = scene.views[index].name
        started = time.perf_counter()
        try:
            result = predictor.predict_sample(next(samples), view_seed(seed, name))
        except ValueError as error:
            raise ValueError(f"view {name}: {error}") from error
        seconds = time.perf_counter() - started
        mark = _mark(out, entry.file)  # says that all other files are there
        mark.unlink(missing_ok=True)
        files = result.save(out, entry.file)
        facts = {
            "sources": [scene.views[i].name for i in entry.sources],
            "depth_range": list(entry.depth_range),
            **result.summary(),
        }
        relative = [file.relative_to(out) for file in files]  # the folder may be moved
        computed = item_summary(name, facts, seconds, relative)
        kept = {"settings": entry.record, "vizoo": installed_version(), "entry": computed}
        write_json(mark, kept)
        yield index, computed
    report("views", len(plan), len(plan))


def _samples(scene: Scene, wanted: dict[int, list[int]], size: tuple[int, int]) -> Iterator[dict]:
    """Read views with their sources, the next one while one is worked on."""
    with ThreadPoolExecutor(1) as reader:
        ahead = None
        for index, sources in wanted.items():
            following = reader.submit(scene.sample, index, sources, size)
            if ahead is not None:
                yield ahead.result()
            ahead = following
        if ahead is not None:
            yield ahead.result()


def _settled(scene: Scene, plan: dict[int, _Planned]) -> Scene:
    """Return the scene with the planned ranges, and without truth: what is not read cannot fail."""
    views = [replace(view, truth=None) for view in scene.views]
    for index, entry in plan.items():
        views[index] = replace(views[index], depth_range=entry.depth_range)
    return replace(scene, views=views, points=None, tracks=None)


def _thresholds(
    scene: Scene, plan: dict[int, _Planned], given: Thresholds | Mapping[str, float] | None
) -> Thresholds:
    """Return what was asked for, else what the data set was published with, as far as it goes."""
    most = max(sum(source in plan for source in scene.sources(index)) for index in plan)
    if isinstance(given, Thresholds):
        check_agreement(given, most)
        return given
    single: dict[str, Any] = dict(given or {})
    family = "tanks" if "tanks" in scene.layout else "dtu"
    name = f"{family}/{scene.name.lower()}"
    chosen = PRESETS[name] if family in scene.layout and name in PRESETS else DEFAULT
    chosen = replace(chosen, **single)
    if "views" in single:
        check_agreement(chosen, most)
    elif most < chosen.views:
        warnings.warn(
            f"no view has more than {most} source{'s' * (most != 1)}, so {most} instead of "
            f"{chosen.views} must agree with it",
            stacklevel=3,
        )
        chosen = replace(chosen, views=most)
    return chosen


def _fuse(
    scene: Scene,
    plan: dict[int, _Planned],
    entries: dict[int, dict],
    out: Path,
    size: tuple[int, int],
    thresholds: Thresholds,
    predictor: MVSPredictor,
    mesh: float | None,
    report: Callable[[str, int, int], None],
) -> dict:
    started = time.perf_counter()
    place = {index: number for number, index in enumerate(plan)}
    views = []
    for index, entry in plan.items():
        view = scene.views[index]
        height, width = scene.size(index)
        matrix = resize_intrinsics(view.intrinsics, size[1] / width, size[0] / height).float()
        views.append(
            DepthView(
                name=view.name,
                intrinsics=matrix,
                extrinsics=view.extrinsics,
                depth=out / entries[index]["files"][0],
                image=partial(_pixels, scene, index, size),
                sources=[place[source] for source in scene.sources(index) if source in place],
                depth_range=entry.depth_range,
            )
        )
    shown: list[tuple[np.ndarray, np.ndarray]] = []  # some points of every view, for a picture
    most, random = _SHOWN // len(views), np.random.default_rng(0)
    surface = None if mesh is None else TSDFMesh(mesh)

    def each(part: FusedView) -> None:
        view, chosen = views[len(shown)], np.arange(part.kept)
        if part.kept > most:
            chosen = random.choice(part.kept, most, replace=False)
        shown.append((part.points[chosen], part.colours[chosen]))
        if surface is not None:
            image = np.zeros((*part.depth.shape, 3), np.uint8)
            image[part.depth > 0] = part.colours
            surface.add(part.depth, image, view.intrinsics, view.extrinsics)
        report("fusion", len(shown), len(views))

    fused = fuse_to_file(views, out / "cloud.ply", thresholds, device=predictor.device, each=each)
    kept = [fused.kept_by_view[view.name] for view in views]
    for index, number in place.items():
        entries[index]["points"] = kept[number]
    best = int(np.argmax(kept))
    write_image(out / "cloud.png", _picture(shown, views[best], kept[best], size))
    if surface is not None:
        surface.write(out / "mesh.ply")
    return {
        "points": fused.points,
        "cloud": str(out / "cloud.ply"),
        "picture": str(out / "cloud.png"),
        **({} if mesh is None else {"mesh": str(out / "mesh.ply")}),
        "fusion": {
            **asdict(thresholds),
            "pixels_of_all_views": fused.pixels,
            "without_depth": fused.unknown,
            "unconfirmed": fused.unconfirmed,
            "out_of_range": fused.out_of_range,
            "seconds": round(time.perf_counter() - started, 3),
        },
    }


def _picture(
    parts: list[tuple[np.ndarray, np.ndarray]], view: DepthView, kept: int, size: tuple[int, int]
) -> np.ndarray:
    """Draw some points of every view as seen from beside the view that has most, `kept`."""
    points, colours = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    pose = view.extrinsics.double().numpy()
    seen = points @ pose[:3, :3].T + pose[:3, 3]
    # Fewer points are drawn larger: as if by a camera of fewer pixels.
    shrink = max(1.0, (kept / (_SHOWN // len(parts))) ** 0.5)
    focal, height, width = (float(view.intrinsics[0, 0]), *size)
    return cloud_picture(
        seen,
        colours,
        source_focal=focal / shrink,
        source_size=(round(height / shrink), round(width / shrink)),
    )


def _pixels(scene: Scene, index: int, size: tuple[int, int]) -> np.ndarray:
    return to_bytes(resize(scene.image(index), size))


_SAID = {
    "network": "weights, or in another way",
    "inputs": "images or cameras",
    "depth_range": "depth range",
}


@dataclass(frozen=True)
class _Planned:
    """A view to compute."""

    file: str  #: name of its files, without suffix
    sources: list[int]  #: numbers of the views that it is matched with
    depth_range: tuple[float, float]  #: least and greatest depth
    origin: str  #: where the range comes from, in words
    record: dict  #: all that the result depends on, as JSON has it


def _plan_views(
    scene: Scene,
    views: int,
    settings: dict,
    out: Path | None,
    report: Callable[[str, int, int], None],
) -> dict[int, _Planned]:
    """Return what each view is to be computed from; views without a source are left out.

    The network gets so many views at once. Settings are what else a result depends on, as JSON. A
    range that nobody gave is that of an earlier run in the folder, which may be one by other
    versions of libraries, else derived.
    """
    plan: dict[int, _Planned] = {}
    files: set[str] = set()
    alone = []
    for index, view in enumerate(scene.views):
        sources = scene.sources(index, views - 1)
        if not sources:
            alone.append(view.name)
            continue
        report("ranges", index, len(scene))
        name = re.sub(r"[^\w.-]+", "_", view.name)
        while name in files:
            name += "_"
        files.add(name)
        kept = None if out is None or view.depth_range is not None else _kept_range(out, name)
        span, origin = (kept, "of an earlier run") if kept else scene.depth_range(index)
        record = {
            **settings,
            "sources": [scene.views[source].name for source in sources],
            "depth_range": [float(limit) for limit in span],
            "inputs": _digest(scene, [index, *sources]),
        }
        plan[index] = _Planned(name, sources, tuple(record["depth_range"]), origin, record)
    if not plan:
        raise ValueError(f"{scene.pair_file or scene.name}: no view has a source to match it with")
    if alone:
        warnings.warn(
            f"{len(alone)} of {len(scene)} views have no source and are left out "
            f"({', '.join(alone[:3])}{', ...' if len(alone) > 3 else ''})",
            stacklevel=3,
        )
    return plan


def _kept_range(out: Path, name: str) -> tuple[float, float] | None:
    """The range that an earlier run in the folder took for a view."""
    try:
        least, greatest = map(float, read_json(_mark(out, name))["settings"]["depth_range"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return least, greatest


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


def _finished_views(out: Path, plan: dict[int, _Planned]) -> dict[int, dict]:
    """Return the summary's entries of views that are done; refuses those of another plan."""
    finished, makers = {}, set()
    for index, entry in plan.items():
        path = _mark(out, entry.file)
        if not path.is_file():
            continue
        try:
            kept = read_json(path)
            record, done = kept["settings"], dict(kept["entry"])
            maps = [out / file for file in done["files"] if file.endswith(".pfm")]
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # not ours, or of a machine that lost power: compute the view again
        if "confidence" not in done or not all(file.is_file() for file in maps):
            continue  # or of an earlier version
        for name, wanted in entry.record.items():
            if record.get(name) != wanted:
                raise ValueError(
                    f"{path}: computed from other {_SAID.get(name, name)} "
                    f"({_show(record.get(name))}, now {_show(wanted)}); name another folder, or "
                    "compute all views anew with --restart (restart=True)"
                )
        finished[index] = done
        makers.add(str(kept.get("vizoo", "of an earlier version")))
    now = installed_version()
    if others := sorted(makers - {now}):
        warnings.warn(
            f"{out}: views that vizoo {', '.join(others)} computed are kept, and this is {now}; "
            "restart to compute all views anew",
            stacklevel=3,
        )
    return finished


def _show(value: object) -> str:
    if isinstance(value, list):
        return " ".join(_show(item) for item in value)
    return f"{value:.9g}" if isinstance(value, float) else str(value)
