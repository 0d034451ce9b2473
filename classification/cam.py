"""Where a classifier looked: class activation maps and occlusion, of images and of volumes.

Papers: Zhou et al., "Learning Deep Features for Discriminative Localization", CVPR 2016 (CAM);
Selvaraju et al., "Grad-CAM", ICCV 2017; in 3D as He et al. use it for CovidNet3D, AAAI 2021;
Zeiler and Fergus, "Visualizing and Understanding Convolutional Networks", ECCV 2014, section 4.2
(occlusion, which asks the network itself, so that it holds for any architecture).

A network for `cam` has `forward_features(x)` and `get_classifier()`, as timm's networks,
CovidNet3D and its baselines have. After 32 slices a network of stride 32 has one cell left in
depth, so that every slice gets the same map: `depth_window` or `grad_cam` tell slices apart.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..vision.inference import evaluating

__all__ = [
    "METHODS",
    "ActivationMap",
    "cam",
    "class_activation",
    "explain",
    "grad_cam",
    "occlusion",
    "scaled",
]

#: How `explain` can make a map.
METHODS = ("auto", "cam", "grad-cam", "windows", "occlusion")

_LEVELS = 3  # of names, such as features.0.denseblock2: parts below are no stages
_CELLS = 4
_PARTS = 6  # of an axis, that a cover hides one of
_LEAST = 4  # pixels of a cover's side
_AT_ONCE = 1 << 22  # values in a batch


@dataclass(frozen=True)
class ActivationMap:
    """Where a classifier looked."""

    values: Tensor  #: (B, *size), in [0, 1], of the input's size
    #: (B, *cells), unscaled, of the features' size; where windows were averaged of the input's
    raw: Tensor
    classes: Tensor  #: (B,), what the map is for
    logits: Tensor  #: (B, classes), of the whole input
    method: str  #: how it was made, in words


def class_activation(features: Tensor, weight: Tensor, classes: Tensor) -> Tensor:
    """Features (B, C, *cells) summed over channels with the weights (C,) of a class of each sample.

    Their mean plus the class's bias is its logit. Weights are (classes, C), the result (B, *cells).
    """
    return torch.einsum("bc...,bc->b...", features, weight[classes].to(features.dtype))


def cam(
    net: nn.Module,
    inputs: Tensor,
    classes: Tensor | None = None,
    *,
    depth_window: int | None = None,
) -> ActivationMap:
    """Class activation map, in 2D and 3D alike.

    Args:
        net: whose classifier is linear in its averaged features; runs in evaluation mode.
        inputs: (B, C, H, W) or (B, 1, D, H, W).
        classes: (B,), what to explain; None for the predicted ones.
        depth_window: slices of windows that overlap by half; their maps are averaged. None looks
            at the whole volume at once.

    Raises:
        ValueError: the network has no such features or classifier, or its logits are not their
            mean; the window does not fit; a class is unknown.
    """
    forward_features = getattr(net, "forward_features", None)
    get_classifier = getattr(net, "get_classifier", None)
    if forward_features is None or get_classifier is None:
        raise ValueError(
            f"{type(net).__name__} has no forward_features and get_classifier, which CAM needs: "
            "take grad_cam"
        )
    if depth_window is not None and (inputs.dim() != 5 or not 1 <= depth_window <= inputs.shape[2]):
        raise ValueError(f"a window of {depth_window} slices does not fit {tuple(inputs.shape)}")
    with evaluating(net), torch.no_grad():
        logits, features = net(inputs), forward_features(inputs)
        classifier = get_classifier()
        _check_linear(net, classifier, features, logits)
        classes = _checked_classes(classes, logits)
        if depth_window is None:
            raw = class_activation(features, classifier.weight, classes)
            method = f"CAM, {_cells(raw)} cells"
        else:
            raw = _windows(forward_features, inputs, classifier.weight, classes, depth_window)
            method = f"CAM, mean of windows of {depth_window} slices"
    return ActivationMap(scaled(raw, inputs.shape[2:]), raw, classes, logits, method)


def grad_cam(
    net: nn.Module, inputs: Tensor, layer: str, classes: Tensor | None = None
) -> ActivationMap:
    """Grad-CAM: a layer's channels weighted by the mean gradient of the class's logit.

    Args:
        net: runs in evaluation mode.
        inputs: (B, C, *size), of two or three axes.
        layer: name of a module whose output is (B, C, *cells), such as `stages.1`, of stride 8 in
            CovidNet3D, or `stages.2`, of stride 16.
        classes: (B,), what to explain; None for the predicted ones.

    Raises:
        ValueError: there is no such layer, or its output has another form; a class is unknown.
    """
    try:
        module = net.get_submodule(layer)
    except AttributeError:
        parts = [name for name, _ in net.named_modules() if name]
        near = get_close_matches(layer, parts) or [name for name in parts if "." not in name]
        names = ", ".join(near)
        raise ValueError(f"{type(net).__name__} has no layer {layer!r}; it has {names}") from None
    seen: list[Tensor] = []
    own = threading.get_ident()

    def keep(module: nn.Module, args: object, output: Tensor) -> Tensor:
        if threading.get_ident() != own:
            return output  # of a call beside this one
        # Also where no weight learns; gradients of what comes before are not needed.
        seen.append(output.detach().requires_grad_())
        return seen[-1].clone()  # what follows may work in place

    with module.register_forward_hook(keep), evaluating(net), torch.enable_grad():
        logits = net(inputs)
        classes = _checked_classes(classes, logits)
        if len(seen) != 1 or seen[0].dim() != inputs.dim():
            outputs = f"{len(seen)} outputs" if len(seen) != 1 else tuple(seen[0].shape)
            raise ValueError(
                f"layer {layer!r} gives {outputs}, where Grad-CAM needs one output of "
                f"{inputs.dim()} axes: choose another layer"
            )
        chosen = logits.gather(1, classes[:, None]).sum()
        (gradient,) = torch.autograd.grad(chosen, seen[0])
    importance = gradient.flatten(2).mean(2)
    raw = torch.einsum("bc...,bc->b...", seen[0].detach(), importance).relu()
    method = f"Grad-CAM at {layer}, {_cells(raw)} cells"
    return ActivationMap(scaled(raw, inputs.shape[2:]), raw, classes, logits.detach(), method)


def occlusion(net: nn.Module, inputs: Tensor, classes: Tensor | None = None) -> ActivationMap:
    """By how much the class's log-probability falls where a part of the input is covered.

    What is covered is black, a sixth of each axis but at least four pixels, and moved by half of
    that; each place takes one forward pass.

    Args:
        net: runs in evaluation mode.
        inputs: (B, C, *size), of two or three axes.
        classes: (B,), what to explain; None for the predicted ones.

    Raises:
        ValueError: a class is unknown.
    """
    size = tuple(inputs.shape[2:])
    cover = tuple(min(side, max(_LEAST, side // _PARTS)) for side in size)
    places = list(itertools.product(*map(_starts, size, cover)))
    at_once = max(1, _AT_ONCE // inputs[0].numel())
    with evaluating(net), torch.no_grad():
        logits = net(inputs)
        classes = _checked_classes(classes, logits)
        before = logits.float().log_softmax(1).gather(1, classes[:, None])[:, 0]
        raw, total = inputs.new_zeros(len(inputs), *size), inputs.new_zeros(size)
        weights = _tent(cover).to(inputs)  # without them the map would have the covers' edges
        for number, one in enumerate(inputs):
            for start in range(0, len(places), at_once):
                parts = [_part(place, cover) for place in places[start : start + at_once]]
                covered = one.repeat(len(parts), *(1 for _ in one.shape))
                for each, part in zip(covered, parts, strict=True):
                    each[(slice(None), *part)] = 0
                after = net(covered).float().log_softmax(1)[:, classes[number]]
                for part, fall in zip(parts, before[number] - after, strict=True):
                    raw[number][part] += fall * weights
        for place in places:
            total[_part(place, cover)] += weights
    raw = (raw / total).relu()
    method = f"occlusion, covers of {'x'.join(map(str, cover))}"
    return ActivationMap(scaled(raw, size), raw, classes, logits, method)


def explain(
    net: nn.Module,
    inputs: Tensor,
    classes: Tensor | None = None,
    method: str = "auto",
    layer: str | None = None,
    mirrors: bool = False,
) -> ActivationMap:
    """Make a map by a method's name.

    Args:
        net: runs in evaluation mode.
        inputs: (B, C, H, W) or (B, 1, D, H, W).
        classes: (B,), what to explain; None for the predicted ones.
        method: ``cam``; ``grad-cam``; ``windows``, CAM of windows of a quarter of the slices;
            ``occlusion``, see `occlusion`, slower and true to any network;
            ``auto``: CAM where it holds and its map has four cells or more along the first axis (of
            fewer than 16 slices: a cell for four), which tell slices apart, and elsewhere Grad-CAM
            at the last layer that has them.
        layer: of Grad-CAM, which ``auto`` then stands for; None: that last layer.
        mirrors: take the mean of the maps of the inputs mirrored along all sets of axes, turned
            back; for networks that are trained with mirror images. It points better, and costs as
            many times as much: four for images, eight for volumes. Occlusion takes none.

    Raises:
        ValueError: an unknown method, a layer for another one than Grad-CAM, or one of `cam` and
            `grad_cam`.
    """
    if method not in METHODS:
        raise ValueError(f"method {method!r} is none of {', '.join(METHODS)}")
    if layer is not None and method not in ("auto", "grad-cam"):
        raise ValueError(f"layer {layer!r} is for grad-cam, not for {method}")
    make = _maker(net, inputs, method, layer)
    plain = make(inputs, classes)
    if not mirrors or method == "occlusion":
        return plain
    axes = range(1, inputs.dim() - 1)
    turns = [turn for n in range(1, len(axes) + 1) for turn in itertools.combinations(axes, n)]
    raw = plain.raw
    for turn in turns:
        mirrored = make(inputs.flip([axis + 1 for axis in turn]), plain.classes)
        raw = raw + mirrored.raw.flip(turn)
    raw = raw / (len(turns) + 1)
    method = f"{plain.method}, mean of {len(turns) + 1} mirror images"
    return replace(plain, values=scaled(raw, inputs.shape[2:]), raw=raw, method=method)


def _maker(
    net: nn.Module, inputs: Tensor, method: str, layer: str | None
) -> Callable[[Tensor, Tensor | None], ActivationMap]:
    """What makes the map of inputs of this size, for classes."""
    plain = partial(cam, net)
    if method == "cam":
        return plain
    if method == "occlusion":
        return partial(occlusion, net)
    if method == "windows":
        return partial(plain, depth_window=max(1, inputs.shape[2] // 4))
    if method == "auto" and layer is None:
        try:
            cells = plain(inputs).raw.shape[1]
        except ValueError:
            cells = 0  # this network has no CAM
        if cells >= _wanted(inputs):
            return plain
    layer = layer or _last_layer_with(net, inputs)
    return lambda x, classes: grad_cam(net, x, layer, classes)


def _last_layer_with(net: nn.Module, inputs: Tensor) -> str:
    """Return the last stage whose output has cells along the first axis that tell slices apart.

    Those are four, or one for four slices where there are fewer than 16, or the most that a stage
    has. The network runs in evaluation mode; inputs are (B, C, H, W) or (B, 1, D, H, W).
    """
    seen: list[tuple[str, int]] = []
    own = threading.get_ident()

    def look(name: str, part: nn.Module, args: object, output: object) -> None:
        mine = threading.get_ident() == own
        if mine and isinstance(output, Tensor) and output.dim() == inputs.dim():
            seen.append((name, output.shape[2]))

    with ExitStack() as hooks, evaluating(net), torch.no_grad():
        for name, part in net.named_modules():
            if name and name.count(".") < _LEVELS:
                hooks.enter_context(part.register_forward_hook(partial(look, name)))
        net(inputs)
    if not seen:
        raise ValueError(f"{type(net).__name__} has no stage that keeps its inputs' axes")
    wanted = min(_wanted(inputs), max(count for _, count in seen))
    return [name for name, count in seen if count >= wanted][-1]


def _wanted(inputs: Tensor) -> int:
    """Cells along the first axis that tell slices apart."""
    return max(1, min(_CELLS, inputs.shape[2] // 4))


def _windows(
    features: Callable[[Tensor], Tensor],
    volumes: Tensor,
    weight: Tensor,
    classes: Tensor,
    window: int,
) -> Tensor:
    """Mean of the windows' maps, (B, D, H, W), unscaled."""
    depth = volumes.shape[2]
    total = volumes.new_zeros(volumes.shape[0], *volumes.shape[2:])
    count = volumes.new_zeros(depth, 1, 1)
    for start in _starts(depth, window):
        part = volumes[:, :, start : start + window]
        raw = class_activation(features(part), weight, classes)
        total[:, start : start + window] += _resized(raw, part.shape[2:])
        count[start : start + window] += 1
    return total / count


def _check_linear(net: nn.Module, classifier: object, features: Tensor, logits: Tensor) -> None:
    """Raise a ValueError unless the logits are the classifier's of the averaged features."""
    name = type(net).__name__
    if (
        isinstance(classifier, nn.Linear)
        and features.dim() in (4, 5)
        and classifier.in_features == features.shape[1]
    ):
        wanted = classifier(features.flatten(2).mean(2))
        if (wanted - logits).norm() <= 1e-2 * logits.norm() + 1e-5:
            return
    raise ValueError(
        f"the logits of {name} are not linear in its averaged features, so CAM does not hold for "
        "it: take grad_cam"
    )


def _cells(maps: Tensor) -> str:
    return "x".join(map(str, maps.shape[1:]))


def scaled(maps: Tensor, size: tuple[int, ...]) -> Tensor:
    """Maps (B, *cells) brought to [0, 1] each and resized linearly; all 0 where a map is flat."""
    axes = tuple(range(1, maps.dim()))
    low, high = maps.amin(axes, keepdim=True), maps.amax(axes, keepdim=True)
    maps = (maps - low) / (high - low).clamp(min=torch.finfo(maps.dtype).tiny)
    return _resized(maps, size).clamp(0, 1)


def _checked_classes(classes: Tensor | None, logits: Tensor) -> Tensor:
    """The classes (B,) of logits (B, classes) to explain: those given, or the predicted ones."""
    if classes is None:
        return logits.argmax(1)
    classes = torch.as_tensor(classes, device=logits.device)
    if classes.shape != logits.shape[:1] or not (0 <= classes.min() <= classes.max()):
        raise ValueError(f"{len(logits)} classes from 0 are needed, not {classes.tolist()}")
    if classes.max() >= logits.shape[1]:
        raise ValueError(f"class {int(classes.max())} is unknown: there are {logits.shape[1]}")
    return classes


def _resized(maps: Tensor, size: tuple[int, ...]) -> Tensor:
    """Maps (B, H, W) or (B, D, H, W) at the size of their input, by linear interpolation."""
    mode = "bilinear" if maps.dim() == 3 else "trilinear"
    return F.interpolate(maps[:, None], tuple(size), mode=mode)[:, 0]


def _starts(side: int, cover: int) -> list[int]:
    """Where covers begin along an axis, so that all of it is covered."""
    return sorted({*range(0, side - cover + 1, max(1, cover // 2)), side - cover})


def _tent(cover: tuple[int, ...]) -> Tensor:
    """Weights of a cover's pixels, which fall linearly from its middle to its edges."""
    weights = torch.ones(())
    for side in cover:
        line = torch.arange(1.0, side + 1)
        weights = weights[..., None] * torch.minimum(line, line.flip(0))
    return weights


def _part(place: tuple[int, ...], cover: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(at, at + side) for at, side in zip(place, cover, strict=True))
