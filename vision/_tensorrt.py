"""Networks in TensorRT: engines for the GPU that they are built on."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..common.extras import from_extra

if TYPE_CHECKING:
    import tensorrt

__all__ = ["FACTS", "parse", "read", "write"]

FACTS = ".engine.json"
"""Suffix of the file of metadata, since an engine holds none."""

_RANGE = 4
"""A side of an image that varies has between this part and this multiple of the example's."""

_Ranges = dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]
"""Name of an input to its smallest, usual and largest shape."""


def ranges(
    names: Sequence[str], inputs: Sequence[Tensor], axes: Sequence[dict[int, str]]
) -> _Ranges:
    """The shapes that inputs may have, of which some axes vary."""
    shapes = {}
    for name, x, varying in zip(names, inputs, axes, strict=True):
        usual = tuple(x.shape)
        least = tuple(max(1, n // _RANGE) if i in varying else n for i, n in enumerate(usual))
        most = tuple(n * _RANGE if i in varying else n for i, n in enumerate(usual))
        shapes[name] = least, usual, most
    return shapes


def parse(onnx: bytes, builder: tensorrt.Builder) -> tensorrt.INetworkDefinition:
    """The network of an ONNX file's content.

    Raises:
        ValueError: TensorRT does not know one of its operators.
    """
    trt = _tensorrt()
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, builder.logger)
    if not parser.parse(onnx):
        raise ValueError(f"TensorRT cannot read it: {parser.get_error(0).desc()}")
    return network


def write(onnx: bytes, facts: str, file: Path, shapes: _Ranges) -> None:
    """Build an engine of an ONNX file's content on this GPU, in float32.

    Args:
        onnx: a file's content.
        facts: the metadata, as JSON.
        file: the engine; the metadata go beside it.
        shapes: of the inputs that vary.

    Raises:
        ValueError: TensorRT refuses the network.
    """
    trt = _tensorrt()
    builder = trt.Builder(trt.Logger(trt.Logger.ERROR))
    network, settings = parse(onnx, builder), builder.create_builder_config()
    settings.clear_flag(trt.BuilderFlag.TF32)  # ten bits of mantissa
    if shapes:
        profile = builder.create_optimization_profile()
        for name, (least, usual, most) in shapes.items():
            profile.set_shape(name, least, usual, most)
        settings.add_optimization_profile(profile)
    engine = builder.build_serialized_network(network, settings)
    if engine is None:
        raise ValueError("TensorRT builds no engine of it")
    file.write_bytes(bytes(engine))
    file.with_suffix(FACTS).write_text(facts, encoding="utf-8")


def read(file: Path) -> tuple[Callable[[tuple[Tensor, ...]], list[Tensor]], dict[str, Any]]:
    """What runs an engine on the GPU, and its metadata."""
    trt = _tensorrt()
    runtime = trt.Runtime(trt.Logger(trt.Logger.ERROR))
    engine = runtime.deserialize_cuda_engine(file.read_bytes())
    if engine is None:
        raise ValueError(f"{file}: an engine of another GPU or TensorRT; export it again here")
    context = engine.create_execution_context()
    names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
    given = [n for n in names if engine.get_tensor_mode(n) == trt.TensorIOMode.INPUT]
    made = [name for name in names if name not in given]

    def run(inputs: tuple[Tensor, ...]) -> list[Tensor]:
        held = {name: x.cuda().contiguous() for name, x in zip(given, inputs, strict=True)}
        for name, x in held.items():
            if not context.set_input_shape(name, tuple(x.shape)):
                raise ValueError(
                    f"{file}: takes no {name} of {tuple(x.shape)}; export for that size"
                )
        for name in made:
            dtype = getattr(torch, trt.nptype(engine.get_tensor_dtype(name)).__name__)
            shape = tuple(context.get_tensor_shape(name))
            held[name] = torch.empty(shape, dtype=dtype, device="cuda")
        for name, x in held.items():
            context.set_tensor_address(name, x.data_ptr())
        stream = torch.cuda.current_stream()
        if not context.execute_async_v3(stream.cuda_stream):
            raise RuntimeError(f"{file}: TensorRT failed to run it")
        stream.synchronize()
        return [held[name] for name in made]

    return run, json.loads(file.with_suffix(FACTS).read_text(encoding="utf-8"))


def _tensorrt() -> Any:
    return from_extra("tensorrt", "tensorrt", "TensorRT")
