"""Generated scenes with exact depth: plates, spheres and a background under solid textures.

Nothing is read from files, nothing is trained on a likeness: the scenes serve to learn, to test and
to try things out. The same seed gives the same scene on every machine: the random numbers come from
an integer hash, the cameras are rounded to float32 before anything is cast with them, and the
pictures come in steps of 1/255.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from ..draws import Draws
from .pairs import pairs_from_scores, score_by_poses
from .rig import Rig, look_along, ring_of_cameras
from .scene import Scene, View
from .shapes import Plate, Sphere, cast
from .textures import relight, solid_texture

__all__ = [
    "GENERATOR_VERSION",
    "colours_at",
    "draw_looks",
    "generate_scene",
    "scene_of_renderings",
]

#: Changes with every change of what a seed gives, so that caches know.
GENERATOR_VERSION = 1

_BLOCK = 1 << 14  # rays at a time: what they need stays in the processor's cache
_RATIO, _RATIO_WIDE = 2.2, 10.0


def generate_scene(
    views: int = 5,
    height: int = 256,
    width: int = 320,
    *,
    seed: int = 0,
    near: float = 425.0,
    far: float | None = None,
    wide_range: bool = False,
    untextured: bool = False,
    supersample: int = 2,
    light: int | None = None,
    name: str | None = None,
) -> Scene:
    """Make a scene: a background, three tilted plates, three spheres and a bar in front.

    View 0 stands in the middle of a ring of the others; all look at the harmonic mean of the two
    depth limits. Every view has focal lengths and a principal point of its own, and the world's
    frame is a random one.

    Args:
        views: number of photographs, 2 at least.
        height: of each, pixels.
        width: of each, pixels.
        seed: of everything random.
        near: depth before which nothing lies; the world's unit follows from it.
        far: depth beyond which nothing lies; None: 2.2 times ``near``, or 10 with ``wide_range``.
        wide_range: whether to spread the scene over a depth ratio of 10.
        untextured: whether to add a plate of one colour.
        supersample: rays along each side of a pixel whose colours are averaged. Depth is always
            that of the ray through the pixel's centre.
        light: one of the seven of ``vizoo.datasets.mvs.textures.LIGHTS``; None leaves the colours.
        name: of the scene; None: ``generated-`` and the seed.

    Returns:
        The scene, held in memory; every pixel has a true depth.

    Raises:
        ValueError: an argument is out of its bounds.
    """
    _check(views, height, width, near, supersample)
    if far is None:
        far = near * (_RATIO_WIDE if wide_range else _RATIO)
    if far < 1.5 * near:
        raise ValueError(f"generated scene: far {far:g}: want 1.5 times near ({near:g}) at least")
    draws = Draws("scene", seed)
    cameras = ring_of_cameras(draws, views, height, width, near, far)
    shapes, looks = _furnish(draws, cameras.intrinsics[0], height, width, near, far, untextured)
    rendered = [
        _render(cameras, index, shapes, looks, height, width, supersample) for index in range(views)
    ]
    name = f"generated-{seed}" if name is None else name
    return scene_of_renderings(name, cameras, rendered, near, far, light)


def scene_of_renderings(
    name: str,
    cameras: Rig,
    rendered: list[tuple[np.ndarray, np.ndarray]],
    near: float,
    far: float,
    light: int | None = None,
) -> Scene:
    """Make a scene of photographs (H, W, 3) uint8 and their exact depths (H, W) float32."""
    made = []
    for index, (image, depth) in enumerate(rendered):
        lit = image if light is None else relight(image, light)
        made.append(
            View(
                f"{index:08d}",
                torch.from_numpy(lit).permute(2, 0, 1).float() / 255,
                torch.from_numpy(cameras.intrinsics[index]).float(),
                torch.from_numpy(cameras.extrinsics[index]).float(),
                (min(near, 0.98 * float(depth.min())), max(far, 1.02 * float(depth.max()))),
                Truth(torch.from_numpy(depth)[None]),
            )
        )
    scores = score_by_poses(
        torch.stack([view.intrinsics for view in made]),
        torch.stack([view.extrinsics for view in made]),
        [depth.shape for _, depth in rendered],
        [view.depth_range for view in made],
    )
    return Scene(name, made, pairs_from_scores(scores), "generated")


class Truth:
    """A true depth map held in memory; called, it gives the map and where it is known."""

    def __init__(self, depth: Tensor) -> None:
        self.depth = depth

    def __call__(self) -> tuple[Tensor, Tensor]:
        return self.depth, self.depth > 0


def _furnish(
    draws: Draws, k: np.ndarray, height: int, width: int, near: float, far: float, plain: bool
) -> tuple[list, dict[str, np.ndarray]]:
    """Put shapes into the first view's frustum; and say how each looks."""
    half = np.array([width / k[0, 0], height / k[1, 1]]) / 2  # of the frustum, at depth 1
    shapes = [Plate(np.array([0, 0, 0.82 * far]), _tilted(draws, 0.1))]
    kinds = ["plate"] * 3 + ["sphere"] * 3 + ["plain"] * plain
    for kind in kinds:
        # Even in inverse depth, as disparities are.
        depth = 1 / draws.uniform(1 / (1.25 * near), 1 / (0.72 * far))
        sides = half * depth
        centre = np.array([draws.uniform(-0.7, 0.7) * side for side in sides] + [depth])
        room = 0.9 * min(depth - 1.1 * near, 0.9 * far - depth)
        if kind == "sphere":
            shapes.append(Sphere(centre, min(draws.uniform(0.2, 0.4) * sides.min(), room)))
        else:
            size = [draws.uniform(0.25, 0.5) * float(side) for side in sides]
            steep = min(0.9, room / math.hypot(*size))
            shapes.append(Plate(centre, _tilted(draws, steep), tuple(size)))
    sides = half * 1.15 * near
    centre = np.array([draws.uniform(-0.6, 0.6) * sides[0], draws.uniform(-0.6, 0.6) * sides[1], 0])
    centre[2] = 1.15 * near
    bar = (0.06 * float(sides.max()), 0.5 * float(sides.max()))
    shapes.append(Plate(centre, _tilted(draws, 0.08), bar))
    places = np.array([shape.centre for shape in shapes])
    looks = draw_looks(draws, places, places[:, 2] / k[0, 0])
    for number, kind in enumerate(kinds, start=1):
        if kind == "plain":
            looks["contrast"][number] = looks["checker"][number] = 0
    return shapes, looks


def draw_looks(draws: Draws, places: np.ndarray, pixels: np.ndarray) -> dict[str, np.ndarray]:
    """Draw the textures of shapes.

    Args:
        draws: where the random numbers come from.
        places: (N, 3), the origins of the shapes' own frames.
        pixels: (N,), how long a pixel is where a shape is; a finest cell spans a few.
    """
    count = len(places)
    looks = {
        "cell": np.array([draws.uniform(2, 5) * pixel for pixel in pixels]),
        "seed": np.array([draws.bits() & 0xFFFFFFFF for _ in range(count)], np.uint32),
        "colour": np.array([[draws.uniform(0.3, 0.7) for _ in range(3)] for _ in range(count)]).T,
        "contrast": np.array([draws.uniform(0.7, 1.1) for _ in range(count)]),
        "checker": np.array([draws.uniform(0.03, 0.12) for _ in range(count)]),
        "origin": places.T,
    }
    return {
        key: value if value.dtype == np.uint32 else value.astype(np.float32)
        for key, value in looks.items()
    }


def _tilted(draws: Draws, steepest: float) -> np.ndarray:
    """Return the axes of a plate that faces the rig, tilted by an angle up to ``steepest``."""
    angle, towards = draws.uniform(0, steepest), draws.uniform(0, 2 * math.pi)
    spin = draws.uniform(0, 2 * math.pi)
    sine, cosine = math.sin(angle), math.cos(angle)
    normal = np.array([sine * math.cos(towards), sine * math.sin(towards), -cosine])
    return look_along(normal, spin)


def _render(
    cameras: Rig,
    index: int,
    shapes: list,
    looks: dict[str, np.ndarray],
    height: int,
    width: int,
    supersample: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the photograph (H, W, 3) uint8 and its exact depth (H, W) float32."""
    origin, turn = cameras.view(index)
    x, y = np.arange(width, dtype=float), np.arange(height, dtype=float)
    image = np.empty((height, width, 3), np.uint8)
    depth = np.empty((height, width), np.float32)
    steps = (np.arange(supersample) + 0.5) / supersample - 0.5
    rows = max(1, _BLOCK // width)
    for top in range(0, height, rows):
        block = y[top : top + rows]
        depth[top : top + rows] = cast(shapes, origin, turn, x, block)[0]
        total = np.zeros((3, len(block) * width), np.float32)
        for step_y in steps:
            for step_x in steps:
                total += _colours(shapes, looks, origin, turn, x + step_x, block + step_y)
        total *= np.float32(255 / supersample**2)
        total += np.float32(0.5)
        image[top : top + rows] = total.astype(np.uint8).T.reshape(len(block), width, 3)
    return image, depth


def _colours(
    shapes: list,
    looks: dict[str, np.ndarray],
    origin: np.ndarray,
    turn: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
) -> np.ndarray:
    """Return the colour at each ray's hit, (3, N) float32 in [0, 1]."""
    depth, which, rays = cast(shapes, origin, turn, x, y, np.float32)
    rays = np.stack([ray.ravel() for ray in rays])
    return colours_at(looks, origin, rays, depth.ravel(), which.ravel())


def colours_at(
    looks: dict[str, np.ndarray],
    origin: np.ndarray,
    rays: np.ndarray,
    depth: np.ndarray,
    which: np.ndarray,
) -> np.ndarray:
    """Return the colours of hits on shapes that look as ``draw_looks`` says.

    Args:
        looks: of the shapes.
        origin: (3,), where the camera stands.
        rays: (3, N) float32; the place of a hit is origin + depth * ray. Overwritten.
        depth: (N,) float32.
        which: (N,) int32, the number of the shape.

    Returns:
        (3, N) float32 in [0, 1].
    """
    points = rays
    points *= depth
    points += (origin[:, None].astype(np.float32) - looks["origin"])[:, which]
    points *= (1 / looks["cell"])[which]
    noise, checker = solid_texture(points, looks["seed"][which])
    # Half of it is common to the channels: greyer than three channels on their own would be.
    noise += (noise[0] + noise[1] + noise[2]) * np.float32(1 / 3)
    noise -= np.float32(1)
    noise *= looks["contrast"][which]
    noise += looks["colour"][:, which]
    checker *= looks["checker"][which]
    noise += checker
    return np.clip(noise, 0, 1, out=noise)


def _check(views: int, height: int, width: int, near: float, supersample: int) -> None:
    for what, value, least in (
        ("views", views, 2),
        ("height", height, 8),
        ("width", width, 8),
        ("supersample", supersample, 1),
    ):
        if value < least:
            raise ValueError(f"generated scene: {what} {value}: want at least {least}")
    if not 0 < near < math.inf:
        raise ValueError(f"generated scene: near {near:g}: want a positive depth")
