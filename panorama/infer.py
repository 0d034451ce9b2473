"""Depth, points and a surface from panoramas.

Example:
    >>> predictor = vizoo.PanoramaPredictor()
    >>> result = predictor("room.jpg")
    >>> result.save("out", "room")
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from ..common.devices import choose_device, choose_dtype
from ..common.files import atomic_write, check_formats
from ..common.summaries import spread
from ..datasets.panorama.base import is_whole_sphere
from ..vision.hub.create import load_network
from ..vision.inference import check_prediction, convert, standalone
from ..vision.io.exr import write_exr
from ..vision.io.images import ImageLike, as_views, to_bytes, write_image
from ..vision.io.pfm import write_pfm
from ..vision.io.ply import write_mesh, write_ply
from ..vision.viz.cloud import inside_picture
from ..vision.viz.colour import disparity_picture
from . import DEFAULT_MODEL
from .mesh import SphericalMesh, kept, level_of, spherical_mesh
from .sampling import faces_to_equirectangular, sample_equirectangular, vertex_values

if TYPE_CHECKING:
    from .spheredepth import SphereDepthNet

__all__ = ["FORMATS", "PanoramaPredictor", "PanoramaResult", "TriangleMesh"]

FORMATS = ("png", "npy", "exr", "pfm")
_PNG_UNIT = 1000  # steps of a metre
_PNG_LIMIT = 65535.5 / _PNG_UNIT
_FINEST = 7  # the preview draws the surface in as many pieces as this level has faces
_BACKWARD = np.array([1, 1, -1], np.float32)  # z: from the sphere's left-handed axes, and back
_BEHIND = 0.94  # cosine of the cone behind the camera that the preview steps back into


class TriangleMesh(NamedTuple):
    """A surface."""

    vertices: Tensor  #: (V, 3), in metres
    triangles: Tensor  #: (T, 3) int64, counter-clockwise seen from the camera
    colours: Tensor  #: of the vertices, (V, 3), RGB in [0, 1]


@dataclass(frozen=True, eq=False)
class PanoramaResult:
    """What was found for one panorama.

    Points and surface have their axes x right, y up, z backward, right-handed, as programs for 3D
    data take them; the camera is the origin and the middle of the image lies ahead of it.
    """

    depth: np.ndarray  #: (H, W) float32, distance from the camera in metres
    faces: np.ndarray  #: (F,) float32, the same on the faces of the spherical mesh
    colours: np.ndarray  #: of the faces, (F, 3) float32 RGB in [0, 1]
    image: np.ndarray  #: (H, W, 3) uint8 RGB

    def points(self) -> tuple[np.ndarray, np.ndarray]:
        """One point for each face: (F, 3) float32 in metres and (F, 3) uint8 RGB."""
        looks = self._mesh.centroids.astype(np.float32)
        return self.faces[:, None] * looks * _BACKWARD, _bytes(torch.from_numpy(self.colours))

    def surface(self, max_ratio: float | None = 1.5) -> TriangleMesh:
        """The faces of the sphere, their vertices moved to the depth around them.

        Args:
            max_ratio: leave out triangles whose furthest vertex is more than so many times as far
                as the nearest: they would span from an object to what is behind it. None keeps all.

        Returns:
            The scene as triangles, with the vertices that these use.

        Raises:
            ValueError: `max_ratio` is below 1.
        """
        if max_ratio is not None and not max_ratio >= 1:
            raise ValueError(f"max_ratio {max_ratio}: must be at least 1, or None")
        both = torch.from_numpy(np.column_stack((self.faces, self.colours)))
        values = vertex_values(both[None])[0]
        far, shades = values[:, 0], values[:, 1:].clamp(0, 1)
        vertices = self._mesh.vertices.astype(np.float32) * _BACKWARD
        points = far[:, None] * torch.from_numpy(vertices)
        triangles = kept(self._mesh.faces, "cpu").long()
        if max_ratio is not None:
            corners = far[triangles]
            triangles = triangles[corners.amax(1) <= max_ratio * corners.amin(1)]
            used, triangles = triangles.unique(return_inverse=True)
            points, shades = points[used], shades[used]
        return TriangleMesh(points, triangles, shades)

    def preview(self, size: tuple[int, int] = (720, 1280)) -> np.ndarray:
        """The scene from within, (height, width, 3) uint8 RGB: ahead, from some steps back.

        The eye stands halfway to what is behind the camera, so that the picture is none that the
        panorama holds. What the camera did not see stays dark.
        """
        mesh = next(m for m in map(self.surface, (1.5, None)) if len(m.triangles))
        corners = mesh.vertices[mesh.triangles]  # (T, 3, 3)
        shares = _parts(2 ** max(0, _FINEST - self._mesh.level))
        points = torch.einsum("sk,tkc->tsc", shares, corners).flatten(0, 1)
        sides = (corners - corners.roll(1, 1)).norm(dim=2).amax(1) / len(shares) ** 0.5
        image = torch.from_numpy(self.image).permute(2, 0, 1)[None].float()
        looks = points * torch.from_numpy(_BACKWARD)
        colours = sample_equirectangular(image, looks)[0].round().byte().numpy()
        behind = self._mesh.centroids[:, 2] < -_BEHIND
        back = float(np.median(self.faces[behind])) / 2
        places = points.numpy() * np.array([1, -1, -1], np.float32)  # y down, z forward
        patches = sides.repeat_interleave(len(shares)).numpy()
        return inside_picture(places, colours, patches=patches, eye=(0, 0, -back), size=size)

    def summary(self) -> dict[str, Any]:
        """What was found, as JSON values."""
        size, depth = list(self.depth.shape), spread(self.depth)
        return {"size": size, "depth": depth, "points": len(self.faces)}

    def save(
        self,
        folder: str | os.PathLike,
        name: str = "panorama",
        *,
        formats: Iterable[str] | None = None,
        max_ratio: float | None = 1.5,
    ) -> list[Path]:
        """Write depth, its picture, cloud, surface and preview.

        Args:
            folder: made if it is missing.
            name: first part of the file names: ``<name>_depth.png`` (16 bits, millimetres),
                ``.npy``, ``.exr``, ``.pfm`` (metres), ``<name>_depth_colour.png``,
                ``<name>_cloud.ply``, ``<name>_mesh.ply``, ``<name>_preview.png``.
            formats: of the depth: ``png``, ``npy``, ``exr``, ``pfm``; by default all that can hold
                it (a 16-bit PNG ends at 65.5 m).
            max_ratio: see `surface`.

        Returns:
            The files written.

        Raises:
            ValueError: an unknown format, or one that cannot hold these depths.

        Warns (``UserWarning``) where a PNG that was not asked for by name cannot hold them, and of
        files of this name that an earlier call wrote and this one did not.
        """
        folder, furthest = Path(folder), self.depth.max()
        if formats is None:
            formats = FORMATS
            if furthest >= _PNG_LIMIT:
                formats = [f for f in FORMATS if f != "png"]
                warnings.warn(f"no 16-bit PNG written: it ends at {_PNG_LIMIT:g} m", stacklevel=2)
        formats = check_formats(formats, FORMATS)
        if "png" in formats and furthest >= _PNG_LIMIT:
            raise ValueError(
                f"{folder / name}_depth.png: a depth of {furthest:.1f} m does not fit: a 16-bit "
                f"PNG of millimetres ends at {_PNG_LIMIT:g} m; choose npy, exr or pfm"
            )
        written = []

        def target(ending: str) -> Path:
            written.append(folder / f"{name}_{ending}")
            return written[-1]

        for suffix in formats:
            _write_depth(target(f"depth.{suffix}"), self.depth)
        picture = disparity_picture(
            self.depth, label="depth [m]", palette="turbo_r", logarithmic=True
        )
        write_image(target("depth_colour.png"), picture)
        with write_ply(target("cloud.ply")) as ply:
            ply.write(*self.points())
        mesh = self.surface(max_ratio)
        arrays = mesh.vertices.numpy(), mesh.triangles.numpy(), _bytes(mesh.colours)
        write_mesh(target("mesh.ply"), *arrays)
        write_image(target("preview.png"), self.preview())
        paths = [folder / f"{name}_depth.{form}" for form in FORMATS]
        left = [str(path) for path in paths if path not in written and path.exists()]
        if left:
            warnings.warn(f"of an earlier run, not of this one: {', '.join(left)}", stacklevel=2)
        return written

    @property
    def _mesh(self) -> SphericalMesh:
        return spherical_mesh(level_of(len(self.faces)))


class PanoramaPredictor:
    """A network with its weights, ready for panoramas of any size.

    Args:
        model: see `StereoPredictor`; a network has ``predict(image)``, which gives a
            `spheredepth.Prediction`.
        device: see there.
        dtype: see there, for the convolutions.

    Raises:
        FileNotFoundError, ValueError: as `StereoPredictor`.
    """

    def __init__(
        self,
        model: str | os.PathLike | nn.Module = DEFAULT_MODEL,
        device: str = "auto",
        dtype: str = "float32",
    ) -> None:
        self.device = choose_device(device)
        self.dtype = choose_dtype(dtype, self.device)
        net = load_network(model, "panorama")
        net = convert(standalone(net), torch.float32)
        self.net = net.requires_grad_(False).to(self.device)

    @torch.inference_mode()
    def __call__(
        self, image: ImageLike, mode: Literal["nearest", "linear"] = "nearest"
    ) -> PanoramaResult:
        """Find the depth of one panorama.

        Args:
            image: of the whole sphere: a path, a uint8 or uint16 array, (H, W, 3) RGB or (H, W)
                grey, or a (3, H, W) tensor in [0, 1].
            mode: how the depth of a pixel comes from the faces', `nearest` or `linear`, see
                `faces_to_equirectangular`.

        Raises:
            FileNotFoundError: there is no such image.
            ValueError: it cannot be read, or the network's output is not finite.

        Warns (``UserWarning``) where the image is not twice as wide as it is high, to
        half a per cent.
        """
        (planes,) = as_views([image], ["image"])
        height, width = planes.shape[1:]
        if not is_whole_sphere(height, width):
            warnings.warn(
                f"{height}x{width} pixels are not twice as wide as high, as a panorama of the "
                "whole sphere is: what is seen is stretched over it, its depth not to be trusted; "
                "pad the image to what it covers of 360 x 180 degrees",
                stacklevel=3,  # past the decorator
            )
        batch = planes[None].to(self.device)
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
            depth, faces, colours = cast("SphereDepthNet", self.net).predict(batch)
        faces = faces.float()
        if mode != "nearest":
            depth = faces_to_equirectangular(faces[..., None], height, width, mode)
        check_prediction(faces, dtype=self.dtype)
        colours = colours[0].unflatten(0, (faces.shape[1], -1)).mean(1)
        return PanoramaResult(
            depth[0, 0].float().cpu().numpy(),
            faces[0].cpu().numpy(),
            colours.float().cpu().numpy(),
            to_bytes(planes),
        )


def _write_depth(path: Path, depth: np.ndarray) -> None:
    """Write depth (H, W) in metres in the format of the suffix, PNG in millimetres."""
    if path.suffix == ".png":
        write_image(path, np.rint(depth.astype(np.float64) * _PNG_UNIT).astype(np.uint16))
    elif path.suffix == ".npy":
        with atomic_write(path) as temporary, temporary.open("wb") as file:
            np.save(file, depth)
    else:
        {".exr": write_exr, ".pfm": write_pfm}[path.suffix](path, depth)


def _parts(count: int) -> Tensor:
    """Where the centres of the count² equal parts of a triangle lie, (count², 3) barycentric."""
    i, j = torch.meshgrid(torch.arange(count), torch.arange(count), indexing="ij")
    places = torch.stack((i, j), -1)
    upright, inverted = places[i + j < count] + 1 / 3, places[i + j < count - 1] + 2 / 3
    two = torch.cat((upright, inverted)) / count
    return torch.cat((two, 1 - two.sum(1, keepdim=True)), 1)


def _bytes(colours: Tensor) -> np.ndarray:
    return to_bytes(colours.T[:, None])[0]
