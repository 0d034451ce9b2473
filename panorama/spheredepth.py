"""SphereDepth: depth of a panorama, predicted on the faces of a spherical mesh. A reconstruction.

Paper: Yan et al., "SphereDepth: Panorama Depth Estimation from Spherical Domain", 3DV 2022, arXiv
2208.13714. No code was published and the paper's text could not be read, so this is a
reconstruction and not a reproduction. Where each decision comes from:

- From the paper's abstract: depth is predicted on a spherical mesh, to which the panorama is tied,
  and two hyper-parameters of the mesh trade speed for accuracy.
- From summaries of its successor, SphereFusion (Yan et al., 3DV 2025, arXiv 2502.05859): a
  subdivided icosahedron whose faces the panorama textures; an encoder like ResNet-18 with 64, 64,
  128, 256 and 512 channels; convolution and pooling on faces; BerHu with T = 0.2; several scales
  are supervised.
- From SubdivNet (Hu et al., TOG 2022) and its code: the convolution, pooling and unpooling on
  faces. That SphereDepth used these is inferred.
- From UniFuse's code (Jiang et al., RA-L 2021): the pixel convention, depth as a sigmoid times the
  largest depth.
- Our own: that the second hyper-parameter is how finely the texture is sampled within a face; the
  stem and the head; one depth for each texture sample; the decoder; the orientation of the mesh.

Elastic, of our own making (`spheredepth_elastic`): widths, depths, kernels and dilations, which
share their weights, and the mesh level, which no weight depends on.

With the stem and head `mesh` the network on its faces commutes with the 60 rotations of the
icosahedron exactly; with `concat`, which tells a face's children apart by their number, it does
not.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from ..datasets.files import check_choice
from ..nas import elastic
from ..nas.space import Choice
from ..nas.supernet import activate, active, extract, search_space, subnet_of
from ..nas.values import Value, maximum, outcomes
from ..vision.hub.registry import register_model
from ..vision.inference import convert
from ..vision.layers import IMAGENET_MEAN, IMAGENET_STD, check_images
from ._spheredepth_layers import (
    DecoderStep,
    Head,
    Pattern,
    ResidualBlock,
    Stem,
    Use,
    Width,
    mesh_tables,
)
from ._weights import SPHEREDEPTH_SMALL
from .mesh import face_count
from .sampling import equirectangular_to_faces, faces_to_equirectangular, sample_at

__all__ = [
    "Prediction",
    "SphereDepthNet",
    "spheredepth_elastic",
    "spheredepth_r18_l5",
    "spheredepth_r18_l6",
    "spheredepth_r18_l7",
    "spheredepth_small",
    "spheredepth_tiny",
]

_SCALES = 5
_STEPS = _SCALES - 1  # from one scale to the next, down and up


class Prediction(NamedTuple):
    """What `SphereDepthNet.predict` returns; `panorama.infer` makes clouds and meshes of it."""

    depth: Tensor  #: distance from the camera's centre in metres, (N, 1, H, W)
    faces: Tensor  #: the same on the faces of the output's level, (N, F)
    #: of the faces that the image was sampled at, RGB in [0, 1], (N, F', 3); F' = F unless the head
    #: is `face`
    colours: Tensor


class SphereDepthNet(nn.Module):
    """The network, elastic where a number is a choice's; its cost is set by the mesh.

    Levels L + k that suit an image: 7 for 512x1024, 6 for 256x512.

    Args:
        mesh_level: L, of the finest features; at least 4. Where it is a choice, stem and head are
            `mesh`, and L + k, with k at least 1, is the same for all its values.
        texture_level: k: each face of level L is seen, and gets depths, at its 4^k descendants.
        widths: channels at the levels L, L − 1, … L − 4.
        blocks: residual blocks at the levels L − 1, … L − 4, or one number for all.
        decoder_convs: convolutions at the levels L − 3, … L of the decoder, or one number.
        stem: `mesh` convolves the samples down to level L; `concat` puts them side by side.
        head: `mesh` unpools to level L + k; `concat` predicts the depths of a face side by side;
            `face` predicts one depth for each face of level L.
        kernel: of the convolutions of stem, four scales and four steps of the decoder, or one
            number: 1, 3 or 5.
        dilation: the same; of those of kernel 3.
        symmetric: dilated convolutions look both ways round, see `SphericalMesh.ring`.
        normalize: scale the sums of more than three neighbours to those of three.
        max_depth: the largest depth in metres, which the sigmoid of an output is multiplied by.

    Raises:
        ValueError: a level or number too small, or an unknown stem or head.
    """

    output_names = ("depth",)

    def __init__(
        self,
        *,
        mesh_level: Width = 6,
        texture_level: Width = 1,
        widths: Sequence[Width] = (64, 64, 128, 256, 512),
        blocks: Width | Sequence[Width] = 2,
        decoder_convs: Width | Sequence[Width] = 2,
        stem: str = "mesh",
        head: str = "mesh",
        kernel: Width | Sequence[Width] = 3,
        dilation: Width | Sequence[Width] = 1,
        symmetric: bool = False,
        normalize: bool = False,
        max_depth: float = 10.0,
    ) -> None:
        super().__init__()
        check_choice("stem", stem, ("mesh", "concat"))
        check_choice("head", head, ("mesh", "concat", "face"))
        sample_level = _sample_level(mesh_level, texture_level, stem, head)
        blocks = _each("blocks", blocks, _STEPS)
        decoder_convs = _each("decoder_convs", decoder_convs, _STEPS)
        if len(widths) != _SCALES or min(map(_least, (*widths, *blocks, *decoder_convs))) < 1:
            raise ValueError(
                f"widths must be {_SCALES} numbers from 1 on, blocks and decoder_convs at least "
                f"1, not {list(widths)}, {blocks} and {decoder_convs}"
            )
        self.max_depth = max_depth
        shared = Pattern(symmetric=symmetric, normalize=normalize)
        kernels = _each("kernel", kernel, 1 + 2 * _STEPS)
        dilations = _each("dilation", dilation, 1 + 2 * _STEPS)
        rings = zip(kernels, dilations, strict=True)
        patterns = [Pattern(kernel=k, dilation=d, **shared) for k, d in rings]
        self.stem = Stem(stem, widths[0], texture_level, patterns[0])
        scales = zip(widths[:-1], widths[1:], blocks, patterns[1 : 1 + _STEPS], strict=True)
        self.encoder = nn.ModuleList(
            elastic.ModuleList(
                [
                    ResidualBlock(b if block else a, b, 1 if block else 2, pattern)
                    for block in range(maximum(count))
                ],
                length=count,
            )
            for a, b, count, pattern in scales
        )
        outs = [*reversed(widths[1:-1]), widths[0]]  # 256, 128, 64, 64
        joined = (widths[-1], *outs[:-1]), widths[-2::-1]
        steps = zip(*joined, outs, decoder_convs, patterns[1 + _STEPS :], strict=True)
        self.decoder = nn.ModuleList(DecoderStep(*step) for step in steps)
        self.head = Head(head, widths[0], texture_level)
        self.sides = nn.ModuleList(elastic.Linear(width, 1) for width in outs[:-1])
        self.tables = mesh_tables(self._uses(mesh_level, sample_level), sample_level, mesh_level)
        if isinstance(mesh_level, Value):  # the largest level goes with the least texture level
            activate(self, search_space(self).largest())

    @property
    def mesh_level(self) -> int:
        """L, of a supernet the active one."""
        return self.tables.mesh_level

    @property
    def texture_level(self) -> int:
        """k, of a supernet the active one."""
        return self.tables.sample_level - self.tables.mesh_level

    def fused(self, dtype: torch.dtype) -> nn.Module:
        """A faster form for inference, see `inference.optimize`; of a supernet what is active."""
        net = extract(self, active(self)) if len(search_space(self)) else copy.deepcopy(self)
        return convert(net.eval(), dtype)

    def forward(self, image: Tensor) -> Tensor:
        """Depth of an equirectangular image.

        Args:
            image: (N, 3, H, W), RGB in [0, 1], of the whole sphere; any size.

        Returns:
            (N, 1, H, W): distance from the camera's centre in metres; each pixel has the depth of
            the face that holds its centre.

        Raises:
            ValueError: the image is not (N, 3, H, W).
        """
        return self.predict(image).depth

    def predict(self, image: Tensor) -> Prediction:
        """Depth as an image and on the faces, and the faces' colours; argument as of `forward`."""
        colours = self.texture(image)
        depth = self._decode(colours)[0]
        height, width = image.shape[-2:]
        return Prediction(faces_to_equirectangular(depth[..., None], height, width), depth, colours)

    def forward_stages(self, image: Tensor, rotation: Tensor | None = None) -> tuple[Tensor, ...]:
        """Depth on faces at several levels, for training.

        Args:
            image: as of `forward`.
            rotation: (3, 3) or (N, 3, 3), orthogonal: face f looks where R c_f does.

        Returns:
            (N, F) at the output's level, and at L − 1, L − 2 and L − 3.
        """
        return self.forward_faces(self.texture(image, rotation))

    def forward_faces(self, texture: Tensor) -> tuple[Tensor, ...]:
        """`forward_stages` of colours at the faces of level L + k, (N, F, 3), RGB in [0, 1]."""
        depth, decoded = self._decode(texture)
        coarser = zip(self.sides, decoded[:-1], strict=True)
        sides = [self._depth(side(x)[..., 0]) for side, x in coarser]
        return depth, *reversed(sides)

    def texture(self, image: Tensor, rotation: Tensor | None = None) -> Tensor:
        """Colours at the centroids of level L + k, (N, F, 3); arguments as of `forward_stages`."""
        check_images(image)
        if rotation is not None:
            return equirectangular_to_faces(image, self.tables.sample_level, rotation=rotation)
        return sample_at(image, self.tables.coordinates)

    def _decode(self, texture: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The output, and the decoder's features, coarsest first."""
        mean, std = texture.new_tensor(IMAGENET_MEAN), texture.new_tensor(IMAGENET_STD)
        level, tables = self.mesh_level, self.tables
        # Sampled as it is given, computed in the type of the weights.
        x = ((texture - mean) / std).to(self.head.last.weight.dtype)
        features = [self.stem(x, tables, level)]
        for scale in self._scales():
            x = features[-1]
            for index, block in enumerate(scale):
                x = block(x, tables, level - (index > 0))
            features.append(x)
            level -= 1
        x, decoded = features.pop(), []
        for step in self.decoder:
            x = step(x, features.pop(), tables, level)
            decoded.append(x)
            level += 1
        return self._depth(self.head(x, tables, level)), decoded

    def _depth(self, x: Tensor) -> Tensor:
        return self.max_depth * x.to(torch.promote_types(x.dtype, torch.float32)).sigmoid()

    def _scales(self) -> Iterable[Iterable[ResidualBlock]]:
        return cast("Iterable[Iterable[ResidualBlock]]", self.encoder)

    def _uses(self, level: Width, sample_level: int) -> list[Use]:
        """What its layers look at, from the finest to the coarsest faces and back."""
        uses = self.stem.uses(level) + self.head.uses(level, sample_level)
        for scale, blocks in enumerate(self._scales()):
            for index, block in enumerate(blocks):
                uses += block.uses(level - scale - (index > 0))
        for step, layers in enumerate(cast("Iterable[DecoderStep]", self.decoder)):
            uses += layers.uses(level - _STEPS + step)
        return uses


def _sample_level(mesh_level: Width, texture_level: Width, stem: str, head: str) -> int:
    """L + k, checked."""
    total, least, finest = mesh_level + texture_level, _least(mesh_level), _least(texture_level)
    both = outcomes(total) if isinstance(total, Value) else (total,)
    elastic_levels = isinstance(mesh_level, Value) or isinstance(texture_level, Value)
    if elastic_levels and (len(both) > 1 or finest < 1 or (stem, head) != ("mesh", "mesh")):
        raise ValueError(
            "where mesh_level is a choice, its sum with texture_level must be one number, "
            f"texture_level at least 1, and stem and head `mesh`; not {list(both)}, "
            f"{finest}, {stem!r} and {head!r}"
        )
    if least < _STEPS or finest < 0:
        raise ValueError(f"mesh_level {least}, texture_level {finest}: at least {_STEPS} and 0")
    face_count(both[0])
    return both[0]


def _each(name: str, value: Width | Sequence[Width], count: int) -> list[Width]:
    """One number for all, or one for each."""
    values = list(value) if isinstance(value, Sequence) else [value] * count
    if len(values) != count:
        raise ValueError(f"{name} must be one number or {count}, not {len(values)}")
    return values


def _least(value: Width) -> int:
    return outcomes(value)[0] if isinstance(value, Value) else value


@register_model(task="panorama")
def spheredepth_r18_l5(
    *,
    texture_level: int = 1,
    stem: str = "mesh",
    head: str = "mesh",
    kernel: int = 3,
    dilation: int = 1,
    max_depth: float = 10.0,
) -> SphereDepthNet:
    """Features at level 5: for 256x512, or fast for 512x1024 with texture level 2."""
    return SphereDepthNet(mesh_level=5, **locals())


@register_model(task="panorama")
def spheredepth_r18_l6(
    *,
    texture_level: int = 1,
    stem: str = "mesh",
    head: str = "mesh",
    kernel: int = 3,
    dilation: int = 1,
    max_depth: float = 10.0,
) -> SphereDepthNet:
    """Features at level 6, 6.5 M parameters: for 512x1024."""
    return SphereDepthNet(mesh_level=6, **locals())


@register_model(task="panorama")
def spheredepth_r18_l7(
    *,
    texture_level: int = 0,
    stem: str = "mesh",
    head: str = "mesh",
    kernel: int = 3,
    dilation: int = 1,
    max_depth: float = 10.0,
) -> SphereDepthNet:
    """Features at level 7, the accurate and slow one for 512x1024."""
    return SphereDepthNet(mesh_level=7, **locals())


@register_model(task="panorama", weights=SPHEREDEPTH_SMALL)
def spheredepth_small(
    *, texture_level: int = 1, stem: str = "mesh", head: str = "mesh", max_depth: float = 20.0
) -> SphereDepthNet:
    """`spheredepth_r18_l5` of half the channels, 1.6 M parameters; for 256x512."""
    return SphereDepthNet(mesh_level=5, widths=(32, 32, 64, 128, 256), **locals())


@register_model(task="panorama")
def spheredepth_tiny(
    *,
    mesh_level: int = 4,
    texture_level: int = 1,
    stem: str = "mesh",
    head: str = "mesh",
    kernel: int = 3,
    dilation: int = 1,
    symmetric: bool = False,
    max_depth: float = 10.0,
) -> SphereDepthNet:
    """Few channels, one block and one convolution a level, 0.2 M parameters; for 128x256."""
    return SphereDepthNet(widths=(24, 32, 48, 64, 96), blocks=1, decoder_convs=1, **locals())


_PATTERNS = ("1", "3", "3d2", "3d3", "5")
"""Kernels with their dilations, for all of which the weights are the same."""


def _kernel(pattern: str) -> int:
    return int(pattern[0])


def _dilation(pattern: str) -> int:
    return int(pattern[2:] or 1)


@register_model(task="panorama")
def spheredepth_elastic(
    *,
    width: int = 8,
    sample_level: int = 7,
    max_depth: float = 10.0,
    subnet: Mapping[str, Any] | None = None,
) -> SphereDepthNet:
    """SphereDepth's supernet with features at level 4 to 6, 6.6 M parameters, or a subnet."""
    if width < 1 or not 5 <= sample_level <= 8:
        raise ValueError(f"width {width} must be at least 1, sample_level {sample_level} 5 to 8")
    level = Choice("mesh_level", tuple(range(_STEPS, sample_level)))
    places = "stem", *(f"{part}.{i}" for part in ("encoder", "decoder") for i in range(_STEPS))
    patterns = [Choice(f"{place}.pattern", _PATTERNS) for place in places]
    net = SphereDepthNet(
        mesh_level=level,
        texture_level=sample_level - level,
        widths=[
            Choice(f"width.{scale}", tuple(width * base * part // 4 for part in (2, 3, 4)))
            for scale, base in enumerate((8, 8, 16, 32, 64))
        ],
        blocks=[Choice(f"encoder.{i}.depth", (1, 2)) for i in range(_STEPS)],
        decoder_convs=[Choice(f"decoder.{i}.depth", (1, 2)) for i in range(_STEPS)],
        kernel=[pattern.map(_kernel) for pattern in patterns],
        dilation=[pattern.map(_dilation) for pattern in patterns],
        normalize=True,
        max_depth=max_depth,
    )
    return subnet_of(net, subnet)
