"""Things of every day, built of simple shapes: each a list of shapes with a kind of material.

All stand on y = 0 about the origin, their front towards -z, sizes in metres.
"""

from __future__ import annotations

import math

import numpy as np

from ..draws import Draws
from .shapes import (
    Shape,
    box,
    boxes,
    cone,
    cylinder,
    extrusion,
    height_field,
    join,
    revolution,
    scattered,
    sheet,
    sphere,
    torus,
    tube,
)

__all__ = ["BODIES", "FURNITURE", "SMALL", "Parts", "hanging", "picture", "railing"]

Parts = list[tuple[Shape, str]]
"""Shapes, each with what `materials.draw_material` takes as kind."""


def _table(draws: Draws) -> Parts:
    width, depth, height = draws.uniform(0.6, 1.8), draws.uniform(0.5, 0.9), draws.uniform(0.4, 0.8)
    top = box(width, 0.04, depth).moved((0, height - 0.04, 0))
    if draws.uniform() < 0.25:
        stem = cylinder(0.05, height - 0.05).moved((0, 0.01, 0))
        return [(top, "any"), (join([stem, cylinder(0.3, 0.02)]), "any")]
    return [(top, "any"), (_legs(width, depth, height - 0.04, draws.uniform(0.02, 0.06)), "any")]


def _chair(draws: Draws) -> Parts:
    width, seat = draws.uniform(0.38, 0.5), draws.uniform(0.4, 0.5)
    back = draws.uniform(0.35, 0.6)
    parts = [_legs(width, width, seat, draws.uniform(0.015, 0.03))]
    if draws.uniform() < 0.5:
        count = 2 + int(draws.uniform(0, 4))
        places = np.linspace(-width / 2 + 0.03, width / 2 - 0.03, count + 1)
        parts.append(boxes((0.02, back, 0.02), _along(places, seat, width / 2 - 0.02)))
        parts.append(box(width, 0.05, 0.02).moved((0, seat + back, width / 2 - 0.02)))
    else:
        parts.append(box(width, back, 0.03).moved((0, seat + 0.08, width / 2 - 0.02)))
    return [(join(parts), "any"), (box(width, 0.04, width).moved((0, seat, 0)), "any")]


def _shelf(draws: Draws) -> Parts:
    width, depth = draws.uniform(0.6, 1.4), draws.uniform(0.25, 0.4)
    height = draws.uniform(0.8, 2.1)
    boards = 3 + int(draws.uniform(0, 3))
    frame = [box(0.02, height, depth).moved((side * width / 2, 0, 0)) for side in (-1, 1)]
    frame.append(box(width, height, 0.01).moved((0, 0, depth / 2)))
    parts: Parts = []
    for board in range(boards + 1):
        level = board * (height - 0.02) / boards
        frame.append(box(width, 0.02, depth).moved((0, level, 0)))
        if board == boards:
            continue
        place, room = -width / 2 + 0.04, (height - 0.02) / boards - 0.03
        while place < width / 2 - 0.1 and draws.uniform() < 0.93:
            thick = draws.uniform(0.02, 0.08) if draws.uniform() < 0.8 else draws.uniform(0.1, 0.3)
            tall = room * draws.uniform(0.5, 0.95)
            if place + thick > width / 2 - 0.02:
                break
            deep = depth * draws.uniform(0.5, 0.9)
            thing = box(thick, tall, deep).moved((place + thick / 2, level + 0.02, 0))
            parts.append((thing, "any"))
            place += thick + 0.002
    return [(join(frame), "any"), *parts]


def _bed(draws: Draws) -> Parts:
    """A bed with a blanket that is not quite flat."""
    width, length, height = draws.uniform(0.9, 1.8), 2.0, draws.uniform(0.35, 0.55)
    phase = draws.uniform(0, 6)

    def folds(x: np.ndarray, z: np.ndarray) -> np.ndarray:
        return height + 0.03 + 0.015 * np.sin(7 * x + phase) * np.sin(5 * z)

    blanket = height_field(width + 0.04, length * 0.75, folds)
    pillow = sphere(0.3, 0.3).moved((0, height + 0.06, length * 0.4))
    board = box(width, draws.uniform(0.4, 0.8), 0.05).moved((0, height - 0.1, length / 2))
    body = box(width, height, length)
    return [(body, "any"), (blanket.moved((0, 0, -0.2)), "any"), (pillow, "plain"), (board, "any")]


def _sofa(draws: Draws) -> Parts:
    width, depth = draws.uniform(1.2, 2.2), draws.uniform(0.75, 0.95)
    arms = [box(0.18, 0.6, depth).moved((side * width / 2, 0, 0)) for side in (-1, 1)]
    back = box(width, 0.45, 0.2).moved((0, 0.38, depth / 2 - 0.1))
    frame = join([box(width, 0.42, depth), back, *arms])
    cushions = [
        (sphere(0.22, 0.75).moved((place, 0.58, 0.12), draws.uniform(0, 3)), "rich")
        for place in np.linspace(-width / 3, width / 3, 1 + int(draws.uniform(0, 3)))
    ]
    return [(frame, "any"), *cushions]


def _lamp(draws: Draws) -> Parts:
    height, shade = draws.uniform(1.2, 1.8), draws.uniform(0.12, 0.25)
    stem = join([cylinder(0.012, height, 8), cylinder(0.14, 0.02)])
    top = cone(shade, shade * draws.uniform(0.4, 0.9), 0.28).moved((0, height - 0.1, 0))
    return [(stem, "shiny"), (top, "plain")]


def _plant(draws: Draws) -> Parts:
    pot = revolution(np.array([[0.0, 0.0], [0.1, 0.0], [0.14, 0.22], [0.11, 0.22], [0.0, 0.2]]), 16)
    tips, stems = [], []
    for _ in range(8 + int(draws.uniform(0, 16))):
        turn, rise = draws.uniform(0, 2 * math.pi), draws.uniform(0.2, 0.9)
        reach = draws.uniform(0.1, 0.45)
        share = np.linspace(0, 1, 5)
        out = reach * share**1.5
        path = np.stack([out * math.cos(turn), 0.2 + rise * share, out * math.sin(turn)], axis=-1)
        stems.append(tube(path, 0.004, 4))
        tips.append(path[-1])
    return [(pot, "any"), (join(stems), "plain"), (_leaves(draws, np.array(tips), 1.0), "thin")]


def _cabinet(draws: Draws) -> Parts:
    width, depth = draws.uniform(0.4, 1.2), draws.uniform(0.35, 0.6)
    height = draws.uniform(0.5, 1.9)
    rows = 1 + int(draws.uniform(0, 4))
    levels = (np.arange(rows) + 0.6) * height / rows
    handles = boxes((0.12, 0.015, 0.03), _along(0 * levels, levels, -depth / 2 - 0.01))
    return [(box(width, height, depth), "any"), (handles, "shiny")]


def _vase(draws: Draws) -> Parts:
    height = draws.uniform(0.1, 0.4)
    up = np.linspace(0, 1, 9)
    wave = 0.35 + 0.25 * np.sin(draws.uniform(1, 6) * up + draws.uniform(0, 6))
    outline = np.stack([height * (0.12 + 0.6 * wave), height * up], axis=-1)
    outline = np.concatenate([[[0.0, 0.0]], outline])
    return [(revolution(outline, 18), "shiny" if draws.uniform() < 0.5 else "any")]


def _book(draws: Draws) -> Parts:
    pile, level = [], 0.0
    for _ in range(1 + int(draws.uniform(0, 4))):
        thick = draws.uniform(0.01, 0.05)
        one = box(draws.uniform(0.12, 0.3), thick, draws.uniform(0.12, 0.24))
        pile.append((one.moved((0, level, 0), draws.uniform(-0.4, 0.4)), "print"))
        level += thick
    return pile


def _screen(draws: Draws) -> Parts:
    width = draws.uniform(0.3, 0.7)
    panel = box(width, width * 0.6, 0.02).moved((0, 0.12, 0))
    foot = join([cylinder(0.015, 0.14, 8), box(0.2, 0.01, 0.15)])
    return [(panel, "glass"), (foot, "plain")]


def _fruit(draws: Draws) -> Parts:
    radius = draws.uniform(0.03, 0.06)
    balls = [
        (sphere(radius, draws.uniform(0.8, 1.1), 14).moved((x, radius, z)), "any")
        for x, z in ((0, 0), (2 * radius, 0.5 * radius), (0.6 * radius, 2 * radius))
    ]
    return balls[: 1 + int(draws.uniform(0, 3))]


def _loop(draws: Draws) -> Parts:
    """A cable that lies about."""
    share = np.linspace(0, 1, 40)
    turns = draws.uniform(2, 9)
    x = 0.3 * share * np.cos(turns * share)
    y = 0.006 + 0.05 * np.abs(np.sin(draws.uniform(1, 8) * share))
    z = 0.3 * share * np.sin(turns * share + draws.uniform(0, 3))
    path = np.stack([x, y, z], axis=-1)
    return [(tube(path, draws.uniform(0.002, 0.008), 5), "plain")]


def tree(draws: Draws) -> Parts:
    """A trunk with branches and clumps of leaves."""
    height = draws.uniform(3, 8)
    trunk = cone(draws.uniform(0.1, 0.25), 0.05, height * 0.8, 10)
    branches, places = [trunk], []
    for _ in range(8 + int(draws.uniform(0, 8))):
        start, turn = draws.uniform(0.35, 0.8) * height, draws.uniform(0, 2 * math.pi)
        reach, top = draws.uniform(0.6, 1.8), start + draws.uniform(0.3, 1.2)
        end = np.array([reach * math.cos(turn), top, reach * math.sin(turn)])
        path = np.linspace([0, start, 0], end, 4)
        branches.append(tube(path, 0.03, 5))
        places.append(end + 1.2 * (draws.uniforms(40, 3) - 0.5))
    leaves = _leaves(draws, np.concatenate(places), draws.uniform(1.0, 2.5))
    return [(join(branches), "any"), (leaves, "thin")]


def car(draws: Draws) -> Parts:
    """A body with a cabin, its windows, and wheels."""
    profile = np.array([2.1, 0.3, 2.1, 0.8, 1.2, 0.9, 0.7, 1.4, -1.1, 1.4, -1.7, 0.9, -2.1, 0.85])
    outline = np.concatenate([[[-2.1, 0.3]], profile.reshape(-1, 2)])
    lying = np.array([[1.0, 0, 0], [0, 0, -1.0], [0, -1.0, 0]])
    screens = np.array([[1.16, 0.96], [0.76, 1.36], [-1.17, 1.36], [-1.65, 0.96]])
    panes = np.array([[1.05, 0.95], [0.68, 1.34], [-1.08, 1.34], [-1.55, 0.95]])
    # Windows stand out of the body by a centimetre.
    body, *glass = (
        extrusion(corners * (1, -1), wide).moved((0, 0, wide / 2), rotation=lying)
        for corners, wide in ((outline, 1.7), (screens, 1.45), (panes, 1.72))
    )
    upright = np.array([[1.0, 0, 0], [0, 0, 1.0], [0, -1.0, 0]])
    wheels = [
        cylinder(0.32, 0.2).moved((x, 0.32, z), rotation=upright)
        for x in (-1.3, 1.3)
        for z in (-0.65, 0.85)
    ]
    size = draws.uniform(0.9, 1.15)
    return [
        (body.scaled(size), "paint"),
        (join(glass).scaled(size), "glass"),
        (join(wheels).scaled(size), "plain"),
    ]


def pole(draws: Draws) -> Parts:
    """A street lamp or a sign."""
    height = draws.uniform(2.5, 6)
    stem = cylinder(draws.uniform(0.03, 0.08), height, 10)
    if draws.uniform() < 0.5:
        sign = box(draws.uniform(0.4, 0.9), draws.uniform(0.4, 0.9), 0.02)
        return [(stem, "plain"), (sign.moved((0, height - 0.8, -0.06)), "print")]
    arm = tube(np.array([[0, height, 0], [0.6, height + 0.3, 0], [1.2, height + 0.3, 0]]), 0.04)
    return [(join([stem, arm]), "plain")]


def railing(draws: Draws, length: float) -> Parts:
    """A fence or railing of thin bars along x."""
    height, step = draws.uniform(0.7, 1.6), draws.uniform(0.08, 0.3)
    thick = draws.uniform(0.006, 0.03)
    places = np.arange(-length / 2, length / 2 + 1e-6, step)
    bars = boxes((thick, height, thick), _along(places, 0.0, 0.0))
    rails = boxes((length, 2 * thick, thick), np.array([[0, 0.1, 0], [0, height, 0]]))
    return [(join([bars, rails]), "plain")]


def hanging(draws: Draws, width: float, height: float) -> Parts:
    """A curtain in folds, or a blind of slats, in the plane z = 0."""
    if draws.uniform() < 0.5:
        x = np.linspace(-width / 2, width / 2, 60)
        fold = 0.05 * np.sin(x * draws.uniform(15, 40))
        rows = [np.stack([x, np.full_like(x, level), fold], axis=-1) for level in (0.0, height)]
        return [(sheet(np.array(rows)), "thin")]
    tilt, step = draws.uniform(0.2, 1.2), draws.uniform(0.03, 0.08)
    up = np.array(
        [[1, 0, 0], [0, math.cos(tilt), -math.sin(tilt)], [0, math.sin(tilt), math.cos(tilt)]]
    )
    levels = np.arange(0, height, step)
    slats = boxes((width, 0.004, 0.9 * step), _along(0 * levels, levels, 0.0), up)
    return [(slats, "plain")]


def picture(draws: Draws) -> Parts:
    """A picture in its frame, its back at z = 0."""
    width, height = draws.uniform(0.3, 1.2), draws.uniform(0.3, 0.9)
    frame = box(width + 0.06, height + 0.06, 0.03)
    return [(frame, "any"), (box(width, height, 0.002).moved((0, 0.03, -0.017)), "print")]


def _ball(draws: Draws) -> Parts:
    return [(sphere(draws.uniform(0.1, 0.4), draws.uniform(0.5, 1.6)), "any")]


def _ring(draws: Draws) -> Parts:
    radius = draws.uniform(0.12, 0.4)
    return [(torus(radius, radius * draws.uniform(0.06, 0.4)), "any")]


def _block(draws: Draws) -> Parts:
    sides = [draws.uniform(0.08, 0.6) for _ in range(3)]
    kind = int(draws.uniform(0, 4))
    if kind == 0:
        return [(cylinder(sides[0] / 2, sides[1]), "any")]
    if kind == 1:
        return [(cone(sides[0] / 2, sides[2] / 5, sides[1]), "any")]
    return [(box(*sides), "any")]


def _star(draws: Draws) -> Parts:
    points = 3 + int(draws.uniform(0, 6))
    angles = np.linspace(0, 2 * math.pi, 2 * points, endpoint=False)
    radius = np.where(np.arange(2 * points) % 2, draws.uniform(0.1, 0.25), draws.uniform(0.2, 0.4))
    outline = np.stack([radius * np.cos(angles), radius * np.sin(angles)], axis=-1)
    return [(extrusion(outline, draws.uniform(0.02, 0.3)), "any")]


def _bent(draws: Draws) -> Parts:
    """A bent sheet, like paper or cloth."""
    side, curl = draws.uniform(0.2, 0.8), draws.uniform(1, 6)
    phase = draws.uniform(0, 6)

    def waves(x: np.ndarray, z: np.ndarray) -> np.ndarray:
        return 0.15 * side * np.sin(curl * x / side + phase) * np.cos(curl * z)

    return [(height_field(side, side * draws.uniform(0.5, 1.5), waves), "any")]


def _legs(width: float, depth: float, height: float, thick: float) -> Shape:
    reach = np.array([width - thick, 0, depth - thick]) / 2
    corners = np.array([(x, 0, z) for x in (-1, 1) for z in (-1, 1)])
    return boxes((thick, height, thick), corners * reach)


def _along(x: np.ndarray, y: np.ndarray | float, z: float) -> np.ndarray:
    """Places (N, 3) of coordinates that are numbers or (N,)."""
    return np.stack(np.broadcast_arrays(x, y, z), axis=-1)


def _leaves(draws: Draws, at: np.ndarray, size: float) -> Shape:
    """A leaf in any direction at each of some places (N, 3)."""
    count = len(at)
    length, width = draws.uniforms(2, count)
    scales = size * np.stack([0.06 + 0.14 * length, 0.06 + 0.14 * length, 0.02 + 0.06 * width], -1)
    first, second = draws.uniforms(2, count, 3) - 0.5
    first /= np.linalg.norm(first, axis=1, keepdims=True)
    third = np.cross(first, second)
    third /= np.linalg.norm(third, axis=1, keepdims=True)
    rotations = np.stack([first, np.cross(third, first), third], axis=-1)
    return scattered(_LEAF, scales, rotations, at)


def _leaf() -> Shape:
    """A leaf of length 1 along x and half width 1 along z."""
    along = np.linspace(0, 1, 4)
    half = np.sin(math.pi * np.clip(along, 0.05, 0.98))
    edges = [np.stack([along, -0.4 * along**2, side * half], axis=-1) for side in (-1, 1)]
    return sheet(np.array(edges))


_LEAF = _leaf()


FURNITURE = (_table, _table, _chair, _chair, _shelf, _bed, _sofa, _lamp, _plant, _cabinet)
SMALL = (_vase, _vase, _book, _screen, _fruit, _loop, _block, _plant)
BODIES = (_ball, _ring, _block, _block, _star, _bent, _loop, _chair)
