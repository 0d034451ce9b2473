"""A page to try stereo on: two images in; disparity, confidence, a cloud and times out.

Example:
    >>> with page_folder() as folder, served(build_page(folder), folder) as address:
    ...     input(f"{address} is there until Enter is pressed")
"""

from __future__ import annotations

import shutil
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ..common.extras import from_extra
from ..common.warned import collect_warnings
from ..datasets.stereo.calibration import StereoCalibration
from ..datasets.stereo.scenes import GeneratedStereo
from ..datasets.worlds.stereo import WorldStereo
from ..vision.hub.registry import list_models
from ..vision.io.glb import write_glb
from ..vision.io.images import image_size, read_image, write_image
from . import DEFAULT_MODEL
from .infer import StereoPredictor
from .result import StereoResult

__all__ = ["Bench", "Found", "build_page", "write_examples"]

WITHIN = "the slowest within the time limit"
_EXAMPLE = (240, 384)  # height and width
_ROOM: dict[str, Any] = {"layouts": ("room",), "floating": 0, "photometric": False}
_SHOWN = 150_000  # points of the cloud in the browser
_AHEAD = 4.0  # of the median depth, beyond which the cloud in the browser ends
_KEPT = 3600  # seconds that uploads and results are kept
_STYLE: dict[str, Any] = {"analytics_enabled": False, "title": "vizoo: stereo", "fill_width": True}
_VIEW: dict[str, Any] = {
    "camera_position": (90, 90, None),  # ahead, as the left camera looked
    "clear_color": (0.07, 0.08, 0.1, 1.0),
    "height": 420,
}
_WORDS = """\
# Stereo

Drop the left and the right image of a rectified pair, of one size, or take an example. Images stay
on the machine that runs this page, and are deleted within two hours."""


class _Predictor(StereoPredictor):
    """Knows how long its network worked."""

    seconds = 0.0

    def maps(self, left: Tensor, right: Tensor) -> Tensor:
        start = time.perf_counter()
        found = super().maps(left, right)
        self.seconds += time.perf_counter() - start
        return found


@dataclass(frozen=True)
class Found:
    """What was found for one pair, as files."""

    result: StereoResult  #: the arrays
    disparity: Path  #: a picture
    confidence: Path  #: a picture
    occluded: Path | None  #: a picture, where both views were matched
    cloud: Path | None  #: binary glTF; None where no point is near enough
    results: Path  #: a zip of all that `StereoResult.save` writes
    facts: str  #: network, times and what is to be said, as Markdown


class Bench:
    """Networks that are opened once each, and what they find for pairs.

    Args:
        models: as `StereoPredictor` takes them; by default all that have trained weights.
        device: as `StereoPredictor` takes it.
        max_pixels: of an image; larger ones are refused by their header.

    Raises:
        FileNotFoundError, ValueError: as `StereoPredictor`, of the first model.
    """

    def __init__(
        self, models: Sequence[str] = (), device: str = "auto", max_pixels: int = 4_000_000
    ) -> None:
        models = models or sorted(
            list_models("stereo/*", pretrained=True),
            key=lambda name: not name.startswith(f"{DEFAULT_MODEL}."),
        )
        # Names alone: where a file lies is nobody's business who looks at the page.
        self.models = {Path(model).name: model for model in models}
        self.device, self.max_pixels = device, max_pixels
        self._opened: dict[str, _Predictor] = {}
        self._speeds: dict[str, float] = {}
        self.predictor(next(iter(self.models)))

    def predictor(self, name: str) -> _Predictor:
        """The network of a name."""
        if name not in self._opened:
            self._opened[name] = _Predictor(self.models[name], self.device)
        return self._opened[name]

    def within(self, limit: float, height: int, width: int) -> str:
        """Return the slowest network that keeps to a limit, or the fastest of all.

        Args:
            limit: seconds for a pair at scale 1, by a measurement at a small size.
            height: of the images, pixels.
            width: of the images, pixels.

        Warns (``UserWarning``) where none keeps to it.
        """
        for name in self.models.keys() - self._speeds.keys():
            self._speeds[name] = self.predictor(name).estimate(1000, 1000) / 1e6
        times = {name: self._speeds[name] * height * width for name in self.models}
        fitting = [name for name in times if times[name] <= limit]
        if fitting:
            return max(fitting, key=times.__getitem__)
        fastest = min(times, key=times.__getitem__)
        warnings.warn(
            f"no network takes {1e3 * limit:.0f} ms or less here at {width}x{height} pixels; the "
            f"fastest, {fastest}, takes about {1e3 * times[fastest]:.0f} ms",
            stacklevel=2,
        )
        return fastest

    def find(
        self,
        left: str | None,
        right: str | None,
        folder: str | Path,
        *,
        model: str,
        limit: float | None = None,
        both: bool = False,
        least: float = 0.0,
        focal: float | None = None,
        baseline: float | None = None,
    ) -> Found:
        """Match a pair and write what was found.

        Args:
            left: an image file.
            right: another, of the same size.
            folder: where results go, into a new folder of their own.
            model: a name of ``models``, or `WITHIN`.
            limit: milliseconds for a pair, of `WITHIN`.
            both: also match the right image.
            least: confidence, 0 to 1; what is less sure is left out.
            focal: length, pixels; None or 0 where it is not known.
            baseline: metres, likewise.

        Raises:
            ValueError: what `StereoPredictor` refuses, too many pixels, a model or calibration
                that is none; no message names a folder of this machine.
        """
        start = time.perf_counter()
        with collect_warnings() as notes:
            views = [self._read(path, side) for path, side in ((left, "left"), (right, "right"))]
            height, width = views[0].shape[1:]
            camera = _camera(focal, baseline)
            if model == WITHIN:
                if not limit or limit <= 0:
                    raise ValueError("give the time limit, milliseconds for a pair")
                model = self.within(limit / 1e3 / (1 + both), height, width)
            predictor = self.predictor(model)
            predictor.seconds = 0.0
            result = predictor(*views, both=both)
            if least:
                result = result.confident(least)
            network, total = predictor.seconds, time.perf_counter() - start
            files = _written(result, camera, Path(tempfile.mkdtemp(dir=folder)))
        size = f"{width}x{height}"
        facts = [
            f"**{model}** on {predictor.device}, {size}: network {1e3 * network:.0f} ms, in all "
            f"{1e3 * total:.0f} ms"
        ]
        known = result.disparity[np.isfinite(result.disparity)]
        if len(known):
            low, high = known.min(), known.max()
            facts.append(f"disparity {low:.1f} to {high:.1f} px, median {np.median(known):.1f} px")
        facts += [f"⚠ {note}" for note in notes]
        if camera is None:
            facts.append(f"no calibration: the cloud assumes a focal length of {width} px (53°)")
        return Found(result, facts="\n\n".join(facts), **files)

    def _read(self, path: str | None, side: str) -> Tensor:
        if path is None:
            raise ValueError(f"the {side} image is missing")
        try:
            height, width = image_size(path)
            if height * width > self.max_pixels:
                raise ValueError(
                    f"{path}: {width}x{height} are {height * width / 1e6:.1f} million pixels, more "
                    f"than the {self.max_pixels / 1e6:.1f} that this page takes"
                )
            return read_image(path)
        except (OSError, ValueError) as error:
            raise ValueError(str(error).replace(str(path), f"the {side} image")) from error


def _camera(focal: float | None, baseline: float | None) -> StereoCalibration | None:
    """The calibration that was given, if it was.

    Raises:
        ValueError: only one of the numbers, or one that is not positive.
    """
    if not focal and not baseline:
        return None
    if not focal or not baseline:
        raise ValueError("depth takes both numbers, focal length (pixels) and baseline (metres)")
    return StereoCalibration(focal, baseline)


def _written(
    result: StereoResult, camera: StereoCalibration | None, folder: Path
) -> dict[str, Any]:
    """The files of `Found`, in a folder; of the others only the zip is left."""
    everything = folder / "pair"
    result.save(everything, calibration=camera)
    files = {
        name: everything / f"pair_{name}.png" for name in ("disparity_colour", "confidence")
    } | {"occluded": everything / "pair_occluded.png"}
    zipped = shutil.make_archive(str(folder / "vizoo_stereo"), "zip", everything)
    kept = {
        name.partition("_")[0]: path.rename(folder / path.name) if path.exists() else None
        for name, path in files.items()
    }
    shutil.rmtree(everything)
    cloud = _cloud(result, camera, folder / "cloud.glb")
    return {**kept, "cloud": cloud, "results": Path(zipped)}


def _cloud(result: StereoResult, camera: StereoCalibration | None, path: Path) -> Path | None:
    camera = camera or StereoCalibration(float(result.disparity.shape[1]), 1.0)
    depth = result.depth(camera)
    if not (depth > 0).any():
        return None
    middle = float(np.median(depth[depth > 0]))
    points, colours = result.points(camera, _AHEAD * middle)
    if len(points) == 0:
        return None
    step = -(-len(points) // _SHOWN)
    # A viewer turns clouds about the origin, and takes their size for metres.
    centred = (points[::step] - (0, 0, middle)) / middle
    write_glb(path, centred.astype(np.float32), colours[::step])
    return path


def write_examples(folder: str | Path) -> list[tuple[str, str, float, float]]:
    """Write a generated room and a layered scene as pairs.

    Returns:
        For each pair its left and right file, focal length and baseline, 0 where there are none.
        The room is left out where Open3D, which casts its rays, cannot be loaded.
    """
    height, width = _EXAMPLE
    scene = GeneratedStereo(1, height, width, seed=3, max_disparity=40.0, photometric=False)[0]
    pairs: list[tuple[str, Any, float, float]] = [("scene", scene, 0.0, 0.0)]
    try:
        rooms = WorldStereo(1, height, width, seed=1, max_disparity=40.0, **_ROOM)
        room, rig = rooms.pair(0)
        pairs.insert(0, ("room", room, round(rig.focal, 1), round(rig.baseline, 4)))
    except ImportError:
        pass
    rows = []
    for name, pair, focal, baseline in pairs:
        files = [Path(folder) / f"{name}_{side}.png" for side in ("left", "right")]
        for file, side in zip(files, ("left", "right"), strict=True):
            write_image(file, pair[side])
        rows.append((str(files[0]), str(files[1]), focal, baseline))
    return rows


def build_page(
    folder: str | Path,
    models: Sequence[str] = (),
    device: str = "auto",
    max_pixels: int = 4_000_000,
) -> Any:
    """Build the page; `vizoo.vision.serving.served` serves it.

    Args:
        folder: of `vizoo.vision.serving.page_folder`: examples, uploads and results.
        models: networks to choose from, as `StereoPredictor` takes them; by default all that have
            trained weights.
        device: as `StereoPredictor` takes it.
        max_pixels: of an image; larger ones are refused.

    Returns:
        ``gradio.Blocks``.

    Raises:
        ImportError: Gradio is not installed; the message says how to get it.
        FileNotFoundError, ValueError: as `StereoPredictor`, of the first model.
    """
    gradio = from_extra("serve", "gradio", "the page")
    bench = Bench(models, device, max_pixels)

    def find(
        left: str | None,
        right: str | None,
        focal: float | None,
        baseline: float | None,
        model: str,
        limit: float | None,
        both: bool,
        least: float,
    ) -> list[Any]:
        how: dict[str, Any] = {"model": model, "limit": limit, "both": both, "least": least}
        try:
            found = bench.find(left, right, folder, focal=focal, baseline=baseline, **how)
        except (OSError, ValueError) as error:
            raise gradio.Error(str(error), title="This pair cannot be matched") from error
        pictures = (found.disparity, found.confidence, found.occluded)
        shown = [None if path is None else str(path) for path in (*pictures, found.cloud)]
        shown[2] = gradio.update(value=shown[2], visible=found.occluded is not None)
        return [*shown, found.facts, str(found.results)]

    with gradio.Blocks(delete_cache=(_KEPT // 6, _KEPT), **_STYLE) as page:
        gradio.Markdown(_WORDS)
        with gradio.Row():
            given = {"type": "filepath", "image_mode": None, "sources": ["upload", "clipboard"]}
            left = gradio.Image(label="Left", elem_id="left", **given)
            right = gradio.Image(label="Right", elem_id="right", **given)
        for picture in (left, right):  # the library's own reader judges what was dropped
            picture.preprocess = lambda payload: payload and payload.path
        with gradio.Row():
            choices = [*bench.models, *([WITHIN] if len(bench.models) > 1 else [])]
            model = gradio.Dropdown(choices, value=choices[0], label="Network")
            limit = gradio.Number(
                500,
                label="Time limit, ms",
                info=f"for “{WITHIN}”: measured here, for this size",
                visible=len(bench.models) > 1,
            )
            least = gradio.Slider(0, 1, 0, step=0.05, label="Least confidence")
            both = gradio.Checkbox(label="Match both views", info="surer, and twice the time")
        with gradio.Accordion("Calibration, for depth in metres", open=False), gradio.Row():
            focal = gradio.Number(0, label="Focal length, pixels (0: not known)")
            baseline = gradio.Number(0, label="Baseline, metres (0: not known)")
        run = gradio.Button("Match", variant="primary", elem_id="match")
        inputs = [left, right, focal, baseline]
        gradio.Examples([list(row) for row in write_examples(folder)], inputs, cache_examples=False)
        facts = gradio.Markdown(elem_id="facts")
        with gradio.Row():
            shown = {"interactive": False, "buttons": ["download", "fullscreen"]}
            disparity = gradio.Image(label="Disparity", elem_id="disparity", **shown)
            confidence = gradio.Image(label="Confidence", elem_id="confidence", **shown)
        occluded = gradio.Image(label="Not seen by the right image", visible=False, **shown)
        cloud = gradio.Model3D(label="Cloud", elem_id="cloud", **_VIEW)
        results = gradio.File(label="All results", interactive=False)
        outputs = [disparity, confidence, occluded, cloud, facts, results]
        run.click(find, [*inputs, model, limit, both, least], outputs, api_name="match")
    return page
