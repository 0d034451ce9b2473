"""Image classifiers: any of timm's networks, with its normalisation inside.

Wightman, "PyTorch Image Models" (timm). `create_model("image_classifier", backbone="resnet50",
classes=10)` takes images in [0, 1] as all networks here do; mean and deviation of the training that
timm's weights come from are part of the network.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..common.counts import follow, on_meta
from ..vision.hub._http import SourceError
from ..vision.hub._huggingface import NoFileError, obtain
from ..vision.hub.record import Source
from ..vision.hub.registry import register_model
from ..vision.layers import check_images

__all__ = ["ImageClassifier", "image_classifier", "unreachable"]


class ImageClassifier(nn.Module):
    """One of timm's networks.

    Args:
        backbone: its name, with a tag where other weights than its usual ones are meant.
        classes: outputs.
        dropout: before the last layer; None: the network's own.
        settings: further arguments of timm's function, such as ``{"channels": [16, 32, 64, 128]}``
            of a ResNet.
        unhalved: of the layers that make images smaller, so many of the first do not: for images
            much smaller than those that the network was made for.

    Raises:
        ValueError: timm has no such network, it takes no such settings, which must be the network's
            own, does not run with so many layers `unhalved`, or there are fewer than two classes.
    """

    output_names = ("logits",)
    body: Any  # timm's networks share no type that has their methods
    mean: Tensor
    std: Tensor

    def __init__(
        self,
        backbone: str,
        classes: int,
        dropout: float | None = None,
        settings: Mapping[str, Any] | None = None,
        unhalved: int = 0,
    ) -> None:
        super().__init__()
        if classes < 2:
            raise ValueError(f"a classifier needs two classes or more, not {classes}")
        # Here, since listing models imports this file, and timm takes seconds.
        import timm
        from timm.data import resolve_model_data_config

        from ..vision.timm_networks import check_timm_name

        check_timm_name(backbone)
        _check_settings(settings or {}, backbone)
        given: dict[str, Any] = {} if dropout is None else {"drop_rate": dropout}
        self.backbone, self.settings = backbone, {**given, **(settings or {})}
        try:
            self.body = timm.create_model(
                backbone, pretrained=False, num_classes=classes, **self.settings
            )
        except TypeError as error:
            raise ValueError(f"{backbone} of timm takes no such settings: {error}") from error
        config = resolve_model_data_config(self.body)
        if config["input_size"][0] != 3:
            raise ValueError(f"{backbone} takes {config['input_size'][0]} channels, not colour")
        _keep_size(self.body, unhalved, backbone, config["input_size"])
        self.fixed_size = None
        if self.body.pretrained_cfg.get("fixed_input_size"):
            self.fixed_size = tuple(config["input_size"][1:])
        for name in ("mean", "std"):
            self.register_buffer(name, torch.tensor(config[name]).view(1, 3, 1, 1))

    def forward(self, image: Tensor) -> Tensor:
        """Logits (B, classes) of images (B, 3, H, W), RGB in [0, 1].

        Raises:
            ValueError: they are something of another shape, or of a size the network does not take.
        """
        return self.body(self._normalised(image))

    def forward_features(self, image: Tensor) -> Tensor:
        """What is pooled for the classifier, (B, C, h, w); tokens where it is a transformer."""
        return self.body.forward_features(self._normalised(image))

    def get_classifier(self) -> nn.Module:
        """The last layer."""
        return self.body.get_classifier()

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Which layers learn at one rate, see timm's `layer_decay`."""
        return {key: _inside(p) for key, p in self.body.group_matcher(coarse=coarse).items()}

    def no_weight_decay(self) -> set[str]:
        """Parameters that decay would harm."""
        own = getattr(self.body, "no_weight_decay", set)
        return {f"body.{name}" for name in own()}

    def load_pretrained(self) -> None:
        """Take timm's weights of this name, but for the last layer; they are fetched once.

        Raises:
            ValueError: there are none.
            OSError: they cannot be had.
        """
        import timm

        config = self.body.pretrained_cfg
        if not any(config.get(key) for key in ("url", "hf_hub_id", "file")):
            raise ValueError(f"timm has no weights for {self.backbone}")
        classes, overlay = self.body.num_classes, None  # some have several last layers
        try:
            if (repository := config.get("hf_hub_id")) and not config.get("file"):
                overlay = {"file": str(_weights_of(repository, config.get("hf_hub_filename")))}
            given = {"num_classes": classes, "pretrained_cfg_overlay": overlay, **self.settings}
            body = timm.create_model(self.backbone, pretrained=True, **given)
        except Exception as error:  # of several clients, each with errors of its own
            place = f"timm's {repository} from the Hub" if repository else "a file of timm's"
            raise unreachable(self.backbone, place, error) from error
        self.body.load_state_dict(body.state_dict())

    def example_inputs(
        self, height: int, width: int, *, batch: int = 1, **like: Any
    ) -> tuple[Tensor, ...]:
        """One random image; of the only size that the network takes, where it takes one alone."""
        return (torch.rand(batch, 3, *(self.fixed_size or (height, width)), **like),)

    def _normalised(self, image: Tensor) -> Tensor:
        check_images(image)
        if self.fixed_size and tuple(image.shape[2:]) != self.fixed_size:
            size, wanted = ("x".join(map(str, s)) for s in (image.shape[2:], self.fixed_size))
            raise ValueError(
                f"{self.backbone} takes images of {wanted} pixels, not {size}: set the data's "
                "preset to that size"
            )
        return (image - self.mean) / self.std


@register_model(task="classification")
def image_classifier(
    *,
    backbone: str = "resnet18",
    classes: int = 2,
    dropout: float | None = None,
    settings: Mapping[str, Any] | None = None,
    unhalved: int = 0,
) -> ImageClassifier:
    """Any image network of timm."""
    return ImageClassifier(backbone, classes, dropout, settings, unhalved)


def _check_settings(settings: Mapping[str, Any], name: str) -> None:
    """Refuse what timm takes of its own accord: files of weights to open, other forms of network.

    Settings come out of files of weights too.
    """
    import timm
    from timm.models import build_model_with_cfg

    own = {"features_only", "feature_cls", "out_indices"}
    for function in (timm.create_model, build_model_with_cfg):
        own |= set(inspect.signature(function).parameters)
    if foreign := sorted(own & set(settings)):
        raise ValueError(f"settings of {name}: {', '.join(foreign)}: none of the network's own")


def _keep_size(net: nn.Module, count: int, name: str, shape: Sequence[int]) -> None:
    """Let the first layers of a network that make images of `shape` smaller keep their size."""
    halving = [
        module
        for module in net.modules()
        if isinstance(module, (nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d))
        and module.stride not in (1, (1, 1))
    ]
    if not 0 <= count <= len(halving):
        raise ValueError(f"unhalved {count}: {name} has {len(halving)} layers that halve")
    for module in halving[:count]:
        cast("Any", module).stride = (1, 1)
    if count:
        try:
            follow(on_meta(net), torch.empty(1, *shape, device="meta"))
        except (RuntimeError, AssertionError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ValueError(
                f"unhalved {count}: {name} then fails on images of {shape[1]}x{shape[2]} "
                f"({reason}), as where a block keeps their size and its shortcut does not; take "
                "another number"
            ) from error


def unreachable(backbone: str, place: str, error: Exception) -> OSError:
    """What to raise where the weights of a backbone, which come from a place, cannot be had."""
    reason = " ".join(str(error).split()) or type(error).__name__
    return OSError(
        f"weights of {backbone} ({place}) cannot be fetched: {reason}; train from random numbers "
        "(init_weights: null), or fetch them where there is a network and copy its ~/.cache here"
    )


def _weights_of(repository: str, name: str | None) -> Path:
    """The file of timm's weights on the Hub; some repositories have them as a pickle alone."""
    pickled = Source("hf-hub", "pytorch_model.bin", repository)
    try:
        return obtain(Source("hf-hub", name or "model.safetensors", repository))
    except NoFileError:
        if name:
            raise
        return obtain(pickled)
    except SourceError:
        if not name:
            with suppress(SourceError):
                return obtain(pickled, local=True)
        raise


def _inside(pattern: Any) -> Any:
    """A pattern of timm's for names in `body`, which are matched from their beginning."""
    if isinstance(pattern, str):
        inner = re.sub(r"(?<!\[)\^", "", pattern)  # no anchors but in [^...]
        return rf"^body\.(?:{inner})"
    if isinstance(pattern, list):
        return [(_inside(inner), *rest) for inner, *rest in pattern]
    return pattern
