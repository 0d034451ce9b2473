"""Disparity, depth and points of stereo pairs.

Example:
    >>> predictor = vizoo.StereoPredictor("fadnet_plus_tiny.safetensors")
    >>> result = predictor("left.png", "right.png")
    >>> result.save("out")
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ..vision.device import choose_device, choose_dtype
from ..vision.geometry import depth_to_points, disparity_to_depth, smooth_surface
from ..vision.hub.registry import model_info
from ..vision.hub.sources import load_network
from ..vision.inference import check_prediction, optimize
from ..vision.io.calibration import StereoCalibration
from ..vision.io.disparity import write_disparity
from ..vision.io.files import atomic_write, check_formats
from ..vision.io.images import as_image, write_image
from ..vision.io.pointcloud import write_point_cloud
from ..vision.viz.cloud import cloud_picture
from ..vision.viz.colour import disparity_picture

__all__ = ["FORMATS", "StereoPredictor", "StereoResult"]

FORMATS = ("pfm", "png", "npy")
_PNG_LIMIT = 65535.5 / 256  # pixels; a 16-bit PNG holds disparities below this

Image = str | os.PathLike | np.ndarray | Tensor


@dataclass(frozen=True)
class StereoResult:
    """What was found for one pair.

    Attributes:
        disparity: (H, W) float32, pixels, of the left image.
        image: the left image, (H, W, 3) uint8 RGB.
    """

    disparity: np.ndarray
    image: np.ndarray

    def depth(self, calibration: StereoCalibration) -> np.ndarray:
        """Return metric depth, (H, W) float32, metres; 0 where unknown.

        Args:
            calibration: of these images, or of the same ones at another size.

        Raises:
            ValueError: the calibration belongs to images of another shape.
        """
        camera = self._fit(calibration)
        disparity = torch.from_numpy(self.disparity)
        return disparity_to_depth(disparity, camera.focal, camera.baseline, camera.doffs).numpy()

    def points(
        self, calibration: StereoCalibration, max_depth: float | None = None
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

    def default_max_depth(self, calibration: StereoCalibration) -> float:
        """Return the depth of a disparity of 1 pixel, metres."""
        camera = self._fit(calibration)
        depth = disparity_to_depth(torch.ones(1), camera.focal, camera.baseline, camera.doffs)
        return float(depth) or float("inf")

    def save(
        self,
        folder: str | os.PathLike,
        name: str = "pair",
        *,
        calibration: StereoCalibration | None = None,
        formats: Iterable[str] | None = None,
        max_depth: float | None = None,
    ) -> list[Path]:
        """Write the disparity and its picture; with a calibration also depth and point cloud.

        Args:
            folder: made if it is missing.
            name: first part of the file names: ``<name>_disparity.pfm``, ``.png`` (16 bits,
                256 d), ``.npy``, ``<name>_disparity_colour.png``, ``<name>_depth.npy`` (metres),
                ``<name>_depth_colour.png``, ``<name>_cloud.ply``, ``<name>_cloud.png``.
            calibration: as for ``depth``.
            formats: of the disparity: ``pfm``, ``png``, ``npy``; by default all that can hold it
                (a 16-bit PNG ends at 256 pixels).
            max_depth: metres, of the point cloud; see ``points``.

        Returns:
            The files written.

        Raises:
            ValueError: an unknown format, or one that cannot hold these disparities.

        Warns (``UserWarning``) of what could not be written where all else is: a PNG that was not
        asked for by name, a point cloud without Open3D or without a point.
        """
        folder = Path(folder)
        highest = self.disparity.max()
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
        written = []

        def target(ending: str) -> Path:
            written.append(folder / f"{name}_{ending}")
            return written[-1]

        for suffix in formats:
            write_disparity(target(f"disparity.{suffix}"), self.disparity)
        write_image(target("disparity_colour.png"), disparity_picture(self.disparity))
        if calibration is None:
            return written
        camera = self._fit(calibration)
        depth = self.depth(camera)
        with atomic_write(target("depth.npy")) as temporary, temporary.open("wb") as file:
            np.save(file, depth)
        limit = self.default_max_depth(camera) if max_depth is None else max_depth
        shown = np.where(depth <= limit, depth, 0)
        picture = disparity_picture(shown, label="depth [m]", palette="turbo_r", logarithmic=True)
        write_image(target("depth_colour.png"), picture)
        points, colours = self.points(camera, max_depth)
        if len(points) == 0:
            warnings.warn(f"no point cloud written: nothing within {limit:g} m", stacklevel=2)
            return written
        view = cloud_picture(
            points, colours, source_focal=camera.focal, source_size=self.disparity.shape
        )
        write_image(target("cloud.png"), view)
        try:
            write_point_cloud(folder / f"{name}_cloud.ply", points, colours)
            target("cloud.ply")
        except ImportError as error:
            warnings.warn(f"no point cloud written: {error}", stacklevel=2)
        return written

    def _fit(self, calibration: StereoCalibration) -> StereoCalibration:
        height, width = self.disparity.shape
        if (calibration.width, calibration.height) in ((None, None), (width, height)):
            return calibration
        return calibration.resized(width, height)


class StereoPredictor:
    """A network with its weights, ready for pairs of any size.

    Args:
        model: a network ``net(left, right)`` (copied), or trained weights: ``NAME`` or
            ``NAME.TAG`` of `list_models(pretrained=True)`, ``hf-hub:ORG/NAME[@REVISION]``, a
            folder of `save_pretrained`, a ``.safetensors`` file or a Lightning checkpoint.
        device: ``auto`` (a GPU if there is one), or what ``torch.device`` takes.
        dtype: ``float32``, ``bfloat16`` or ``float16`` (GPU only), for the network's inside.

    Attributes:
        max_disparity: pixels; the network is made for disparities below that. None where it does
            not say.

    Raises:
        FileNotFoundError: there is no such weight file.
        ValueError: no such model, no trained weights for it, no such device, or a dtype that the
            device cannot use.
    """

    def __init__(
        self, model: str | os.PathLike | nn.Module, device: str = "auto", dtype: str = "float32"
    ) -> None:
        self.device = choose_device(device)
        self.dtype = choose_dtype(dtype, self.device)
        net = load_network(model, "stereo")
        self.max_disparity = _max_disparity(net)
        self.net = optimize(net.to(self.device), dtype=self.dtype)

    @torch.inference_mode()
    def __call__(self, left: Image, right: Image) -> StereoResult:
        """Find the disparity of one pair.

        Args:
            left, right: paths, (H, W, 3) uint8 RGB arrays, or (3, H, W) tensors in [0, 1]; of one
                size, rectified.

        Raises:
            FileNotFoundError: there is no such image.
            ValueError: an image cannot be read, the sizes differ, or the network's output is not
                finite.
        """
        first, second = as_image(left, "left"), as_image(right, "right")
        if first.shape != second.shape:
            sizes = [f"{image.shape[2]}x{image.shape[1]}" for image in (first, second)]
            raise ValueError(
                f"left and right differ in size: {_name(left)}{sizes[0]} against "
                f"{_name(right)}{sizes[1]}; a rectified pair has one size"
            )
        batch = [image[None].to(self.device) for image in (first, second)]
        disparity = self.net(*batch)[0, 0].float().cpu()
        check_prediction(disparity, dtype=self.dtype)
        image = first.mul(255).round().byte().permute(1, 2, 0)
        return StereoResult(disparity.numpy(), image.contiguous().numpy())


def _max_disparity(net: nn.Module) -> int | None:
    architecture = getattr(net, "architecture", {})
    if "name" not in architecture:
        return None
    return {**model_info(architecture["name"]).defaults, **architecture}.get("max_disparity")


def _name(image: Image) -> str:
    return f"{os.fspath(image)} " if isinstance(image, (str, os.PathLike)) else ""
