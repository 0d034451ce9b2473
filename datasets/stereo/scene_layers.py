"""Random layers of a generated stereo scene: where they lie, how they bend, what they look like.

A layer is a surface over left-image coordinates. With U = (x - cx) / rx and V = (y - cy) / ry
(half sizes of its bounding box) its disparity is

    d(x, y) = a + b U + c V + q U^2 + w V^2 + e |U + t V| + s sin(k U + m V + phase)

that is a plane, plus optionally a bowl, cylinder, fold or ripple. Coefficients are scaled so that
d stays inside the scene's range wherever the layer exists, and |dd/dx| <= 0.5, so that a scan
line of the right view meets the layer exactly once. Everything is drawn from one generator.

A layer's outline is a function from its coordinates to a signed distance, in pixels, positive
inside: exact for straight edges, a first-order estimate elsewhere. Half a pixel to either side of
zero is where an edge is blended.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .scene_textures import SIZE, WAVELENGTH, TextureBank

__all__ = ["BACKGROUNDS", "KINDS", "LAYERS", "coverage", "draw_scene", "sample"]

BACKGROUNDS = 5
LAYERS = BACKGROUNDS + 36
_STEEPEST = 0.5
# Share of each foreground species; the last two are thin (rods) and leafy versions of a kind.
_SPECIES = (
    ("ellipse", 0.15),
    ("box", 0.20),
    ("polygon", 0.15),
    ("blob", 0.12),
    ("fence", 0.06),
    ("strokes", 0.06),
    ("ring", 0.05),
    ("rod", 0.15),
    ("foliage", 0.06),
)


class _Uniform:
    """Columns of one table of uniform numbers: a single draw for a whole scene."""

    def __init__(self, rows: int, generator: torch.Generator) -> None:
        self.table = torch.rand(96, rows, generator=generator)
        self.next = 0

    def __call__(self, low: float | Tensor = 0.0, high: float | Tensor = 1.0) -> Tensor:
        self.next += 1
        return low + (high - low) * self.table[self.next - 1]

    def log(self, low: float | Tensor, high: float | Tensor) -> Tensor:
        low, high = torch.as_tensor(low), torch.as_tensor(high)
        return torch.exp(self(low.log(), high.log()))

    def chance(self, probability: float) -> Tensor:
        return (self() < probability).float()

    def sign(self) -> Tensor:
        return 1.0 - 2.0 * self.chance(0.5)


def _species(uniform: _Uniform) -> tuple[Tensor, dict[str, Tensor]]:
    """Kind numbers (layers,) and a mask for each species."""
    shares = torch.tensor([share for _, share in _SPECIES]).cumsum(0)
    index = torch.bucketize(uniform() * shares[-1], shares).clamp_max(len(_SPECIES) - 1)
    names = [name for name, _ in _SPECIES]
    of = {name: index == names.index(name) for name in names}
    as_kind = [{"rod": "box", "foliage": "blob"}.get(name, name) for name in names]
    return torch.tensor([KINDS.index(name) for name in as_kind])[index], of


def _backgrounds(
    layer: dict[str, Tensor], scene: _Uniform, height: int, width: int, far: float, top: float
) -> None:
    """Fills slots 0-4: far wall, ground, ceiling, left and right wall, as planes that intersect."""
    for name, value in (("cx", width / 2), ("cy", height / 2), ("rx", width / 2)):
        layer[name][:BACKGROUNDS] = value
    layer["ry"][:BACKGROUNDS] = height / 2
    draw = [float(value) for value in scene.table[40:80, 0]]
    present = [True, draw[0] < 0.7, draw[1] < 0.2, draw[2] < 0.25, draw[3] < 0.25]
    layer["active"][:BACKGROUNDS] = torch.tensor(present).float()
    layer["a"][0] = far
    # The right view sees the wall up to `top` pixels beyond the left frame.
    layer["rx"][0] = width / 2 + top
    horizon = height * (0.2 + 0.4 * draw[4])
    # Each of the other four is zero on a vanishing line and grows towards its side of the frame.
    sides = (width * (0.2 + 0.5 * share) for share in draw[5:7])
    spans = (height - horizon, horizon, *sides)
    for slot, span in enumerate(spans, start=1):
        end = top * (0.35 + 0.6 * draw[6 + slot])
        slope = end / span
        if slot >= 3:
            slope = min(slope, _STEEPEST)
        vertical = slot <= 2
        half = (height if vertical else width) / 2
        sign = 1.0 if slot in (1, 4) else -1.0
        layer["c" if vertical else "b"][slot] = sign * slope * half
        layer["a"][slot] = slope * (span - half)
        tilt = 0.1 * (draw[12 + slot] - 0.5) * end
        layer["b" if vertical else "c"][slot] = tilt
        layer["a"][slot] -= abs(tilt)


def _shape(layer: dict[str, Tensor], uniform: _Uniform, scene: _Uniform, width: int) -> None:
    """Bends the layers: slant with the depth gradient of a tilted plane, then curvature."""
    rx, ry, a = layer["rx"], layer["ry"], layer["a"]
    focal = width * (0.6 + 0.9 * float(scene.table[81, 0]))
    upright = uniform.chance(0.45)
    for name, radius in (("b", rx), ("c", ry)):
        tangent = torch.tan(uniform(-1.2, 1.2)) * (1.0 - 0.9 * upright)
        layer[name][:] = a * radius / focal * tangent
    bend = uniform()
    size = a * torch.minimum(rx, ry) / focal * uniform.log(0.3, 4.0)
    bowl, fold, ripple = bend < 0.25, (bend > 0.25) & (bend < 0.4), (bend > 0.4) & (bend < 0.55)
    both = uniform.chance(0.5)
    layer["q"][:] = -size * bowl
    layer["w"][:] = -size * bowl * both
    layer["e"][:] = -size * fold * uniform.sign()
    layer["t"][:] = uniform(-0.5, 0.5) * fold
    layer["s"][:] = 0.4 * size * ripple
    layer["k"][:] = uniform(1.0, 7.0) * ripple
    layer["m"][:] = uniform(-7.0, 7.0) * ripple
    layer["phase"][:] = uniform(0.0, 2 * math.pi) * ripple


def _bound(layer: dict[str, Tensor], low: float, top: float) -> None:
    """Scales the bends of all layers so that disparity and its slope keep their limits."""
    absolute = {name: layer[name].abs() for name in "bcqwestk"}
    reach = absolute["e"] * (1 + absolute["t"])
    deviation = sum(absolute[name] for name in "bcqws") + reach
    slope = absolute["b"] + 2 * absolute["q"] + absolute["e"] + absolute["s"] * absolute["k"]
    room = torch.minimum(layer["a"] - low, top - layer["a"]).clamp_min(0.0)
    scale = torch.minimum(room / (deviation + 1e-6), _STEEPEST * layer["rx"] / (slope + 1e-6))
    scale = scale.clamp_max(1.0)
    scale[1:BACKGROUNDS] = 1.0
    for name in "bcqwes":
        layer[name].mul_(scale)
    layer["deviation"] = deviation * scale + 1e-3
    layer["curved"] = ((layer["q"] + layer["e"] + layer["s"]).abs() > 0).float()


def _paint(layer: dict[str, Tensor], uniform: _Uniform, scene: _Uniform) -> None:
    """Colours, contrasts, texture windows and shading."""
    palette = scene.table[:32, 1:5]
    pick = (uniform() * 4).long().clamp_max(3)
    saturation = 0.45 * float(scene.table[82, 0]) ** 2
    luminance = uniform.log(0.06, 0.85)
    # One layer in eight is all but textureless, as painted walls, sky and plastic are.
    plain = 1.0 - 0.97 * uniform.chance(0.13)
    contrast = uniform.log(0.08, 0.7) * plain
    detail = uniform.log(0.03, 0.5) * plain * (1.0 - uniform.chance(0.15))
    for number, channel in enumerate("rgb"):
        tint = 1 + saturation * (2 * palette[number][pick] - 1) + uniform(-0.08, 0.08)
        base = (luminance * tint).clamp(0.01, 1.0)
        layer[f"base_{channel}"] = base
        layer[f"coarse_{channel}"] = base * contrast * uniform(0.75, 1.25)
        layer[f"fine_{channel}"] = base * detail
    for name, low, high in (("coarse", 0.25, 1.5), ("fine", 0.7, 1.6)):
        layer[f"{name}_canvas"] = uniform()
        layer[f"{name}_scale"] = uniform.log(low, high)
        # Much that people build stands upright, so patterns often do.
        angle = uniform(-math.pi, math.pi)
        layer[f"{name}_angle"] = torch.where(uniform() < 0.5, 0.05 * angle, angle)
        layer[f"{name}_x"] = uniform(-1.0, 1.0)
        layer[f"{name}_y"] = uniform(-1.0, 1.0)
    layer["shade_x"] = uniform(-0.35, 0.35)
    layer["shade_y"] = uniform(-0.35, 0.35)
    layer["relief"] = uniform(-0.1, 0.4)
    layer["shadow"] = uniform.chance(0.3) * uniform(0.3, 0.8)
    layer["shadow_scale"] = uniform.log(0.02, 0.15)
    for name, slots in (("recede_y", slice(1, 3)), ("recede_x", slice(3, 5))):
        layer[name] = torch.zeros_like(luminance)
        layer[name][slots] = 1.0
    layer["coarse_scale"][1:BACKGROUNDS] *= 0.5
    layer["fine_scale"][1:BACKGROUNDS] *= 0.7


def draw_scene(
    generator: torch.Generator, height: int, width: int, max_disparity: float, clutter: float
) -> dict[str, Tensor]:
    """Draws the layers of one scene, farthest first: named parameters (LAYERS,) float32.

    No pixel of the left image exceeds the greatest disparity. Clutter is the share of the usual
    number of layers before the walls, 0 to 1. The generator is of the CPU.
    """
    uniform, scene = _Uniform(LAYERS, generator), _Uniform(LAYERS, generator)
    cap = min(max_disparity, 0.5 * width) * 0.99
    top = math.exp(_between(scene.table[84, 0], math.log(min(5.0, 0.5 * cap)), math.log(cap)))
    far = top * _between(scene.table[85, 0] ** 1.5, 0.03, 0.45)
    low = 0.25 * far

    kind, species = _species(uniform)
    layer = {name: torch.zeros(LAYERS) for name in "abcqwestkm"}
    layer |= {name: torch.zeros(LAYERS) for name in ("phase", "cx", "cy", "rx", "ry")}
    layer["kind"] = kind.float()
    layer["kind"][:BACKGROUNDS] = 0
    count = BACKGROUNDS + round(clutter * (10 + int(27 * scene.table[86, 0])))
    layer["active"] = (torch.arange(LAYERS) < count).float()

    a = far + (top - far) * uniform() ** _between(scene.table[87, 0], 0.8, 2.5)
    near = 0.5 + a / top
    size = uniform.log(0.02 * width, 0.22 * width) * near
    ratio = uniform.log(0.4, 2.5)
    half_x, half_y = size * ratio.sqrt(), size / ratio.sqrt()
    rod, leafy, fence = species["rod"], species["foliage"], species["fence"]
    half_x = torch.where(rod, uniform.log(0.08 * width, 0.5 * width), half_x)
    half_y = torch.where(rod, uniform.log(0.7, 6.0) * near, half_y)
    wide = fence | species["strokes"] | leafy
    half_x, half_y = (torch.where(wide, h.clamp_min(0.06 * width), h) for h in (half_x, half_y))
    angle = uniform(-math.pi / 2, math.pi / 2)
    angle = torch.where(uniform() < 0.4, 0.08 * angle, angle)
    angle = torch.where(rod & (uniform() < 0.5), math.pi / 2 + 0.1 * angle, angle)
    cos, sin = angle.cos(), angle.sin()
    layer["rx"] = (cos.abs() * half_x + sin.abs() * half_y).clamp_min(1.0)
    layer["ry"] = (sin.abs() * half_x + cos.abs() * half_y).clamp_min(1.0)
    layer["cx"] = uniform(-0.05 * width, 1.15 * width)
    layer["cy"] = uniform(-0.02 * height, 1.02 * height)
    layer |= {"half_x": half_x, "half_y": half_y, "cos": cos, "sin": sin}
    layer["a"] = a
    _shape(layer, uniform, scene, width)
    for name in "qwest":
        layer[name][1:BACKGROUNDS] = 0
    _backgrounds(layer, scene, height, width, far, top)
    _stand(layer, uniform)
    _bound(layer, low, top)

    waves = torch.where(leafy, uniform.log(5.0, 14.0), uniform.log(0.8, 4.0))
    layer["mask_scale"] = waves * WAVELENGTH / (2 * torch.maximum(half_x, half_y))
    layer["level"] = uniform(-0.4, 0.9)
    layer["stroke"] = uniform.log(0.7, 4.0)
    layer["period"] = uniform.log(7.0, 0.08 * width + 8.0)
    layer["grid"] = uniform.chance(0.4)
    layer["power"] = uniform.log(0.8, 3.0)
    for corner in range(6):
        layer[f"turn{corner}"] = uniform(-0.35, 0.35)
        layer[f"offset{corner}"] = uniform(0.45, 0.9)
    layer["corners"] = 3 + (uniform() * 4).floor().clamp_max(3)
    _paint(layer, uniform, scene)
    # Backgrounds stay in front of the list; the rest is painted from far to near.
    order = layer["a"].clone()
    order[:BACKGROUNDS] = torch.arange(BACKGROUNDS) - 1e6
    order[layer["active"] == 0] = 1e6
    order = order.argsort(stable=True)
    order = torch.cat([torch.arange(BACKGROUNDS), order[order >= BACKGROUNDS]])
    return {name: value.float()[order] for name, value in layer.items()}


def _between(uniform: Tensor, low: float, high: float) -> float:
    return low + (high - low) * float(uniform)


def _stand(layer: dict[str, Tensor], uniform: _Uniform) -> None:
    """Stands many foreground layers on the ground plane, where there is one."""
    if layer["active"][1] == 0:
        return
    base = (layer["a"] - layer["a"][1]) / layer["c"][1] * layer["ry"][1] + layer["cy"][1]
    standing = uniform() < 0.6
    standing[:BACKGROUNDS] = False
    layer["cy"] = torch.where(standing, base - layer["ry"], layer["cy"])


_NOISE_SLOPE = 2 * math.pi / WAVELENGTH * 0.7


def sample(canvases: Tensor, choice: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Looks up canvases (N, C, S, S), mirrored beyond their borders, to (B, C, H, W).

    Each scene has a choice of one, (B, 1, 1), uniform in [0, 1); x and y, (B, H, W), are texels
    from the centre.
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
    "full": lambda u, v, p, bank: torch.full_like(u, 1e3),
    "ellipse": _ellipse,
    "box": _box,
    "polygon": _polygon,
    "blob": _blob,
    "fence": _fence,
    "strokes": _strokes,
    "ring": _ring,
}
KINDS = tuple(_OUTLINES)


def coverage(
    x: Tensor, y: Tensor, p: dict[str, Tensor], kinds: set[int], bank: TextureBank
) -> Tensor:
    """Part of each pixel that a layer covers, (B, H, W); above 0.5 its centre belongs to it.

    x and y, (B, H, W), are pixels from the layer's centre in left coordinates, the layer's
    parameters (B, 1, 1) each, and the kinds those of outline that occur among the B scenes.
    """
    u, v = p["cos"] * x + p["sin"] * y, p["cos"] * y - p["sin"] * x
    first, *others = sorted(kinds)
    result = _OUTLINES[KINDS[first]](u, v, p, bank)
    for kind in others:
        result = torch.where(p["kind"] == kind, _OUTLINES[KINDS[kind]](u, v, p, bank), result)
    return (result * p["active"] + (p["active"] - 1.0)).add_(0.5).clamp_(0.0, 1.0)
