"""What the operators share: checks at the border, and registration with ``torch.library``."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ._kernels import choose

_LIBRARY = torch.library.Library("vizoo", "FRAGMENT")


def exporting() -> bool:
    """Whether only standard operators shall run: a graph of them is being written.

    So it is under ``torch.func`` and forward-mode differentiation, in which an opaque operator's
    tangents would be zero without a word.
    """
    # In what PyTorch 2.8 compiles, is_exporting() is always true; its flag tells.
    exports = torch.compiler.is_exporting() and getattr(torch.compiler, "_is_exporting_flag", True)
    if exports or torch.onnx.is_in_onnx_export() or torch.jit.is_tracing():
        return True
    forward = torch.autograd.forward_ad._current_level >= 0
    return forward or torch._C._are_functorch_transforms_active()


def check_pair(left: Tensor, right: Tensor) -> None:
    """Raises ValueError unless both are (B, C, H, W), of one shape, device and real type."""
    if left.dim() != 4 or left.shape != right.shape:
        raise ValueError(
            "left and right must both be (B, C, H, W) and equal in shape, "
            f"got {tuple(left.shape)} and {tuple(right.shape)}"
        )
    if left.device != right.device:
        raise ValueError(f"left is on {left.device} and right on {right.device}: move one")
    if not (left.is_floating_point() and right.is_floating_point()):
        raise ValueError(f"left and right must be floating, got {left.dtype} and {right.dtype}")
    check_types("left and right", left, right)


def check_types(what: str, first: Tensor, *others: Tensor | None) -> None:
    """Raises ValueError unless those given have one type, or autocast gives them one."""
    types = {first.dtype, *(x.dtype for x in others if x is not None)}
    if len(types) == 1:
        return  # on devices that know no autocast, too, such as meta
    if not torch.is_autocast_enabled(first.device.type) or torch.float64 in types:
        raise ValueError(
            f"{what} are {', '.join(sorted(map(str, types)))}: convert, or use torch.autocast, "
            "which leaves float64 as it is"
        )


def check_devices(*tensors: Tensor | None) -> None:
    """Raises ValueError unless those that are given lie on one device."""
    devices = sorted({str(x.device) for x in tensors if x is not None})
    if len(devices) > 1:
        raise ValueError(f"tensors lie on {', '.join(devices)}")


def check_at_least(name: str, value: int, least: int) -> None:
    """Raises ValueError where ``value`` is no whole number, or below ``least``."""
    if not hasattr(value, "__index__"):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def define(
    name: str, schema: str, function: Callable[..., Any], fake: Callable[..., Any]
) -> torch.library.CustomOpDef:
    """The operator ``vizoo::name``, which changes none of its arguments.

    `fake` allocates the results of a call without computing them.
    """
    operator = torch.library.custom_op(f"vizoo::{name}", function, mutates_args=(), schema=schema)
    operator.register_fake(fake)
    for key in ("CPU", "CUDA"):
        _LIBRARY.impl(name, _untraced(function), key)
    return operator


def _untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Keeps ``torch.compile`` out of a kernel once it is imported.

    As PyTorch's own kernel of the operator does, which for that imports it at the first call: a
    second in which a process that compiles nothing would wait.
    """
    disabled: Callable[..., Any] | None = None

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        nonlocal disabled
        if disabled is None:
            if "_dynamo" not in vars(torch):
                return function(*arguments)
            disabled = torch.compiler.disable(function)
        return disabled(*arguments)

    return call


def register_pair_operator(
    name: str,
    sizes: str,
    forward: Callable[..., Tensor],
    backward: Callable[..., tuple[Tensor, Tensor]],
    shape: Callable[..., tuple[int, ...]],
    forward_cuda: Callable[..., Tensor],
    backward_cuda: Callable[..., tuple[Tensor, Tensor]],
    *,
    bilinear: bool = True,
) -> None:
    """Registers ``vizoo::name(left, right, *sizes)`` and ``vizoo::name_backward``.

    Both get a fake kernel. The forward operator gets the backward one as its derivative. The
    backward one gets its own derivative out of the two operators, so that second derivatives
    work. Under autocast the inputs are cast to autocast's type, as for a matrix product.

    Args:
        name: operator name.
        sizes: names of the integer arguments, separated by blanks.
        forward: ``forward(left, right, *sizes)``.
        backward: ``backward(gradient, left, right, *sizes)``, laid out as ``empty_like``.
        shape: shape of the result, from the same arguments as ``forward``.
        forward_cuda: ``forward`` by kernels.
        backward_cuda: ``backward`` by kernels.
        bilinear: True for an operator linear in each of left and right, False for one that is
            linear in the pair.
    """
    names = sizes.split()
    nothing = (None,) * len(names)
    integers = "".join(f", SymInt {name}" for name in names)
    pair = f"Tensor left, Tensor right{integers}"
    operator = define(
        name,
        f"({pair}) -> Tensor",
        choose(name, forward, forward_cuda),
        lambda left, *given: left.new_empty(shape(left, *given)),
    )
    derivative = define(
        f"{name}_backward",
        f"(Tensor gradient, {pair}) -> (Tensor, Tensor)",
        choose(name, backward, backward_cuda),
        lambda _, left, right, *sizes: (torch.empty_like(left), torch.empty_like(right)),
    )

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        tensors = len(inputs) - len(names)
        ctx.save_for_backward(*inputs[:tensors])
        ctx.sizes = inputs[tensors:]

    def once(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return *derivative(gradient, *ctx.saved_tensors, *ctx.sizes), *nothing

    def twice(ctx: Any, to_left: Tensor, to_right: Tensor) -> tuple[Tensor | None, ...]:
        gradient, left, right = ctx.saved_tensors
        if not bilinear:
            return operator(to_left, to_right, *ctx.sizes), None, None, *nothing
        to_gradient = operator(to_left, right, *ctx.sizes) + operator(left, to_right, *ctx.sizes)
        return to_gradient, *derivative(gradient, to_left, to_right, *ctx.sizes), *nothing

    operator.register_autograd(once, setup_context=keep)
    derivative.register_autograd(twice, setup_context=keep)
    register_autocast(name, 2)


def register_autocast(name: str, features: int) -> None:
    """Lets autocast cast an operator's inputs to its type, as for a matrix product.

    Args:
        name: of the operator ``vizoo::name``.
        features: how many leading arguments are cast: tensors, lists of tensors or None; float64
            stays as it is.
    """
    call = getattr(torch.ops.vizoo, name).default

    def cast(value: Any, device: str) -> Any:
        if isinstance(value, Sequence):
            return [cast(tensor, device) for tensor in value]
        if value is None or value.dtype == torch.float64:
            return value
        return value.to(torch.get_autocast_dtype(device))

    def kernel(device: str, *given: Any) -> Tensor:
        lowered = [cast(value, device) for value in given[:features]]
        with torch.autocast(device, enabled=False):
            return call(*lowered, *given[features:])

    for key, device in (("AutocastCPU", "cpu"), ("AutocastCUDA", "cuda")):
        _LIBRARY.impl(name, functools.partial(kernel, device), key)


def register_composite(
    name: str,
    arguments: str,
    function: Callable[..., Tensor],
    forward: Callable[..., Tensor],
    backward: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]],
    fake: Callable[..., Tensor],
    refuses: Callable[..., str | None] | None = None,
) -> None:
    """Registers ``vizoo::name`` as a composite of standard operators, with kernels beside it.

    Autograd, fake tensors, ``torch.compile`` and autocast see through a composite, so that nothing
    is lost to opacity while PyTorch's own kernels serve. The kernels make opaque operators of their
    own, ``vizoo::name_fused`` and for each tensor that it has a gradient for
    ``vizoo::name_fused_TENSOR``, which the composite calls where kernels can be had. A compiled
    graph may hold these where kernels cannot be had after all: they too have a reference. Second
    derivatives are those of the composite.

    Args:
        name: of the composite.
        arguments: the schema's arguments, such as ``"Tensor cost, float step"``.
        function: takes them in order.
        forward: the same by a kernel.
        backward: for each of the leading arguments, by name, ``gradient, *arguments`` to its
            gradient, laid out as ``empty_like``: in PyTorch, without autograd, and by a kernel.
        fake: allocates the result.
        refuses: why the kernels do not take these arguments, or None.
    """

    def laid_out(*given: Any) -> Tensor:
        return fake(*given).copy_(function(*given))

    call = choose(name, laid_out, forward)
    operator = define(f"{name}_fused", f"({arguments}) -> Tensor", call, fake)
    derivatives = []
    for place, (tensor, gradients) in enumerate(backward.items()):
        derivative = define(
            f"{name}_fused_{tensor}",
            f"(Tensor gradient, {arguments}) -> Tensor",
            choose(name, *gradients),
            lambda _, *given, place=place: torch.empty_like(given[place]),
        )
        derivatives.append(derivative)

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs[: len(derivatives)])
        ctx.others = inputs[len(derivatives) :]

    def once(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        given, wanted = (*ctx.saved_tensors, *ctx.others), ctx.needs_input_grad[: len(derivatives)]
        grads: Iterator[Tensor]
        if torch.is_grad_enabled():
            some = [x for x, want in zip(ctx.saved_tensors, wanted, strict=True) if want]
            grads = iter(torch.autograd.grad(function(*given), some, gradient, create_graph=True))
        else:
            pairs = zip(derivatives, wanted, strict=True)
            grads = (derivative(gradient, *given) for derivative, want in pairs if want)
        return *(next(grads) if want else None for want in wanted), *(None for _ in ctx.others)

    operator.register_autograd(once, setup_context=keep)
    _LIBRARY.define(f"{name}({arguments}) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
    call = choose(name, function, operator, refuses=refuses)
    _LIBRARY.impl(name, call, "CompositeImplicitAutograd")
