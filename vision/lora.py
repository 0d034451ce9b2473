"""Fine-tuning by low-rank adapters, of any network: LoRA-FA, and plain LoRA beside it.

Zhang et al., "LoRA-FA: Memory-efficient Low-rank Adaptation for Large Language Models Fine-tuning"
(arXiv 2308.03303); Hu et al., "LoRA" (arXiv 2106.09685).

A layer's weight W becomes W + B A, where A has few rows. A is drawn once and stays, B is trained
from zero, so that only A x, of few channels, is kept for the backward pass, and not x. For
this the frozen layers are computed by forms of their own, since PyTorch's convolutions and batch
norms keep their inputs whether their weights are trained or not. In a convolution A is one of the
same kernel, stride, padding, dilation and groups, and B one of kernel 1 behind it.

The class of an adapted layer is changed in place: names of modules and tensors stay, and what reads
its `weight` gets the sum. Batch norms stay at their statistics, which are the base's.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from ..common.arguments import check_arguments
from ..common.files import few
from ..nas.elastic.base import ElasticModule
from ..nas.supernet import architecture_of
from ._lora_layers import ADAPTED, FIXED, FROZEN, Adapted, Frozen
from .hub._low_rank import A, B, is_part, merged
from .hub.registry import list_models, model_info
from .hub.weights import (
    StoredWeights,
    describe,
    described,
    load_state,
    read_weights,
    save_weights,
    write_weights,
)

__all__ = [
    "Adapters",
    "LoRA",
    "adapt",
    "adapt_by",
    "is_adapted",
    "load_adapters",
    "merge",
    "save_adapters",
]

_NAMES = {"lora_fa": False, "lora": True}
_NORMS = nn.modules.batchnorm._NormBase
_LEVELS = 32  # of a deviation of A, whose values are whole numbers of these: a file takes bytes


@dataclass(frozen=True)
class LoRA:
    """Which layers get adapters, and of which form.

    Patterns are names in the network, with `*` for anything (`blocks.*.attn.qkv`).
    """

    #: rows of A for each group of channels; fewer where a layer has fewer inputs or outputs
    rank: int = 8
    layers: Sequence[str] = ("*",)  #: layers to adapt
    skip: Sequence[str] = ()  #: of these, layers to leave
    #: modules or tensors to train as they are, such as a new last layer, with their statistics
    trains: Sequence[str] = ()
    #: multiply the gradient of B by (A Aᵀ)⁻¹, so that the step of W does not depend on A's rows
    corrected: bool = False
    train_a: bool = False  #: train A as well: plain LoRA, which keeps x
    seed: int = 0  #: of A

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"adapters of rank {self.rank}: at least 1")
        if self.corrected and self.train_a:
            raise ValueError("adapters: corrected is for an A that stays: leave out corrected")

    @classmethod
    def read(cls, given: str | Mapping[str, Any]) -> LoRA:
        """What a config says: `lora_fa`, `lora`, or a mapping of a `name` and arguments.

        Raises:
            ValueError: another name, or arguments that do not fit.
        """
        settings = {"name": given} if isinstance(given, str) else dict(given)
        name = settings.pop("name", None)
        if name is None:
            raise ValueError(f"adapter {settings}: give its name, {' or '.join(_NAMES)}")
        if name not in _NAMES:
            raise ValueError(f"adapter {name!r} is unknown: choose {' or '.join(_NAMES)}")
        check_arguments(f"adapter {name}", cls, settings)
        return cls(**{"train_a": _NAMES[name], **settings})


def adapt(net: nn.Module, settings: LoRA | None = None) -> dict[str, str]:
    """Freeze a network in place and give its layers adapters, which change nothing yet.

    Args:
        net: a plain network with the weights to start from; its `lora` is the settings then.
        settings: the defaults of `LoRA` unless given.

    Returns:
        Layers with weights that got none, and why.

    Raises:
        ValueError: the network is elastic, has adapters already, a pattern fits nothing, or no
            layer is left to adapt.
    """
    settings = settings or LoRA()
    if is_adapted(net):
        raise ValueError("the network has adapters already: merge them first")
    if any(isinstance(module, ElasticModule) for module in net.modules()):
        raise ValueError("adapters: the network is elastic: extract a subnet and adapt that")
    modules = dict(net.named_modules())
    tensors = list(net.state_dict())
    for pattern in (*settings.layers, *settings.skip, *settings.trains):
        known = [*modules, *tensors] if pattern in settings.trains else list(modules)
        if not any(fnmatchcase(name, pattern) for name in known):
            near = get_close_matches(pattern, known) or [n for n in known if n][:5]
            raise ValueError(f"adapters: no part is {pattern!r}; did you mean {', '.join(near)}?")
    uses = Counter(id(p) for m in modules.values() for p in m._parameters.values())
    draw = torch.Generator().manual_seed(settings.seed)
    left, chosen = {}, {}
    for name, module in modules.items():
        weights = _weights(module)
        if not weights:
            continue
        wanted = _fits(name, settings.layers) and not _fits(name, settings.skip)
        if any(_within(f"{name}.{key}", settings.trains) for key in weights):
            left[name] = "trained as it is"
        elif not wanted:
            left[name] = "not among the layers"
        elif type(module) not in ADAPTED:
            left[name] = f"no form of adapter for {type(module).__name__}"
        elif "weight" not in weights:
            left[name] = "its weight is computed from others"
        elif uses[id(weights["weight"])] > 1:
            left[name] = "shares its weight with another layer"
        else:
            chosen[name] = module
    if not chosen:
        reasons = few((f"{name}: {why}" for name, why in left.items()), 3)
        raise ValueError(f"adapters: no layer is left to adapt: {reasons}")
    net.requires_grad_(False)
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(_within(name, settings.trains))
    for name, module in modules.items():
        if name in chosen:
            _add(module, settings, draw)
        elif not _within(name, settings.trains):
            _freeze(module)
    cast(Any, net).lora = settings
    return left


def _weights(layer: nn.Module) -> dict[str, Tensor]:
    """A layer's weights by their names: of an attention several, of a parametrized one inside."""
    named = dict(layer.named_parameters(recurse=False))
    if is_parametrized(layer):
        inside = cast(nn.Module, layer.parametrizations)
        named |= dict(inside.named_parameters("parametrizations"))
    return {key: each for key, each in named.items() if "weight" in key and each.dim() > 1}


def _add(layer: Any, settings: LoRA, draw: torch.Generator) -> None:
    """Give a layer its A, of random numbers, and its B, of zeros."""
    weight, groups = layer.weight, getattr(layer, "groups", 1)
    rank = min(settings.rank, weight[0].numel(), len(weight) // groups)
    drawn = torch.randn(groups * rank, *weight.shape[1:], generator=draw)
    levels = (drawn * _LEVELS).round().clamp(-127, 127)
    a = levels / _levels(levels)
    b = weight.new_zeros(len(weight), rank, *[1] * (weight.dim() - 2))
    layer.register_parameter(A, nn.Parameter(a.to(weight), requires_grad=settings.train_a))
    layer.register_parameter(B, nn.Parameter(b))
    layer.corrected = settings.corrected
    layer.__class__ = ADAPTED[type(layer)]


def _levels(a: Tensor) -> float:
    """Levels of an A in one, as its deviation is 1 / sqrt(what a row sums up)."""
    return _LEVELS * math.sqrt(a[0].numel())


def _freeze(module: nn.Module) -> None:
    weight = module._parameters.get("weight")
    if type(module) in FROZEN and not cast(Tensor, weight).requires_grad:
        module.__class__ = FROZEN[type(module)]
    elif isinstance(module, _NORMS) and module.running_mean is not None:
        if type(module) in FIXED:
            module.__class__ = FIXED[type(module)]
        else:
            module.register_forward_pre_hook(_in_evaluation)


def _in_evaluation(module: nn.Module, inputs: Any) -> None:
    module.training = False


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _within(name: str, patterns: Sequence[str]) -> bool:
    """Whether a name is one of these or lies in one of these."""
    return _fits(name, patterns) or _fits(name, [f"{pattern}.*" for pattern in patterns])


def _adapted(net: nn.Module) -> Iterator[tuple[str, Any]]:
    return ((name, m) for name, m in net.named_modules() if isinstance(m, Adapted))


def is_adapted(net: nn.Module) -> bool:
    """Whether a network has adapters."""
    return next(_adapted(net), None) is not None


def merge(net: nn.Module) -> nn.Module:
    """Add the adapters to the weights, in place: a plain network again, all of it to be trained.

    Raises:
        ValueError: it has none.
    """
    _check_adapted(net)
    for _, layer in list(_adapted(net)):
        base = layer._base
        base.data = merged(base.data, layer.lora_a.data, layer.lora_b.data)
        del layer.lora_a, layer.lora_b, layer.corrected
    for module in net.modules():
        if isinstance(module, Frozen):
            module.__class__ = cast(Any, module).plain
        for key, hook in list(module._forward_pre_hooks.items()):
            if hook is _in_evaluation:
                del module._forward_pre_hooks[key]
    del cast(Any, net).lora
    return net.requires_grad_(True)


def _check_adapted(net: nn.Module) -> None:
    if not is_adapted(net):
        raise ValueError(f"{type(net).__name__} has no adapters")


def _hash(tensors: Mapping[str, Tensor]) -> str:
    seen = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        seen.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        plain = tensor.detach().cpu().contiguous().reshape(-1)
        seen.update(plain.view(torch.uint8).numpy().data)
    return seen.hexdigest()


def _split(net: nn.Module, settings: LoRA) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The base's tensors, and those of the adapters with what is trained beside them."""
    base: dict[str, Tensor] = {}
    own: dict[str, Tensor] = {}
    for name, tensor in net.state_dict().items():
        trained = is_part(name) or _within(name, settings.trains)
        (own if trained else base)[name] = tensor
    return base, own


def save_adapters(net: nn.Module, path: str | os.PathLike[str], **facts: Any) -> Path:
    """Write the adapters, and what was trained with them, as a small safetensors file.

    Args:
        net: a network with adapters.
        path: ends in ``.safetensors``.
        **facts: JSON values kept in the file.

    Returns:
        The path.

    Raises:
        ValueError: no adapters, another suffix, or facts that JSON cannot hold.
    """
    _check_adapted(net)
    known = architecture_of(net)
    name = known.pop("name", type(net).__name__)
    settings: LoRA = cast(Any, net).lora
    base, own = _split(net, settings)
    if not settings.train_a:
        drawn = {key: a for key, a in own.items() if key.rpartition(".")[2] == A}
        own |= {key: (a.double() * _levels(a)).round().to(torch.int8) for key, a in drawn.items()}
    said = {"adapter": asdict(settings), "base": _hash(base), **described(net)}
    return write_weights(StoredWeights(name, known, own, {**said, **facts}), path)


def load_adapters(net: nn.Module, path: str | os.PathLike[str]) -> nn.Module:
    """Give a network, in place, the adapters of a file of `save_adapters`.

    Args:
        net: the network that they were trained on, with its weights.
        path: the file.

    Returns:
        The network: adapted, in evaluation mode; `merge` makes it plain.

    Raises:
        FileNotFoundError: nothing is there.
        ValueError: another kind of file, or a network that is not the one; it stays as it was.
    """
    stored = read_weights(path, adapter=True)
    try:
        settings = LoRA.read({"name": "lora", **stored.facts["adapter"]})
        base = _split(net, settings)[0]
        if _hash(base) != stored.facts.get("base"):
            kind = _difference(stored, net)
            raise ValueError(
                f"trained on {stored.name}, {kind} (the hash of the frozen tensors differs): build "
                "the network with the weights that its training started from"
            )
        adapt(net, settings)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{os.fspath(path)}: {error}") from error
    try:
        state = {k: v / _levels(v) if v.dtype == torch.int8 else v for k, v in stored.state.items()}
        load_state(net, {**base, **state}, os.fspath(path))
    except ValueError:
        merge(net)  # of zeros
        raise
    return describe(net, stored.facts).eval()


def _difference(stored: StoredWeights, net: nn.Module) -> str:
    """What another network has that adapters were trained on."""
    own = {"name": type(net).__name__, **architecture_of(net)}
    if stored.name != own["name"]:
        return f"not {own['name']}"
    defaults = model_info(stored.name).defaults if stored.name in list_models() else {}
    theirs, own = {**defaults, **stored.architecture}, {**defaults, **own}
    for key in sorted((theirs | own).keys() - {"name"}):
        values = theirs.get(key), own.get(key)
        if len({json.dumps(value, sort_keys=True) for value in values}) > 1:
            return "{} {!s:.60}, not {!s:.60}".format(key, *values)
    return "with other weights"


def adapt_by(net: nn.Module, given: str | Mapping[str, Any]) -> None:
    """`adapt` a network as a config says, see `LoRA.read`, and tell what is trained and what not.

    Raises:
        ValueError: the config is wrong, or does not fit the network.
    """
    left = adapt(net, LoRA.read(given))
    count = sum(parameter.numel() for parameter in net.parameters() if parameter.requires_grad)
    reasons: dict[str, list[str]] = {}
    for name, why in left.items():
        reasons.setdefault(why, []).append(name)
    without = "".join(f"; {why}: {few(names, 3)}" for why, names in reasons.items())
    rank_zero_info(f"adapters in {len(list(_adapted(net)))} layers: {count:,} values{without}")


class Adapters(Callback):
    """Fine-tunes the `net` of a task by adapters, and writes them when the fit ends.

    Into the run's folder go `adapter.safetensors`, for `load_adapters`, and, of a network that says
    its `architecture`, `merged.safetensors`, an ordinary file of weights: of the epoch that a
    `ModelCheckpoint` with a `monitor` found best, else of the last. Checkpoints resume as they
    are and are read merged. A task of `vizoo fit` has its argument `adapter` for this.

    Args:
        adapter: `lora_fa`, `lora`, or a mapping of a `name` and arguments of `LoRA`.
    """

    def __init__(self, adapter: str | dict[str, Any] = "lora_fa") -> None:
        LoRA.read(adapter)  # wrong ones stop before anything is made
        self.adapter = adapter

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Adapt the network, before the optimiser collects parameters; not if it has adapters."""
        net = cast(Any, pl_module).net
        if not is_adapted(net):
            adapt_by(net, self.adapter)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse what lets go of the statistics.

        Raises:
            ValueError: the trainer has synchronised the batch norms.
        """
        if any(isinstance(module, nn.SyncBatchNorm) for module in pl_module.modules()):
            raise ValueError("adapters keep batch norms as they are: leave sync_batchnorm out")

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the files."""
        folder = Path(trainer.log_dir or trainer.default_root_dir)  # broadcasts: every rank asks
        if not trainer.is_global_zero or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        net, last = cast(Any, pl_module).net, copy.deepcopy(pl_module.state_dict())
        if best := _best(trainer):
            state = torch.load(best, map_location="cpu", weights_only=True)["state_dict"]
            pl_module.load_state_dict(state)
        kept: dict[str, Any] = {"state_dict": pl_module.state_dict()}
        pl_module.on_save_checkpoint(kept)
        facts = {key: kept[key] for key in ("classes", "input") if kept.get(key)}
        path = save_adapters(net, folder / "adapter.safetensors", **facts)
        said = f"adapters: {path}, {path.stat().st_size / 1e3:,.0f} kB"
        if architecture_of(net):
            said += f"; merged: {save_weights(net, folder / 'merged.safetensors', **facts)}"
        rank_zero_info(said + (f"; of {best}" if best else ""))
        pl_module.load_state_dict(last)


def _best(trainer: Trainer) -> str:
    """The checkpoint that the fit's `ModelCheckpoint` found best, if it watches a metric."""
    watching = (
        callback.best_model_path
        for callback in trainer.checkpoint_callbacks
        if isinstance(callback, ModelCheckpoint) and callback.monitor
    )
    return next(filter(os.path.isfile, watching), "")
