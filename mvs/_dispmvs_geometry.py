"""DispMVS's geometry: signed distances along epipolar lines ("E-flow") and depth.

For each pair of the reference view and another view v, a point of the reference ray at depth d
is seen at p_v(d). A stage's line starts at b = p_v(its first depth) and goes in the direction u of
growing depth; the E-flow e of a match is its distance from b along u, in pixels of the stage.

Shapes: B images, S = V - 1 pairs, a stage of h x w pixels. All is float32 (or float64).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..datasets.mvs.cameras import relative_pose, scale_intrinsics

_SMALL = 1e-6  # of the published arithmetic: part of what the weights were trained with


class EpipolarLines(NamedTuple):
    """Where the reference's pixels are seen in the other views, along their lines."""

    base: Tensor  #: b, (B, S, 2, h, w), (x, y) in pixels of the stage
    direction: Tensor  #: u, (B, S, 2, h, w), of length 1; 0 at an epipole and without a baseline
    seen_ray: Tensor  #: the ray of a pixel through the other camera's intrinsics, (B, S, 3, h, w)
    seen_shift: Tensor  #: the baseline through them, (B, S, 3, 1, 1)
    axis: Tensor  #: along which a match is triangulated, (B, S, h, w) bool: True for y
    ray: tuple[Tensor, Tensor]  #: the ray's entry of that axis, and its z, each (B, S, h, w)
    #: the baseline's entry of that axis, (B, S, h, w), and its z, (B, S, 1, 1)
    shift: tuple[Tensor, Tensor]
    #: the entry of that axis of b and of u in the other camera's normalised coordinates
    match: tuple[Tensor, Tensor]


def epipolar_lines(
    intrinsics: Tensor, extrinsics: Tensor, depth: Tensor, scale: int
) -> EpipolarLines:
    """The lines of all pairs at a stage, from the depth (B, 1, h, w) that it starts from.

    Cameras, (B, V, 3, 3) and (B, V, 4, 4), are those of the images, which the scale takes to the
    stage; view 0 is the reference.
    """
    height, width = depth.shape[-2:]
    kind = torch.promote_types(depth.dtype, torch.float32)
    intrinsics, depth = intrinsics.to(kind), depth.to(kind)
    intrinsics = scale_intrinsics(intrinsics, 1 / scale, 1 / scale)
    poses = relative_pose(extrinsics[:, :1], extrinsics[:, 1:]).to(kind)  # (B, S, 4, 4)
    x = torch.arange(width, device=depth.device, dtype=kind)
    y = torch.arange(height, device=depth.device, dtype=kind)[:, None]
    across, down = _unproject(intrinsics[:, 0], x.expand(height, -1), y.expand(-1, width))
    rays = torch.stack((across, down, torch.ones_like(down)), 1)  # (B, 3, h, w)
    turned = _turn(poses[..., :3, :3], rays[:, None])
    shift = poses[..., :3, 3, None, None]
    others = intrinsics[:, 1:]
    seen_ray, seen_shift = _turn(others, turned), _turn(others, shift)
    base = _seen(seen_ray, seen_shift, depth)
    along = _seen(seen_ray, seen_shift, 2 * depth + 10) - base
    # The smallest normal number: it changes no length but 0.
    length = along.square().sum(2, keepdim=True).sqrt() + torch.finfo(kind).tiny
    direction = along / length
    axis = direction[:, :, 0].abs() < direction[:, :, 1].abs()

    def of_axis(x: Tensor, y: Tensor) -> Tensor:
        return torch.where(axis, y, x)

    start = _unproject(others, *base.unbind(2))
    towards = _unproject(others, *direction.unbind(2), centred=True)
    return EpipolarLines(
        base,
        direction,
        seen_ray,
        seen_shift,
        axis,
        (of_axis(turned[:, :, 0], turned[:, :, 1]), turned[:, :, 2]),
        (of_axis(shift[:, :, 0], shift[:, :, 1]), shift[:, :, 2]),
        (of_axis(*start), of_axis(*towards)),
    )


def depth_to_flow(lines: EpipolarLines, depth: Tensor) -> Tensor:
    """E-flow (B, S, h, w) of depth (B, 1, h, w)."""
    seen = _seen(lines.seen_ray, lines.seen_shift, depth)
    return ((seen - lines.base) * lines.direction).sum(2)


def flow_to_inverse_depth(lines: EpipolarLines, flow: Tensor) -> Tensor:
    """Inverse depth (B, S, h, w), never negative, of E-flow (B, S, h, w)."""
    match = (lines.match[0] + flow * lines.match[1]) / (1 + _SMALL)
    across = (lines.ray[0] - lines.ray[1] * match).abs()
    return across / ((lines.shift[1] * match - lines.shift[0]).abs() + _SMALL)


def inverse_range(depth_range: Tensor) -> tuple[Tensor, Tensor]:
    """The far and the near end, as inverse depths (B, 1, 1, 1), of (B, 2): nearest, furthest."""
    kind = torch.promote_types(depth_range.dtype, torch.float32)
    inverse = (1 / depth_range.to(kind))[..., None, None, None]
    return inverse[:, 1], inverse[:, 0]


def normalize_inverse_depth(inverse: Tensor, depth_range: Tensor) -> Tensor:
    """To 1 at the nearest and 0 at the furthest depth of a range (B, 2); (B, N, h, w), clipped."""
    far, near = inverse_range(depth_range)
    return ((inverse - far) / (near - far)).clamp(0, 1)


def random_start(
    depth_range: Tensor, height: int, width: int, generator: torch.Generator | None = None
) -> Tensor:
    """Depth (B, 1, h, w), uniform in inverse depth, pixel by pixel."""
    device = depth_range.device if generator is None else generator.device
    drawn = torch.rand((len(depth_range), 1, height, width), generator=generator, device=device)
    far, near = inverse_range(depth_range)
    return 1 / (drawn.to(depth_range.device) * (near - far) + far)


def _seen(ray: Tensor, shift: Tensor, depth: Tensor) -> Tensor:
    """Where the reference's pixels are seen: (B, S, 2, h, w) of depth (B, 1, h, w)."""
    point = depth[:, :, None] * ray + shift
    return point[:, :, :2] / (point[:, :, 2:].abs() + _SMALL)


def _turn(matrix: Tensor, vectors: Tensor) -> Tensor:
    """Matrices (B, S, 3, 3) times vectors (B, S or 1, 3, h, w), whatever autocast would do."""
    columns = (matrix[..., i, None, None] * vectors[:, :, i, None] for i in range(3))
    return sum(columns, start=next(columns))


def _unproject(
    intrinsics: Tensor, x: Tensor, y: Tensor, *, centred: bool = False
) -> tuple[Tensor, Tensor]:
    """Pixels (..., h, w) in normalised coordinates; `centred` ones count from the camera's axis."""
    fx, skew, cx = intrinsics[..., 0, :, None, None].unbind(-3)
    _, fy, cy = intrinsics[..., 1, :, None, None].unbind(-3)
    if not centred:
        x, y = x - cx, y - cy
    y = y / fy
    return (x - skew * y) / fx, y
