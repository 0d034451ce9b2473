"""A world: surfaces, materials and light, and what rays see of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...vision.io.ply import open3d
from .materials import Material, TextureBank
from .shapes import Shape, join

__all__ = ["Hits", "Light", "Sky", "Thing", "World", "column"]

_AWAY = 1e-3  # metres from a surface at which a shadow ray starts
_LINEAR = (torch.arange(256) / 255) ** 2.2  # of bytes
_Part = slice | Tensor  # which rays of many
_BLOCK = 1 << 15  # rays shaded together: their values stay in a core's cache


class Thing(NamedTuple):
    """A shape of one material."""

    shape: Shape  #: in the world's frame
    material: Material  #: its look
    instance: int  #: number of the object that it belongs to, from 1


class Light(NamedTuple):
    """The sun or a lamp."""

    place: np.ndarray  #: (3,): where a lamp is, or the direction towards the sun, unit length
    #: (3,), of the light that arrives from the sun, or from a lamp one metre away
    colour: np.ndarray
    far: bool  #: whether it is the sun

    def reach(self, points: Tensor) -> tuple[Tensor, Tensor, Tensor | float]:
        """Ways (3, N) from points (3, N) to it, their directions, and the share that arrives."""
        place = column(self.place)
        if self.far:
            toward = place.expand_as(points)
            return 100.0 * toward, toward, 1.0  # metres; what is further casts no shadow
        ways = place - points
        square = _dot(ways, ways)
        return ways, ways / square.sqrt(), 1 / square.clamp_min(0.05)


class Sky(NamedTuple):
    """What surrounds a world."""

    horizon: np.ndarray  #: colour (3,)
    zenith: np.ndarray  #: colour (3,)
    panorama: Tensor | None = None  #: (H, 2H, 3) uint8, seen instead of them where given
    turn: float = 0.0  #: of the panorama about the vertical, radians
    bright: float = 1.0  #: of the panorama: what its white is

    def look(self, directions: Tensor) -> Tensor:
        """Colours (3, N) in unit directions (3, N)."""
        if self.panorama is None:
            up = directions[1].clamp(0, 1).sqrt()
            return torch.lerp(column(self.horizon), column(self.zenith), up)
        height, width = self.panorama.shape[:2]
        across = torch.atan2(-directions[0], directions[2]) + self.turn
        x = (across * (width / (2 * math.pi))).floor().long() % width
        y = (directions[1].clamp(-1, 1).acos() * (height / math.pi)).long().clamp(0, height - 1)
        shown = self.panorama.reshape(-1, 3)[y * width + x].T
        return self.bright * _LINEAR[shown.int()]


@dataclass(frozen=True)
class Hits:
    """Where rays end."""

    distance: Tensor  #: (N,) along each ray, infinite for the sky
    triangle: Tensor  #: (N,), -1 for the sky
    instance: Tensor  #: (N,), 0 for the sky
    normal: Tensor  #: (3, N), of the smooth surface, towards the ray's origin
    place: Tensor  #: (2, N), on the material's texture, metres


class World:
    """Things, lights and a sky.

    Args:
        things: at least one.
        lights: the sun and lamps, all of which cast shadows.
        ambient: (3,), light from everywhere.
        sky: what is seen beyond all things.
        bank: that the materials' textures are of.
    """

    def __init__(
        self,
        things: Sequence[Thing],
        lights: Sequence[Light],
        ambient: np.ndarray,
        sky: Sky,
        bank: TextureBank,
    ) -> None:
        o3d = open3d()
        sizes = torch.tensor([len(thing.shape.points) for thing in things])
        joined = join([thing.shape for thing in things])
        points = joined.points.astype(np.float32).reshape(-1, 3)
        corners = np.hstack([joined.normals.reshape(-1, 9), joined.places.reshape(-1, 6)])
        self._corners = torch.from_numpy(corners.astype(np.float32))
        self._material = torch.arange(len(things)).repeat_interleave(sizes)
        self._instance = torch.tensor([t.instance for t in things]).repeat_interleave(sizes)
        self._looks = torch.tensor([np.hstack(astuple(t.material)).tolist() for t in things])
        self._lights, self._ambient, self._sky = list(lights), column(ambient), sky
        self._bank = bank
        self._scene = o3d.t.geometry.RaycastingScene(nthreads=1)
        faces = np.arange(len(points), dtype=np.uint32).reshape(-1, 3)
        self._scene.add_triangles(*map(o3d.core.Tensor.from_numpy, (points, faces)))

    def cast(self, origins: Tensor, directions: Tensor) -> Hits:
        """Follow rays (3, N) to the nearest surface; distances count in directions' lengths."""
        ends = self._scene.cast_rays(_rays(origins, directions), nthreads=1)
        distance = torch.from_numpy(ends["t_hit"].numpy()).clone()  # not in Open3D's memory
        # The sky's number is the largest of 32 bits, -1 with a sign.
        triangle = torch.from_numpy(ends["primitive_ids"].numpy().view(np.int32)).long()
        second, third = torch.from_numpy(ends["primitive_uvs"].numpy()).T.contiguous()
        owner = triangle.clamp_min(0)
        corners = self._corners.index_select(0, owner).T.contiguous()
        weights = (1 - second - third, second, third)
        normal = sum(w * corners[3 * i : 3 * i + 3] for i, w in enumerate(weights))
        place = sum(w * corners[9 + 2 * i : 11 + 2 * i] for i, w in enumerate(weights))
        normal *= _dot(normal, normal).clamp_min(1e-18).rsqrt()
        normal = torch.where(_dot(normal, directions) > 0, -normal, normal)
        instance = self._instance[owner] * (triangle >= 0)
        return Hits(distance, triangle, instance, normal, place)

    def blocked(self, origins: Tensor, ways: Tensor) -> Tensor:
        """Whether something stands in ways (3, N) from origins (3, N), (N,) bool."""
        hit = self._scene.test_occlusions(_rays(origins, ways), tfar=0.999, nthreads=1)
        return torch.from_numpy(hit.numpy())

    def colours(
        self,
        origin: Tensor,
        directions: Tensor,
        pixel: float,
        hits: Hits | None = None,
        openness: Tensor | None = None,
    ) -> Tensor:
        """What rays see.

        Args:
            origin: (3, 1).
            directions: (3, N), unit length.
            pixel: angle between neighbouring rays, radians.
            hits: of these rays, if they are cast already.
            openness: (N,), share of the ambient light that arrives; None: all.

        Returns:
            Colours (3, N) float32, linear, not bounded above.
        """
        hits = self.cast(origin, directions) if hits is None else hits
        openness = torch.ones_like(directions[0]) if openness is None else openness
        colours = torch.empty_like(directions)
        for start in range(0, directions.shape[1], _BLOCK):
            part: _Part = slice(start, start + _BLOCK)
            seen = hits.distance[part].isfinite()
            if not seen.all():
                colours[:, part] = self._sky.look(directions[:, part])
                part = start + seen.nonzero()[:, 0]
            if seen.any():
                along, opened = directions[:, part], openness[part]
                colours[:, part] = self._shade(origin, along, pixel, hits, part, opened)
        return colours

    def openness(self, points: Tensor, normals: Tensor, reach: float) -> Tensor:
        """How far one sees from surfaces, (N,) in [0, 1]: 1 where nothing is in reach, metres.

        The directions are the same for all points, so that two cameras see the same. Points
        and their normals, of unit length, are (3, N).
        """
        lifted = points + _AWAY * normals
        total, clear = torch.zeros(points.shape[1]), torch.zeros(points.shape[1])
        for way in _AROUND:
            facing = _dot(normals, way[:, None]).clamp_min(0)
            upward = facing.nonzero()[:, 0]
            rays = _rays(lifted[:, upward], (reach * way[:, None]).expand(3, len(upward)))
            far = self._scene.cast_rays(rays, nthreads=1)["t_hit"].numpy()
            total += facing
            clear[upward] += facing[upward] * torch.from_numpy(far).clamp_max(1.0)
        return clear / total.clamp_min(1e-6)

    def _shade(
        self,
        origin: Tensor,
        along: Tensor,
        pixel: float | Tensor,
        hits: Hits,
        part: _Part,
        openness: Tensor | float,
        direct: bool = True,
    ) -> Tensor:
        """Colours (3, N) of the surfaces of a `part` of the hits, by Blinn and Phong's model.

        What is seen `direct` reflects other things; what is seen in those, the sky alone.
        """
        distance, normal = hits.distance[part], hits.normal[:, part]
        points = origin + along * distance
        ahead = _dot(normal, along)
        looks = self._looks.index_select(0, self._material[hits.triangle[part]]).T.contiguous()
        footprint = distance * pixel * ahead.neg().clamp_min(0.05).rsqrt()
        albedo = self._albedo(looks, hits.place[:, part], footprint)
        gloss, mirror, shine, through = looks[10:14]
        diffuse = self._ambient * (0.75 + 0.25 * normal[1]) * openness
        specular = torch.zeros_like(diffuse)
        for light in self._lights:
            ways, toward, arriving = light.reach(points)
            facing = _dot(normal, toward)
            strength = torch.where(facing > 0, facing, -through * facing) * arriving
            lit = strength.nonzero()[:, 0]
            start = points[:, lit] + facing[lit].sign() * _AWAY * normal[:, lit]
            strength[lit] *= ~self.blocked(start, ways[:, lit])
            colour = column(light.colour)
            diffuse = diffuse + colour * strength
            half = toward - along
            cosine = _dot(normal, half) * _dot(half, half).clamp_min(1e-12).rsqrt()
            highlight = gloss * arriving * cosine.clamp_min(0) ** shine * (strength > 0)
            specular = specular + colour * highlight
        colours = albedo * diffuse
        mirroring = mirror.nonzero()[:, 0]
        if len(mirroring):
            # More at grazing angles (Schlick, Computer Graphics Forum 1994).
            share = torch.lerp((1 + ahead[mirroring]) ** 5, torch.ones(1), mirror[mirroring])
            ways = (along - 2 * ahead * normal)[:, mirroring]
            if direct:
                start = (points + _AWAY * normal)[:, mirroring]
                seen = self._reflected(start, ways, pixel, distance[mirroring])
            else:
                seen = self._sky.look(ways)
            colours[:, mirroring] = torch.lerp(colours[:, mirroring], seen, share)
        return colours + specular

    def _reflected(
        self, origin: Tensor, along: Tensor, pixel: float | Tensor, before: Tensor
    ) -> Tensor:
        """Colours (3, N) that rays see which came (N,) metres `before` they were reflected."""
        hits = self.cast(origin, along)
        colours = self._sky.look(along)
        part = hits.distance.isfinite().nonzero()[:, 0]
        if len(part):
            wider = pixel * (1 + before[part] / hits.distance[part].clamp_min(_AWAY))
            start, ways = origin[:, part], along[:, part]
            colours[:, part] = self._shade(start, ways, wider, hits, part, 1.0, direct=False)
        return colours

    def _albedo(self, looks: Tensor, place: Tensor, footprint: Tensor) -> Tensor:
        """Colours (3, N) of materials, whose numbers are `looks`, at places on their textures."""
        texture, scale, turn, right, down = looks[:5]
        base, contrast, tint = looks[5:8], looks[8], looks[9]
        cos, sin = turn.cos() * scale, turn.sin() * scale
        x = cos * place[0] + sin * place[1] + right
        y = cos * place[1] - sin * place[0] + down
        colours = self._bank.look_up(texture.long(), x, y, footprint * scale)
        pattern = torch.lerp(colours.mean(dim=0), colours, tint)
        return (base + contrast * pattern).clamp(0.01, 1.0)


def _rays(origins: Tensor, directions: Tensor) -> Any:
    from open3d.core import Tensor as Open3DTensor

    rays = torch.empty(directions.shape[1], 6)
    rays[:, :3], rays[:, 3:] = origins.T, directions.T
    return Open3DTensor.from_numpy(rays.numpy())


def _dot(one: Tensor, other: Tensor) -> Tensor:
    return one[0] * other[0] + one[1] * other[1] + one[2] * other[2]


def column(values: np.ndarray) -> Tensor:
    """Numbers (3,) as a column (3, 1) float32."""
    return torch.from_numpy(np.asarray(values, np.float32))[:, None]


def _spread(count: int) -> Tensor:
    """Directions all round, evenly, (count, 3): a Fibonacci spiral."""
    turn = torch.arange(count) * math.pi * (3 - math.sqrt(5))
    up = 1 - (2 * torch.arange(count) + 1) / count
    across = (1 - up**2).sqrt()
    return torch.stack([across * turn.cos(), up, across * turn.sin()], dim=1)


_AROUND = _spread(16)
