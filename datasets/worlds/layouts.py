"""Places: a furnished room, a home of many, a street, a table top; and what floats in them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from ..draws import Draws
from ..files import check_choice
from . import furniture
from .furniture import Parts
from .materials import draw_material
from .shapes import Shape, box, boxes, join, sheet, tube
from .stock import Stock
from .world import Light, Sky, Thing, World

__all__ = ["LAYOUTS", "WORLD_VERSION", "Place", "build_place"]

WORLD_VERSION = 6
"""Changes with every change of what a seed gives, so that caches know; no draw depends on it."""

_T = TypeVar("_T")
_MESHES = 0.3  # share of things that are meshes, where there are any


class Place(NamedTuple):
    """A world and where one stands in it."""

    world: World  #: to look at
    eye: np.ndarray  #: (3,), of the observer, metres
    gaze: np.ndarray  #: (3,), unit length, where there is most to see
    room: np.ndarray  #: (2, 3), corners of the box in which one may stand, things left aside


class _Opening(NamedTuple):
    """A hole in a wall, metres."""

    first: float  #: along the wall, where it begins
    last: float  #: where it ends
    sill: float  #: its lower edge, above the floor
    top: float  #: its upper edge


class _Builder:
    """Collects things, drawing a material for every part."""

    def __init__(self, draws: Draws, goods: Stock) -> None:
        self.draws, self.stock = draws, goods
        self.things: list[Thing] = []
        self.lights: list[Light] = []
        self._instance = 0

    def put(
        self,
        parts: Parts,
        to: tuple | np.ndarray = (0, 0, 0),
        turn: float = 0.0,
        rotation: np.ndarray | None = None,
        scale: float = 1.0,
    ) -> None:
        self._instance += 1
        for shape, kind in parts:
            shape = (shape if scale == 1 else shape.scaled(scale)).moved(to, turn, rotation)
            material = draw_material(self.draws, self.stock.textures, kind)
            self.things.append(Thing(shape, material, self._instance))

    def place(
        self,
        eye: np.ndarray,
        gaze: np.ndarray,
        room: np.ndarray,
        sky: np.ndarray,
        brightness: tuple[float, float],
        warmth: tuple[float, float],
    ) -> Place:
        """Where one stands among all things; limits of the ambient light's draws."""
        ambient, warm = self.draws.uniform(*brightness), self.draws.uniform(*warmth)
        tone = np.array([1 + warm, 1.0, 1 - warm], np.float32)
        around = Sky(*sky)
        if self.stock.panoramas and self.draws.uniform() < 0.7:
            panorama = self.pick(self.stock.panoramas)
            mean = float(((panorama / 255) ** 2.2).mean())
            bright = float(sky.mean()) / max(mean, 0.02)
            turn = self.draws.uniform(0, 2 * math.pi)
            around = Sky(sky[0], sky[1], panorama, turn, bright)
        world = World(self.things, self.lights, ambient * tone, around, self.stock.textures)
        return Place(world, eye, gaze, room)

    def pick(self, options: Sequence[_T]) -> _T:
        return options[int(self.draws.uniform(0, len(options)))]

    def thing(self, kinds: Sequence[Callable[[Draws], Parts]], low: float, high: float) -> Parts:
        """Something built of these kinds, or a mesh whose largest side is between two lengths."""
        if self.stock.meshes and self.draws.uniform() < _MESHES:
            size = self.draws.uniform(low, high)
            return [(self.pick(self.stock.meshes).scaled(size), "any")]
        return self.pick(kinds)(self.draws)


def build_place(layout: str, draws: Draws, goods: Stock, floating: int | None = None) -> Place:
    """Build a place of a key of `LAYOUTS`.

    ``floating`` things float; None: none in half of all places, else 10 to 30.

    Raises:
        ValueError: no such layout.
    """
    check_choice("layout", layout, tuple(LAYOUTS))
    if floating is None:
        floating = int(draws.uniform(10, 31)) if draws.uniform() < 0.5 else 0
    return LAYOUTS[layout](_Builder(draws, goods), floating)


def _room(build: _Builder, floating: int) -> Place:
    draws = build.draws
    width, depth, height = draws.uniform(3, 8), draws.uniform(3, 8), draws.uniform(2.3, 3.3)
    for corners in _walls(width, depth, height):
        build.put([(sheet(corners), "plain" if draws.uniform() < 0.6 else "any")])
    _wall_things(build, width, depth, height)
    eye = np.array([draws.uniform(-0.3, 0.3) * width, draws.uniform(0.6, 1.9), -0.42 * depth])
    taken = [(eye[0], eye[2], 0.5)]
    _furnish(build, width, depth, taken, 6 + int(draws.uniform(0, 10)))
    _cables(build, width, depth, height)
    aim = np.array([draws.uniform(-0.3, 0.3) * width, draws.uniform(0.3, 1.6), 0.4 * depth])
    gaze = _unit(aim - eye)
    _float(build, eye, gaze, floating, (0.8, 0.8 * depth))
    power = draws.uniform(2.0, 6.0)
    for _ in range(1 + int(draws.uniform(0, 2))):
        x, z = draws.uniform(-0.35, 0.35) * width, draws.uniform(-0.35, 0.35) * depth
        at = np.array([x, height - 0.15, z])
        build.lights.append(Light(at, power * _tone(draws), False))
    sky = np.array([[0.8, 0.85, 0.9], [0.5, 0.65, 0.9]]) * draws.uniform(0.3, 1.0)
    room = np.array([[-0.4 * width, 0.5, -0.4 * depth], [0.4 * width, 1.9, 0.4 * depth]])
    return build.place(eye, gaze, room, sky, (0.2, 0.55), (-0.08, 0.12))


def _home(build: _Builder, floating: int) -> Place:
    """Rooms side by side: through doors and wider openings one sees into others and outdoors."""
    draws = build.draws
    width, depth, height = draws.uniform(4, 15), draws.uniform(4, 12), draws.uniform(2.3, 3.3)
    high = np.array([width, depth]) / 2
    bounds = np.stack([-high, high])
    rooms, inner = _divided(draws, bounds)
    corners = [bounds[[i, j], [0, 1]] for i, j in ((0, 0), (1, 0), (1, 1), (0, 1))]
    kind, thick = "plain" if draws.uniform() < 0.7 else "any", draws.uniform(0.08, 0.25)
    ends = [end for wall in inner for end in wall]
    for start, end in inner:
        _wall(build, start, end, height, thick, kind, ends, outer=False)
    for start, end in zip(corners, corners[1:] + corners[:1], strict=True):
        _wall(build, start, end, height, thick, kind, ends, outer=True)
    # The ground outdoors, and the roof above ceilings that hang lower.
    build.put([(sheet(_walls(80, 80, 0)[0] - (0, 0.02, 0)), "any")])
    build.put([(sheet(_walls(width, depth, height + 0.001)[1]), "plain")])
    for room in [bounds] if draws.uniform() < 0.4 else rooms:
        middle, (across, along) = room.mean(axis=0), room[1] - room[0]
        ceiling = height - (draws.uniform(0.1, 0.4) if draws.uniform() < 0.2 else 0.0)
        floor, above = _walls(across, along, ceiling)[:2]
        for surface, plain in ((floor, 0.4), (above, 0.8)):
            chosen = "plain" if draws.uniform() < plain else "any"
            build.put([(sheet(surface), chosen)], (middle[0], 0, middle[1]))
    own = max((build.pick(rooms) for _ in range(2)), key=lambda room: (room[1] - room[0]).prod())
    middle, size = own.mean(axis=0), own[1] - own[0]
    # From near a corner to the one across: walls are near everywhere else.
    aside = np.where(draws.uniforms(2) < 0.5, -1, 1) * (0.35 + 0.3 * draws.uniforms(2))
    spot, aim = (middle + side * aside * np.maximum(size - 1.6, 0.3) / 1.3 for side in (1, -1))
    top = min(2.2, height - 0.5)
    eye = np.array([spot[0], draws.uniform(0.5, top), spot[1]])
    gaze = _unit(np.array([aim[0], draws.uniform(0.3, 1.6), aim[1]]) - eye)
    for room in rooms:
        middle, (across, along) = room.mean(axis=0), room[1] - room[0]
        taken = [(*(spot - middle), 0.5)]
        count = min(12, int(draws.uniform(0, 0.6) * across * along))
        _furnish(build, across, along, taken, count, middle)
        if room is own or draws.uniform() < 0.6:
            at = middle + (draws.uniforms(2) - 0.5) * 0.6 * (across, along)
            power = draws.uniform(1.5, 5.0)
            place = np.array([at[0], height - 0.5, at[1]])
            build.lights.append(Light(place, power * _tone(draws), False))
    if draws.uniform() < 0.35:
        build.lights.append(_sun(draws))
    _float(build, eye, gaze, floating, (0.8, 0.8 * max(width, depth)))
    sky = np.array([[0.8, 0.85, 0.9], [0.5, 0.65, 0.9]]) * draws.uniform(0.5, 1.5)
    stand = np.array([[0.3 - high[0], 0.5, 0.3 - high[1]], [high[0] - 0.3, top, high[1] - 0.3]])
    return build.place(eye, gaze, stand, sky, (0.2, 0.55), (-0.08, 0.12))


def _street(build: _Builder, floating: int) -> Place:
    draws = build.draws
    road, length = draws.uniform(4, 9), 80.0
    ground = np.array([[[-40, 0, -5], [-40, 0, length]], [[40, 0, -5], [40, 0, length]]], float)
    build.put([(sheet(ground), "any")])
    build.put([(box(road, 0.004, length).moved((0, 0.0, length / 2 - 4)), "plain")])
    for side in (-1, 1):
        walk = box(2.5, 0.15, length).moved((side * (road / 2 + 1.25), 0, length / 2 - 4))
        build.put([(walk, "any")])
        place = -2.0
        while place < 55:
            wide = draws.uniform(5, 14)
            if draws.uniform() < 0.85:
                _facade(build, side, road / 2 + 2.5 + draws.uniform(0, 2), place, wide)
            place += wide + (draws.uniform(0.5, 6) if draws.uniform() < 0.3 else 0.0)
        for _ in range(4 + int(draws.uniform(0, 8))):
            far = draws.uniform(3, 45)
            if draws.uniform() < 0.33:
                build.put(furniture.car(draws), (side * (road / 2 - 1.2), 0, far), math.pi / 2)
                continue
            parts = build.thing((furniture.tree, furniture.pole), 0.5, 3.0)
            across = side * (road / 2 + draws.uniform(0.3, 2.0))
            build.put(parts, (across, 0.0, far), draws.uniform(0, 6.28))
        if draws.uniform() < 0.6:
            fence = furniture.railing(draws, draws.uniform(4, 15))
            build.put(fence, (side * (road / 2 + 0.2), 0.15, draws.uniform(5, 15)), math.pi / 2)
    for _ in range(int(draws.uniform(0, 3))):
        car = furniture.car(draws)
        build.put(car, (draws.uniform(-1, 1) * road / 4, 0, draws.uniform(6, 35)), math.pi / 2)
    eye = np.array([draws.uniform(-0.4, 0.4) * road, draws.uniform(1.0, 2.2), 0.0])
    gaze = _unit(np.array([draws.uniform(-0.25, 0.25), draws.uniform(-0.1, 0.08), 1.0]))
    _float(build, eye, gaze, floating, (2.0, 20.0))
    build.lights.append(_sun(draws))
    sky = np.array([[0.85, 0.9, 0.95], [0.35, 0.55, 0.9]]) * draws.uniform(0.6, 1.0)
    room = np.array([[-0.4 * road, 1.0, 0.0], [0.4 * road, 2.2, 20.0]])
    return build.place(eye, gaze, room, sky, (0.25, 0.5), (-0.1, 0.05))


def _table_top(build: _Builder, floating: int) -> Place:
    draws = build.draws
    side = draws.uniform(0.9, 1.8)
    build.put([(box(side, 0.05, side * 0.8).moved((0, -0.05, 0)), "any")])
    outdoors = build.stock.panoramas and draws.uniform() < 0.4
    for corners in _walls(4.0, 4.0, 2.6)[: 1 if outdoors else None]:
        build.put([(sheet(corners - (0, 0.75, 0)), "plain" if draws.uniform() < 0.5 else "any")])
    _clutter(build, (0, 0, 0), 0.45 * side, 8 + int(draws.uniform(0, 20)))
    for _ in range(int(draws.uniform(0, 4))):
        at = (draws.uniform(-1.4, 1.4), -0.75, draws.uniform(0.8, 1.6))
        build.put(build.thing(furniture.FURNITURE, 0.4, 1.5), at, draws.uniform(0, 6.28))
    eye = np.array([draws.uniform(-0.3, 0.3), draws.uniform(0.15, 0.6), -0.55 * side])
    gaze = _unit(np.array([draws.uniform(-0.15, 0.15), draws.uniform(-0.05, 0.1), 0.1]) - eye)
    _float(build, eye, gaze, floating, (0.4, 1.5))
    lamp = np.array([draws.uniform(-1, 1), draws.uniform(0.9, 1.7), draws.uniform(-1, 0.8)])
    build.lights.append(Light(lamp, draws.uniform(0.6, 1.8) * _tone(draws), False))
    sky = np.array([[0.8, 0.8, 0.8], [0.7, 0.75, 0.8]])
    room = np.array([[-0.5 * side, 0.1, -0.5 * side], [0.5 * side, 0.8, 0.5 * side]])
    return build.place(eye, gaze, room, sky, (0.25, 0.55), (-0.08, 0.12))


LAYOUTS: dict[str, Callable[[_Builder, int], Place]] = {
    "room": _room,
    "home": _home,
    "street": _street,
    "table": _table_top,
}
"""By name: how a place is built."""


def _walls(width: float, depth: float, height: float) -> list[np.ndarray]:
    """Floor, ceiling and four walls, each (2, 2, 3)."""
    x, z = width / 2, depth / 2
    a, b, c, d = (np.array(p, float) for p in ((-x, 0, -z), (x, 0, -z), (x, 0, z), (-x, 0, z)))
    up = np.array([0.0, height, 0.0])
    walls = [np.array([[s, s + up], [e, e + up]]) for s, e in ((a, b), (b, c), (c, d), (d, a))]
    return [np.array([[a, d], [b, c]]), np.array([[a, d], [b, c]]) + up, *walls]


def _wall_things(build: _Builder, width: float, depth: float, height: float) -> None:
    """Pictures, windows with curtains or blinds, a door, on the far and the side walls."""
    draws = build.draws
    walls = [
        (np.array([0, 0, depth / 2]), 0.0, width),
        (np.array([width / 2, 0, 0]), math.pi / 2, depth),
        (np.array([-width / 2, 0, 0]), -math.pi / 2, depth),
    ]
    for middle, turn, length in walls:
        along = np.array([math.cos(turn), 0, -math.sin(turn)])
        inward = np.array([-math.sin(turn), 0, -math.cos(turn)])
        for _ in range(int(draws.uniform(0, 4))):
            at = middle + along * draws.uniform(-0.4, 0.4) * length + inward * 0.02
            kind = draws.uniform()
            if kind < 0.5:
                build.put(furniture.picture(draws), at + (0, draws.uniform(1.0, 1.6), 0), turn)
            elif kind < 0.8:
                wide, tall = draws.uniform(0.8, 2.0), draws.uniform(0.8, 1.5)
                sill = at + (0, min(0.9, height - tall - 0.2), 0)
                build.put([(box(wide, tall, 0.01), "plain")], sill, turn)
                places = (-wide / 2, 0, wide / 2)
                bars = [box(0.04, tall, 0.04).moved((x, 0, -0.02)) for x in places]
                build.put([(bar, "plain") for bar in bars], sill, turn)
                if draws.uniform() < 0.6:
                    build.put(furniture.hanging(draws, wide, tall), sill + inward * 0.1, turn)
            else:
                build.put([(box(0.9, 2.0, 0.04), "any")], at, turn)


def _furnish(
    build: _Builder,
    width: float,
    depth: float,
    taken: list[tuple[float, float, float]],
    count: int,
    middle: Sequence[float] = (0.0, 0.0),
) -> None:
    """Stand things in a room about a place (x, z), where nothing is taken yet, as seen from it."""
    draws = build.draws
    for _ in range(count):
        parts = build.thing(furniture.FURNITURE, 0.4, 1.8)
        turn = math.pi / 2 * int(draws.uniform(0, 4))
        turn += draws.uniform(-0.4, 0.4) if draws.uniform() < 0.5 else 0.0
        reach = _reach(parts)
        place = _free(draws, taken, width / 2 - reach * 0.8, depth / 2 - reach * 0.8, reach)
        if place is None:
            continue
        at = middle[0] + place[0], middle[1] + place[1]
        build.put(parts, (at[0], 0, at[1]), turn)
        top = parts[0][0].points[..., 1].max()
        if _is_level(parts[0][0]) and draws.uniform() < 0.8:
            _clutter(build, (at[0], top, at[1]), 0.5 * reach, 1 + int(draws.uniform(0, 5)))
    for _ in range(int(draws.uniform(0, 6))):
        small = build.thing(furniture.SMALL, 0.1, 0.5)
        place = _free(draws, taken, width / 2 - 0.2, depth / 2 - 0.2, 0.15)
        if place is not None:
            at = middle[0] + place[0], middle[1] + place[1]
            build.put(small, (at[0], 0, at[1]), draws.uniform(0, 6.28))


def _divided(
    draws: Draws, room: np.ndarray
) -> tuple[list[np.ndarray], list[tuple[np.ndarray, np.ndarray]]]:
    """Rooms (2, 2), least and greatest x and z, within one, and the ends of walls between them."""
    low, high = room
    axis = int((high - low).argmax())
    length = float(high[axis] - low[axis])
    if length < 4 or (length < 8 and draws.uniform() < 0.4):
        return [room], []
    first, second, start, end = room.copy(), room.copy(), low.copy(), high.copy()
    first[1, axis] = second[0, axis] = start[axis] = end[axis] = (
        low[axis] + draws.uniform(0.35, 0.65) * length
    )
    (rooms, walls), (others, more) = _divided(draws, first), _divided(draws, second)
    return rooms + others, [(start, end), *walls, *more]


def _wall(
    build: _Builder,
    start: np.ndarray,
    end: np.ndarray,
    height: float,
    thick: float,
    kind: str,
    ends: Sequence[np.ndarray],
    *,
    outer: bool,
) -> None:
    """A wall between two places (x, z), with its openings and what is in them and beside them.

    It stays whole where walls may end at it.
    """
    draws, length = build.draws, math.dist(start, end)
    along = (end - start) / length
    turn = math.atan2(-along[1], along[0])

    def put(parts: Parts, place: float, up: float, out: float = 0.0, turned: float = 0.0) -> None:
        x, z = start + place * along + out * np.array([-along[1], along[0]])
        build.put(parts, (x, up, z), turn + turned)

    offsets = np.array(ends).reshape(-1, 2) - start
    beside = np.abs(offsets @ (-along[1], along[0])) < 1e-6
    kept = [(place - thick, place + thick) for place in offsets[beside] @ along]
    openings = _openings(draws, length, height, kept, outer)
    solid, pieces, edge = [], [], 0.0
    for first, last, sill, top in [*openings, (length, length, 0.0, height)]:
        solid.append((edge, first))
        pieces += [(edge, first, 0.0, height), (first, last, 0.0, sill), (first, last, top, height)]
        edge = last
    pieces = [p for p in pieces if p[1] - p[0] > 1e-3 and p[3] - p[2] > 1e-3]
    first, last, low, high = np.array(pieces).T
    sizes = np.stack([last - first, high - low, np.full_like(low, thick)], axis=1)
    at = np.stack([(first + last) / 2, low, np.zeros_like(low)], axis=1)
    put([(boxes(sizes, at), kind)], 0.0, 0.0)
    for first, last, sill, top in openings:
        wide, tall, middle = last - first, top - sill, (first + last) / 2
        if draws.uniform() < 0.6:
            posts = [box(0.07, tall, thick + 0.03).moved((x * wide / 2, 0, 0)) for x in (-1, 1)]
            put([(join(posts), "plain")], middle, sill)
        if outer:
            if draws.uniform() < 0.4:
                put([(box(wide, tall, 0.01), "glass")], middle, sill)
            if draws.uniform() < 0.4:
                side = math.pi * int(draws.uniform(0, 2))
                put(furniture.hanging(draws, wide, tall), middle, sill, 0.1 + thick / 2, side)
        elif wide < 1.1 and draws.uniform() < 0.5:
            leaf = box(wide, tall, 0.04).moved((wide / 2, 0, 0))
            swung = draws.uniform(-1.7, 1.7) if draws.uniform() < 0.7 else 0.0
            put([(leaf, "any")], first, sill, 0.0, swung)
    for first, last in solid:
        for out, turned in ((-1, 0.0), (1, math.pi)):
            if last - first > 1.3 and draws.uniform() < 0.35:
                place = draws.uniform(first + 0.65, last - 0.65)
                hung = out * (thick / 2 + 0.01)
                put(furniture.picture(draws), place, draws.uniform(1.0, 1.6), hung, turned)


def _openings(
    draws: Draws, length: float, height: float, kept: list[tuple[float, float]], outer: bool
) -> list[_Opening]:
    """Windows, doors and wide passages of a wall, in order, none in the stretches to be kept."""
    openings: list[_Opening] = []
    place = draws.uniform(0.2, 0.5 * length)
    while True:
        sill, top = 0.0, min(draws.uniform(1.95, 2.3), height)
        if outer:
            wide, gap = draws.uniform(0.7, 3.0), draws.uniform(0.5, 5.0)
            sill = draws.uniform(0.4, 1.1) if draws.uniform() < 0.7 else 0.0
        elif draws.uniform() < 0.55:
            wide, gap = draws.uniform(0.7, 1.0), draws.uniform(0.8, 5.0)
        else:
            wide, gap = draws.uniform(1.2, 4.0), draws.uniform(0.8, 5.0)
            top = height if draws.uniform() < 0.5 else top
        if place + wide > length - 0.1:
            return openings
        if met := [last for first, last in kept if place < last and first < place + wide]:
            place = max(met)
            continue
        openings.append(_Opening(place, place + wide, sill, top))
        place += wide + gap


def _facade(build: _Builder, side: int, across: float, place: float, wide: float) -> None:
    draws = build.draws
    tall, deep = draws.uniform(4, 16), 6.0
    middle = place + wide / 2
    build.put([(box(deep, tall, wide).moved((side * (across + deep / 2), 0, middle)), "any")])
    rows, columns = max(1, int(tall / 3)), max(1, int(wide / draws.uniform(1.6, 3)))
    size = (draws.uniform(0.9, 1.5), draws.uniform(1.1, 1.8))
    at = [
        (side * across, 0.9 + 3 * row, place + (column + 0.5) * wide / columns)
        for row in range(rows)
        for column in range(columns)
    ]
    build.put([(boxes((0.1, size[1], size[0]), np.array(at)), "glass")])


def _clutter(build: _Builder, at: tuple, reach: float, count: int) -> None:
    draws = build.draws
    taken: list[tuple[float, float, float]] = []
    for _ in range(count):
        parts = build.thing(furniture.SMALL, 0.08, 0.3)
        size = min(_reach(parts), 0.25)
        place = _free(draws, taken, reach, 0.8 * reach, 0.7 * size)
        if place is not None:
            build.put(parts, (at[0] + place[0], at[1], at[2] + place[1]), draws.uniform(0, 6.28))


def _cables(build: _Builder, width: float, depth: float, height: float) -> None:
    draws = build.draws
    for _ in range(int(draws.uniform(0, 3))):
        places = [(draws.uniform(-0.45, 0.45), draws.uniform(-0.2, 0.45)) for _ in range(2)]
        start, end = (np.array([x * width, height - 0.02, z * depth]) for x, z in places)
        share = np.linspace(0, 1, 16)[:, None]
        path = start + share * (end - start)
        path[:, 1] -= draws.uniform(0.05, 0.8) * (4 * share * (1 - share))[:, 0]
        build.put([(tube(path, draws.uniform(0.003, 0.012), 5), "plain")])


def _float(
    build: _Builder, eye: np.ndarray, gaze: np.ndarray, count: int, reach: tuple[float, float]
) -> None:
    """Things in front of the observer at all distances, each so large that it is seen."""
    draws = build.draws
    side = _unit(np.cross(gaze, (0, 1, 0)))
    up = np.cross(side, gaze)
    for _ in range(count):
        far = reach[0] * (reach[1] / reach[0]) ** draws.uniform()
        at = eye + far * (gaze + draws.uniform(-0.7, 0.7) * side + draws.uniform(-0.4, 0.4) * up)
        parts = build.thing(furniture.BODIES, 0.4, 0.6)
        scale = far * draws.uniform(0.05, 0.3) / max(_reach(parts), 0.05)
        build.put(parts, at, rotation=draws.rotation(), scale=scale)


def _free(
    draws: Draws, taken: list[tuple[float, float, float]], x: float, z: float, radius: float
) -> tuple[float, float] | None:
    """A place on the floor that nothing takes yet; it is taken then."""
    if x <= 0 or z <= 0:
        return None
    for _ in range(12):
        place = (draws.uniform(-x, x), draws.uniform(-z, z))
        if all(math.dist(place, other[:2]) > 0.8 * (radius + other[2]) for other in taken):
            taken.append((*place, radius))
            return place
    return None


def _reach(parts: Parts) -> float:
    """Half of an object's longer side on the floor."""
    points = np.concatenate([shape.points.reshape(-1, 3) for shape, _ in parts])
    return float(np.abs(points[:, [0, 2]]).max(axis=0).max())


def _is_level(shape: Shape) -> bool:
    """Whether a thing may stand on it: a wide box such as a table's top or a chest."""
    points = shape.points.reshape(-1, 3)
    high = points[points[:, 1] > points[:, 1].max() - 1e-6]
    return len(shape.points) == 12 and bool((np.ptp(high[:, [0, 2]], axis=0) > 0.35).all())


def _sun(draws: Draws) -> Light:
    rise, turn = draws.uniform(0.3, 1.2), draws.uniform(0, 6.28)
    way = _unit(np.array([math.cos(turn), math.tan(rise), math.sin(turn)]))
    return Light(way, draws.uniform(0.5, 1.3) * np.array([1.0, 0.96, 0.88]), True)


def _tone(draws: Draws) -> np.ndarray:
    warm = draws.uniform(-0.1, 0.25)
    return np.array([1 + warm, 1.0, 1 - warm])


def _unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)
