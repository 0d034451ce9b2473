"""What networks of images have in common whose blocks are searched; inverted residuals of these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, cast

from torch import Tensor, nn

from ...nas import elastic
from ...nas.space import Architecture, Choice, SearchSpace
from ...nas.values import Value
from ...vision.layers import ConvNorm, InvertedResidual, check_images

__all__ = ["SearchedClassifier", "inverted_residual", "operations", "rounded", "searched_operation"]


def operations(
    choices: Iterable[Choice], subnet: Mapping[str, Any] | None
) -> dict[str, Choice | str]:
    """By the name of each choice itself, or the operation that a subnet, as JSON, has there.

    Raises:
        ValueError: it is no subnet of these choices.
    """
    known: dict[str, Any] = {choice.name: choice for choice in choices}
    if subnet is None:
        return known
    architecture = SearchSpace(known.values()).validate(Architecture.from_json(subnet))
    return dict(cast("Mapping[str, str]", architecture))


def searched_operation(
    choice: Choice | str, make: Callable[..., nn.Module], *arguments: Any
) -> nn.Module:
    """The operations of a choice, or the one that is named, each as `make(name, *arguments)`."""
    names = [str(name) for name in choice.values] if isinstance(choice, Choice) else [choice]
    return elastic.Operation({name: make(name, *arguments) for name in names}, choice)


class SearchedClassifier(nn.Module):
    """Features of images, their average, and a linear layer; images are scaled within.

    A subclass defines `features` and has the last layer as `classifier`.

    Args:
        classes: outputs.

    Raises:
        ValueError: fewer than two classes.
    """

    output_names = ("logits",)
    classifier: nn.Linear

    def __init__(self, classes: int) -> None:
        super().__init__()
        if classes < 2:
            raise ValueError(f"a classifier needs two classes or more, not {classes}")

    def features(self, x: Tensor) -> Tensor:
        """From scaled images, (B, 3, H, W), what is averaged, (B, C, h, w)."""
        raise NotImplementedError

    def forward(self, image: Tensor) -> Tensor:
        """Logits (B, classes) of images (B, 3, H, W), RGB in [0, 1].

        Raises:
            ValueError: they are something of another shape.
        """
        return self.forward_head(self.forward_features(image).mean((2, 3)))

    def forward_features(self, image: Tensor) -> Tensor:
        """What is averaged for the classifier, (B, C, h, w)."""
        check_images(image)
        return self.features((image - 0.5) / 0.25)

    def forward_head(self, x: Tensor) -> Tensor:
        """From the average, (B, C), the logits."""
        return self.classifier(x)

    def get_classifier(self) -> nn.Linear:
        """The last layer; the name is timm's."""
        return self.classifier


def inverted_residual(
    in_channels: int,
    channels: int,
    kernel: Value | int,
    ratio: Value | int,
    stride: int = 1,
    *,
    activation: type[nn.Module] = nn.ReLU,
    squeezed: bool = False,
    eps: float = 1e-5,
) -> InvertedResidual:
    """A block that adds its input where shapes agree.

    Args:
        in_channels: of the input.
        channels: of the output.
        kernel: of the depthwise convolution.
        ratio: of the inner channels to the input's; 1 leaves the expansion out.
        stride: of the depthwise convolution.
        activation: after expansion and depthwise convolution.
        squeezed: whether a squeeze-excite gates the inner channels.
        eps: of the batch norms.
    """
    inner = _of(ratio, lambda number: rounded(in_channels * number))
    convolution = partial(ConvNorm, activation=activation, eps=eps)
    # One after the other as they run, since each draws random weights.
    expand = nn.Identity() if ratio == 1 else convolution(in_channels, inner)
    depthwise = convolution(inner, inner, kernel, stride, groups=inner)
    squeeze = None
    if squeezed:
        squeeze = elastic.SqueezeExcite(inner, _of(inner, lambda number: rounded(number // 4)))
    project = ConvNorm(inner, channels, eps=eps)
    residual = stride == 1 and in_channels == channels
    return InvertedResidual(expand, depthwise, project, residual, squeeze)


def rounded(channels: float) -> int:
    """The nearest multiple of 8, unless that is less than 0.9 of it (MobileNetV2's rule)."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * channels else nearest


def _of(number: Value | int, function: Callable[[int], int]) -> Value | int:
    return number.map(function) if isinstance(number, Value) else function(number)
