"""Small pieces that networks of several tasks share."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["IMAGENET_MEAN", "IMAGENET_STD", "SameConvTranspose2d", "normalize_images", "pad_to"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


def normalize_images(images: Tensor, scheme: str = "imagenet") -> Tensor:
    """Standardise RGB images.

    Args:
        images: (B, 3, H, W), values in [0, 1].
        scheme: `imagenet` takes the data set's mean and deviation; `instance` standardises each
            channel of each image by its own mean and deviation.

    Raises:
        ValueError: the images are not (B, 3, H, W), or the scheme is unknown.
    """
    if images.dim() != 4 or images.shape[1] != 3:
        raise ValueError(
            f"images must be RGB, (batch, 3, height, width), but have shape {tuple(images.shape)}"
        )
    if scheme == "imagenet":
        mean, std = (images.new_tensor(v).view(1, 3, 1, 1) for v in (IMAGENET_MEAN, IMAGENET_STD))
        return (images - mean) / std
    if scheme == "instance":
        std, mean = torch.std_mean(images, dim=(2, 3), correction=0, keepdim=True)
        return (images - mean) / std.clamp(min=1e-6)
    raise ValueError(f"normalization {scheme!r} is unknown: choose 'imagenet' or 'instance'")


def pad_to(x: Tensor, multiple: int) -> Tensor:
    """Zero-pad (B, C, H, W) on top and on the right to the next multiples of `multiple`."""
    height, width = x.shape[-2:]
    # Written so that torch.export can bound the result for a range of sizes.
    right, top = ((size + multiple - 1) // multiple * multiple - size for size in (width, height))
    return F.pad(x, (0, right, top, 0))


class SameConvTranspose2d(nn.ConvTranspose2d):
    """A stride-1 transposed convolution that keeps the size, run as the convolution it equals.

    The weight keeps the transposed layout (in, out, k, k), so that checkpoints of networks that
    use `nn.ConvTranspose2d` load unchanged; the convolution is 1.2 to 2.7 times as fast on a CPU.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__(in_channels, out_channels, kernel_size, padding=kernel_size // 2)

    def convolution_weight(self) -> Tensor:
        """The kernel of the equal convolution, (out, in, k, k)."""
        return self.weight.flip(2, 3).transpose(0, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.convolution_weight(), self.bias, padding=self.padding)

    def fused(self, dtype: torch.dtype) -> nn.Conv2d:
        """The equal convolution, see `inference.optimize`."""
        weight = self.convolution_weight().detach()
        conv = nn.Conv2d(*self.weight.shape[:2], self.kernel_size, padding=self.padding)
        conv = conv.to(device=weight.device, dtype=dtype)
        conv.load_state_dict({"weight": weight, "bias": self.bias.detach()})
        return conv
