"""Pinhole cameras as matrices: intrinsics K, extrinsics from world to camera; what they may see.

A world point x lies at ``R x + t`` in the camera's frame (x right, y down, z forward), where the
extrinsics are ``[R t; 0 0 0 1]``, and is seen at the pixel ``K (R x + t)`` divided by its third
entry. Pixel centres are at integers. Depth is z in the camera's frame, in the world's unit.

Matrices may have leading dimensions: intrinsics (..., 3, 3), extrinsics (..., 4, 4).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = [
    "camera_centre",
    "check_camera",
    "crop_intrinsics",
    "invert_intrinsics",
    "invert_pose",
    "lift",
    "project",
    "range_from_cameras",
    "range_from_points",
    "relative_pose",
    "resize_intrinsics",
    "rounding_note",
    "scale_intrinsics",
    "upright",
]

# Files print rotations with as few as three decimals.
_ROTATION_TOLERANCE = 5e-3
_COARSE = 1e-3  # of the cameras' distance from their middle, by which rounding may move them


def check_camera(intrinsics: Tensor, extrinsics: Tensor, where: str | Sequence[str] = "") -> None:
    """Refuse cameras that cannot be.

    Args:
        intrinsics: (..., 3, 3).
        extrinsics: (..., 4, 4), world to camera.
        where: what the message names: the cameras' file, or one name for each camera.

    Raises:
        ValueError: a number is not finite, the intrinsics cannot be inverted or are no intrinsics
            (a focal length that is not positive, a last row other than 0 0 1), or the extrinsics
            are no motion (R not a rotation, a last row other than 0 0 0 1). The message names the
            first such view.
    """
    for matrix, size, what in ((intrinsics, 3, "intrinsics"), (extrinsics, 4, "extrinsics")):
        if matrix.shape[-2:] != (size, size):
            raise ValueError(
                f"{_name(where, 0, 1)}{what} must be (..., {size}, {size}), got "
                f"{tuple(matrix.shape)}"
            )
    k, e = intrinsics.detach().double().cpu(), extrinsics.detach().double().cpu()
    lead = torch.broadcast_shapes(k.shape[:-2], e.shape[:-2])
    k, e = k.expand(*lead, 3, 3).reshape(-1, 3, 3), e.expand(*lead, 4, 4).reshape(-1, 4, 4)
    rotation, one = e[:, :3, :3], torch.eye(4, dtype=e.dtype)
    error = (rotation @ rotation.mT - one[:3, :3]).abs().flatten(1).amax(1)
    unless = {
        "the intrinsics hold a number that is not finite": k.isfinite().flatten(1).all(1),
        "the extrinsics hold a number that is not finite": e.isfinite().flatten(1).all(1),
        "the intrinsics are not [fx s cx; 0 fy cy; 0 0 1] but {k}": (k[:, 1, 0] == 0)
        & (k[:, 2] == one[2, :3]).all(1),
        "the intrinsics cannot be used: focal lengths {fx:g} and {fy:g} must be positive": (
            (k[:, 0, 0] > 0) & (k[:, 1, 1] > 0)
        ),
        "the extrinsics' last row must be 0 0 0 1, it is {last}": (e[:, 3] == one[3]).all(1),
        "the extrinsics' left 3x3 block is not a rotation (R R^T differs from the identity by "
        "{error:.3g})": error <= _ROTATION_TOLERANCE,
        "the extrinsics' left 3x3 block is not a rotation but a reflection (determinant -1)": (
            torch.linalg.det(rotation) > 0
        ),
    }
    sound = torch.stack(list(unless.values()))
    if not sound.all():
        index = int((~sound.all(0)).nonzero()[0])
        fault = next(text for text, cameras in unless.items() if not cameras[index]).format(
            k=_show(k[index]),
            fx=k[index, 0, 0],
            fy=k[index, 1, 1],
            last=_show(e[index, 3:])[1:-1],
            error=error[index],
        )
        raise ValueError(f"{_name(where, index, len(k))}{fault}")


def scale_intrinsics(intrinsics: Tensor, scale_x: float, scale_y: float) -> Tensor:
    """Return intrinsics whose first two rows are multiplied, as published files and networks do."""
    scale = intrinsics.new_tensor([scale_x, scale_y, 1.0])
    return intrinsics * scale[:, None]


def resize_intrinsics(intrinsics: Tensor, scale_x: float, scale_y: float) -> Tensor:
    """Return the intrinsics of an image resized by two factors (new size / old size).

    Edges stay at edges, so that the pixel centre x goes to s (x + 0.5) - 0.5.
    """
    scaled = scale_intrinsics(intrinsics, scale_x, scale_y)
    return crop_intrinsics(scaled, 0.5 - 0.5 * scale_x, 0.5 - 0.5 * scale_y)


def crop_intrinsics(intrinsics: Tensor, left: float, top: float) -> Tensor:
    """Return the intrinsics of an image of which ``left`` columns and ``top`` rows are cut off."""
    shift = torch.zeros_like(intrinsics)
    shift[..., 0, 2], shift[..., 1, 2] = left, top
    return intrinsics - shift


def upright(
    images: Tensor, intrinsics: Tensor, extrinsics: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Turn views by quarter turns until they stand as the first one does, to half a quarter.

    Networks match patches, which look otherwise when a camera was held on its side. A turned view
    keeps its scale and is cut, or filled with black, to the size of the others; where all views
    stand upright, and for a view with skewed pixels, nothing changes.

    Args:
        images: (V, C, H, W).
        intrinsics: (V, 3, 3), pixels.
        extrinsics: (V, 4, 4), world to camera.

    Returns:
        Images and cameras of the same shapes; what they see, and depth in the first, is the same.
    """
    turned = relative_pose(extrinsics[:1], extrinsics)[:, :3, :3]
    roll = torch.atan2(turned[:, 1, 0] - turned[:, 0, 1], turned[:, 0, 0] + turned[:, 1, 1])
    turns = [int(turn) % 4 for turn in (roll / (torch.pi / 2)).round()]  # against the clock
    if not any(turns):
        return images, intrinsics, extrinsics
    images, intrinsics, extrinsics = images.clone(), intrinsics.clone(), extrinsics.clone()
    height, width = images.shape[-2:]
    quarter = torch.tensor([[0.0, 1, 0], [-1, 0, 0], [0, 0, 1]], dtype=torch.float64)
    for view, turn in enumerate(turns):
        if intrinsics[view, 0, 1] != 0:
            continue
        image, matrix, motion = images[view], intrinsics[view].double(), extrinsics[view].double()
        for _ in range(turn):
            # The pixel (x, y) goes to (y, W - 1 - x), the point (x, y, z) to (y, -x, z).
            matrix = quarter @ matrix @ quarter.mT
            matrix[1, 2] += image.shape[-1] - 1
            motion[:3] = quarter @ motion[:3]
            image = image.rot90(1, (1, 2))
        above, left = (image.shape[1] - height) // 2, (image.shape[2] - width) // 2
        below, right = image.shape[1] - height - above, image.shape[2] - width - left
        images[view] = F.pad(image, (-left, -right, -above, -below))
        intrinsics[view] = crop_intrinsics(matrix, left, above)
        extrinsics[view] = motion
    return images, intrinsics, extrinsics


def invert_intrinsics(intrinsics: Tensor) -> Tensor:
    """Return the inverse, computed in double precision, of the type given."""
    return torch.linalg.inv(intrinsics.double()).to(intrinsics.dtype)


def invert_pose(extrinsics: Tensor) -> Tensor:
    """Return the inverse motion (camera to world) of world to camera, or the other way round."""
    rotation, shift = extrinsics[..., :3, :3].double(), extrinsics[..., :3, 3:].double()
    turned = rotation.transpose(-1, -2)
    return _motion(turned, -turned @ shift).to(extrinsics.dtype)


def relative_pose(extrinsics_a: Tensor, extrinsics_b: Tensor) -> Tensor:
    """Return the motion (..., 4, 4) from camera a's frame to camera b's: x_b = R x_a + t."""
    a, b = extrinsics_a.double(), extrinsics_b.double()
    rotation = b[..., :3, :3] @ a[..., :3, :3].transpose(-1, -2)
    shift = b[..., :3, 3:] - rotation @ a[..., :3, 3:]
    return _motion(rotation, shift).to(extrinsics_a.dtype)


def camera_centre(extrinsics: Tensor) -> Tensor:
    """Return where the cameras stand in the world, (..., 3)."""
    return invert_pose(extrinsics)[..., :3, 3]


def rounding_note(extrinsics: Tensor) -> str | None:
    """Say where cameras (V, 4, 4) stand so far from the origin that float32 moves them apart."""
    centres = camera_centre(extrinsics.double())
    far = float(centres.norm(dim=1).max())
    spread = float((centres - centres.mean(0)).norm(dim=1).median())
    step = far * torch.finfo(torch.float32).eps
    if not step > _COARSE * spread:  # nor where a camera is NaN
        return None
    return (
        f"the cameras stand {far:.3g} from the origin and {spread:.3g} from their middle: float32 "
        f"rounds such positions to {step:.2g}, which spoils depth; subtract one offset from all"
    )


def project(points: Tensor, intrinsics: Tensor, extrinsics: Tensor) -> tuple[Tensor, Tensor]:
    """Project world points into cameras.

    Args:
        points: (..., *, 3): the leading dimensions are those of the cameras (or broadcast with
            them), then any number of others, such as (H, W) or (N,).
        intrinsics: (..., 3, 3), pixels.
        extrinsics: (..., 4, 4), world to camera.

    Returns:
        Pixels (..., *, 2) as (x, y), and depth (..., *). Points behind the camera have a depth
        that is not positive, and pixels that mean nothing but are finite.
    """
    matrix = intrinsics @ extrinsics[..., :3, :]
    matrix = _align(matrix, points.ndim - 1).to(points.dtype)
    depth_row = _align(extrinsics[..., 2, :], points.ndim - 1, kept=1).to(points.dtype)
    seen = (matrix[..., :2, :3] @ points[..., None]).squeeze(-1) + matrix[..., :2, 3]
    depth = (depth_row[..., :3] * points).sum(-1) + depth_row[..., 3]
    tiny = torch.finfo(depth.dtype).eps
    divisor = torch.where(depth.abs() < tiny, torch.full_like(depth, tiny), depth)
    return seen / divisor[..., None], depth


def lift(depth: Tensor, intrinsics: Tensor, extrinsics: Tensor) -> Tensor:
    """Return the world point of every pixel of a depth map.

    Args:
        depth: (..., H, W), z in the camera's frame.
        intrinsics: (..., 3, 3), pixels of the map.
        extrinsics: (..., 4, 4), world to camera.

    Returns:
        (..., H, W, 3) in the world's unit; the camera's centre where the depth is 0.

    Example:
        >>> points = lift(torch.ones(2, 3), torch.eye(3), torch.eye(4))
        >>> points[1, 2]
        tensor([2., 1., 1.])
    """
    height, width = depth.shape[-2:]
    pose = invert_pose(extrinsics)
    # One matrix from pixel to world direction; of depth 1 in the camera, so the depth scales it.
    turn = (pose[..., :3, :3].double() @ invert_intrinsics(intrinsics).double()).to(depth.dtype)
    centre = pose[..., :3, 3].to(depth.dtype)
    x = torch.arange(width, device=depth.device, dtype=depth.dtype)
    y = torch.arange(height, device=depth.device, dtype=depth.dtype)[:, None]
    entries = [_align(turn[..., :, i], depth.ndim, kept=1) for i in range(3)]
    rays = entries[0] * x[:, None] + entries[1] * y[..., None] + entries[2]
    return rays * depth[..., None] + _align(centre, depth.ndim, kept=1)


def _motion(rotation: Tensor, shift: Tensor) -> Tensor:
    top = torch.cat([rotation, shift], dim=-1)
    last = top.new_tensor([0.0, 0.0, 0.0, 1.0]).expand(*top.shape[:-2], 1, 4)
    return torch.cat([top, last], dim=-2)


def _align(tensor: Tensor, dimensions: int, kept: int = 2) -> Tensor:
    """Put dimensions of size one between the leading ones and the last ``kept``."""
    lead = tensor.shape[: tensor.ndim - kept]
    ones = (1,) * (dimensions - len(lead))
    return tensor.reshape(*lead, *ones, *tensor.shape[tensor.ndim - kept :])


def _name(where: str | Sequence[str], index: int, count: int) -> str:
    if not isinstance(where, str):
        return f"{where[index]}: "
    number = f"view {index}" if count > 1 else ""
    return "".join(f"{part}: " for part in (where, number) if part)


def _show(matrix: Tensor) -> str:
    return "[" + "; ".join(" ".join(f"{v:g}" for v in row) for row in matrix.tolist()) + "]"


_LEAST_POINTS = 10
_PERCENTILES = (0.01, 0.99)
_CONVERGING = (1 / 3, 3.0)  # times the distance at which the cameras look at the same place
_PARALLEL = (2.0, 60.0)  # times the baseline, for cameras that look in parallel


def range_from_points(depths: Tensor) -> tuple[float, float] | None:
    """Return the 1st and 99th percentile of the positive depths; None of fewer than ten."""
    depths = depths[depths > 0].double().sort().values
    if len(depths) < _LEAST_POINTS:
        return None
    least, greatest = (depths[int((len(depths) - 1) * share)].item() for share in _PERCENTILES)
    return (least, greatest) if least < greatest else None


def range_from_cameras(extrinsics: Tensor, index: int) -> tuple[tuple[float, float], str]:
    """Guess a view's range from all cameras' poses, (V, 4, 4).

    Where the viewing directions converge in front of the cameras, from a third to three times the
    distance of that place; else from 2 to 60 times the middle distance to the other cameras.

    Raises:
        ValueError: all cameras stand at one place.
    """
    extrinsics = extrinsics.double()
    centres, axes = camera_centre(extrinsics), extrinsics[:, 2, :3]
    apart = (centres - centres[index]).norm(dim=1)
    apart = apart[apart > 0]
    if not len(apart):
        raise ValueError(
            "all cameras stand at one place, so no depth can be measured; are the extrinsics right?"
        )
    # The place nearest to all axes: sum (I - a a^T) (x - c) = 0.
    across = torch.eye(3, dtype=torch.float64) - axes[:, :, None] * axes[:, None, :]
    system = across.sum(0)
    if torch.linalg.eigvalsh(system)[0] > 1e-3 * len(axes):
        place = torch.linalg.solve(system, (across @ centres[:, :, None]).sum(0))[:, 0]
        ahead = ((place - centres) * axes).sum(1)
        if (ahead > 0).all():
            middle = ahead[index].item()
            low, high = _CONVERGING
            return (middle * low, middle * high), (
                f"guessed: {low:.2g} to {high:g} times the distance at which the cameras' viewing "
                "directions meet"
            )
    baseline = apart.median().item()
    low, high = _PARALLEL
    return (baseline * low, baseline * high), (
        f"guessed: {low:g} to {high:g} times the middle distance to the other cameras"
    )
