"""Poses that are a little off, as trackers and phones give them, made to agree with the images."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ..datasets.mvs.cameras import invert_intrinsics, relative_pose, resize_intrinsics
from ..vision.windows import box_mean, brightness, moments

__all__ = ["refine_poses"]

_LONGEST = 800  # side of the images that are compared, pixels
_REDUCTIONS = 2, 1  # of these, in turn
_STEPS = 4  # at each
_WINDOW, _STRIDE = 9, 3  # of the patches, pixels
_FLAT = 0.01  # brightness, added to a patch's deviation
# How far a pose is off, if nothing else is known: radians, and shares of its distance.
_TURN, _SHIFT = 0.003, 0.02
# What all patches together count for: so many, as they err alike where a lens or a rolling shutter
# shifts them, which no pose explains.
_PATCHES = 5000
_HELD = 10  # what a patch's depth itself counts for: its logarithm, an error of 0.3 of it
_LEAST_MOVE = 0.15  # pixels, in the median: below it right poses are moved by what depth errs


@torch.inference_mode()
def refine_poses(images: Tensor, intrinsics: Tensor, extrinsics: Tensor, depth: Tensor) -> Tensor:
    """Turn and move all cameras but the first so that views look alike where depth puts them.

    Patches of the first view are compared with the others (Lucas and Kanade, "An Iterative Image
    Registration Technique with an Application to Stereo Vision", IJCAI 1981). A shift along a
    patch's epipolar line may be its depth's; what is left is the poses'. All poses are found
    together by Gauss-Newton steps, each patch's depth eliminated from the equations (as in bundle
    adjustment: Triggs et al., "Bundle Adjustment - A Modern Synthesis", 1999), and are held near
    what is given. A camera whose view would hardly move stays as it is.

    Args:
        images: (V, 3, H, W), RGB in [0, 1], V at least 2.
        intrinsics: (V, 3, 3), pixels.
        extrinsics: (V, 4, 4), world to camera.
        depth: (h, w), of the first view, more than 0; rough depth at a smaller size will do.

    Returns:
        Extrinsics (V, 4, 4), the first as it was; all, where the images hold a NaN.
    """
    given = poses = relative_pose(extrinsics[:1].double(), extrinsics[1:].double())
    distance = poses[:, :3, 3].norm(dim=1, keepdim=True).clamp(min=1e-9)
    deviation = torch.cat((torch.full_like(distance, _TURN), _SHIFT * distance), 1)
    stiffness = deviation.pow(-2).repeat_interleave(3, 1)  # (S, 6)
    moved = torch.zeros_like(stiffness)
    level = None
    least = -(-max(images.shape[-2:]) // _LONGEST)
    for reduction in _REDUCTIONS:
        if min(images.shape[-2:]) < _WINDOW * least * reduction:
            continue
        level = _Level(images, intrinsics, depth, least * reduction)
        for _ in range(_STEPS):
            matrix, vector = level.equations(poses)
            matrix = matrix + torch.diag(stiffness.flatten())
            vector = vector - (stiffness * moved).flatten()
            change = torch.linalg.solve(matrix, vector).view_as(moved)
            moved = moved + change
            poses = torch.linalg.matrix_exp(_twist(change)) @ poses
    if level is None:
        return extrinsics
    shift = level.seen(poses)[0] - level.seen(given)[0]
    moves = torch.hypot(*shift.unbind(1)).median(1).values >= _LEAST_MOVE
    found = torch.cat((extrinsics[:1], (poses @ extrinsics[0].double()).to(extrinsics)))
    return torch.where(F.pad(moves, (1, 0))[:, None, None], found, extrinsics)


class _Level:
    """The views at one size, and the equations of their poses."""

    def __init__(self, images: Tensor, intrinsics: Tensor, depth: Tensor, reduction: int) -> None:
        grey = F.avg_pool2d(brightness(images.float()), reduction)
        grey = grey - grey.mean()
        self.size = height, width = grey.shape[-2:]
        scaled = resize_intrinsics(intrinsics, 1 / reduction, 1 / reduction).double()
        inverse = F.interpolate(1 / depth[None, None].float(), self.size, mode="bilinear")
        y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        pixels = torch.stack((x, y, torch.ones_like(x))).flatten(1).to(scaled)
        self.points = invert_intrinsics(scaled[0]) @ pixels / inverse.flatten()  # (3, H W)
        self.centres = _centres(self.points.unflatten(1, self.size)).flatten(1)  # (3, N)
        self.intrinsics = scaled[1:]  # (S, 3, 3)
        self.reference, _ = _normalised(grey[:1])
        slope_x = F.pad(grey[1:, :, :, 2:] - grey[1:, :, :, :-2], (1, 1)) / 2
        slope_y = F.pad(grey[1:, :, 2:] - grey[1:, :, :-2], (0, 0, 1, 1)) / 2
        self.sources = torch.cat((grey[1:], slope_x, slope_y), 1)

    def equations(self, poses: Tensor) -> tuple[Tensor, Tensor]:
        """Matrix (6 S, 6 S) and vector (6 S) of how cameras turn (3) and move (3) next."""
        tensor, shift = self._shifts(*self.seen(poses))
        centres = _moved(poses[:, :3], self.centres)  # (S, 3, N)
        # What the move of a point (3) does to its pixel (2).
        ahead = centres[:, 2:].clamp(min=1e-6)
        project = self.intrinsics[:, :2, :, None] / ahead[:, None]
        project[:, :, 2] -= (self.intrinsics[:, :2] @ centres) / ahead**2
        axes = torch.eye(3).to(centres)[:, None, :, None].expand(3, *centres.shape)
        turns = torch.linalg.cross(axes, centres.expand_as(axes), dim=2).permute(1, 2, 0, 3)
        by_pose = torch.cat((torch.einsum("sabn,sbin->sain", project, turns), project), 2)
        by_depth = torch.einsum("sabn,sbn->san", project, poses[:, :3, 3:] - centres)
        # Normal equations, of which those of the patches' depths are eliminated.
        pulled = torch.einsum("sabn,sbin->sain", tensor, by_pose)
        own = torch.einsum("sain,sajn->sij", by_pose, pulled)
        vector = torch.einsum("sain,san->si", by_pose, shift).flatten()
        shared = torch.einsum("sain,san->sin", pulled, by_depth).flatten(0, 1)  # (6 S, N)
        depth = torch.einsum("san,sabn,sbn->n", by_depth, tensor, by_depth) + _HELD
        shares = shared / depth
        matrix = torch.block_diag(*own) - shares @ shared.T
        vector = vector - shares @ torch.einsum("san,san->n", by_depth, shift)
        strength = _PATCHES / max(1, len(depth))
        return strength * matrix, strength * vector

    def seen(self, poses: Tensor) -> tuple[Tensor, Tensor]:
        """Where sources show the reference's points, pixels (S, 2, H W), and their depth there."""
        projected = _moved(self.intrinsics @ poses[:, :3], self.points)
        ahead = projected[:, 2]
        return projected[:, :2] / ahead[:, None].clamp(min=1e-6), ahead

    def _shifts(self, at: Tensor, ahead: Tensor) -> tuple[Tensor, Tensor]:
        """What the images say of the patches' shifts.

        Args:
            at: (S, 2, H W), where the sources show the reference's points, pixels.
            ahead: (S, H W), how far before the sources those are.

        Returns:
            The normal equations of the shifts, pixels: (S, 2, 2, N) and (S, 2, N).
        """
        grid = (2 * at + 1) / at.new_tensor(self.size[::-1]).view(2, 1) - 1
        grid = grid.mT.unflatten(1, self.size).float()
        warped = F.grid_sample(self.sources, grid, align_corners=False)
        source, deviation = _normalised(warped[:, :1])
        slopes = warped[:, 1:] / deviation
        across = slopes.prod(1, keepdim=True)
        missing = self.reference - source
        told = torch.cat((self.reference * source, slopes**2, across, slopes * missing), 1)
        alike, xx, yy, xy, x, y = _centres(box_mean(told, _WINDOW)).flatten(2).double().unbind(1)
        seen = (grid.abs().amax(-1) < 1) & (ahead.unflatten(1, self.size) > 0)
        wholly = _centres(box_mean(seen[:, None].float(), _WINDOW)).flatten(1) > 0.99
        weight = (alike.clamp(min=0) ** 2 * wholly)[:, None]
        tensor = weight * torch.stack((xx, xy, xy, yy), 1)
        return tensor.unflatten(1, (2, 2)), weight * torch.stack((x, y), 1)


def _centres(values: Tensor) -> Tensor:
    """What stands at the centres of the patches, of maps (..., H, W)."""
    edge = _WINDOW // 2
    return values[..., edge:-edge:_STRIDE, edge:-edge:_STRIDE]


def _moved(matrices: Tensor, points: Tensor) -> Tensor:
    """Points (3, N) under each of some matrices (S, 3, 4): (S, 3, N)."""
    turned = matrices[..., :3].flatten(0, 1) @ points
    return turned.unflatten(0, (-1, 3)) + matrices[..., 3:]


def _normalised(grey: Tensor) -> tuple[Tensor, Tensor]:
    """Brightness without a patch's mean and contrast, and the contrast."""
    mean, variance = moments(grey, _WINDOW)
    deviation = variance.sqrt() + _FLAT
    return (grey - mean) / deviation, deviation


def _twist(moves: Tensor) -> Tensor:
    """Matrices (S, 4, 4) whose exponentials turn (3) and move (3) a camera's points."""
    x, y, z = moves[:, :3].unbind(1)
    zero = torch.zeros_like(x)
    turn = torch.stack((zero, -z, y, z, zero, -x, -y, x, zero), 1).unflatten(1, (3, 3))
    return F.pad(torch.cat((turn, moves[:, 3:, None]), 2), (0, 0, 0, 1))
