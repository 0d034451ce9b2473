"""Sampling the right view where a disparity map points; by kernels of ``kernels/warp.cu``."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ._kernels import KERNELS, TYPES, Arguments, launch
from ._registration import exporting, register_composite

__all__ = ["warp_by_disparity"]

KERNELS["warp"] = ("warp_forward<{}>", "warp_backward_disparity<{}>", "warp_backward_image<{}>")
_THREADS = 128
_CHANNELS = 16  # of a GPU's thread


def warp_by_disparity(
    image: Tensor, disparity: Tensor, *, padding: str = "border", align_corners: bool = True
) -> Tensor:
    """Samples ``image`` at (x - disparity, y), bilinearly: the right view as the left sees it.

    Positions are float32 (float64 for a float64 disparity), whatever the image's type, also
    under autocast. A disparity that is NaN gives NaN. Needs two float32 numbers per pixel of
    workspace, and a float32 copy of an image of another type. Second derivatives work as far as
    ``grid_sample`` has them (not on every device).

    Args:
        image: right view or its features, (B, C, H, W), floating.
        disparity: (B, 1, H, W), pixels, floating, on the same device.
        padding: ``"border"`` repeats the edge, ``"zeros"`` reads 0 outside.
        align_corners: True samples where the first line says. False reproduces the published
            networks, whose grid is normalised by W - 1 and H - 1 and yet read with corners
            unaligned: the place really read is ``(x - d) * W / (W - 1) - 0.5`` and
            ``y * H / (H - 1) - 0.5``.

    Returns:
        (B, C, H, W), the type of ``image``.

    Raises:
        ValueError: the shapes do not belong together, the devices differ, a type is not
            floating, or ``padding`` is unknown.
    """
    if image.dim() != 4 or disparity.shape != (image.shape[0], 1, *image.shape[2:]):
        raise ValueError(
            "image must be (B, C, H, W) and disparity (B, 1, H, W), "
            f"got {tuple(image.shape)} and {tuple(disparity.shape)}"
        )
    if image.device != disparity.device:
        raise ValueError(f"image is on {image.device} and disparity on {disparity.device}")
    if not (image.is_floating_point() and disparity.is_floating_point()):
        raise ValueError(
            f"image and disparity must be floating, got {image.dtype} and {disparity.dtype}"
        )
    if padding not in ("border", "zeros"):
        raise ValueError(f"padding must be 'border' or 'zeros', got {padding!r}")
    if exporting():
        return _warp(image, disparity, padding, align_corners)
    return torch.ops.vizoo.warp_by_disparity(image, disparity, padding, align_corners)


def _warp(image: Tensor, disparity: Tensor, padding: str, align_corners: bool) -> Tensor:
    exact, disparity, grid, _ = _prepared(image, disparity, align_corners)
    sampled = F.grid_sample(exact, grid, mode="bilinear", padding_mode=padding, align_corners=False)
    return torch.where(torch.isnan(disparity), disparity, sampled).to(image.dtype)


def _prepared(
    image: Tensor, disparity: Tensor, align_corners: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Image and disparity in the type computed in, the grid to sample at, and a pixel in it."""
    height, width = image.shape[-2:]
    dtype = torch.promote_types(torch.promote_types(image.dtype, disparity.dtype), torch.float32)
    disparity = disparity.to(dtype)
    places, pixel = _places(width, align_corners, disparity)
    # On the CPU, NaN places end the process in grid_sample's backward pass.
    x = torch.addcmul(places, disparity[:, 0].nan_to_num(), pixel, value=-1)
    y = _places(height, align_corners, disparity)[0][:, None].expand_as(x)
    # Three is far outside already; an infinite place would turn "zeros" into NaN.
    return image.to(dtype), disparity, torch.stack((x.clamp(-3, 3), y), dim=-1), pixel


def _places(size: int, align_corners: bool, like: Tensor) -> tuple[Tensor, Tensor]:
    """The pixels of an axis in `grid_sample`'s coordinates, and what one pixel is there."""
    position = torch.arange(size, device=like.device, dtype=like.dtype)
    if align_corners:
        return (2 * position + 1) / size - 1, like.new_full((), 2.0) / size
    last = max(size - 1, 1)
    return 2 * position / last - 1, like.new_full((), 2.0) / last


def _backward(
    gradient: Tensor,
    image: Tensor,
    disparity: Tensor,
    padding: str,
    align_corners: bool,
    wanted: tuple[bool, bool],
) -> Tensor:
    """To the image or to the disparity."""
    exact, places, grid, pixel = _prepared(image, disparity, align_corners)
    lost, gradient = torch.isnan(places), gradient.to(exact.dtype)
    to_image, to_grid = torch.ops.aten.grid_sampler_2d_backward(
        gradient.masked_fill(lost, 0), exact, grid, 0, int(padding == "border"), False, wanted
    )
    if wanted[0]:
        return torch.empty_like(image).copy_(to_image)
    moves = grid[..., 0].abs() < 3
    to_disparity = (-pixel * to_grid[..., 0] * moves)[:, None]
    to_disparity = torch.where(lost, gradient.sum(1, keepdim=True), to_disparity)
    return torch.empty_like(disparity).copy_(to_disparity)


def _forward_cuda(image: Tensor, disparity: Tensor, padding: str, align_corners: bool) -> Tensor:
    out = torch.empty_like(image)
    maps = image, *image.stride(), *_exact(disparity), out, *out.stride()
    _launch("forward", image, -(-image.shape[1] // _CHANNELS), maps, padding, align_corners)
    return out


def _backward_image_cuda(
    gradient: Tensor, image: Tensor, disparity: Tensor, padding: str, align_corners: bool
) -> Tensor:
    out = torch.empty_like(image)
    maps = gradient, *gradient.stride(), *_exact(disparity), out, *out.stride()
    _launch("backward_image", image, -(-image.shape[1] // _CHANNELS), maps, padding, align_corners)
    return out


def _backward_disparity_cuda(
    gradient: Tensor, image: Tensor, disparity: Tensor, padding: str, align_corners: bool
) -> Tensor:
    out = disparity.new_empty(disparity.shape, dtype=torch.float32)
    maps = gradient, *gradient.stride(), image, *image.stride(), *_exact(disparity), out
    _launch("backward_disparity", image, 1, maps, padding, align_corners)
    if disparity.is_contiguous():
        return out.to(disparity.dtype)
    return torch.empty_like(disparity).copy_(out)


def _launch(
    kernel: str, image: Tensor, depth: int, maps: Arguments, padding: str, align_corners: bool
) -> None:
    """Start a kernel with `depth` blocks for the channels of an image's pixels."""
    batch, channels, height, width = image.shape
    launch(
        "warp",
        f"warp_{kernel}<{TYPES[image.dtype]}>",
        (-(-width // _THREADS), height, batch * depth),
        _THREADS,
        *maps,
        *(batch, channels, height, width, int(padding == "border"), int(align_corners)),
    )


def _exact(disparity: Tensor) -> Arguments:
    """In float32, and its strides but for the channel's: in a half type places would be off."""
    disparity = disparity.float()
    batch, _, y, x = disparity.stride()
    return disparity, batch, y, x


def _refuses(image: Tensor, disparity: Tensor, padding: str, align_corners: bool) -> str | None:
    return "no kernels for float64" if disparity.dtype == torch.float64 else None


register_composite(
    "warp_by_disparity",
    "Tensor image, Tensor disparity, str padding, bool align_corners",
    _warp,
    _forward_cuda,
    {
        "image": (partial(_backward, wanted=(True, False)), _backward_image_cuda),
        "disparity": (partial(_backward, wanted=(False, True)), _backward_disparity_cuda),
    },
    lambda image, *_: torch.empty_like(image),
    _refuses,
)
