"""A world: surfaces, materials and light, and what rays see of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from .materials import Material, TextureBank
from .shapes import Shape

__all__ = ["Hits", "Light", "Thing", "World"]

_AWAY = 1e-3  # metres from a surface at which a shadow ray starts


class Thing(NamedTuple):
    """A shape of one material.

    Attributes:
        shape: in the world's frame.
        material: its look.
        instance: number of the object that it belongs to, from 1.
    """

    shape: Shape
    material: Material
    instance: int


class Light(NamedTuple):
    """The sun or a lamp.

    Attributes:
        place: (3,): where a lamp is, or the direction towards the sun, unit length.
        colour: (3,), of the light that arrives from the sun, or from a lamp one metre away.
        far: whether it is the sun.
    """

    place: np.ndarray
    colour: np.ndarray
    far: bool


@dataclass(frozen=True)
class Hits:
    """Where rays end.

    Attributes:
        distance: (N,) along each ray, infinite for the sky.
        triangle: (N,), -1 for the sky.
        share: (N, 2), barycentric of its second and third corner.
        instance: (N,), 0 for the sky.
        normal: (N, 3), of the smooth surface, towards the ray's origin.
    """

    distance: np.ndarray
    triangle: np.ndarray
    share: np.ndarray
    instance: np.ndarray
    normal: np.ndarray


class World:
    """Things, lights and a sky.

    Args:
        things: at least one.
        lights: the first casts the clearest shadows.
        ambient: (3,), light from everywhere.
        sky: colours of the horizon and of the zenith, (2, 3).
        bank: that the materials' textures are of.
        threads: that rays are cast by.
    """

    def __init__(
        self,
        things: Sequence[Thing],
        lights: Sequence[Light],
        ambient: np.ndarray,
        sky: np.ndarray,
        bank: TextureBank,
        threads: int = 1,
    ) -> None:
        import open3d

        sizes = [len(thing.shape.points) for thing in things]
        self.points = np.concatenate([t.shape.points for t in things]).astype(np.float32)
        self._normals = np.concatenate([t.shape.normals for t in things]).astype(np.float32)
        self._places = np.concatenate([t.shape.places for t in things]).astype(np.float32)
        self._material = np.repeat(np.arange(len(things)), sizes)
        self._instance = np.repeat([thing.instance for thing in things], sizes)
        self.materials = [thing.material for thing in things]
        self.lights, self.ambient, self.sky = list(lights), ambient, sky
        self.bank, self.threads = bank, threads
        self._table = _material_table(self.materials)
        self._scene = open3d.t.geometry.RaycastingScene(nthreads=threads)
        corners = np.ascontiguousarray(self.points.reshape(-1, 3))
        faces = np.arange(len(corners), dtype=np.uint32).reshape(-1, 3)
        core = open3d.core.Tensor
        self._scene.add_triangles(core.from_numpy(corners), core.from_numpy(faces))

    def cast(self, origins: np.ndarray, directions: np.ndarray) -> Hits:
        """Follow rays to the nearest surface.

        Args:
            origins: (N, 3) or (3,).
            directions: (N, 3); distances count in their lengths.
        """
        rays = np.empty((len(directions), 6), np.float32)
        rays[:, :3], rays[:, 3:] = origins, directions
        found = self._cast(rays)
        distance = found["t_hit"].numpy()
        hit = np.isfinite(distance)
        triangle = np.where(hit, found["primitive_ids"].numpy().astype(np.int64), -1)
        share = found["primitive_uvs"].numpy()
        corners = self._normals[triangle]
        normal = _blend(corners, share)
        normal /= np.maximum(np.linalg.norm(normal, axis=1, keepdims=True), 1e-9)
        against = (normal * rays[:, 3:]).sum(axis=1, keepdims=True) > 0
        normal = np.where(against, -normal, normal)
        instance = np.where(hit, self._instance[triangle], 0)
        return Hits(distance, triangle, share, instance, normal)

    def blocked(self, origins: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Whether something stands between points, (N,) bool.

        Args:
            origins, ends: (N, 3).
        """
        import open3d

        rays = np.empty((len(origins), 6), np.float32)
        rays[:, :3], rays[:, 3:] = origins, ends - origins
        tensor = open3d.core.Tensor.from_numpy(rays)
        return self._scene.test_occlusions(tensor, tfar=0.999, nthreads=self.threads).numpy()

    def colours(self, origins: np.ndarray, directions: np.ndarray, pixel: float) -> tuple:
        """What rays see.

        Args:
            origins: (N, 3) or (3,).
            directions: (N, 3), unit length.
            pixel: angle between neighbouring rays, radians.

        Returns:
            Colours (N, 3) float32, linear, not bounded above, and the `Hits`.
        """
        hits = self.cast(origins, directions)
        colours = self._sky(directions)
        seen = np.flatnonzero(hits.triangle >= 0)
        if not len(seen):
            return colours, hits
        triangle, share = hits.triangle[seen], hits.share[seen]
        along, normal = directions[seen], hits.normal[seen]
        start = origins if np.ndim(origins) == 1 else origins[seen]
        points = start + along * hits.distance[seen, None]
        slant = np.maximum(-(normal * along).sum(axis=1), 0.05)
        footprint = hits.distance[seen] * pixel / np.sqrt(slant)
        material = self._material[triangle]
        table = self._table[material]
        albedo = self._albedo(table, _blend(self._places[triangle], share), footprint)
        lit = np.broadcast_to(self.ambient, albedo.shape) * (0.75 + 0.25 * normal[:, 1:2])
        shine = np.zeros_like(albedo)
        lifted = points + _AWAY * normal
        for light in self.lights:
            way = np.broadcast_to(light.place, points.shape) - (0 if light.far else points)
            far = np.linalg.norm(way, axis=1, keepdims=True)
            toward = way / far
            facing = np.maximum((normal * toward).sum(axis=1, keepdims=True), 0)
            arrives = np.flatnonzero(facing[:, 0] > 0)
            end = lifted[arrives] + (100.0 * toward if light.far else way)[arrives]
            clear = ~self.blocked(lifted[arrives], end)
            arrives = arrives[clear]
            power = light.colour / (1.0 if light.far else np.maximum(far[arrives] ** 2, 0.05))
            lit = _added(lit, arrives, facing[arrives] * power)
            half = toward[arrives] - along[arrives]
            half /= np.linalg.norm(half, axis=1, keepdims=True)
            bright = np.maximum((normal[arrives] * half).sum(axis=1), 0) ** table[arrives, 12]
            gloss = (table[arrives, 10] * bright)[:, None]
            shine = _added(shine, arrives, gloss * power)
        mirrored = along - 2 * (normal * along).sum(axis=1, keepdims=True) * normal
        around = self._sky(mirrored) * table[:, 11:12]
        colours[seen] = albedo * lit + shine + around
        return colours, hits

    def _cast(self, rays: np.ndarray) -> dict:
        import open3d

        return self._scene.cast_rays(open3d.core.Tensor.from_numpy(rays), nthreads=self.threads)

    def _sky(self, directions: np.ndarray) -> np.ndarray:
        up = np.clip(directions[:, 1:2], 0, 1) ** 0.5
        return (self.sky[0] * (1 - up) + self.sky[1] * up).astype(np.float32)

    def _albedo(self, table: np.ndarray, places: np.ndarray, footprint: np.ndarray) -> np.ndarray:
        scale = table[:, 1]
        cos, sin = np.cos(table[:, 2]) * scale, np.sin(table[:, 2]) * scale
        x = cos * places[:, 0] + sin * places[:, 1] + table[:, 3]
        y = cos * places[:, 1] - sin * places[:, 0] + table[:, 4]
        index = torch.from_numpy(table[:, 0].astype(np.int64))
        values = (torch.from_numpy(v.astype(np.float32)) for v in (x, y, footprint * scale))
        texture = self.bank.look_up(index, *values).numpy()
        grey = texture.mean(axis=1, keepdims=True)
        tint = table[:, 9:10]
        pattern = tint * texture + (1 - tint) * grey
        return np.clip(table[:, 5:8] + table[:, 8:9] * pattern, 0.01, 1.0)


def _added(total: np.ndarray, index: np.ndarray, values: np.ndarray) -> np.ndarray:
    total = np.array(total)
    total[index] += values
    return total


def _blend(corners: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Values at barycentric places within triangles, (N, C) from (N, 3, C)."""
    second, third = share[:, 0:1], share[:, 1:2]
    return (1 - second - third) * corners[:, 0] + second * corners[:, 1] + third * corners[:, 2]


def _material_table(materials: Sequence[Material]) -> np.ndarray:
    rows = [
        (
            m.texture,
            m.scale,
            m.turn,
            *m.shift,
            *m.base,
            m.contrast,
            m.tint,
            m.gloss,
            m.mirror,
            m.shine,
        )
        for m in materials
    ]
    return np.array(rows, np.float32)
