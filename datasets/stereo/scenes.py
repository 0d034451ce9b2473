"""Generated stereo scenes with exact disparity and occlusion, for training without any download.

A scene is a set of textured surfaces (walls and ground that meet, then up to 36 bent, slanted,
holed or thin layers) given as functions of continuous left-image coordinates. The left view
evaluates them at its pixels; the right view solves x - d(x, y) = x_right for each surface, which
is exact for planes and takes a few Newton steps for bent ones. The nearest surface owns a pixel,
edges are blended, and disparity and occlusion follow from the surfaces, not from the pictures.
Layered scenes of this kind go back to Mayer et al., "What makes good synthetic training data for
learning disparity and optical flow estimation?" (IJCV 2018).
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..cache import MadeDataset, SampleCache
from ..draws import splitmix64
from .scene_camera import photograph
from .scene_layers import BACKGROUNDS, LAYERS, coverage, draw_scene, sample
from .scene_textures import SIZE, TextureBank, texture_bank

__all__ = ["GeneratedStereo", "generate_scenes"]

# Raise it with every change that makes other scenes of a seed: caches hold the scenes they made.
_VERSION = 2

_NEWTON_STEPS = 4

_Window = tuple[int, int, int, int]
"""Top, bottom, left and right, pixels; the ends are outside."""


def _scene_seed(seed: int, index: int) -> int:
    """Seed of scene ``index`` of a series, as `generate_scenes` numbers them."""
    state = seed * 0x9E3779B97F4A7C15 + (index + 1) * 0xD1B54A32D192ED03
    return splitmix64(state & (2**64 - 1)) >> 1


@contextmanager
def _one_thread(device: str) -> Iterator[None]:
    """Renders on one CPU thread.

    A scene is hundreds of small operations, which gain little from a second one and lose a factor
    of ten when the cores are busy and threads wait for each other.
    """
    threads = torch.get_num_threads()
    if device != "cpu" or threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _surface(x: Tensor, y: Tensor, p: dict[str, Tensor], curved: bool) -> tuple[Tensor, Tensor]:
    """Disparity of a layer at left coordinates, and its derivative along x."""
    u, v = (x - p["cx"]) / p["rx"], (y - p["cy"]) / p["ry"]
    if not curved:
        return torch.addcmul(p["a"] + p["c"] * v, p["b"], u), p["b"] / p["rx"]
    fold = u + p["t"] * v
    wave = p["k"] * u + (p["m"] * v + p["phase"])
    disparity = p["a"] + p["c"] * v + p["w"] * v * v + u * (p["b"] + p["q"] * u)
    disparity = disparity + p["e"] * fold.abs() + p["s"] * wave.sin()
    slope = p["b"] + 2 * p["q"] * u + p["e"] * fold.sign() + p["s"] * p["k"] * wave.cos()
    return disparity, slope / p["rx"]


def _left_position(
    x_right: Tensor, y: Tensor, p: dict[str, Tensor], curved: bool
) -> tuple[Tensor, Tensor]:
    """Solves x - d(x, y) = x_right for x by Newton's method (one step is exact for a plane).

    Returns:
        The solution and the length of the last step, which is large only where the layer's
        formula was followed so far outside the layer that it has no single solution.
    """
    x, step = x_right + p["a"], torch.zeros_like(x_right)
    for _ in range(_NEWTON_STEPS if curved else 1):
        disparity, slope = _surface(x, y, p, curved)
        step = (x - disparity - x_right) / (1.0 - slope)
        x = x - step
    return x, step


def _colour(
    x: Tensor, y: Tensor, disparity: Tensor, p: dict[str, Tensor], bank: TextureBank
) -> Tensor:
    """Radiance (B, 3, H, W) of a layer at pixels relative to its centre."""

    def channels(name: str) -> Tensor:
        return torch.stack([p[f"{name}_{c}"] for c in "rgb"], dim=1)  # (B, 3, 1, 1)

    u, v = (x / p["rx"]).clamp(-1, 1), (y / p["ry"]).clamp(-1, 1)
    shade = 1.0 + p["shade_x"] * u + p["shade_y"] * v
    shade = shade + p["relief"] * (disparity - p["a"]) / (1.0 + p["deviation"])
    if bool((p["shadow"] > 0).any()):
        scale = p["shadow_scale"]
        dark = sample(bank.smooth, p["coarse_x"].abs(), x * scale, y * scale)[:, 0]
        shade = shade * (1.0 - p["shadow"] * (dark * 4 - 1.0).clamp_(0, 1))
    if bool((p["recede_x"] + p["recede_y"] > 0).any()):
        # Texture on a receding plane shrinks with depth, that is with 1 / disparity. The logarithm
        # stands in for the true 1 / d along the depth: it aliases less towards the horizon.
        depth = (p["a"].abs() + p["deviation"]) / disparity.clamp_min(0.1)
        depth = depth.clamp(0.5, 20.0)
        along, across = depth.log(), depth.clamp_max(3.0)
        on_x, on_y = p["recede_x"] > 0, p["recede_y"] > 0
        x = torch.where(on_x, p["rx"] * along, x * torch.where(on_y, across, 1.0))
        y = torch.where(on_y, p["ry"] * along, y * torch.where(on_x, across, 1.0))
    colour = channels("base")
    for name, canvases in (("coarse", bank.colour), ("fine", bank.grey)):
        cos = p[f"{name}_scale"] * p[f"{name}_angle"].cos()
        sin = p[f"{name}_scale"] * p[f"{name}_angle"].sin()
        tx = cos * x + (sin * y + SIZE * p[f"{name}_x"])
        ty = cos * y - (sin * x - SIZE * p[f"{name}_y"])
        texture = sample(canvases, p[f"{name}_canvas"], tx, ty)
        colour = torch.addcmul(colour, channels(name), texture)
    return colour.mul_(shade.clamp_min_(0.1)[:, None]).clamp_(0.0, 1.5)


class _View:
    """Pixel buffers of one view: colour, nearest disparity and its layer."""

    def __init__(self, count: int, height: int, width: int, device: torch.device) -> None:
        self.colour = torch.zeros(count, 3, height, width, device=device)
        self.nearest = torch.full((count, height, width), -1e6, device=device)
        self.owner = torch.full((count, height, width), -1.0, device=device)

    def paint(
        self, window: _Window, layer: int, alpha: Tensor, disparity: Tensor, colour: Tensor
    ) -> None:
        top, bottom, left, right = window
        self.colour[:, :, top:bottom, left:right].lerp_(colour, alpha[:, None])
        solid = alpha > 0.5
        nearest = self.nearest[:, top:bottom, left:right]
        nearest.copy_(torch.where(solid, disparity, nearest))
        self.owner[:, top:bottom, left:right].masked_fill_(solid, layer)


def _background_window(
    p: dict[str, Tensor], layer: int, height: int, width: int, slack: float
) -> _Window:
    """The side of its vanishing line where a wall, ground or ceiling has positive disparity.

    The line is where left and right view coincide, so both views have the same window.
    """
    top, bottom, left, right = 0, height, 0, width
    if layer in (1, 2):
        line = p["cy"] - (p["a"] + 3 * p["b"].abs()) / p["c"] * p["ry"]
        if layer == 1:
            top = max(0, int(line.min() - slack - 1))
        else:
            bottom = min(height, math.ceil(line.max() + slack + 2))
    elif layer in (3, 4):
        line = p["cx"] - (p["a"] + p["c"].abs()) / p["b"] * p["rx"]
        if layer == 3:
            right = min(width, math.ceil(line.max() + 2))
        else:
            left = max(0, int(line.min() - 1))
    return top, bottom, left, right


def _window(
    p: dict[str, Tensor], layer: int, height: int, width: int, right: bool, slack: float
) -> _Window:
    """Rows and columns (top, bottom, left, right) that a layer can touch in any of the scenes."""
    on = p["active"][:, layer] > 0
    p = {name: value[on, layer] for name, value in p.items()}
    if layer < BACKGROUNDS:
        return _background_window(p, layer, height, width, slack)
    cx, cy, rx, ry, a, dev = (p[n] for n in ("cx", "cy", "rx", "ry", "a", "deviation"))
    shift_low, shift_high = (a - dev, a + dev) if right else (0.0, 0.0)
    return (
        max(0, int((cy - ry).min() - slack - 1)),
        min(height, math.ceil((cy + ry).max() + slack + 2)),
        max(0, int((cx - rx - shift_high).min() - 1)),
        min(width, math.ceil((cx + rx - shift_low).max() + 2)),
    )


def _render(
    scenes: list[dict[str, Tensor]], height: int, width: int, tilt: Tensor, device: str
) -> list[_View]:
    """Renders both views of a batch of scenes; tilt (B, 2) is the right view's row shift."""
    drawn = {name: torch.stack([scene[name] for scene in scenes]) for name in scenes[0]}
    count, bank = len(scenes), texture_bank(device)
    table = torch.stack(list(drawn.values()), dim=2).to(device)[..., None, None]
    columns = torch.arange(width, device=device, dtype=torch.float32).view(1, 1, -1)
    rows = torch.arange(height, device=device, dtype=torch.float32).view(1, -1, 1)
    shift, roll = (tilt[:, i].to(device).view(-1, 1, 1) for i in range(2))
    right_rows = rows + shift + roll * (2 * columns / width - 1)
    slack = float(tilt.abs().sum(dim=1).max())
    views = [_View(count, height, width, torch.device(device)) for _ in range(2)]
    for layer in range(LAYERS):
        active = drawn["active"][:, layer] > 0
        if not bool(active.any()):
            continue
        kinds = set(drawn["kind"][active, layer].int().tolist())
        curved = bool(drawn["curved"][:, layer].any())
        p = dict(zip(drawn, table[:, layer].unbind(1), strict=True))  # each (B, 1, 1)
        for right, view in enumerate(views):
            window = _window(drawn, layer, height, width, bool(right), slack)
            top, bottom, start, stop = window
            if bottom <= top or stop <= start:
                continue
            x = columns[:, :, start:stop]
            if right:
                y = right_rows[:, top:bottom, start:stop]
                x_left, step = _left_position(x, y, p, curved)
                disparity = x_left - x
                x = x_left
            else:
                y = rows[:, top:bottom]
                disparity, _ = _surface(x, y, p, curved)
            disparity = disparity.expand(count, bottom - top, stop - start)
            x = (x - p["cx"]).expand_as(disparity)
            y = (y - p["cy"]).expand_as(disparity)
            alpha = coverage(x, y, p, kinds, bank)
            if right and curved:
                alpha = alpha * ((step.abs() < 0.05) | (p["curved"] == 0))
            alpha = alpha * (disparity > view.nearest[:, top:bottom, start:stop])
            if bool((alpha > 0).any()):
                view.paint(window, layer, alpha, disparity, _colour(x, y, disparity, p, bank))
    return views


def _occluded(left: _View, right: _View, tilt: Tensor) -> Tensor:
    """Left pixels whose match lies outside the right view or behind another layer there."""
    _, height, width = left.nearest.shape
    device = left.nearest.device
    rows = torch.arange(height, device=device, dtype=torch.float32).view(1, -1, 1)
    match = torch.arange(width, device=device, dtype=torch.float32) - left.nearest
    shift, roll = (tilt[:, i].to(device).view(-1, 1, 1) for i in range(2))
    row = rows - shift - roll * (2 * match / width - 1)
    outside = (match < 0) | (match > width - 1) | (row < 0) | (row > height - 1)
    nearest_pixel = row.round().clamp(0, height - 1) * width + match.round().clamp(0, width - 1)
    index = nearest_pixel.long().flatten(1)
    owner = right.owner.flatten(1).gather(1, index).view_as(match)
    depth = right.nearest.flatten(1).gather(1, index).view_as(match)
    hidden = (owner != left.owner) & (depth > left.nearest + 0.25)
    return (outside | hidden)[:, None]


def generate_scenes(
    count: int,
    height: int,
    width: int,
    *,
    seed: int,
    max_disparity: float = 192.0,
    device: str | torch.device = "cpu",
    vertical_offset: float = 0.0,
    photometric: bool = True,
    clutter: float = 1.0,
    first: int = 0,
    batch: int | None = None,
) -> dict[str, Tensor]:
    """Generates stereo pairs with dense exact ground truth.

    Scene i of a seed is the same whatever the count and the batch. A pair of 320x640 costs 0.15 s
    of one core (`benchmarks/scenes.py`). A call renders on one thread; for more, use
    `GeneratedStereo` with several loader workers.

    Args:
        count: number of scenes B.
        height: image height in pixels.
        width: image width in pixels.
        seed: names the series of scenes.
        max_disparity: upper limit in pixels; ranges are drawn log-uniformly from 5 px up to this
            or half the width, whichever is less.
        device: where to render; parameters are drawn on the CPU, so devices show the same scenes.
        vertical_offset: largest vertical misalignment of the right view, in pixels.
        photometric: apply the camera (blur, exposure, noise, quantisation, …); without it the two
            views show one radiance.
        clutter: how crowded the scenes are: 1 for 10 to 36 objects, 0 for bare rooms.
        first: index of the first scene in the series.
        batch: scenes rendered together; by default one on the CPU, where each layer then stays in
            its own window, and 16 on a GPU.

    Returns:
        ``left`` and ``right`` (B, 3, H, W) float32 in [0, 1]; ``disparity`` (B, 1, H, W) float32,
        positive, left to right; ``valid`` (B, 1, H, W) bool, all true; ``occluded`` (B, 1, H, W)
        bool, left pixels not visible in the right view, decided at the nearest right pixel.

    Raises:
        ValueError: if a size, count or limit is out of range.
    """
    if count < 1 or height < 16 or width < 32:
        raise ValueError(
            f"scenes: count {count}, size {height}x{width}: want at least 1 scene of 16x32 pixels"
        )
    if not max_disparity > 1 or vertical_offset < 0:
        raise ValueError(
            f"scenes: max_disparity {max_disparity} (want more than 1), "
            f"vertical_offset {vertical_offset} (want 0 or more)"
        )
    if not 0 <= clutter <= 1:
        raise ValueError(f"scenes: clutter {clutter}: want 0 to 1")
    device = str(torch.device(device))
    batch = batch or (1 if device == "cpu" else 16)
    parts = []
    for start in range(first, first + count, batch):
        numbers = range(start, min(start + batch, first + count))
        generators = [torch.Generator().manual_seed(_scene_seed(seed, i)) for i in numbers]
        with torch.no_grad(), _one_thread(device):
            scenes = [draw_scene(g, height, width, max_disparity, clutter) for g in generators]
            tilt = torch.stack([torch.rand(2, generator=g) for g in generators])
            tilt = (tilt - 0.5) * vertical_offset
            left, right = _render(scenes, height, width, tilt, device)
            pairs: list[Sequence[Tensor]] = list(zip(left.colour, right.colour, strict=True))
            if photometric:
                pairs = [photograph(pair, g) for pair, g in zip(pairs, generators, strict=True)]
            disparity = left.nearest[:, None]
            made = {
                "left": torch.stack([pair[0] for pair in pairs]).clamp(0, 1),
                "right": torch.stack([pair[1] for pair in pairs]).clamp(0, 1),
                "disparity": disparity.contiguous(),
                "valid": torch.ones_like(disparity, dtype=torch.bool),
                "occluded": _occluded(left, right, tilt),
            }
        parts.append(made)
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


class GeneratedStereo(MadeDataset):
    """Map-style data set; item i depends on ``seed`` and i alone, in any order and any worker.

    A different seed gives different scenes, so training, validation and test sets of one seed
    each never meet. Workers of one thread each scale best; each builds the texture bank once (or
    inherits it, when the parent has generated an item before forking).

    Samples have left and right (3, H, W), disparity, valid and occluded (1, H, W), and a name.

    Args:
        length: number of scenes.
        height: image height in pixels.
        width: image width in pixels.
        seed: names the series of scenes.
        max_disparity: upper limit in pixels, see `generate_scenes`.
        vertical_offset: largest vertical misalignment of the right view in pixels.
        photometric: whether the views differ photometrically.
        clutter: how crowded the scenes are, 0 to 1, see `generate_scenes`.
        cache: folder that keeps the scenes (12 bytes a pixel), so that later epochs read what the
            first one made. None: every scene is made anew.

    Raises:
        ValueError: if ``length`` is not positive (other values: see `generate_scenes`).
    """

    def __init__(
        self,
        length: int,
        height: int,
        width: int,
        seed: int = 0,
        max_disparity: float = 192.0,
        vertical_offset: float = 0.0,
        photometric: bool = True,
        clutter: float = 1.0,
        cache: str | None = None,
    ) -> None:
        if length < 1:
            raise ValueError(f"generated scenes: length {length}: want at least 1")
        self.length, self.height, self.width, self.seed = length, height, width, seed
        self.what = f"{height}x{width}"
        self._look: dict[str, Any] = {
            "max_disparity": max_disparity,
            "vertical_offset": vertical_offset,
            "photometric": photometric,
            "clutter": clutter,
        }
        limits = f"{max_disparity:g}-{vertical_offset:g}-{int(photometric)}-{clutter:g}"
        name = f"v{_VERSION}-{seed}-{self.what}-{limits}"
        # Pictures with photometric changes come in steps of 1/255: a byte loses nothing.
        self.cache = SampleCache(cache, name, ["left", "right"] if photometric else [])

    def _make(self, index: int) -> dict[str, Tensor]:
        scene = generate_scenes(
            1, self.height, self.width, seed=self.seed, first=index, **self._look
        )
        return {name: value[0] for name, value in scene.items()}
