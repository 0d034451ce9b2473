"""Networks in OpenVINO: written, read, compiled and run."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Collection, Sequence
from functools import cache, lru_cache
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
"""Times that a size comes again before a file of any size is compiled for it."""

_KEPT = 2
"""Sizes for which a file of any size stays compiled: each has its own memory."""

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
    ov = _openvino()
    try:
        model = ov.Core().read_model(onnx)
    except RuntimeError as error:
        failed = re.search(r"Conversion is failed for: (.+)", str(error))
        if failed is None:
            raise
        raise ValueError(f"OpenVINO cannot read its {failed[1]}; take onnx") from error
    model.set_rt_info(facts, _FACTS)
    try:
        ov.save_model(model, os.fspath(file), compress_to_fp16=half)
    except RuntimeError as error:
        if "iostream" not in str(error):
            raise
        raise OSError("is the disk full?") from error


def read(
    file: Path, dtype: torch.dtype = torch.float32
) -> tuple[Callable[[tuple[Tensor, ...]], list[Tensor]], dict[str, Any]]:
    """What runs an ``.xml`` file on this processor, and its metadata: none, if not vizoo's.

    As many threads as PyTorch has now compute in a type, where the file leaves that open. One of
    dynamic size is compiled again, in about a second, for a size that comes three times running,
    and then takes up to a third less time; in bfloat16 and int8 for each size.

    Raises:
        FileNotFoundError: it is missing, or the ``.bin`` file beside it that holds its weights.
    """
    model = _model(file)
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "INFERENCE_PRECISION_HINT": _PRECISIONS[dtype],
    }
    core = _openvino().Core()
    # At a given size bfloat16 errs less too, and int8 of any size crashes on processors with AMX.
    exact = dtype == torch.float32 and "FakeQuantize" not in map(_type, model.get_ops())
    last: tuple | None = None
    repeats = 0

    def compiled(net: openvino.Model) -> openvino.InferRequest:
        return core.compile_model(net, "CPU", settings).create_infer_request()

    @cache
    def of_any_size() -> openvino.InferRequest:
        return compiled(model)

    @lru_cache(maxsize=_KEPT)
    def of_size(*shapes: tuple[int, ...]) -> openvino.InferRequest:
        sized = model.clone()
        sized.reshape(dict(zip(sized.inputs, shapes, strict=True)))
        return compiled(sized)

    def run(inputs: tuple[Tensor, ...]) -> list[Tensor]:
        nonlocal last, repeats
        arrays = [x.contiguous().numpy() for x in inputs]
        shapes = tuple(x.shape for x in arrays)
        repeats = repeats + 1 if shapes == last else 0
        last = shapes
        settled = model.is_dynamic() and (repeats >= _SETTLED or not exact)
        outputs = (of_size(*shapes) if settled else of_any_size()).infer(arrays)
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
    return _openvino().Core().read_model(os.fspath(file))


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
    between = set(map(_type, nodes)) - {*_LAYERS, "Constant", "Parameter"}
    ignored = [n.get_friendly_name() for n in nodes if (name := _layer(n)) and name in kept]
    arrays = [tuple(x.numpy() for x in xs) for xs in inputs]
    with quiet(("nncf",)), contextlib.redirect_stdout(None):
        model = nncf.quantize(
            model,
            nncf.Dataset(arrays),
            preset=nncf.QuantizationPreset.MIXED,  # ranges of activations need not be around zero
            subset_size=len(arrays),
            ignored_scope=nncf.IgnoredScope(
                names=ignored, types=sorted(between - {"Result"}), validate=False
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


def _openvino() -> Any:
    return from_extra("openvino", "openvino", "OpenVINO")
