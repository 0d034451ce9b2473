"""What networks of images have in common whose blocks are searched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from ...nas import elastic
from ...nas.space import Choice
from ...vision.layers import check_images

__all__ = ["SearchedClassifier", "searched_operation"]


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
        """Scores of the classes.

        Args:
            image: (B, 3, H, W), RGB in [0, 1].

        Returns:
            Logits, (B, classes).

        Raises:
            ValueError: it is something of another shape.
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
