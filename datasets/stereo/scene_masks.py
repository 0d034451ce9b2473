"""Outlines of the layers of a generated stereo scene.

Each function maps layer coordinates to a signed distance from the outline, in pixels, positive
inside: exact for straight edges, a first-order estimate elsewhere. Half a pixel to either side of
zero is where an edge is blended.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .scene_layers import KINDS
from .scene_textures import SIZE, WAVELENGTH, TextureBank

__all__ = ["coverage", "sample"]

_NOISE_SLOPE = 2 * math.pi / WAVELENGTH * 0.7


def sample(canvases: Tensor, choice: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Looks up canvases (N, C, S, S), mirrored beyond their borders, to (B, C, H, W).

    Args:
        canvases: all of them.
        choice: which one each scene uses: (B, 1, 1), uniform in [0, 1).
        x: (B, H, W), texels from the centre.
        y: likewise.
    """
    number = canvases.shape[0]
    index = (choice.flatten() * number).long().clamp_max(number - 1)
    # One scene (the CPU's case) takes a view: a copy of the canvas would cost more than the lookup.
    chosen = canvases[int(index)][None] if len(index) == 1 else canvases[index]
    grid = torch.empty(*x.shape, 2, device=x.device)
    torch.mul(x, 2.0 / SIZE, out=grid[..., 0])
    torch.mul(y, 2.0 / SIZE, out=grid[..., 1])
    return F.grid_sample(chosen, grid, padding_mode="reflection", align_corners=False)


def _ellipse(u: Tensor, v: Tensor, p: dict[str, Tensor], bank: TextureBank) -> Tensor:
    rho = torch.sqrt((u / p["half_x"]) ** 2 + (v / p["half_y"]) ** 2 + 1e-6)
    slope = torch.sqrt((u / p["half_x"] ** 2) ** 2 + (v / p["half_y"] ** 2) ** 2 + 1e-12) / rho
    return (1.0 - rho) / slope.clamp_min(1e-4)


def _box(u: Tensor, v: Tensor, p: dict[str, Tensor], bank: TextureBank) -> Tensor:
    return torch.minimum(p["half_x"] - u.abs(), p["half_y"] - v.abs())


def _polygon(u: Tensor, v: Tensor, p: dict[str, Tensor], bank: TextureBank) -> Tensor:
    inside = _box(u, v, p, bank)
    for corner in range(6):
        angle = 2 * math.pi * (torch.remainder(corner + 0 * p["corners"], p["corners"]))
        angle = angle / p["corners"] + p[f"turn{corner}"]
        x, y = angle.cos() / p["half_x"], angle.sin() / p["half_y"]
        edge = (p[f"offset{corner}"] - x * u - y * v) / torch.sqrt(x**2 + y**2)
        inside = torch.minimum(inside, edge)
    return inside


def _noise(u: Tensor, v: Tensor, p: dict[str, Tensor], bank: TextureBank) -> Tensor:
    x = u * p["mask_scale"] + p["coarse_x"] * SIZE
    y = v * p["mask_scale"] + p["coarse_y"] * SIZE
    return sample(bank.smooth, p["fine_canvas"], x, y)[:, 0]


def _blob(u: Tensor, v: Tensor, p: dict[str, Tensor], bank: TextureBank) -> Tensor:
    rho = (u / p["half_x"]) ** 2 + (v / p["half_y"]) ** 2
    field = _noise(u, v, p, bank) + p["level"] + 1.0 - 2.5 * rho * rho
    inside = field / (_NOISE_SLOPE * p["mask_scale"])
    return torch.minimum(inside, _box(u, v, p, bank))


def _fence(u: Tensor, v: Tensor, p: dict[str, Tensor], bank: TextureBank) -> Tensor:
    def bars(w: Tensor) -> Tensor:
        return p["stroke"] - (torch.remainder(w, p["period"]) - 0.5 * p["period"]).abs()

    crossed = torch.where(p["grid"] > 0, bars(v), torch.full_like(v, -1e3))
    return torch.minimum(torch.maximum(bars(u), crossed), _box(u, v, p, bank))


def _strokes(u: Tensor, v: Tensor, p: dict[str, Tensor], bank: TextureBank) -> Tensor:
    band = p["stroke"] - _noise(u, v, p, bank).abs() / (_NOISE_SLOPE * p["mask_scale"])
    return torch.minimum(band, _box(u, v, p, bank))


def _ring(u: Tensor, v: Tensor, p: dict[str, Tensor], bank: TextureBank) -> Tensor:
    outer = _ellipse(u, v, p, bank)
    return torch.minimum(outer, 2 * p["stroke"] + 0.1 * p["half_x"] - outer)


_OUTLINES = {
    "ellipse": _ellipse,
    "box": _box,
    "polygon": _polygon,
    "blob": _blob,
    "fence": _fence,
    "strokes": _strokes,
    "ring": _ring,
}


def coverage(
    x: Tensor, y: Tensor, p: dict[str, Tensor], kinds: set[int], bank: TextureBank
) -> Tensor:
    """Part of each pixel that a layer covers, (B, H, W); above 0.5 its centre belongs to it.

    Args:
        x: (B, H, W), pixels from the layer's centre in left coordinates.
        y: likewise.
        p: the layer's parameters, each (B, 1, 1).
        kinds: the kinds of outline that occur among the B scenes.
        bank: canvases.
    """
    u, v = p["cos"] * x + p["sin"] * y, p["cos"] * y - p["sin"] * x

    def inside(kind: int) -> Tensor:
        name = KINDS[kind]
        return torch.full_like(u, 1e3) if name == "full" else _OUTLINES[name](u, v, p, bank)

    first, *others = sorted(kinds)
    result = inside(first)
    for kind in others:
        result = torch.where(p["kind"] == kind, inside(kind), result)
    return (result * p["active"] + (p["active"] - 1.0)).add_(0.5).clamp_(0.0, 1.0)
