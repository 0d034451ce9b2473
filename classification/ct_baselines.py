"""Networks that CovidNet3D was compared with: ResNet3D-101, DenseNet3D-121 and MC3-18.

Papers: Hara et al., "Can Spatiotemporal 3D CNNs Retrace the History of 2D CNNs and ImageNet?",
CVPR 2018 (ResNet3D); Huang et al., "Densely Connected Convolutional Networks", CVPR 2017; Tran et
al., "A Closer Look at Spatiotemporal Convolutions for Action Recognition", CVPR 2018 (MC3).

They are torchvision's networks. ResNet3D and DenseNet3D are its 2D ones with every kernel, stride
and pooling extended to the third axis (Carreira and Zisserman, "Quo Vadis, Action Recognition?",
CVPR 2017, section 2.4.1), which stands for cubes throughout: 3x3x3, and 7x7x7 in the stem.
"""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor, nn

from ..vision.hub.registry import register_model
from .covidnet3d import VolumeNetwork, check_volumes

__all__ = ["VolumeClassifier", "densenet3d_121", "mc3_18", "resnet3d_101"]


class VolumeClassifier(VolumeNetwork):
    """Features of volumes with three channels, their average, and a linear layer.

    Args:
        features: (B, 3, D, H, W) to (B, C, d, h, w).
        classifier: C to the classes.
        smallest: axis of a volume that the features take.
    """

    def __init__(self, features: nn.Module, classifier: nn.Linear, smallest: int = 1) -> None:
        super().__init__()
        self.features = features
        self.classifier = classifier
        self.smallest = smallest

    def forward(self, volumes: Tensor) -> Tensor:
        """Logits (B, classes) of volumes (B, 1, D, H, W), grey, in [0, 1]; the channel is repeated.

        Raises:
            ValueError: they are something of another shape, or too small.
        """
        return self.classifier(self.forward_features(volumes).mean((2, 3, 4)))

    def forward_features(self, volumes: Tensor) -> Tensor:
        """What is averaged for the classifier, (B, C, d, h, w)."""
        check_volumes(volumes)
        depth, height, width = volumes.shape[2:]
        if depth < self.smallest or height < self.smallest or width < self.smallest:
            raise ValueError(
                f"this network takes volumes of {self.smallest} or more in each axis, not "
                f"{depth}x{height}x{width}: resample them, slices too"
            )
        return self.features(volumes.expand(-1, 3, -1, -1, -1))


def _inflated(module: nn.Module) -> nn.Module:
    """A network of images as one of volumes, with fresh weights; changed in place.

    Every square kernel, stride, padding and pooling window becomes a cube.
    """
    for name, child in module.named_children():
        setattr(module, name, _inflated(child))
    if isinstance(module, nn.Conv2d):
        square = (module.kernel_size, module.stride, module.padding, module.dilation)
        kernel, stride, padding, dilation = (cast("tuple[int, ...]", sizes)[0] for sizes in square)
        return nn.Conv3d(
            module.in_channels,
            module.out_channels,
            kernel,
            stride,
            padding,
            dilation,
            module.groups,
            bias=module.bias is not None,
        )
    if isinstance(module, nn.BatchNorm2d):
        return nn.BatchNorm3d(module.num_features, module.eps, module.momentum)
    if isinstance(module, nn.MaxPool2d):
        return nn.MaxPool3d(module.kernel_size, module.stride, module.padding)
    if isinstance(module, nn.AvgPool2d):
        sizes = (module.kernel_size, module.stride, module.padding)
        return nn.AvgPool3d(*cast("tuple[int, int, int]", sizes))
    return module


def _untrained(name: str) -> Any:
    from torchvision.models import get_model  # takes as long to import as PyTorch

    return get_model(name, weights=None)


@register_model(task="classification")
def resnet3d_101(*, classes: int = 2) -> VolumeClassifier:
    """ResNet3D-101, bottlenecks 3, 4, 23, 3; 85.3 M parameters."""
    body = _untrained("resnet101")
    names = ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3", "layer4")
    features = nn.Sequential(*(_inflated(getattr(body, name)) for name in names))
    return VolumeClassifier(features, nn.Linear(body.fc.in_features, classes))


@register_model(task="classification")
def densenet3d_121(*, classes: int = 2) -> VolumeClassifier:
    """DenseNet3D-121; 11.3 M parameters."""
    body = _untrained("densenet121")
    features = nn.Sequential(_inflated(body.features), nn.ReLU())
    classifier = nn.Linear(body.classifier.in_features, classes)
    return VolumeClassifier(features, classifier, smallest=29)  # three pools of pairs after n / 4


@register_model(task="classification")
def mc3_18(*, classes: int = 2) -> VolumeClassifier:
    """MC3-18: 3D convolutions in the first stage, 2D ones after it; 11.5 M parameters."""
    body = _untrained("mc3_18")
    names = ("stem", "layer1", "layer2", "layer3", "layer4")
    features = nn.Sequential(*(getattr(body, name) for name in names))
    return VolumeClassifier(features, nn.Linear(body.fc.in_features, classes))
