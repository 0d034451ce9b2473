"""DispMVS: depth of one view from others, by distances travelled along epipolar lines.

Paper: Yan et al., "Rethinking Disparity: A Depth Range Free Multi-View Stereo Based on Disparity",
AAAI 2023, arXiv 2211.16905. Its ancestors are RAFT and CER-MVS.

For each pair of the reference (view 0) and another view a GRU looks up correlations along the
epipolar line and refines how far the match has travelled on it. The depths that follow are averaged
over the pairs with learned weights and projected back, so that all pairs agree before the next
iteration. A coarse stage at 1/16 starts from random depth, a fine one at 1/4 from its result.

What differs from the published program: images enter in [0, 1] and are normalised inside; any size
is accepted (padded inside, cropped back); the random start can be seeded or given; pixels at an
epipole, where the line has no direction, stay finite. What the weights depend on is kept, such as
absolute values in projection and triangulation and the zeros around the upsampled maps. Computed
otherwise, to the same result: all pairs are one batch, the context's share of the GRU's
convolutions is computed once a stage, and before a stage's last iteration only those pixels are
upsampled that the next one starts from. New: `dispmvs_tiny`, and `dispmvs_elastic`, the same
network with elastic widths, radii, iterations and number of views.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ..nas.space import Choice
from ..nas.supernet import subnet_of
from ..vision.hub.registry import register_model
from ..vision.layers import check_range, convex_upsample
from ..vision.ops import epipolar_correlation
from ._dispmvs_geometry import (
    depth_to_flow,
    epipolar_lines,
    flow_to_inverse_depth,
    inverse_range,
    normalize_inverse_depth,
    random_start,
)
from ._dispmvs_inference import FusedExtractor, FusedUpdateBlock
from ._dispmvs_layers import UPSAMPLING, Extractor, UpdateBlock, Width, number
from ._weights import DISPMVS_TINY

__all__ = [
    "DispMVS",
    "convert_published",
    "dispmvs",
    "dispmvs_elastic",
    "dispmvs_tiny",
    "start_from",
]

_COARSE, _FINE = 16, 4  # the stages' scales
_LEVELS = {_COARSE: 4, _FINE: 2}  # of the sources' pyramids
_SMALLEST = 128  # three halvings of 1/16


class DispMVS(nn.Module):
    """The network; elastic where a number is a choice's.

    Args:
        feature_width: channels of the extractors, in eighths of the published ones.
        coarse_width: channels of the coarse stage's update block, likewise.
        fine_width: of the fine stage's.
        coarse_iterations: how often the coarse stage refines.
        fine_iterations: how often the fine one does.
        coarse_radius: reach of a coarse lookup, in pixels of 1/16.
        fine_radius: reach of a fine lookup, in pixels of 1/4.
        views: use so many of the given views at most, the reference with them; None for all.

    Attributes:
        checkpointing: in training compute each iteration again instead of keeping it in memory.

    Raises:
        ValueError: a number is below 1, or `views` below 2.
    """

    output_names = ("depth",)
    input_names = ("images", "intrinsics", "extrinsics", "depth_range", "start")
    example_views = 3

    def __init__(
        self,
        *,
        feature_width: int = 8,
        coarse_width: Width = 8,
        fine_width: Width = 8,
        coarse_iterations: Width = 8,
        fine_iterations: Width = 2,
        coarse_radius: Width = 4,
        fine_radius: Width = 2,
        views: Width | None = None,
    ) -> None:
        super().__init__()
        least = {
            "feature_width": (feature_width, 1),
            "coarse_width": (coarse_width, 1),
            "fine_width": (fine_width, 1),
            "coarse_iterations": (coarse_iterations, 1),
            "fine_iterations": (fine_iterations, 1),
            "coarse_radius": (coarse_radius, 0),
            "fine_radius": (fine_radius, 0),
            "views": (views, 2),
        }
        for name, (value, lowest) in least.items():
            if isinstance(value, int) and value < lowest:
                raise ValueError(f"{name} must be at least {lowest}, not {value}")
        widths = 8 * feature_width, 12 * feature_width, 16 * feature_width
        hidden = {_COARSE: coarse_width * 16, _FINE: fine_width * 12}
        self.fnet = Extractor(widths, nn.InstanceNorm2d)
        self.cnet = Extractor(widths, nn.BatchNorm2d, (hidden[_FINE], hidden[_COARSE]))
        coarse = coarse_width, _LEVELS[_COARSE], coarse_radius
        self.update_block_4 = UpdateBlock(hidden[_COARSE], *coarse)
        self.update_block_2 = UpdateBlock(hidden[_FINE], fine_width, _LEVELS[_FINE], fine_radius)
        self.coarse_iterations = number(coarse_iterations)
        self.fine_iterations = number(fine_iterations)
        self.coarse_radius, self.fine_radius = number(coarse_radius), number(fine_radius)
        self.views = None if views is None else number(views)
        self.checkpointing = False

    def fused(self, dtype: torch.dtype) -> nn.Module:
        """A faster form for inference, see `inference.optimize`."""
        net = copy.copy(self)
        net._modules = {
            **net._modules,
            "fnet": FusedExtractor(self.fnet, dtype),
            "cnet": FusedExtractor(self.cnet, dtype),
            "update_block_4": FusedUpdateBlock(self.update_block_4, dtype),
            "update_block_2": FusedUpdateBlock(self.update_block_2, dtype),
        }
        return net

    def forward(
        self,
        images: Tensor,
        intrinsics: Tensor,
        extrinsics: Tensor,
        depth_range: Tensor,
        start: Tensor | None = None,
        *,
        generator: Generator | None = None,
    ) -> Tensor:
        """Depth of view 0.

        Args:
            images: (B, V, 3, H, W), RGB in [0, 1], any size, V at least 2.
            intrinsics: (B, V, 3, 3), in pixels of the images: [fx s cx; 0 fy cy; 0 0 1].
            extrinsics: (B, V, 4, 4), world to camera.
            depth_range: (B, 2), nearest and furthest depth. It scales what is predicted and bounds
                the random start; the search is not bound to it.
            start: depth to start from, (B, 1, ceil(H / 16), ceil(W / 16)); None draws it.
            generator: for that; None takes one of seed 0, in training PyTorch's own.

        Returns:
            (B, 1, H, W), within `depth_range`.

        Raises:
            ValueError: shapes that do not belong together, or a single view.
        """
        views = images, intrinsics, extrinsics, depth_range
        start = self._checked_start(*views, start, generator)
        height, width = images.shape[-2:]
        high, wide = _padded(height), _padded(width)
        start = _extend(start, high // _COARSE, wide // _COARSE)
        images = _extend(images.flatten(0, 1), high, wide).unflatten(0, images.shape[:2])
        _, fine = self._stages(images, intrinsics, extrinsics, depth_range, start, every=False)
        return fine[-1][:, :, :height, :width]

    def forward_stages(
        self,
        images: Tensor,
        intrinsics: Tensor,
        extrinsics: Tensor,
        depth_range: Tensor,
        start: Tensor | None = None,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Depth after every iteration, for training; arguments as of `forward`.

        Returns:
            Of the coarse stage (B, 1, H / 4, W / 4), of the fine one (B, 1, H, W), first to last.

        Raises:
            ValueError: as `forward`, or H or W is no multiple of 16 or below 128.
        """
        views = images, intrinsics, extrinsics, depth_range
        start = self._checked_start(*views, start)
        height, width = images.shape[-2:]
        if height % _COARSE or width % _COARSE or min(height, width) < _SMALLEST:
            raise ValueError(
                f"training images must have sizes from {_SMALLEST} on that are multiples of "
                f"{_COARSE}, not {height}x{width}: crop or resize them (inference takes any size)"
            )
        return self._stages(*views, start, every=True)

    def example_inputs(
        self,
        height: int,
        width: int,
        *,
        batch: int = 1,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> tuple[Tensor, ...]:
        """Random images, cameras side by side, and a start; see `vision.inputs`."""
        views = self.example_views if self.views is None else self.views.value
        kind = torch.promote_types(dtype, torch.float32)
        like: dict[str, Any] = {"device": device, "dtype": kind}
        images = torch.rand(batch, views, 3, height, width, device=device, dtype=dtype)
        focal = 0.8 * max(height, width)
        camera = [[focal, 0, (width - 1) / 2], [0, focal, (height - 1) / 2], [0, 0, 1]]
        intrinsics = torch.tensor(camera, **like).expand(batch, views, 3, 3)
        places = [
            [[1, 0, 0, 0.1 * (-1) ** v * v], [0, 1, 0, 0.05 * v], [0, 0, 1, 0.02 * v], [0, 0, 0, 1]]
            for v in range(views)
        ]
        extrinsics = torch.tensor(places, **like).expand(batch, views, 4, 4)
        depth_range = torch.tensor([1.0, 4.0], **like).expand(batch, 2)
        shape = batch, 1, -(-height // _COARSE), -(-width // _COARSE)
        start = 1 / (0.25 + 0.75 * torch.rand(shape, **like))
        return images, intrinsics.clone(), extrinsics.clone(), depth_range.clone(), start

    def _checked_start(
        self,
        images: Tensor,
        intrinsics: Tensor,
        extrinsics: Tensor,
        depth_range: Tensor,
        start: Tensor | None,
        generator: Generator | None = None,
    ) -> Tensor:
        """The depth to start from: what is given or else drawn, once all shapes fit."""
        if images.dim() != 5 or images.shape[2] != 3:
            raise ValueError(
                "images must be RGB, (batch, views, 3, height, width), but have shape "
                f"{tuple(images.shape)}"
            )
        check_range(images)
        batch, views = images.shape[:2]
        if views < 2:
            raise ValueError(f"{views} view: depth needs at least 2, the reference and another")
        for name, tensor, shape in (
            ("intrinsics", intrinsics, (batch, views, 3, 3)),
            ("extrinsics", extrinsics, (batch, views, 4, 4)),
            ("depth_range", depth_range, (batch, 2)),
        ):
            if tensor.shape != shape:
                raise ValueError(f"{name} must be {shape}, not {tuple(tensor.shape)}")
        height, width = (-(-size // _COARSE) for size in images.shape[-2:])
        if start is None:
            if generator is None and not self.training:
                generator = torch.Generator().manual_seed(0)
            return random_start(depth_range, height, width, generator)
        if start.dim() != 4 or start.shape != (batch, 1, height, width):
            raise ValueError(
                f"start must be {(batch, 1, height, width)} for images of "
                f"{images.shape[-2]}x{images.shape[-1]}, not {tuple(start.shape)}"
            )
        return start

    def _stages(
        self,
        images: Tensor,
        intrinsics: Tensor,
        extrinsics: Tensor,
        depth_range: Tensor,
        start: Tensor,
        *,
        every: bool,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Depth by both stages: every iteration in full, or the last one only."""
        if self.views is not None:
            images, intrinsics, extrinsics = (
                x[:, : self.views.value] for x in (images, intrinsics, extrinsics)
            )
        images = 2 * images - 1
        features = self._features(images)
        contexts = self.cnet(images[:, 0])
        cameras = intrinsics, extrinsics, depth_range
        coarse = self._refine(_COARSE, features[1], contexts[1], cameras, start, every)
        depth = coarse[-1].detach()
        fine = self._refine(_FINE, features[0], contexts[0], cameras, depth, every)
        return coarse, fine

    def _features(self, images: Tensor) -> list[Tensor]:
        """(B, V, C, h, w) at 1/4 and 1/16. In training view by view, as batch norms have it."""
        if self.training:
            views = [self.fnet(view) for view in images.unbind(1)]
            return [torch.stack(maps, 1) for maps in zip(*views, strict=True)]
        return [maps.unflatten(0, images.shape[:2]) for maps in self.fnet(images.flatten(0, 1))]

    def _refine(
        self,
        scale: int,
        features: Tensor,
        context: Tensor,
        cameras: tuple[Tensor, Tensor, Tensor],
        depth: Tensor,
        every: bool,
    ) -> list[Tensor]:
        """One stage, from `depth` at its own size."""
        intrinsics, extrinsics, depth_range = cameras
        coarse = scale == _COARSE
        block = self.update_block_4 if coarse else self.update_block_2
        iterations = (self.coarse_iterations if coarse else self.fine_iterations).value
        radius = (self.coarse_radius if coarse else self.fine_radius).value
        with torch.no_grad():
            lines = epipolar_lines(intrinsics, extrinsics, depth, scale)
        pyramid = source_pyramid(features[:, 1:], _LEVELS[scale])
        reference = features[:, 0].contiguous(memory_format=torch.channels_last)
        hidden, context = context.chunk(2, 1)
        prepared = block.prepare(F.relu(context))
        pairs = features.shape[1] - 1
        hidden = hidden.tanh().repeat_interleave(pairs, 0)

        def iterate(hidden: Tensor, flow: Tensor, whole: bool) -> tuple[Tensor, Tensor, Tensor]:
            cost = epipolar_correlation(
                reference, pyramid, lines.base, lines.direction, flow, radius
            )
            pair_flow = flow.flatten(0, 1)[:, None]
            hidden, change = block(hidden, prepared, cost.flatten(0, 1), pair_flow)
            change = change.to(flow.dtype).unflatten(0, flow.shape[:2])
            flow = flow + change[:, :, 0]
            rho = normalize_inverse_depth(flow_to_inverse_depth(lines, flow), depth_range)
            maps = torch.stack((rho, change[:, :, 1]), 2).flatten(0, 1)  # (B S, 2, h, w)
            maps = convex_upsample(maps, block.upsampling(hidden, corner=not whole))
            return hidden, flow, fuse(maps.unflatten(0, flow.shape[:2]), depth_range)

        flow = torch.zeros_like(lines.base[:, :, 0])
        results = []
        for iteration in range(iterations):
            whole = every or iteration == iterations - 1
            if self.checkpointing and self.training:
                hidden, flow, fused = checkpoint(
                    iterate, hidden, flow.detach(), whole, use_reentrant=False
                )
            else:
                hidden, flow, fused = iterate(hidden, flow.detach(), whole)
            results.append(fused)
            if iteration < iterations - 1:
                step = UPSAMPLING if whole else 1
                with torch.no_grad():
                    flow = depth_to_flow(lines, fused[:, :, ::step, ::step])
        return results


def start_from(depth: Tensor) -> Tensor:
    """What `DispMVS` starts from where a depth map is known: medians of squares.

    Args:
        depth: (B, 1, H, W), positive.

    Returns:
        (B, 1, ceil(H / 16), ceil(W / 16)): the median inverse depth of 16x16 pixels, as a depth.
    """
    high, wide = (-(-size // _COARSE) for size in depth.shape[-2:])
    inverse = _extend(1 / depth.float(), high * _COARSE, wide * _COARSE)
    squares = F.unfold(inverse, _COARSE, stride=_COARSE).median(1).values
    return 1 / squares.unflatten(1, (high, wide))[:, None]


def source_pyramid(features: Tensor, levels: int) -> list[Tensor]:
    """Maps (B, S, C, h, w) and ever smaller means of them, their channels last in memory."""
    shape = features.shape[:2]
    level = features.flatten(0, 1).contiguous(memory_format=torch.channels_last)
    pyramid = [level.unflatten(0, shape)]
    for _ in range(levels - 1):
        level = F.avg_pool2d(level, 2)
        pyramid.append(level.unflatten(0, shape))
    return pyramid


def fuse(maps: Tensor, depth_range: Tensor) -> Tensor:
    """Depth (B, 1, h, w), averaged over pairs: normalised inverse depth, logit (B, S, 2, h, w)."""
    weights = maps[:, :, 1].softmax(1)
    rho = (weights * maps[:, :, 0]).sum(1, keepdim=True)
    far, near = inverse_range(depth_range)
    return 1 / (rho * (near - far) + far)


def _padded(size: int) -> int:
    whole = (size + _COARSE - 1) // _COARSE * _COARSE
    # A traced size is a tensor, and one that is exported a symbol.
    if isinstance(whole, int):
        return max(whole, _SMALLEST)
    if isinstance(whole, Tensor):
        return whole.clamp(min=_SMALLEST)
    return cast(int, torch.sym_max(whole, _SMALLEST))


def _extend(x: Tensor, height: int, width: int) -> Tensor:
    """Repeat the last row and column up to a size: pixels keep their coordinates."""
    return F.pad(x, (0, width - x.shape[-1], 0, height - x.shape[-2]), mode="replicate")


def convert_published(state: dict[str, Tensor]) -> tuple[str, dict[str, object], dict[str, Tensor]]:
    """Recognise a published checkpoint and rename its tensors.

    A shortcut's batch norm is there twice, as `norm3` and `downsample.1`; the published program
    ends up with the second. Older files name the offsets of deformable convolutions otherwise.

    Args:
        state: tensors by published name, without a `module.` prefix.

    Returns:
        `dispmvs`, no arguments, and its state dict.

    Raises:
        ValueError: the tensors are not DispMVS's.
    """
    needed = "fnet.conv1.weight", "update_block_4.gru.convz1.weight"
    if any(name not in state for name in needed):
        raise ValueError(f"these are not the weights of DispMVS: no {' or no '.join(needed)}")
    renamed = {}
    for name, tensor in state.items():
        for layer in ("o_layer2", "o_layer4"):
            name = name.replace(f".{layer}_offset.", f".{layer}.conv_offset.")
        renamed[name] = tensor
    for name in [name for name in renamed if ".norm3." in name]:
        tensor = renamed.pop(name)
        renamed.setdefault(name.replace(".norm3.", ".downsample.1."), tensor)
    return "dispmvs", {}, renamed


@register_model(task="mvs")
def dispmvs(*, coarse_iterations: int = 8, fine_iterations: int = 2) -> DispMVS:
    """DispMVS as published, 10.4 M parameters."""
    return DispMVS(coarse_iterations=coarse_iterations, fine_iterations=fine_iterations)


@register_model(task="mvs", weights=DISPMVS_TINY)
def dispmvs_tiny(
    *,
    coarse_iterations: int = 4,
    fine_iterations: int = 2,
    coarse_radius: int = 4,
    fine_radius: int = 2,
) -> DispMVS:
    """DispMVS with half the channels and coarse iterations, 2.7 M parameters."""
    return DispMVS(feature_width=4, coarse_width=4, fine_width=4, **locals())


@register_model(task="mvs")
def dispmvs_elastic(*, feature_width: int = 8, subnet: Mapping[str, Any] | None = None) -> DispMVS:
    """DispMVS's supernet, whose largest network is DispMVS, or one of its subnets."""
    widths: Sequence[int] = (4, 5, 6, 7, 8)
    net = DispMVS(
        feature_width=feature_width,
        coarse_width=Choice("coarse.width", widths),
        fine_width=Choice("fine.width", widths),
        coarse_iterations=Choice("coarse.iterations", (2, 4, 6, 8)),
        fine_iterations=Choice("fine.iterations", (1, 2)),
        coarse_radius=Choice("coarse.radius", (2, 3, 4)),
        fine_radius=Choice("fine.radius", (1, 2)),
        views=Choice("views", (2, 3, 4, 5)),
    )
    return subnet_of(net, subnet)
