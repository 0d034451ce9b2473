"""A whole scene: a depth map for every view, then one cloud; resumed where it was interrupted.

The folder of results::

    depth/NAME.pfm, .png        depth and its picture
    confidence/NAME.pfm, .png   the largest weight that one other view had in it
    views/NAME.json             what the view was computed from; written last, so it marks it done
    cloud.ply, cloud.png        the fused cloud, and how it looks from one of the cameras
    mesh.ply                    if asked for
    summary.json                all of this in numbers
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..datasets.mvs.scene import Scene
from ..vision.cameras import resize_intrinsics
from ..vision.io.files import atomic_write
from ..vision.io.images import write_image
from ..vision.io.pfm import read_pfm
from ..vision.io.pointcloud import open3d
from ..vision.viz.cloud import cloud_picture
from .fusion import DepthView, FusedView, fuse_to_file
from .infer import view_seed
from .presets import DEFAULT, PRESETS, Thresholds

if TYPE_CHECKING:
    from .infer import MVSPredictor

__all__ = ["default_size", "reconstruct"]

_LONGEST = 1920  # pixels; the largest images of the published evaluations
_SHOWN = 1_500_000  # points in the picture of the cloud


def reconstruct(
    predictor: MVSPredictor,
    scene: Scene,
    out: str | os.PathLike,
    *,
    views: int = 5,
    size: tuple[int, int] | None = None,
    thresholds: Thresholds | None = None,
    seed: int = 0,
    restart: bool = False,
    voxel: float | None = None,
    normals: bool = False,
    mesh: float | None = None,
    report: Callable[[str, int, int], None] | None = None,
) -> dict:
    """Find the depth of every view of a scene and fuse them into a cloud.

    Views that an earlier, interrupted call finished in the same folder are not computed again.

    Args:
        predictor: with its network.
        scene: what to reconstruct.
        out: folder of the results.
        views: that the network gets at once: one and its best sources.
        size: (height, width) to resize the images to; by default theirs, at most 1920 along the
            longer side.
        thresholds: of fusion; by default those of the scene's data set, else two other views that
            agree within 1 pixel and 1 %.
        seed: of the random depths that the search starts from.
        restart: compute all views anew.
        voxel: thin the cloud to one point a cube of this side (needs Open3D).
        normals: write normals into the cloud (needs Open3D).
        mesh: also make a mesh with cells of this side (needs Open3D).
        report: called as ``report("views" or "fusion", done, total)``.

    Returns:
        The summary, as written to ``summary.json``.

    Raises:
        ValueError: the views in the folder were computed from other settings (the first that
            differs is named), images differ in size and ``size`` is not given, or nothing is left
            after fusion (the message says which filter removed how many).
        ImportError: Open3D is needed and cannot be had.

    Warns (``UserWarning``) of what was assumed.
    """
    out = Path(out)
    if views < 2:
        raise ValueError(f"multi-view stereo needs 2 views or more, got {views}")
    if voxel is not None or normals or mesh is not None:
        open3d()
    report = report or (lambda what, done, total: None)
    size = default_size(scene) if size is None else size
    settings = {
        "network": predictor.fingerprint,
        "dtype": str(predictor.dtype).removeprefix("torch."),
        "size": list(size),
        "seed": seed,
    }
    plan = _plan(scene, views, settings)
    _say_ranges(scene, plan)
    scene = _settled(scene, plan)
    done = {} if restart else _finished(out, plan)
    entries = _compute(predictor, scene, plan, done, out, size, report)
    thresholds = _thresholds(scene, plan, thresholds)
    fused = _fuse(scene, plan, entries, out, size, thresholds, predictor, mesh, report)
    if voxel is not None or normals:
        from .clouds import refine_file

        cameras = torch.stack([view.extrinsics for view in scene.views])
        fused["points"] = refine_file(
            out / "cloud.ply", voxel=voxel, normals=normals, cameras=cameras
        )
    summary = {
        "scene": scene.name,
        "layout": scene.layout,
        "model": predictor.model,
        "size": list(size),
        "device": str(predictor.device),
        **fused,
        "cloud": str(out / "cloud.ply"),
        "picture": str(out / "cloud.png"),
        **({} if mesh is None else {"mesh": str(out / "mesh.ply")}),
        "views": list(entries.values()),
    }
    _write_json(out / "summary.json", summary)
    return summary


def default_size(scene: Scene) -> tuple[int, int]:
    """Return (height, width) that all images have, made smaller if that is very large.

    Raises:
        ValueError: they differ.
    """
    sizes = [scene.size(index) for index in range(len(scene))]
    other = next((i for i, size in enumerate(sizes) if size != sizes[0]), None)
    if other is not None:
        first, second = (f"{sizes[i][1]}x{sizes[i][0]}" for i in (0, other))
        raise ValueError(
            f"{scene.views[other].describe()}: {second} pixels, but "
            f"{scene.views[0].describe()} has {first}; give one size for all (--size HxW)"
        )
    height, width = sizes[0]
    scale = _LONGEST / max(height, width)
    if scale >= 1:
        return height, width
    smaller = round(height * scale), round(width * scale)
    warnings.warn(
        f"images of {width}x{height} are resized to {smaller[1]}x{smaller[0]}; --size HxW "
        "chooses another size",
        stacklevel=3,
    )
    return smaller


def _plan(scene: Scene, views: int, settings: dict) -> dict[int, dict]:
    """Return what each view is to be computed from; views without a source are left out."""
    plan, files = {}, set()
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
        plan[index] = {"file": name, "sources": sources, "origin": origin, "record": record}
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


def _say_ranges(scene: Scene, plan: dict[int, dict]) -> None:
    assumed = [i for i in plan if scene.views[i].depth_range is None]
    if not assumed:
        return
    spans = [plan[i]["record"]["depth_range"] for i in assumed]
    warnings.warn(
        f"no depth range is given for {len(assumed)} of {len(plan)} views: assumed "
        f"{min(s[0] for s in spans):.4g} to {max(s[1] for s in spans):.4g} "
        f"({plan[assumed[0]]['origin']}); --range MIN MAX sets it",
        stacklevel=3,
    )


def _finished(out: Path, plan: dict[int, dict]) -> dict[int, dict]:
    """Return the entries of views that are done.

    Raises:
        ValueError: one was computed from something else than is planned.
    """
    found = {}
    for index, entry in plan.items():
        path = out / "views" / f"{entry['file']}.json"
        maps = [out / kind / f"{entry['file']}.pfm" for kind in ("depth", "confidence")]
        if not (path.is_file() and all(file.is_file() for file in maps)):
            continue
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            record = kept["settings"]
        except (ValueError, KeyError, TypeError):
            continue  # not ours, or of a machine that lost power: compute the view again
        for name, wanted in entry["record"].items():
            if record.get(name) != wanted:
                raise ValueError(
                    f"{path}: computed from other {_SAID.get(name, name)} "
                    f"({_show(record.get(name))}, now {_show(wanted)}); name another --out, or "
                    "--restart to compute all views anew"
                )
        found[index] = kept
    return found


_SAID = {
    "network": "weights",
    "inputs": "images or cameras",
    "depth_range": "depth range",
    "dtype": "dtype",
}


def _compute(
    predictor: MVSPredictor,
    scene: Scene,
    plan: dict[int, dict],
    done: dict[int, dict],
    out: Path,
    size: tuple[int, int],
    report: Callable[[str, int, int], None],
) -> dict[int, dict]:
    """Compute what is not done; return an entry of the summary for each view."""
    entries = {}
    samples = _samples(scene, {i: e["sources"] for i, e in plan.items() if i not in done}, size)
    for count, (index, entry) in enumerate(plan.items()):
        report("views", count, len(plan))
        if index in done:
            entries[index] = {**done[index]["entry"], "resumed": True}
            continue
        name = scene.views[index].name
        started = time.perf_counter()
        try:
            result = predictor.predict_sample(
                next(samples), view_seed(entry["record"]["seed"], name)
            )
        except ValueError as error:
            raise ValueError(f"view {name}: {error}") from error
        seconds = time.perf_counter() - started
        files = result.save(out, entry["file"])
        low, middle, high = (float(v) for v in np.quantile(result.depth, (0, 0.5, 1)))
        entries[index] = {
            "name": name,
            "sources": entry["record"]["sources"],
            "depth_range": entry["record"]["depth_range"],
            "depth": {"min": low, "median": middle, "max": high},
            "seconds": round(seconds, 4),
            "files": [str(file.relative_to(out)) for file in files],
        }
        kept = {"settings": entry["record"], "entry": entries[index]}
        _write_json(out / "views" / f"{entry['file']}.json", kept)
    report("views", len(plan), len(plan))
    return entries


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


def _settled(scene: Scene, plan: dict[int, dict]) -> Scene:
    """Return the scene with the planned ranges, and without truth: what is not read cannot fail."""
    views = [replace(view, truth=None) for view in scene.views]
    for index, entry in plan.items():
        span = tuple(entry["record"]["depth_range"])
        views[index] = replace(views[index], depth_range=span)
    return Scene(scene.name, views, scene.pairs, scene.layout, scene.pair_file)


def _thresholds(scene: Scene, plan: dict[int, dict], given: Thresholds | None) -> Thresholds:
    """Return what was asked for, else what the data set was published with, as far as it goes."""
    if given is not None:
        return given
    family = "tanks" if "tanks" in scene.layout else "dtu"
    name = f"{family}/{scene.name.lower()}"
    chosen = PRESETS[name] if family in scene.layout and name in PRESETS else DEFAULT
    most = max(sum(source in plan for source in scene.sources(index)) for index in plan)
    if most < chosen.views:
        warnings.warn(
            f"no view has more than {most} source{'s' * (most != 1)}, so {most} instead of "
            f"{chosen.views} must agree with it",
            stacklevel=3,
        )
        chosen = replace(chosen, views=max(most, 1))
    return chosen


def _fuse(
    scene: Scene,
    plan: dict[int, dict],
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
        views.append(
            DepthView(
                name=view.name,
                intrinsics=resize_intrinsics(
                    view.intrinsics, size[1] / width, size[0] / height
                ).float(),
                extrinsics=view.extrinsics,
                depth=lambda path=out / "depth" / f"{entry['file']}.pfm": read_pfm(path),
                image=lambda index=index: _pixels(scene, index, size),
                sources=[place[source] for source in scene.sources(index) if source in place],
                depth_range=tuple(entry["record"]["depth_range"]),
            )
        )
    sampler = _Sampler(len(views))
    surface = None
    if mesh is not None:
        from .clouds import TSDFMesh

        surface = TSDFMesh(mesh)

    def each(part: FusedView) -> None:
        number = len(sampler.parts)
        view = views[number]
        sampler.take(part)
        if surface is not None:
            image = np.zeros((*part.depth.shape, 3), np.uint8)
            image[part.depth > 0] = part.colours
            surface.add(part.depth, image, view.intrinsics, view.extrinsics)
        report("fusion", number + 1, len(views))

    found = fuse_to_file(views, out / "cloud.ply", thresholds, device=predictor.device, each=each)
    for index, number in place.items():
        entries[index]["points"] = found.kept_by_view[views[number].name]
    write_image(out / "cloud.png", sampler.picture(views, size))
    if surface is not None:
        surface.write(out / "mesh.ply")
    return {
        "points": found.points,
        "fusion": {
            **asdict(thresholds),
            "pixels_of_all_views": found.pixels,
            "without_depth": found.unknown,
            "unconfirmed": found.unconfirmed,
            "out_of_range": found.out_of_range,
            "seconds": round(time.perf_counter() - started, 3),
        },
    }


class _Sampler:
    """Some points of every view, for a picture of the cloud."""

    def __init__(self, views: int) -> None:
        self.most = _SHOWN // views
        self.parts: list[tuple[np.ndarray, np.ndarray]] = []
        self.kept: list[int] = []
        self.random = np.random.default_rng(0)

    def take(self, part: FusedView) -> None:
        chosen = slice(None)
        if part.kept > self.most:
            chosen = self.random.choice(part.kept, self.most, replace=False)
        self.parts.append((part.points[chosen], part.colours[chosen]))
        self.kept.append(part.kept)

    def picture(self, views: list[DepthView], size: tuple[int, int]) -> np.ndarray:
        """Draw the points as seen from beside the camera that has most of them."""
        best = int(np.argmax(self.kept))
        points, colours = (np.concatenate(arrays) for arrays in zip(*self.parts, strict=True))
        pose = views[best].extrinsics.double().numpy()
        seen = points @ pose[:3, :3].T + pose[:3, 3]
        # Fewer points are drawn larger: as if by a camera of fewer pixels.
        shrink = max(1.0, (self.kept[best] / max(len(self.parts[best][0]), 1)) ** 0.5)
        focal = float(views[best].intrinsics[0, 0])
        return cloud_picture(
            seen,
            colours,
            source_focal=focal / shrink,
            source_size=(round(size[0] / shrink), round(size[1] / shrink)),
        )


def _pixels(scene: Scene, index: int, size: tuple[int, int]) -> np.ndarray:
    image = scene.image(index)
    if tuple(image.shape[1:]) != tuple(size):
        image = F.interpolate(image[None], size, mode="bilinear", antialias=True)[0]
    return image.mul(255).round().clamp(0, 255).byte().permute(1, 2, 0).contiguous().numpy()


def _write_json(path: Path, value: dict) -> None:
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _show(value: object) -> str:
    if isinstance(value, list):
        return " ".join(_show(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
