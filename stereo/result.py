"""What a stereo network found for a pair, and the files that it is written to."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..common.files import atomic_write, check_formats
from ..common.summaries import spread
from ..datasets.stereo.calibration import StereoCalibration, read_calibration, scaling_notes
from ..vision.io.disparity import write_disparity
from ..vision.io.images import write_image
from ..vision.io.pfm import write_pfm
from ..vision.io.ply import write_ply
from ..vision.viz.cloud import cloud_picture
from ..vision.viz.colour import disparity_picture
from .geometry import depth_to_points, disparity_to_depth, smooth_surface

__all__ = ["FORMATS", "StereoResult"]

FORMATS = ("pfm", "png", "npy")
_PNG_LIMIT = 65535.5 / 256  # pixels; a 16-bit PNG holds disparities below this
_SHOWN = 6_000_000  # points in the picture of the cloud, for each of which it takes 120 bytes

# What the names of a result's files end on.
_ENDINGS = tuple(
    "disparity.pfm disparity.png disparity.npy disparity_colour.png confidence.pfm confidence.png "
    "occluded.png right_disparity.pfm depth.npy depth_colour.png cloud.png cloud.ply".split()
)

Calibration = StereoCalibration | str | os.PathLike


@dataclass(frozen=True, eq=False)
class StereoResult:
    """What was found for one pair."""

    #: (H, W) float32, pixels, of the left image; infinite where it was left out
    disparity: np.ndarray
    image: np.ndarray  #: the left image, (H, W, 3) uint8 RGB
    #: the left file's without its suffix, or ``pair`` where the images were no files
    name: str = "pair"
    scale: float = 1.0  #: of the images that were matched first, against those given
    #: (H, W) float32, about the chance that the disparity is within a pixel of the truth (of the
    #: images as they were matched, where a scale was given)
    confidence: np.ndarray | None = None
    right_disparity: np.ndarray | None = None  #: (H, W) float32, pixels, of the right image
    #: (H, W) bool: the right image has no such point, by its own disparity
    occluded: np.ndarray | None = None

    def confident(self, least: float) -> StereoResult:
        """Return the result without the disparities whose confidence is below `least`, 0 to 1.

        Raises:
            ValueError: there is no confidence, or `least` is none.
        """
        if self.confidence is None or not 0 <= least <= 1:
            raise ValueError(f"least confidence {least:g}: want 0 to 1, of a result that has one")
        return replace(self, disparity=np.where(self.confidence < least, np.inf, self.disparity))

    def depth(self, calibration: Calibration) -> np.ndarray:
        """Return metric depth, (H, W) float32, metres; 0 where unknown.

        Args:
            calibration: of these images, or of the same ones at another size; or its file, as
                `read_calibration` takes it.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the calibration belongs to images of another shape.
        """
        camera = self._fit(calibration)
        disparity = torch.from_numpy(self.disparity)
        return disparity_to_depth(disparity, camera.focal, camera.baseline, camera.doffs).numpy()

    def points(
        self, calibration: Calibration, max_depth: float | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the scene as coloured points.

        Pixels on a step between two surfaces are left out: networks blur such steps, and their
        points would fly freely between the surfaces.

        Args:
            calibration: as for ``depth``.
            max_depth: metres; farther points are left out. By default the depth of a disparity of
                1 pixel, beyond which half a pixel of error means anything up to infinity.

        Returns:
            points: (N, 3) float32, metres: x right, y down, z forward from the left camera.
            colours: (N, 3) uint8 RGB.
        """
        camera = self._fit(calibration)
        height, width = self.disparity.shape
        cx = (width - 1) / 2 if camera.cx is None else camera.cx
        cy = (height - 1) / 2 if camera.cy is None else camera.cy
        depth = torch.from_numpy(self.depth(camera))[None, None]
        points = depth_to_points(depth, camera.focal, cx, cy, camera.focal_y)
        surface = smooth_surface(torch.from_numpy(self.disparity)[None, None])
        near = depth <= (self.default_max_depth(camera) if max_depth is None else max_depth)
        keep = (surface & near & (depth > 0) & torch.isfinite(depth))[0, 0].numpy()
        return points[0].permute(1, 2, 0).numpy()[keep], self.image[keep]

    def default_max_depth(self, calibration: Calibration) -> float:
        """Return the depth of a disparity of 1 pixel, metres."""
        camera = self._fit(calibration)
        depth = disparity_to_depth(torch.ones(1), camera.focal, camera.baseline, camera.doffs)
        return float(depth) or float("inf")

    def summary(self) -> dict[str, Any]:
        """What was found, as JSON values."""
        known = self.disparity[np.isfinite(self.disparity)]
        facts: dict[str, Any] = {
            "size": list(self.disparity.shape),
            "disparity": spread(known) if len(known) else None,
            "scale": self.scale,
        }
        if self.confidence is not None:
            facts["confidence"] = round(float(self.confidence.mean()), 4)
        if len(known) < self.disparity.size:
            facts["left_out"] = round(1 - len(known) / self.disparity.size, 4)
        return facts

    def save(
        self,
        folder: str | os.PathLike,
        name: str | None = None,
        *,
        calibration: Calibration | None = None,
        formats: Iterable[str] | None = None,
        max_depth: float | None = None,
    ) -> list[Path]:
        """Write the disparity and its picture; with a calibration also depth and point cloud.

        Args:
            folder: made if it is missing.
            name: first part of the file names, by default the result's: ``<name>_disparity.pfm``,
                ``.png`` (16 bits, 256 d), ``.npy``, ``<name>_disparity_colour.png``,
                ``<name>_confidence.pfm``, ``.png``, ``<name>_occluded.png`` (white where it is),
                ``<name>_right_disparity.pfm``,
                ``<name>_depth.npy`` (metres), ``<name>_depth_colour.png``, ``<name>_cloud.ply``,
                ``<name>_cloud.png``.
            calibration: as for ``depth``.
            formats: of the disparity: ``pfm``, ``png``, ``npy``; by default all that can hold it
                (a 16-bit PNG ends at 256 pixels).
            max_depth: metres, of the point cloud; see ``points``.

        Returns:
            The files written.

        Raises:
            FileNotFoundError: there is no such calibration file.
            ValueError: an unknown format, or one that cannot hold these disparities; a calibration
                of images of another shape.

        Warns (``UserWarning``) of what could not be written where all else is: a PNG that was not
        asked for by name, a point cloud without a point; of a calibration that was scaled; and of
        files of this name that an earlier call wrote and this one did not.
        """
        folder, name = Path(folder), self.name if name is None else name
        camera = None if calibration is None else self._fit(calibration)
        highest = self.disparity[np.isfinite(self.disparity)].max(initial=0)
        if formats is None:
            formats = FORMATS
            if highest >= _PNG_LIMIT:
                formats = ("pfm", "npy")
                warnings.warn("no 16-bit PNG written: it ends at 256 px", stacklevel=2)
        formats = check_formats(formats, FORMATS)
        if "png" in formats and highest >= _PNG_LIMIT:
            raise ValueError(
                f"{folder / name}_disparity.png: a disparity of {highest:.2f} px does not fit: a "
                "16-bit PNG ends below 256 px; choose the formats pfm and npy"
            )
        paths = {ending: folder / f"{name}_{ending}" for ending in _ENDINGS}
        written = self._write(paths, camera, formats, max_depth)
        left = sorted(str(p) for p in paths.values() if p not in written and p.exists())
        if left:
            warnings.warn(f"of an earlier run, not of this one: {', '.join(left)}", stacklevel=2)
        return written

    def _write(
        self,
        paths: Mapping[str, Path],
        camera: StereoCalibration | None,
        formats: Iterable[str],
        max_depth: float | None,
    ) -> list[Path]:
        written = []

        def target(ending: str) -> Path:
            written.append(paths[ending])
            return written[-1]

        for suffix in formats:
            write_disparity(target(f"disparity.{suffix}"), self.disparity)
        write_image(target("disparity_colour.png"), disparity_picture(self.disparity))
        if self.confidence is not None:
            write_pfm(target("confidence.pfm"), self.confidence)
            style: dict[str, Any] = {"label": "confidence", "palette": "viridis"}
            picture = disparity_picture(self.confidence, low=0.0, high=1.0, **style)
            write_image(target("confidence.png"), picture)
        if self.occluded is not None:
            write_image(target("occluded.png"), np.uint8(255) * self.occluded)
        if self.right_disparity is not None:
            write_pfm(target("right_disparity.pfm"), self.right_disparity)
        if camera is None:
            return written
        depth = self.depth(camera)
        with atomic_write(target("depth.npy")) as temporary, temporary.open("wb") as file:
            np.save(file, depth)
        limit = self.default_max_depth(camera) if max_depth is None else max_depth
        shown = np.where(depth <= limit, depth, 0)
        picture = disparity_picture(shown, label="depth [m]", palette="turbo_r", logarithmic=True)
        write_image(target("depth_colour.png"), picture)
        points, colours = self.points(camera, max_depth)
        if len(points) == 0:
            why = "no disparity is known"
            if np.isfinite(self.disparity).any():
                why = f"no disparity plus doffs ({camera.doffs:g} px) is above 0"
            if (depth > 0).any():
                why = f"nothing within {limit:g} m"
            warnings.warn(f"no point cloud written: {why}", stacklevel=3)
            return written
        step = -(-len(points) // _SHOWN)
        view = cloud_picture(
            points[::step],
            colours[::step],
            source_focal=camera.focal / step,  # dots as wide as the gaps along a row
            source_size=(depth.shape[0] // step, depth.shape[1] // step),
        )
        write_image(target("cloud.png"), view)
        with write_ply(target("cloud.ply")) as ply:
            ply.write(points, colours)
        return written

    def _fit(self, calibration: Calibration) -> StereoCalibration:
        if isinstance(calibration, (str, os.PathLike)):
            calibration = read_calibration(calibration)
        height, width = self.disparity.shape
        fitted = calibration.fitted(height, width)
        for note in scaling_notes((calibration.height, calibration.width), height, width):
            warnings.warn(note, stacklevel=3)
        return fitted
