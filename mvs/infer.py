"""Depth maps and clouds from photographs with cameras.

Example:
    >>> predictor = vizoo.MVSPredictor()
    >>> scene = vizoo.datasets.mvs.open_scene("scan9")
    >>> summary = vizoo.reconstruct(predictor, scene, "out")  # depth maps, cloud, pictures
    >>> summary["cloud"]
    'out/cloud.ply'
"""

from __future__ import annotations

import os
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..common.devices import choose_device, choose_dtype
from ..common.summaries import spread
from ..datasets.mvs.cameras import lift, rounding_note
from ..datasets.mvs.scene import Scene, View
from ..vision.hub.create import load_network
from ..vision.inference import check_prediction, optimize, standalone
from ..vision.io.images import ImageLike, as_views, to_bytes, write_image
from ..vision.io.pfm import write_pfm
from ..vision.runtimes import fingerprint
from ..vision.viz.colour import disparity_picture
from . import DEFAULT_MODEL
from .confidence import depth_confidence
from .guided import Guided

__all__ = ["MVSPredictor", "MVSResult"]

_SEEDS = (1 << 64) - 1  # the largest seed that a generator takes


@dataclass(frozen=True, eq=False)
class MVSResult:
    """What was found for one view.

    Attributes:
        depth: (H, W) float32, z in the view's frame, in the unit of the cameras.
        confidence: (H, W) float32 in [0, 1]: guided, the chance that the depth is within 5 % of
            the truth; else see `vizoo.mvs.confidence.depth_confidence`.
        image: (H, W, 3) uint8 RGB.
        intrinsics, extrinsics: (3, 3) and (4, 4), of the view, as given.
    """

    depth: np.ndarray
    confidence: np.ndarray
    image: np.ndarray
    intrinsics: Tensor
    extrinsics: Tensor

    def points(self) -> tuple[np.ndarray, np.ndarray]:
        """Return every pixel as a point: world (H W, 3) float32 and colours (H W, 3) uint8.

        Nothing is filtered; `reconstruct` keeps what several views agree on.
        """
        points = lift(torch.from_numpy(self.depth), self.intrinsics, self.extrinsics)
        return points.reshape(-1, 3).numpy(), self.image.reshape(-1, 3)

    def summary(self) -> dict[str, Any]:
        """What was found, as JSON values."""
        return {
            "size": list(self.depth.shape),
            "depth": spread(self.depth),
            "confidence": round(float(self.confidence.mean()), 4),
        }

    def save(self, folder: str | os.PathLike, name: str = "view") -> list[Path]:
        """Write depth and confidence, as PFM and as pictures; return the files.

        Args:
            folder: made if it is missing.
            name: of the files in its folders ``depth`` and ``confidence``.
        """
        styles: dict[str, dict[str, Any]] = {
            "depth": {"palette": "turbo_r", "logarithmic": True},
            "confidence": {"palette": "viridis", "low": 0.0, "high": 1.0},
        }
        files = []
        for label, style in styles.items():
            values = getattr(self, label)
            files += [Path(folder) / label / f"{name}{suffix}" for suffix in (".pfm", ".png")]
            write_pfm(files[-2], values)
            write_image(files[-1], disparity_picture(values, label=label, **style))
        return files


class MVSPredictor:
    """A network with its weights, ready for views of any number and size.

    Args:
        model: see `StereoPredictor`; a network is called as `DispMVS` is, with ``generator=``.
            `vizoo.mvs.classical.PlaneSweep()` matches without one.
        device: see there.
        dtype: see there, for the convolutions; geometry is always computed in float32.
        guided: refine poses, start from a plane sweep and fuse what both find, see `Guided`: more
            accurate, and several times slower. None: the default model is, others are not.

    Attributes:
        guided: whether it is.
        fingerprint: of the weights and the architecture; a hexadecimal number.

    Raises:
        FileNotFoundError, ValueError: as `StereoPredictor`; a network to be guided that takes no
            depth to start from.
    """

    def __init__(
        self,
        model: str | os.PathLike | nn.Module = DEFAULT_MODEL,
        device: str = "auto",
        dtype: str = "float32",
        *,
        guided: bool | None = None,
    ) -> None:
        self.device = choose_device(device)
        self.dtype = choose_dtype(dtype, self.device)
        net = standalone(load_network(model, "mvs"))
        self.model = type(model).__name__ if isinstance(model, nn.Module) else os.fspath(model)
        whole = isinstance(net, Guided)
        self.guided = whole or (model == DEFAULT_MODEL if guided is None else guided)
        net = Guided(net) if self.guided and not whole else net
        self.fingerprint = fingerprint(net)
        self.net = optimize(net.to(self.device), self.dtype)

    def __call__(
        self,
        images: Sequence[ImageLike],
        intrinsics: Tensor | np.ndarray,
        extrinsics: Tensor | np.ndarray,
        depth_range: tuple[float, float] | None = None,
        *,
        seed: int = 0,
    ) -> MVSResult:
        """Find the depth of the first view.

        Args:
            images: two or more of one size: paths, uint8 or uint16 arrays, (H, W, 3) RGB or (H, W)
                grey, or (3, H, W) tensors in [0, 1]. Files are taken as they are stored, whatever
                orientation EXIF notes.
            intrinsics: (V, 3, 3), pixels of these images; a tensor on any device or an array, as
                are the extrinsics.
            extrinsics: (V, 4, 4), world to camera.
            depth_range: least and greatest depth; None guesses them, see
                `vizoo.datasets.mvs.derive_range`.
            seed: of the random depth that the search starts from, where it is not guided; of larger
                ones the lowest 64 bits count.

        Raises:
            FileNotFoundError: there is no such image.
            ValueError: fewer than two views, images of several sizes, wrong cameras or range, or
                the network's output is not finite.

        Warns (``UserWarning``) of cameras so far from the origin that float32 moves them.
        """
        if len(images) < 2:
            raise ValueError(f"depth needs two views at least, got {len(images)}")
        intrinsics, extrinsics = (  # copies, as PyTorch takes no array that is reversed
            torch.as_tensor(given.copy() if isinstance(given, np.ndarray) else given)
            for given in (intrinsics, extrinsics)
        )
        for name, matrices, side in (("intrinsics", intrinsics, 3), ("extrinsics", extrinsics, 4)):
            wanted = (len(images), side, side)
            if matrices.shape != wanted:
                raise ValueError(f"{name} must be {wanted}, got {tuple(matrices.shape)}")
        if depth_range is not None and not 0 < depth_range[0] < depth_range[1] < float("inf"):
            raise ValueError(f"depth range {depth_range[0]:g} to {depth_range[1]:g} is none")
        if note := rounding_note(extrinsics.detach().cpu()):
            warnings.warn(note, stacklevel=2)
        given = [i for i, one in enumerate(images) if not isinstance(one, (str, os.PathLike))]
        opened = iter(as_views([images[i] for i in given], [f"view {i}" for i in given]))
        views = []
        for i, image in enumerate(images):
            shown = os.fspath(image) if isinstance(image, (str, os.PathLike)) else next(opened)
            camera = intrinsics[i].detach().cpu(), extrinsics[i].detach().cpu(), depth_range
            views.append(View(str(i), shown, *camera, camera_file=f"view {i}"))
        others = [(index, 1.0) for index in range(1, len(views))]
        scene = Scene("of these images", views, [others, *([] for _ in others)], "memory")
        sizes = [scene.size(index) for index in range(len(views))]
        for index, (height, width) in enumerate(sizes):
            if (height, width) != sizes[0]:
                first = f"{sizes[0][0]}x{sizes[0][1]}"
                raise ValueError(f"views 0 and {index} differ in size: {first}, {height}x{width}")
        return self.predict_sample(scene.sample(0, range(1, len(views))), seed)

    @torch.inference_mode()
    def predict_sample(self, sample: dict, seed: int = 0) -> MVSResult:
        """Find the depth of the first view of a sample as data sets and scenes give them.

        Raises:
            ValueError: the network's output is not finite.
        """
        names = ("images", "intrinsics", "extrinsics", "depth_range")
        batch = [sample[name][None].to(self.device) for name in names]
        if self.guided:
            net: Any = self.net
            depth, confidence = (part[0, 0] for part in net.predict(*batch))
        else:
            generator = torch.Generator().manual_seed(int(seed) & _SEEDS)
            depth = self.net(*batch, generator=generator)[0, 0].float()
            images, intrinsics, extrinsics = (part[0] for part in batch[:3])
            confidence = depth_confidence(images, intrinsics, extrinsics, depth)
        check_prediction(depth, dtype=self.dtype)
        return MVSResult(
            depth.cpu().numpy(),
            confidence.cpu().numpy(),
            to_bytes(sample["images"][0]),
            sample["intrinsics"][0].cpu(),
            sample["extrinsics"][0].cpu(),
        )


def view_seed(seed: int, name: str) -> int:
    """Return the seed of a view: its own, whichever views were computed before it."""
    return ((int(seed) << 32) ^ zlib.crc32(name.encode())) & _SEEDS
