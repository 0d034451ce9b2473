"""Speed and memory of fusion: the depth maps of a DTU scan, streamed from disk.

python -m benchmarks.fusion --threads 2
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import cv2
import numpy as np
import torch

from vizoo.common.memory import PeakMemory
from vizoo.datasets.mvs.cameras import invert_intrinsics, invert_pose
from vizoo.mvs.fusion import DepthView, Thresholds, fuse_to_file
from vizoo.vision.io.images import write_image
from vizoo.vision.io.pfm import write_pfm

from ._machine import arguments, peak_megabytes, start

RADIUS, DISTANCE = 180.0, 650.0  # mm: of the thing that is seen, of the cameras from its middle


def cameras(views: int, height: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cameras on rows of an arc that look at the origin: (3, 3) and (V, 4, 4)."""
    focal = 1.8 * width
    intrinsics = torch.tensor(
        [[focal, 0, (width - 1) / 2], [0, focal, (height - 1) / 2], [0, 0, 1]]
    )
    extrinsics = torch.eye(4).repeat(views, 1, 1)
    columns = 7
    for index in range(views):
        yaw = 0.12 * (index % columns - columns // 2)
        pitch = 0.1 * (index // columns - views // columns / 2)
        turn = cv2.Rodrigues(np.array([pitch, 0, 0]))[0] @ cv2.Rodrigues(np.array([0, -yaw, 0]))[0]
        extrinsics[index, :3, :3] = torch.from_numpy(turn)
        extrinsics[index, 2, 3] = DISTANCE
    return intrinsics, extrinsics


def sphere_on_a_plane(intrinsics, extrinsics, height: int, width: int) -> torch.Tensor:
    """Exact depth of a sphere before a plane."""
    pose = invert_pose(extrinsics.double())
    turn, centre = pose[:3, :3] @ invert_intrinsics(intrinsics.double()), pose[:3, 3]
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    rays = torch.stack([x, y, torch.ones_like(x)], -1).double() @ turn.T
    plane = (RADIUS / 2 - centre[2]) / rays[..., 2]
    a, b = (rays**2).sum(-1), rays @ centre
    root = b**2 - a * (centre @ centre - RADIUS**2)
    sphere = (-b - root.clamp(min=0).sqrt()) / a
    return torch.where(root > 0, torch.minimum(sphere, plane), plane).float()


def main() -> None:
    options, _ = start(arguments(__doc__, views=49, sources=10, size=(1152, 1600), device="cpu"))
    height, width = options.size
    intrinsics, extrinsics = cameras(options.views, height, width)
    centres = invert_pose(extrinsics)[:, :3, 3]
    nearest = torch.cdist(centres, centres).argsort(1)[:, 1 : options.sources + 1]
    noise = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        folder, views = Path(name), []
        for index in range(options.views):
            depth = sphere_on_a_plane(intrinsics, extrinsics[index], height, width).numpy()
            # As a network errs: a little everywhere, grossly here and there.
            depth *= 1 + 5e-4 * noise.standard_normal(depth.shape, dtype=np.float32)
            depth[noise.random(depth.shape, dtype=np.float32) < 0.1] *= 1.2
            depth_file, image_file = folder / f"{index}.pfm", folder / f"{index}.png"
            write_pfm(depth_file, depth)
            coarse = noise.integers(0, 256, (height // 16, width // 16, 3), dtype=np.uint8)
            write_image(image_file, coarse.repeat(16, axis=0).repeat(16, axis=1))
            views.append(
                DepthView(
                    str(index),
                    intrinsics,
                    extrinsics[index],
                    depth_file,
                    image_file,
                    nearest[index].tolist(),
                    (425.0, 935.0),
                )
            )
        with PeakMemory(torch.device("cpu")) as memory:
            begin = time.perf_counter()
            report = fuse_to_file(
                views, folder / "cloud.ply", Thresholds(3, 0.5, 0.01), device=options.device
            )
            seconds = time.perf_counter() - begin
        megabytes = (folder / "cloud.ply").stat().st_size / 1e6
    print(
        f"{options.device}: {options.views} views of {height}x{width}, {options.sources} sources "
        f"each: {seconds:.1f} s; memory {memory.bytes / 2**20:.0f} MiB above what was held before, "
        f"{peak_megabytes():.0f} MiB at most with everything; "
        f"{report.points / 1e6:.1f} of {report.pixels / 1e6:.1f} million pixels kept "
        f"({megabytes:.0f} MB)"
    )


if __name__ == "__main__":
    main()
