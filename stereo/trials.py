"""What networks find for pairs of a page's visitors, as files and words."""

from __future__ import annotations

import secrets
import shutil
import threading
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from torch import Tensor

from ..common.memory import ran_out_of_memory, return_freed_memory
from ..common.warned import collect_warnings
from ..datasets.stereo.calibration import StereoCalibration, read_calibration, scaling_notes
from ..vision.io.glb import write_glb
from ..vision.io.images import as_pair, image_size
from .auto_rectify import auto_rectifier
from .choices import Choices, Report
from .infer import open_pair
from .result import StereoResult

__all__ = ["Found", "Trials"]

_SHOWN = 150_000  # points of the cloud in the browser
_AHEAD = 4.0  # of the median depth, beyond which the cloud in the browser ends
_FAR = 5.0  # metres, a baseline that was rather given in other units
_REMEDY = (
    "tick “Rectify first”, or drop images that were rectified by their cameras' calibration "
    "(`vizoo rectify` does that)"
)


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


class Trials:
    """What networks find for pairs, one pair at a time.

    Args:
        models: as of `Choices`.
        device: likewise.
        max_pixels: of an image; larger ones are refused by their header.

    Attributes:
        choices: the networks.

    Raises:
        FileNotFoundError, ValueError: as `Choices`.
    """

    def __init__(
        self, models: Sequence[str] = (), device: str = "auto", max_pixels: int = 4_000_000
    ) -> None:
        self.choices, self.max_pixels = Choices(models, device), max_pixels
        self._one = threading.Lock()

    def find(
        self,
        left: str | None,
        right: str | None,
        folder: str | Path,
        *,
        model: str,
        limit: float | None = None,
        both: bool = False,
        rectify: bool = False,
        least: float = 0.0,
        calibration: str | None = None,
        focal: float | None = None,
        baseline: float | None = None,
        report: Report = lambda what, done, total: None,
    ) -> Found:
        """Match a pair and write what was found.

        Args:
            left: an image file.
            right: another, of the same size.
            folder: where results go, into a new folder of a name that nobody guesses.
            model: one of ``choices.offered``.
            limit: milliseconds for a pair, of those that take one.
            both: also match the right image.
            rectify: the pair is raw: rectify it by what matches.
            least: confidence, 0 to 1; what is less sure is left out.
            calibration: a file, as `read_calibration` takes it.
            focal: length, pixels, instead of a file; None or 0 where it is not known.
            baseline: metres, likewise.
            report: called as ``report(what, done, total)`` while a network is cut.

        Raises:
            ValueError: what `StereoPredictor` refuses, too many pixels, a choice or calibration
                that is none, too little memory, results that cannot be written; no message names
                a folder of this machine.
        """
        start = time.perf_counter()
        with self._one, collect_warnings(own_thread=True) as notes:
            views = self._read(left, right)
            open_pair(*views)
            if rectify:
                views = _rectified(*views)
            height, width = views[0].shape[1:]
            camera = _camera(calibration, focal, baseline)
            if camera is not None and rectify:
                warnings.warn("rectified by matches, no calibration holds: no depth", stacklevel=1)
                camera = None
            if camera is not None:
                given = camera.height, camera.width
                camera = camera.fitted(height, width)
                for note in scaling_notes(given, height, width):
                    warnings.warn(note, stacklevel=1)
            name, predictor = self.choices.choose(model, limit, height, width, report, 1 + both)
            predictor.seconds = 0.0
            try:
                result = predictor(*views, both=both, remedy=_REMEDY)
            except (MemoryError, RuntimeError) as error:
                if not ran_out_of_memory(error):
                    raise
                raise ValueError(
                    f"the machine that runs this page has not enough memory for {height}x{width} "
                    "pixels now; drop smaller images, or try again later"
                ) from error
            finally:
                return_freed_memory()  # it may be long until the next pair
            if least:
                result = result.confident(least)
            network, total = 1e3 * predictor.seconds, 1e3 * (time.perf_counter() - start)
            files = _written(result, camera, Path(folder))
        asked = f" (limit {limit:g} ms)" if model in self.choices.timed else ""
        guided = ", guided," if predictor.guided else ""
        facts = [
            f"**{name}**{guided} on {predictor.device}, {height}x{width}: "
            f"network {network:.0f} ms{asked}, in all {total:.0f} ms"
        ]
        known = result.disparity[np.isfinite(result.disparity)]
        if len(known):
            low, high = known.min(), known.max()
            facts.append(f"disparity {low:.1f} to {high:.1f} px, median {np.median(known):.1f} px")
        facts += [f"⚠ {note}" for note in notes]
        if camera is not None:
            facts.append(
                f"depth by a focal length of {camera.focal:g} px and a baseline of "
                f"{camera.baseline:g} m"
            )
        else:
            facts.append(f"no calibration: the cloud assumes a focal length of {width} px (53°)")
        return Found(result, facts="\n\n".join(facts), **files)

    def _read(self, left: str | None, right: str | None) -> tuple[Tensor, Tensor]:
        for path, side in ((left, "left"), (right, "right")):
            if path is None:
                raise ValueError(f"the {side} image is missing")
            if not Path(path).is_file():
                raise ValueError(f"the {side} image is no longer here; drop it again")
        first, second = cast("tuple[str, str]", (left, right))
        try:
            for path in (first, second):
                height, width = image_size(path)
                if height * width > self.max_pixels:
                    raise ValueError(
                        f"{path}: {height}x{width} are {height * width / 1e6:.1f} million pixels, "
                        f"more than the {self.max_pixels / 1e6:.1f} that this page takes"
                    )
            return as_pair(first, second)
        except (OSError, ValueError) as error:
            told = _nameless(error, first, "the left image")
            raise _nameless(told, second, "the right image") from error


def _nameless(error: Exception, path: str, name: str) -> ValueError:
    """An error that does not say where a file lies."""
    return ValueError(str(error).replace(str(path), name))


def _rectified(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Both views, rectified by their matches; warns of what that means."""
    rectifier = auto_rectifier([(left, right)])
    for note in rectifier.notes:
        warnings.warn(note, stacklevel=2)
    return open_pair(*rectifier(left, right))


def _camera(
    calibration: str | None, focal: float | None, baseline: float | None
) -> StereoCalibration | None:
    """The calibration that was given, if it was."""
    if calibration is not None:
        if focal or baseline:
            raise ValueError("give either a calibration file or focal length and baseline")
        try:
            return read_calibration(calibration)
        except (OSError, ValueError) as error:
            raise _nameless(error, calibration, "the calibration") from error
    if not focal and not baseline:
        return None
    if not focal or not baseline:
        raise ValueError("depth takes both numbers, focal length (pixels) and baseline (metres)")
    if baseline > _FAR:
        warnings.warn(f"a baseline of {baseline:g} m: metres, not millimetres?", stacklevel=2)
    return StereoCalibration(focal, baseline)


def _written(
    result: StereoResult, camera: StereoCalibration | None, folder: Path
) -> dict[str, Any]:
    """The files of `Found`, in a folder of their own; nothing is left where one fails."""
    own = folder / secrets.token_urlsafe(16)
    try:
        own.mkdir(mode=0o700)
        return _files(result, camera, own)
    except BaseException as error:
        shutil.rmtree(own, ignore_errors=True)
        if isinstance(error, OSError):
            why = error.strerror or type(error).__name__
            told = f"results cannot be written on the machine that runs this page: {why}"
            raise ValueError(told) from error
        raise


def _files(result: StereoResult, camera: StereoCalibration | None, folder: Path) -> dict[str, Any]:
    everything = folder / "pair"
    result.save(everything, calibration=camera)
    zipped = shutil.make_archive(str(folder / "vizoo_stereo"), "zip", everything)
    kept = {}
    for name in ("disparity_colour", "confidence", "occluded"):
        path = everything / f"pair_{name}.png"
        kept[name.partition("_")[0]] = path.rename(folder / path.name) if path.exists() else None
    shutil.rmtree(everything)
    return {**kept, "cloud": _cloud(result, camera, folder / "cloud.glb"), "results": Path(zipped)}


def _cloud(result: StereoResult, camera: StereoCalibration | None, path: Path) -> Path | None:
    camera = camera or StereoCalibration(float(result.disparity.shape[1]), 1.0)
    depth = result.depth(camera)
    if not (depth > 0).any():
        return None
    points, colours = result.points(camera, _AHEAD * float(np.median(depth[depth > 0])))
    if len(points) == 0:
        return None
    step = -(-len(points) // _SHOWN)
    # Viewers turn clouds about their middle: it lies at the origin, the left camera 1 before it.
    middle = (points.min(0) + points.max(0)) / 2
    centred = (points[::step] - middle) / middle[2]
    write_glb(path, centred.astype(np.float32), colours[::step])
    return path
