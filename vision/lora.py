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

import hashlib
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from timm.layers import BatchNormAct2d, Conv2dSame
from timm.layers.padding import pad_same
from torch import Tensor, nn
from torch.nn import functional as F

from ..common.files import few
from ..nas.elastic.base import ElasticModule
from .hub._arguments import check_arguments
from .hub._low_rank import A, B, is_part, merged, product
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
    "base_hash",
    "is_adapted",
    "load_adapters",
    "merge",
    "save_adapters",
]

_NAMES = {"lora_fa": False, "lora": True}
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
        if name not in _NAMES:
            raise ValueError(f"adapter {name!r} is unknown: choose {' or '.join(_NAMES)}")
        check_arguments(f"adapter {name}", cls, settings)
        return cls(**{"train_a": _NAMES[name], **settings})


def _convolution(x: Tensor, weight: Tensor, bias: Tensor | None, *form: Any) -> Tensor:
    """`torch.convolution`, by the functions that autocast knows."""
    stride, padding, dilation, transposed, output_padding, groups = form
    volumes = weight.dim() == 5
    if transposed:
        apply = F.conv_transpose3d if volumes else F.conv_transpose2d
        return apply(x, weight, bias, stride, padding, output_padding, groups, dilation)
    return (F.conv3d if volumes else F.conv2d)(x, weight, bias, stride, padding, dilation, groups)


class _FrozenConvolution(torch.autograd.Function):
    """A convolution, also a transposed one, that keeps its weight and not its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, *form: Any) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.shape, ctx.form = x.shape, form
        return _convolution(x, weight, bias, *form)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (weight,), (grad,) = ctx.saved_tensors, grads
        wants = ctx.needs_input_grad[0], False, ctx.needs_input_grad[2]
        shaped = grad.new_empty(1).expand(ctx.shape)  # of the input only its shape is asked for
        bias = [len(weight)] if wants[2] else None
        of_input, _, of_bias = torch.ops.aten.convolution_backward(
            grad, shaped, weight.to(grad.dtype), bias, *ctx.form, wants
        )
        return of_input, None, of_bias, *[None] * len(ctx.form)


class _Corrected(torch.autograd.Function):
    """B as it is; its gradient is multiplied by (A Aᵀ)⁻¹."""

    @staticmethod
    def forward(ctx: Any, b: Tensor, a: Tensor) -> Tensor:
        ctx.save_for_backward(a)
        return b.view_as(b)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (a,), (grad,) = ctx.saved_tensors, grads
        rank = grad.shape[1]
        kind = torch.promote_types(grad.dtype, torch.float32)  # half types have no `solve`
        rows = a.to(kind).reshape(len(a) // rank, rank, -1)
        gram = rows @ rows.mT
        # A square A may be near to singular.
        gram += 1e-6 * gram.diagonal(dim1=1, dim2=2).mean() * torch.eye(rank).to(gram)
        given = grad.to(kind).reshape(len(rows), -1, rank)
        solved = torch.linalg.solve(gram, given, left=False)
        return solved.reshape(grad.shape).to(grad.dtype), None


class _Frozen:
    """A layer in a form that keeps little for the backward pass."""

    plain: ClassVar[type[nn.Module]]


class _Adapted(_Frozen):
    """A layer with `lora_a` and `lora_b`, to whatever reads its weight one of the sum."""

    lora_a: Tensor
    lora_b: Tensor
    corrected: bool

    weight: Any = property(lambda layer: layer._base + product(layer.lora_a, layer._b))

    @property
    def _base(self) -> Tensor:
        return cast(Any, self)._parameters["weight"]

    @property
    def _b(self) -> Tensor:
        return _Corrected.apply(self.lora_b, self.lora_a) if self.corrected else self.lora_b


class _AdaptedLinear(_Adapted, nn.Linear):
    plain = nn.Linear

    def forward(self, x: Tensor) -> Tensor:
        thin = F.linear(x, self.lora_a)
        return F.linear(x, self._base, self.bias) + F.linear(thin, self._b)


class _FrozenConv(_Frozen):
    """A convolution in its frozen form."""

    def _convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        conv = cast(Any, self)
        padding = conv.padding
        if isinstance(conv, Conv2dSame):
            kernel, stride, dilation = map(list, (conv.kernel_size, conv.stride, conv.dilation))
            x = pad_same(x, kernel, stride, dilation)
        elif isinstance(padding, str) or conv.padding_mode != "zeros":
            mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
            x = F.pad(x, conv._reversed_padding_repeated_twice, mode=mode)
            padding = (0,) * len(conv.kernel_size)
        form = conv.stride, padding, conv.dilation, False, (0,) * len(padding), conv.groups
        frozen = not weight.requires_grad and x.dim() == weight.dim()
        return (_FrozenConvolution.apply if frozen else _convolution)(x, weight, bias, *form)

    def forward(self, x: Tensor) -> Tensor:
        conv = cast(Any, self)
        return self._convolve(x, conv.weight, conv.bias)


class _AdaptedConv(_Adapted, _FrozenConv):
    def forward(self, x: Tensor) -> Tensor:
        b, conv = self._b, cast(Any, self)
        thin = self._convolve(x, self.lora_a, None)
        apply = F.conv3d if b.dim() == 5 else F.conv2d
        added = apply(thin, b, groups=conv.groups)
        return self._convolve(x, self._base, conv.bias) + added


class _FrozenConv2d(_FrozenConv, nn.Conv2d):
    plain = nn.Conv2d


class _FrozenConv3d(_FrozenConv, nn.Conv3d):
    plain = nn.Conv3d


class _FrozenConv2dSame(_FrozenConv, Conv2dSame):
    plain = Conv2dSame


class _AdaptedConv2d(_AdaptedConv, nn.Conv2d):
    plain = nn.Conv2d


class _AdaptedConv3d(_AdaptedConv, nn.Conv3d):
    plain = nn.Conv3d


class _AdaptedConv2dSame(_AdaptedConv, Conv2dSame):
    plain = Conv2dSame


class _FrozenTransposed(_Frozen):
    """A transposed convolution in its frozen form."""

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        conv = cast(Any, self)
        if output_size is not None or x.dim() != conv.weight.dim():
            return conv.plain.forward(conv, x, output_size)
        form = conv.stride, conv.padding, conv.dilation, True, conv.output_padding, conv.groups
        return _FrozenConvolution.apply(x, conv.weight, conv.bias, *form)


class _FrozenConvTranspose2d(_FrozenTransposed, nn.ConvTranspose2d):
    plain = nn.ConvTranspose2d


class _FrozenConvTranspose3d(_FrozenTransposed, nn.ConvTranspose3d):
    plain = nn.ConvTranspose3d


class _FixedNorm(_Frozen):
    """A batch norm at its statistics, in training too; it keeps a vector and not its input."""

    def forward(self, x: Tensor) -> Tensor:
        norm = cast(Any, self)
        scale = torch.rsqrt(norm.running_var + norm.eps)
        scale = scale if norm.weight is None else scale * norm.weight
        shift = -norm.running_mean * scale
        shift = shift if norm.bias is None else shift + norm.bias
        shape = -1, *[1] * (x.dim() - 2)
        return torch.addcmul(shift.view(shape), x, scale.view(shape)).to(x.dtype)


class _FixedBatchNorm1d(_FixedNorm, nn.BatchNorm1d):
    plain = nn.BatchNorm1d


class _FixedBatchNorm2d(_FixedNorm, nn.BatchNorm2d):
    plain = nn.BatchNorm2d


class _FixedBatchNorm3d(_FixedNorm, nn.BatchNorm3d):
    plain = nn.BatchNorm3d


class _FixedBatchNormAct2d(_FixedNorm, BatchNormAct2d):
    plain = BatchNormAct2d

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.drop(super().forward(x)))


def _by_plain(*classes: Any) -> dict[type, Any]:
    return {each.plain: each for each in classes}


_ADAPTED = _by_plain(_AdaptedLinear, _AdaptedConv2d, _AdaptedConv3d, _AdaptedConv2dSame)
_FROZEN = _by_plain(
    *(_FrozenConv2d, _FrozenConv3d, _FrozenConv2dSame),
    *(_FrozenConvTranspose2d, _FrozenConvTranspose3d),
)
_FIXED = _by_plain(_FixedBatchNorm1d, _FixedBatchNorm2d, _FixedBatchNorm3d, _FixedBatchNormAct2d)
_NORMS = nn.modules.batchnorm._NormBase


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
        weight = module._parameters.get("weight")
        if weight is None or weight.dim() < 2:
            continue
        wanted = _fits(name, settings.layers) and not _fits(name, settings.skip)
        if _within(name, settings.trains) or _within(f"{name}.weight", settings.trains):
            left[name] = "trained as it is"
        elif not wanted:
            left[name] = "not among the layers"
        elif type(module) not in _ADAPTED:
            left[name] = f"no form of adapter for {type(module).__name__}"
        elif uses[id(weight)] > 1:
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
    layer.__class__ = _ADAPTED[type(layer)]


def _levels(a: Tensor) -> float:
    """Levels of an A in one, as its deviation is 1 / sqrt(what a row sums up)."""
    return _LEVELS * math.sqrt(a[0].numel())


def _freeze(module: nn.Module) -> None:
    weight = module._parameters.get("weight")
    if type(module) in _FROZEN and not cast(Tensor, weight).requires_grad:
        module.__class__ = _FROZEN[type(module)]
    elif isinstance(module, _NORMS) and module.running_mean is not None:
        if type(module) in _FIXED:
            module.__class__ = _FIXED[type(module)]
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
    return ((name, m) for name, m in net.named_modules() if isinstance(m, _Adapted))


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
        if isinstance(module, _Frozen):
            module.__class__ = cast(Any, module).plain
        for key, hook in list(module._forward_pre_hooks.items()):
            if hook is _in_evaluation:
                del module._forward_pre_hooks[key]
    del cast(Any, net).lora
    return net.requires_grad_(True)


def _check_adapted(net: nn.Module) -> None:
    if not is_adapted(net):
        raise ValueError(f"{type(net).__name__} has no adapters")


def base_hash(net: nn.Module) -> str:
    """SHA-256 of what the adapters stand on: names, types, shapes and values of the frozen tensors.

    Raises:
        ValueError: the network has no adapters.
    """
    _check_adapted(net)
    return _hash(_split(net, _settings(net))[0])


def _hash(tensors: Mapping[str, Tensor]) -> str:
    seen = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        seen.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        plain = tensor.detach().cpu().contiguous().reshape(-1)
        seen.update(plain.view(torch.uint8).numpy().data)
    return seen.hexdigest()


def _settings(net: nn.Module) -> LoRA:
    return cast(Any, net).lora


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
        net: adapted.
        path: ends in ``.safetensors``.
        **facts: JSON values kept in the file.

    Returns:
        The path.

    Raises:
        ValueError: no adapters, another suffix, or facts that JSON cannot hold.
    """
    _check_adapted(net)
    known = dict(getattr(net, "architecture", {}))
    name = known.pop("name", type(net).__name__)
    base, own = _split(net, _settings(net))
    if not _settings(net).train_a:
        drawn = {key: a for key, a in own.items() if key.rpartition(".")[2] == A}
        own |= {key: (a.double() * _levels(a)).round().to(torch.int8) for key, a in drawn.items()}
    said = {"adapter": asdict(_settings(net)), "base": _hash(base), **described(net)}
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
            own = getattr(net, "architecture", {}).get("name", type(net).__name__)
            kind = "with other weights" if own == stored.name else f"not {own}"
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


def adapt_by(net: nn.Module, given: str | Mapping[str, Any]) -> None:
    """`adapt` a network as a config says, see `LoRA.read`, and tell what is trained and what not.

    Raises:
        ValueError: of either.
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
    its `architecture`, `merged.safetensors`, an ordinary file of weights. Checkpoints resume as
    they are and are read merged. A task of `vizoo fit` has its argument `adapter` for this.

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
        net, kept = cast(Any, pl_module).net, {"state_dict": pl_module.state_dict()}
        pl_module.on_save_checkpoint(kept)
        facts = {key: kept[key] for key in ("classes", "input") if kept.get(key)}
        path = save_adapters(net, folder / "adapter.safetensors", **facts)
        said = f"adapters: {path}, {path.stat().st_size / 1e3:,.0f} kB"
        if getattr(net, "architecture", None):
            said += f"; merged: {save_weights(net, folder / 'merged.safetensors', **facts)}"
        rank_zero_info(said)
