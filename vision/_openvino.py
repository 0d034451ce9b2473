"""Networks in OpenVINO: written, read, compiled and run."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..common.extras import from_extra
from ..common.progress import quiet

if TYPE_CHECKING:
    import openvino

__all__ = ["layers", "quantize", "read", "write"]

_FACTS = "vizoo"
"""Under which the metadata lie, as JSON."""

_LAYERS = (
    "Convolution",
    "GroupConvolution",
    "ConvolutionBackpropData",
    "GroupConvolutionBackpropData",
)
"""Operators that int8 is for."""

_SETTLED = 2
"""Calls of a size before a file of any size is compiled for it."""

_KEPT = 2
"""Sizes for which a file of any size is compiled at once: each has its own memory."""

_PRECISIONS = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


def write(onnx: bytes, facts: str, file: Path, half: bool = False) -> None:
    """Write an ONNX model as an ``.xml`` file and a ``.bin`` file beside it.

    Args:
        onnx: a file's content.
        facts: the metadata, as JSON.
        file: ends in ``.xml``.
        half: whether weights are stored in float16; computed is in what `read` says.

    Raises:
        ValueError: OpenVINO cannot read one of its operators.
        OSError: the files cannot be written.
    """
    try:
        model = _core().read_model(onnx)
    except RuntimeError as error:
        failed = re.search(r"Conversion is failed for: (.+)", str(error))
        if failed is None:
            raise
        raise ValueError(f"OpenVINO cannot read its {failed[1]}; take onnx") from error
    model.set_rt_info(facts, _FACTS)
    try:
        _openvino().save_model(model, os.fspath(file), compress_to_fp16=half)
    except RuntimeError as error:
        if "iostream" not in str(error):
            raise
        raise OSError("is the disk full?") from error


def read(
    file: Path, dtype: torch.dtype = torch.float32
) -> tuple[Callable[[tuple[Tensor, ...]], list[Tensor]], dict[str, Any]]:
    """What runs an ``.xml`` file on this processor, and its metadata: none, if not vizoo's.

    As many threads as PyTorch has now compute in a type, where the file leaves that open. One of
    dynamic size is compiled again, in about a second, for the first two sizes that come a third
    time, which then take up to a third less time. In bfloat16 and int8 it is for each size, of
    which the last two are kept.

    Raises:
        FileNotFoundError: it is missing, or the ``.bin`` file beside it that holds its weights.
    """
    model = _model(file)
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "INFERENCE_PRECISION_HINT": _PRECISIONS[dtype],
    }

    def compiled(net: openvino.Model) -> openvino.InferRequest:
        return _core().compile_model(net, "CPU", settings).create_infer_request()

    dynamic = any(port.partial_shape.is_dynamic for port in model.inputs)
    # Of any size bfloat16 errs more, and int8 crashes on processors with AMX.
    exact = dtype == torch.float32 and "FakeQuantize" not in map(_type, model.get_ops())
    of_any_size = compiled(model) if exact or not dynamic else None
    of_size: dict[tuple, openvino.InferRequest] = {}
    calls: Counter[tuple] = Counter()
    one_call = threading.Lock()  # a request holds the inputs and outputs of one

    def request(shapes: tuple) -> openvino.InferRequest:
        if shapes not in of_size and dynamic:
            calls[shapes] += 1
            full = len(of_size) == _KEPT
            if of_any_size is not None and (full or calls[shapes] <= _SETTLED):
                return of_any_size
            if full:
                del of_size[next(iter(of_size))]
            sized = model.clone()
            sized.reshape(dict(zip(sized.inputs, shapes, strict=True)))
            of_size[shapes] = compiled(sized)
        return of_size.get(shapes, of_any_size)

    def run(inputs: tuple[Tensor, ...]) -> list[Tensor]:
        arrays = [x.contiguous().numpy() for x in inputs]
        with one_call:
            outputs = request(tuple(x.shape for x in arrays)).infer(arrays)
        return [torch.from_numpy(outputs[i]) for i in range(len(outputs))]

    facts = model.get_rt_info(_FACTS).astype(str) if _FACTS in model.rt_info else "{}"
    return run, json.loads(facts)


def _model(file: Path) -> openvino.Model:
    for path in (file, file.with_suffix(".bin")):
        if not path.is_file():
            raise FileNotFoundError(
                f"{path}: no such file; an OpenVINO model is a .xml file and, beside it, a .bin "
                "file of the same name"
            )
    return _core().read_model(os.fspath(file))


def layers(file: Path) -> list[str]:
    """Names of the convolutions and the like in a file."""
    return [name for node in _model(file).get_ordered_ops() if (name := _layer(node))]


def quantize(
    source: Path, target: Path, inputs: Sequence[tuple[Tensor, ...]], kept: Collection[str]
) -> None:
    """Write a file whose convolutions are in int8.

    Args:
        source: an ``.xml`` file in float32.
        target: the file to write.
        inputs: by which ranges are found.
        kept: `layers` that stay in float.
    """
    nncf = from_extra("openvino", "nncf", "int8 of openvino")
    from openvino._offline_transformations import apply_moc_transformations

    model = _model(source)
    apply_moc_transformations(model, cf=False)  # what a compiler would fold, lest it be quantised
    nodes = model.get_ops()
    between = {*map(_type, nodes)} - {*_LAYERS, "Constant", "Parameter", "Result"}
    ignored = [n.get_friendly_name() for n in nodes if (name := _layer(n)) and name in kept]
    arrays = [tuple(x.numpy() for x in xs) for xs in inputs]
    with quiet(("nncf",)), contextlib.redirect_stdout(None):
        model = nncf.quantize(
            model,
            nncf.Dataset(arrays),
            preset=nncf.QuantizationPreset.MIXED,  # ranges of activations need not be around zero
            subset_size=len(arrays),
            ignored_scope=nncf.IgnoredScope(names=ignored, types=sorted(between), validate=False),
            # Weights of seven bits: with eight, processors without VNNI overflow.
            advanced_parameters=nncf.AdvancedQuantizationParameters(
                overflow_fix=nncf.OverflowFix.ENABLE
            ),
        )
    _openvino().save_model(model, os.fspath(target), compress_to_fp16=False)


def _layer(node: Any) -> str:
    """The name that a convolution was exported by; empty for other nodes."""
    if _type(node) not in _LAYERS:
        return ""
    return node.get_friendly_name().removesuffix("/WithoutBiases")


def _type(node: Any) -> str:
    return node.get_type_name()


@cache
def _core() -> Any:
    """One for the process: the second that ends leaves signals the first one's freed stack."""
    return _openvino().Core()


def _openvino() -> Any:
    return from_extra("openvino", "openvino", "OpenVINO")
