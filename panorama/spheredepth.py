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

With the stem and head `mesh` the network on its faces commutes with the 60 rotations of the
icosahedron exactly; with `concat`, which tells a face's children apart by their number, it does
not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..vision.hub.registry import register_model
from ..vision.layers import IMAGENET_MEAN, IMAGENET_STD
from .layers import (
    ConvNorm,
    LinearNorm,
    MeshConv,
    MeshTables,
    Ring,
    check_levels,
    pool_faces,
    unpool_faces,
)
from .sampling import equirectangular_to_faces, faces_to_equirectangular, sample_at

__all__ = [
    "Prediction",
    "SphereDepthNet",
    "spheredepth_r18_l5",
    "spheredepth_r18_l6",
    "spheredepth_r18_l7",
    "spheredepth_tiny",
]

_SCALES = 5
_HIDDEN = 32  # channels of the head


class Prediction(NamedTuple):
    """What `SphereDepthNet.predict` returns; `panorama.outputs` makes clouds and meshes of it.

    Attributes:
        depth: distance from the camera's centre in metres, (N, 1, H, W).
        faces: the same on the faces of the output's level, (N, F).
        colours: of the faces that the image was sampled at, RGB in [0, 1], (N, F', 3); F' = F
            unless the head is `face`.
    """

    depth: Tensor
    faces: Tensor
    colours: Tensor


class ResidualBlock(nn.Module):
    """Two convolutions around a shortcut, as in ResNet-18."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, **ring: object) -> None:
        super().__init__()
        self.stride = stride
        first = MeshConv(in_channels, out_channels, stride=stride, bias=False, **ring)
        self.first = ConvNorm(first)
        second = MeshConv(out_channels, out_channels, bias=False, **ring)
        self.second = ConvNorm(second, relu=False)
        self.shortcut = (
            LinearNorm(in_channels, out_channels, relu=False)
            if stride == 2 or in_channels != out_channels
            else nn.Identity()
        )

    def forward(self, x: Tensor, tables: MeshTables, level: int) -> Tensor:
        """From `level` to the same one, or with stride 2 to the next coarser."""
        y = self.first(x, tables, level)
        y = self.second(y, tables, level - 1 if self.stride == 2 else level)
        return F.relu(y + self.shortcut(pool_faces(x) if self.stride == 2 else x))


class Stem(nn.Module):
    """Texture samples of the mesh's faces to features, (N, F 4^k, 3) to (N, F, C)."""

    def __init__(self, kind: str, width: int, texture_level: int, **ring: object) -> None:
        super().__init__()
        self.samples = 4**texture_level
        self.steps = nn.ModuleList()
        if kind == "mesh":
            for step in range(texture_level):
                conv = MeshConv(width if step else 3, width, stride=2, bias=False)
                self.steps.append(ConvNorm(conv))
        self.linear = None if len(self.steps) else LinearNorm(3 * self.samples, width)
        self.last = ConvNorm(MeshConv(width, width, bias=False, **ring))

    def forward(self, x: Tensor, tables: MeshTables, level: int) -> Tensor:
        """To the faces of `level`."""
        if self.linear is not None:
            x = self.linear(x.unflatten(1, (-1, self.samples)).flatten(2))
        for index, step in enumerate(self.steps):
            x = step(x, tables, level + len(self.steps) - index)
        return self.last(x, tables, level)


class Head(nn.Module):
    """Features of faces to one number for each sample, (N, F, C) to (N, F 4^k)."""

    def __init__(self, kind: str, width: int, texture_level: int) -> None:
        super().__init__()
        finer = texture_level if kind == "mesh" else 0
        self.first = nn.Linear(width, _HIDDEN)
        self.steps = nn.ModuleList([nn.Linear(_HIDDEN, _HIDDEN) for _ in range(finer)])
        self.last = nn.Linear(_HIDDEN, 4**texture_level if kind == "concat" else 1)

    def forward(self, x: Tensor, tables: MeshTables, level: int) -> Tensor:
        """From the faces of `level`."""
        x = F.relu(self.first(x))
        for index, step in enumerate(self.steps):
            x = F.relu(step(unpool_faces(x, *tables.neighbours(Ring(level + index)))))
        return self.last(x).flatten(1)


class DecoderStep(nn.Module):
    """From one level to the next finer, whose features of the encoder join in."""

    def __init__(
        self, in_channels: int, skip: int, out_channels: int, count: int, **ring: object
    ) -> None:
        super().__init__()
        widths = [in_channels + skip, *[out_channels] * count]
        self.convs = nn.ModuleList(
            [
                ConvNorm(MeshConv(a, b, bias=False, **ring))
                for a, b in zip(widths, widths[1:], strict=False)
            ]
        )

    def forward(self, x: Tensor, skip: Tensor, tables: MeshTables, level: int) -> Tensor:
        """From the faces of `level` to those of `level` + 1."""
        x = unpool_faces(x, *tables.neighbours(Ring(level)))
        x = torch.cat((x, skip), 2)
        for conv in self.convs:
            x = conv(x, tables, level + 1)
        return x


class SphereDepthNet(nn.Module):
    """The network; its cost is set by the mesh and not by the image.

    Levels L + k that suit an image: 7 for 512x1024, 6 for 256x512.

    Args:
        mesh_level: L, of the finest features; at least 4.
        texture_level: k: each face of level L is seen, and gets depths, at its 4^k descendants.
        widths: channels at the levels L, L − 1, … L − 4.
        blocks: residual blocks at each level but the finest.
        decoder_convs: convolutions at each level of the decoder.
        stem: `mesh` convolves the samples down to level L; `concat` puts them side by side.
        head: `mesh` unpools to level L + k; `concat` predicts the depths of a face side by side;
            `face` predicts one depth for each face of level L.
        kernel: of the convolutions: 1, 3 or 5.
        dilation: of those of kernel 3.
        symmetric: dilated convolutions look both ways round, see `SphericalMesh.ring`.
        normalize: scale the sums of more than three neighbours to those of three.
        side_outputs: also predict depth at the decoder's levels, for training.
        max_depth: the largest depth in metres.
        activation: `sigmoid` of 0 to `max_depth`, or `softplus` without a bound.

    Raises:
        ValueError: a level or number too small, or an unknown stem, head or activation.
    """

    output_names = ("depth",)

    def __init__(
        self,
        *,
        mesh_level: int = 6,
        texture_level: int = 1,
        widths: Sequence[int] = (64, 64, 128, 256, 512),
        blocks: int = 2,
        decoder_convs: int = 2,
        stem: Literal["mesh", "concat"] = "mesh",
        head: Literal["mesh", "concat", "face"] = "mesh",
        kernel: int = 3,
        dilation: int = 1,
        symmetric: bool = False,
        normalize: bool = False,
        side_outputs: bool = True,
        max_depth: float = 10.0,
        activation: Literal["sigmoid", "softplus"] = "sigmoid",
    ) -> None:
        super().__init__()
        check_levels(mesh_level, texture_level, _SCALES - 1)
        for name, value, known in (
            ("stem", stem, ("mesh", "concat")),
            ("head", head, ("mesh", "concat", "face")),
            ("activation", activation, ("sigmoid", "softplus")),
        ):
            if value not in known:
                raise ValueError(f"{name} {value!r} is unknown: choose {' or '.join(known)}")
        if len(widths) != _SCALES or min(*widths, blocks, decoder_convs) < 1:
            raise ValueError(
                f"widths must be {_SCALES} numbers from 1 on, blocks and decoder_convs at least "
                f"1, not {list(widths)}, {blocks} and {decoder_convs}"
            )
        self.mesh_level, self.texture_level = mesh_level, texture_level
        self.max_depth, self.activation = max_depth, activation
        ring = {
            "kernel": kernel,
            "dilation": dilation,
            "symmetric": symmetric,
            "normalize": normalize,
        }
        self.stem = Stem(stem, widths[0], texture_level, **ring)
        self.encoder = nn.ModuleList(
            [
                nn.ModuleList(
                    [
                        ResidualBlock(b if block else a, b, 1 if block else 2, **ring)
                        for block in range(blocks)
                    ]
                )
                for a, b in zip(widths, widths[1:], strict=False)
            ]
        )
        outs = [*reversed(widths[1:-1]), widths[0]]  # 256, 128, 64, 64
        self.decoder = nn.ModuleList(
            [
                DecoderStep(before, skip, out, decoder_convs, **ring)
                for before, skip, out in zip(
                    (widths[-1], *outs), widths[-2::-1], outs, strict=False
                )
            ]
        )
        self.head = Head(head, widths[0], texture_level)
        self.sides = nn.ModuleList([nn.Linear(out, 1) for out in outs[:-1] if side_outputs])
        self.tables = MeshTables(self._rings(), mesh_level + texture_level)

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
        pixels = faces_to_equirectangular(depth[..., None], height, width)
        return Prediction(pixels, depth, colours)

    def forward_stages(self, image: Tensor, rotation: Tensor | None = None) -> tuple[Tensor, ...]:
        """Depth on faces at several levels, for training.

        Args:
            image: as of `forward`.
            rotation: (3, 3) or (N, 3, 3), orthogonal: face f looks where R c_f does.

        Returns:
            (N, F) at the output's level, and with `side_outputs` at L − 1, L − 2 and L − 3.
        """
        return self.forward_faces(self.texture(image, rotation))

    def forward_faces(self, texture: Tensor) -> tuple[Tensor, ...]:
        """`forward_stages` of colours at the faces of level L + k, (N, F, 3), RGB in [0, 1]."""
        depth, decoded = self._decode(texture)
        sides = [self._depth(side(x)[..., 0]) for side, x in zip(self.sides, decoded, strict=False)]
        return depth, *reversed(sides)

    def texture(self, image: Tensor, rotation: Tensor | None = None) -> Tensor:
        """Colours at the centroids of level L + k, (N, F, 3); arguments as of `forward_stages`."""
        if image.dim() != 4 or image.shape[1] != 3:
            raise ValueError(
                "the image must be RGB, (batch, 3, height, width), but has shape "
                f"{tuple(image.shape)}"
            )
        if rotation is not None:
            level = self.mesh_level + self.texture_level
            return equirectangular_to_faces(image, level, rotation=rotation)
        return sample_at(image, self.tables.coordinates)

    def _decode(self, texture: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The output, and the decoder's features, coarsest first."""
        mean, std = texture.new_tensor(IMAGENET_MEAN), texture.new_tensor(IMAGENET_STD)
        level, tables = self.mesh_level, self.tables
        features = [self.stem((texture - mean) / std, tables, level)]
        for scale in self.encoder:
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
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        return F.softplus(x) if self.activation == "softplus" else self.max_depth * x.sigmoid()

    def _rings(self) -> list[Ring]:
        """What its layers look at: the same at every level of the trunk."""
        coarsest = self.mesh_level - _SCALES + 1
        rings = [Ring(level) for level in range(coarsest, self.mesh_level + len(self.head.steps))]
        convs = [layer for layer in self.modules() if isinstance(layer, MeshConv)]
        for level in range(coarsest, self.mesh_level + 1):
            rings += [conv.ring(level) for conv in convs if level > coarsest or conv.stride == 1]
        return [ring for ring in dict.fromkeys(rings) if ring is not None]


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
    return _r18(5, texture_level, stem, head, kernel, dilation, max_depth)


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
    return _r18(6, texture_level, stem, head, kernel, dilation, max_depth)


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
    return _r18(7, texture_level, stem, head, kernel, dilation, max_depth)


def _r18(
    mesh_level: int,
    texture_level: int,
    stem: str,
    head: str,
    kernel: int,
    dilation: int,
    max_depth: float,
) -> SphereDepthNet:
    return SphereDepthNet(
        mesh_level=mesh_level,
        texture_level=texture_level,
        stem=stem,
        head=head,
        kernel=kernel,
        dilation=dilation,
        max_depth=max_depth,
    )


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
    return SphereDepthNet(
        mesh_level=mesh_level,
        texture_level=texture_level,
        widths=(24, 32, 48, 64, 96),
        blocks=1,
        decoder_convs=1,
        stem=stem,
        head=head,
        kernel=kernel,
        dilation=dilation,
        symmetric=symmetric,
        max_depth=max_depth,
    )
