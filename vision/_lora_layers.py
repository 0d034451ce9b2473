"""The forms of layers that are adapted, or frozen so that they keep little, see `lora`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from timm.layers import BatchNormAct2d, Conv2dSame
from timm.layers.padding import pad_same
from torch import Tensor, nn
from torch.nn import functional as F

from .hub._low_rank import product

__all__ = ["ADAPTED", "FIXED", "FROZEN", "Adapted", "Frozen"]


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


class Frozen:
    """A layer in a form that keeps little for the backward pass."""

    plain: ClassVar[type[nn.Module]]

    if TYPE_CHECKING:  # what the layer has

        def __getattr__(self, name: str) -> Any: ...


class Adapted(Frozen):
    """A layer with `lora_a` and `lora_b`, to whatever reads its weight one of the sum."""

    lora_a: Tensor
    lora_b: Tensor
    corrected: bool

    weight: Any = property(lambda layer: layer._base + product(layer.lora_a, layer._b))

    @property
    def _base(self) -> Tensor:
        return self._parameters["weight"]

    @property
    def _b(self) -> Tensor:
        return _Corrected.apply(self.lora_b, self.lora_a) if self.corrected else self.lora_b


class _AdaptedLinear(Adapted):
    def forward(self, x: Tensor) -> Tensor:
        thin = F.linear(x, self.lora_a)
        return F.linear(x, self._base, self.bias) + F.linear(thin, self._b)


class _FrozenConv(Frozen):
    def _convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        padding = self.padding
        if isinstance(self, Conv2dSame):
            kernel, stride, dilation = map(list, (self.kernel_size, self.stride, self.dilation))
            x = pad_same(x, kernel, stride, dilation)
        elif isinstance(padding, str) or self.padding_mode != "zeros":
            mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
            x = F.pad(x, self._reversed_padding_repeated_twice, mode=mode)
            padding = (0,) * len(self.kernel_size)
        form = self.stride, padding, self.dilation, False, (0,) * len(padding), self.groups
        frozen = not weight.requires_grad and x.dim() == weight.dim()
        return (_FrozenConvolution.apply if frozen else _convolution)(x, weight, bias, *form)

    def forward(self, x: Tensor) -> Tensor:
        return self._convolve(x, self.weight, self.bias)


class _AdaptedConv(Adapted, _FrozenConv):
    def forward(self, x: Tensor) -> Tensor:
        b, thin = self._b, self._convolve(x, self.lora_a, None)
        apply = F.conv3d if b.dim() == 5 else F.conv2d
        return self._convolve(x, self._base, self.bias) + apply(thin, b, groups=self.groups)


class _FrozenTransposed(Frozen):
    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        if output_size is not None or x.dim() != self.weight.dim():
            return self.plain.forward(self, x, output_size)
        form = self.stride, self.padding, self.dilation, True, self.output_padding, self.groups
        return _FrozenConvolution.apply(x, self.weight, self.bias, *form)


class _FixedNorm(Frozen):
    """A batch norm at its statistics, in training too; it keeps a vector and not its input."""

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.rsqrt(self.running_var + self.eps)
        scale = scale if self.weight is None else scale * self.weight
        shift = -self.running_mean * scale
        shift = shift if self.bias is None else shift + self.bias
        shape = -1, *[1] * (x.dim() - 2)
        return torch.addcmul(shift.view(shape), x, scale.view(shape)).to(x.dtype)


class _FixedNormAct(_FixedNorm):
    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.drop(super().forward(x)))


def _forms(form: type[Frozen], *layers: type[nn.Module]) -> dict[type, type]:
    """Of plain layers those of a form; they stand in this module, where pickles look for them."""
    made = {}
    for plain in layers:
        name = f"{form.__name__}{plain.__name__}"
        made[plain] = type(name, (form, plain), {"plain": plain, "__module__": __name__})
        globals()[name] = made[plain]
    return made


_CONVOLUTIONS = nn.Conv2d, nn.Conv3d, Conv2dSame
ADAPTED = _forms(_AdaptedLinear, nn.Linear) | _forms(_AdaptedConv, *_CONVOLUTIONS)
FROZEN = _forms(_FrozenConv, *_CONVOLUTIONS)
FROZEN |= _forms(_FrozenTransposed, nn.ConvTranspose2d, nn.ConvTranspose3d)
FIXED = _forms(_FixedNorm, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
FIXED |= _forms(_FixedNormAct, BatchNormAct2d)
