"""The formats of `export`: how each is written, and read back to be run."""

from __future__ import annotations

import ast
import difflib
import importlib.util
import io
import json
import os
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..common.extras import from_extra, installs
from ..common.progress import quiet
from ..common.system import compiler
from . import _openvino, _tensorrt

if TYPE_CHECKING:
    import onnx

_KEY = "vizoo"
"""Under which a file's metadata lie, as JSON; in a zip archive in the file of that name."""

METADATA = 1
"""Version of what a file says of itself."""

LOUD = ("torch.onnx", "torch.utils.cpp_extension", "onnxscript", "onnx_ir")
"""Loggers of the exporters, which warn of their own insides."""

_EXTRA = f"{_KEY}.json"
_LARGEST_TABLE = 1 << 16  # values
_LARGEST_ONNX = (1 << 31) - (1 << 22)
"""Bytes of weights; a protocol buffer ends at 2 GiB."""

_CONVOLUTIONS = ("Conv", "ConvTranspose", "Gemm")
"""Operators of ONNX that int8 is for."""

_Run = Callable[[tuple[Tensor, ...]], Any]


@dataclass(frozen=True)
class Job:
    """What is to be written."""

    net: nn.Module  #: in evaluation mode
    inputs: tuple[Tensor, ...]  #: example arguments
    #: for each input the names of the axes that vary; None where all sizes are fixed
    axes: tuple[dict[int, str], ...] | None
    input_names: tuple[str, ...]  #: of the arguments
    output_names: tuple[str, ...]  #: of the tensors that it returns; none: any
    metadata: dict[str, Any]  #: JSON values
    opset: int | None  #: of ONNX, or None
    half: bool = False  #: whether weights are stored in float16

    @property
    def text(self) -> str:
        """The metadata as JSON."""
        return json.dumps(self.metadata)


@dataclass(frozen=True)
class Format:
    """One way to write a network."""

    name: str  #: what `--to` takes
    suffixes: tuple[str, ...]  #: of its files, the usual one first
    write: Callable[[Job, Path], None]  #: writes a file
    #: from a file what runs it, in this type if the file leaves the type open, and its metadata
    read: Callable[[Path, torch.dtype], tuple[_Run, dict[str, Any]]]
    needs: tuple[str, ...] = ()  #: packages, which are modules too
    int8_needs: str = ""  #: one more for int8
    extra: str = ""  #: what brings them
    has_opsets: bool = False
    needs_compiler: bool = False  #: of C++
    portable: bool = False  #: whether a file runs on any device and processor
    beside: tuple[str, ...] = ()  #: suffixes of files of the same name that belong to it
    precisions: tuple[str, ...] = ("float32",)  #: in which it can be written
    layers: Callable[[Path], list[str]] = lambda file: []  #: names of those that int8 is for
    #: writes an int8 file from a float32 one, by inputs, leaving layers of these names in float32
    quantize: Callable[[Path, Path, Sequence[tuple[Tensor, ...]], Collection[str]], None] = (
        lambda source, target, inputs, kept: None
    )
    #: of graph and code, that it may hold for each tensor of weights
    bytes_per_tensor: int = 4 << 10

    def check(self, path: Path, opset: int | None, precision: str = "float32") -> None:
        """Refuse what cannot work before anything is computed.

        Raises:
            ValueError: another suffix, an opset or a precision that the format has not, no
                compiler.
            ImportError: a package is missing.
        """
        if path.suffix not in self.suffixes:
            wanted = " or ".join(self.suffixes)
            raise ValueError(f"{path}: a file of {self.name} ends in {wanted}; choose such a name")
        if opset is not None:
            if not self.has_opsets:
                raise ValueError(f"an opset is for ONNX, {self.name} has none; leave it out")
            from torch.onnx import _constants

            newest = getattr(_constants, "ONNX_MAX_OPSET", 23)
            if not 16 <= opset <= newest:
                raise ValueError(
                    f"opset {opset}: take one from 16, the first that samples images, to {newest}"
                )
        if precision not in self.precisions:
            raise ValueError(
                f"precision {precision!r}: {self.name} has {', '.join(self.precisions)}"
            )
        self.check_installed(precision)
        command, installed = compiler()
        if self.needs_compiler and installed is None:
            raise ValueError(
                f"{self.name} needs a C++ compiler, and there is no {command} here: install one "
                "(Debian: apt install g++) or name yours in CXX; the other formats need none"
            )

    def check_installed(self, precision: str = "float32") -> None:
        """Refuse what needs packages that are not there.

        Raises:
            ImportError: which, and how to get them.
        """
        missing = [name for name in self.needs if not _installed(name)]
        if missing:
            raise ImportError(f"{self.name} needs {', '.join(missing)}: {installs(self.extra)}")
        if precision == "int8" and self.int8_needs:
            from_extra(self.extra, self.int8_needs, f"int8 of {self.name}")


def find_format(name: str) -> Format:
    """The format of a name.

    Raises:
        ValueError: there is none; the message names the nearest.
    """
    if name in FORMATS:
        return FORMATS[name]
    near = difflib.get_close_matches(name.lower(), FORMATS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(FORMATS)}"
    raise ValueError(f"no export format is called {name!r}; {hint}")


def _installed(module: str) -> bool:
    return module in sys.modules or importlib.util.find_spec(module) is not None


def _program(job: Job) -> torch.export.ExportedProgram:
    shapes = None
    if job.axes is not None:
        shapes = tuple(dict.fromkeys(axes, torch.export.Dim.DYNAMIC) for axes in job.axes)
    # Else a crop is guarded to be one: the size that it was traced with decides whether it may
    # leave all there is, and the program takes no other size of that kind.
    settings: Any = torch.fx.experimental._config
    with settings.patch(backed_size_oblivious=True):
        program = torch.export.export(job.net, job.inputs, dynamic_shapes=shapes)
    for node in program.graph.nodes:  # paths of this machine
        node.meta.pop("stack_trace", None)
    return program


def _onnx(job: Job, optimize: bool, replaced: dict[Any, Any] | None = None) -> onnx.ModelProto:
    size = sum(x.numel() * x.element_size() for x in job.net.state_dict().values())
    if size > _LARGEST_ONNX:
        raise ValueError(f"its weights have {size:,} bytes, and an ONNX file ends at 2 GiB")
    program = _program(job)
    if replaced is not None:
        program = program.run_decompositions(replaced)
    exported = torch.onnx.export(
        program,
        dynamo=True,
        dynamic_shapes=job.axes,
        input_names=job.input_names,
        output_names=job.output_names or None,
        opset_version=job.opset,
        optimize=False,
        verbose=False,
    )
    written = cast("torch.onnx.ONNXProgram", exported)
    if optimize:
        from onnxscript import optimizer

        # As PyTorch asks for it, but for tables of every pixel, larger than the weights.
        optimizer.optimize_ir(written.model, output_size_limit=_LARGEST_TABLE)
    model = written.model_proto
    for node in model.graph.node:
        scopes = [e.value for e in node.metadata_props if e.key == "pkg.torch.onnx.name_scopes"]
        if scopes and node.op_type in _CONVOLUTIONS:  # such as refinement.first/conv2d_7
            node.name = "/".join(ast.literal_eval(scopes[0])[-2:]) or node.name
    return model


def _write_onnx(job: Job, file: Path) -> None:
    import onnx

    model = _onnx(job, optimize=True)
    (opset,) = (entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    if job.opset not in (None, opset):
        raise ValueError(f"it cannot be written in opset {job.opset}; {opset} works")
    facts = {key: value for key, value in job.metadata.items() if isinstance(value, str)}
    onnx.helper.set_model_props(model, {**facts, _KEY: job.text})
    onnx.save(model, os.fspath(file))


def _onnx_layers(file: Path) -> list[str]:
    import onnx

    nodes = onnx.load(os.fspath(file)).graph.node
    return [node.name for node in nodes if node.op_type in _CONVOLUTIONS]


def _quantize_onnx(
    source: Path, target: Path, inputs: Sequence[tuple[Tensor, ...]], kept: Collection[str]
) -> None:
    import onnx
    from onnxruntime import quantization as ort

    names = [entry.name for entry in onnx.load(os.fspath(source)).graph.input]
    feeds = iter([dict(zip(names, (x.numpy() for x in xs), strict=True)) for xs in inputs])

    class Reader(ort.CalibrationDataReader):
        def get_next(self) -> Any:
            return next(feeds, None)

    with quiet(("root", "")):  # it warns of a step that makes no difference here
        ort.quantize_static(
            os.fspath(source),
            os.fspath(target),
            Reader(),
            quant_format=ort.QuantFormat.QDQ,
            op_types_to_quantize=list(_CONVOLUTIONS),
            nodes_to_exclude=list(kept),
            per_channel=True,
            # Two products of eight bits overflow on processors without VNNI, of seven they do not.
            reduce_range=True,
        )


def _read_onnx(file: Path, dtype: torch.dtype) -> tuple[_Run, dict[str, Any]]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        os.fspath(file), options, providers=["CPUExecutionProvider"]
    )
    names = [entry.name for entry in session.get_inputs()]

    def run(inputs: tuple[Tensor, ...]) -> list[Tensor]:
        arrays = (x.cpu().numpy() for x in inputs)
        outputs = session.run(None, dict(zip(names, arrays, strict=True)))
        return [torch.from_numpy(array) for array in outputs]

    return run, json.loads(session.get_modelmeta().custom_metadata_map.get(_KEY, "{}"))


def _write_program(job: Job, file: Path) -> None:
    program = _program(job)
    program.example_inputs = None  # of large images they have more bytes than a small network
    stream = io.BytesIO()  # of a file on a full disk PyTorch ends the process
    torch.export.save(program, stream, extra_files={_EXTRA: job.text})
    file.write_bytes(stream.getvalue())


def _read_program(file: Path, dtype: torch.dtype) -> tuple[_Run, dict[str, Any]]:
    extra = {_EXTRA: ""}
    module = torch.export.load(os.fspath(file), extra_files=extra).module()
    return lambda inputs: module(*inputs), json.loads(extra[_EXTRA])


def _write_torchscript(job: Job, file: Path) -> None:
    traced = torch.jit.trace(job.net, job.inputs, check_trace=False, strict=False)
    with file.open("wb") as stream:
        torch.jit.save(traced, stream, _extra_files={_EXTRA: job.text})


def _read_torchscript(file: Path, dtype: torch.dtype) -> tuple[_Run, dict[str, Any]]:
    extra = {_EXTRA: ""}
    module = torch.jit.load(os.fspath(file), _extra_files=extra)
    return lambda inputs: module(*inputs), json.loads(extra[_EXTRA])


def _pool_whole(
    x: Tensor,
    kernel: list[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """`avg_pool2d` whose last windows reach beyond the image, by whole windows."""
    apart = list(stride or kernel) == list(kernel) and not any(padding)
    if not (ceil_mode and apart) or divisor_override is not None:
        return NotImplemented
    sizes = x.shape[-2:]
    right, bottom = -sizes[1] % kernel[1], -sizes[0] % kernel[0]
    pooled = F.avg_pool2d(F.pad(x, (0, right, 0, bottom)), kernel)
    rows, columns = (
        side / (size - side * torch.arange(count, device=x.device)).clamp(max=side)
        for size, side, count in zip(sizes, kernel, pooled.shape[-2:], strict=True)
    )
    return pooled * (rows[:, None] * columns).to(x.dtype)


_POOLS = {torch.ops.aten.avg_pool2d.default: _pool_whole}


def _write_compiled(job: Job, file: Path) -> None:
    # Inductor would fix whether there is such a window by the size that was traced.
    torch._inductor.aoti_compile_and_package(
        _program(job).run_decompositions(_POOLS),
        package_path=os.fspath(file),
        inductor_configs={
            "aot_inductor.metadata": {_KEY: job.text},
            # Else the number of threads here would be the number of threads anywhere.
            "cpp.dynamic_threads": True,
        },
    )


def _read_compiled(file: Path, dtype: torch.dtype) -> tuple[_Run, dict[str, Any]]:
    model = torch._inductor.aoti_load_package(os.fspath(file))
    return lambda inputs: model(*inputs), json.loads(model.get_metadata()[_KEY])


def _write_openvino(job: Job, file: Path) -> None:
    # Of any size OpenVINO pools images that are smaller than a window to something else.
    pools = None if job.axes is None else _POOLS
    try:  # OpenVINO simplifies graphs itself, in a third of the time
        model = _onnx(job, optimize=False, replaced=pools).SerializeToString()
        _openvino.write(model, job.text, file, job.half)
    except ValueError:  # except for 3D convolutions
        model = _onnx(job, optimize=True, replaced=pools).SerializeToString()
        _openvino.write(model, job.text, file, job.half)


def _write_tensorrt(job: Job, file: Path) -> None:
    if job.inputs[0].device.type != "cuda":
        raise ValueError("tensorrt builds for the GPU that it runs on: give --device cuda")
    shapes = _tensorrt.ranges(job.input_names, job.inputs, job.axes) if job.axes else {}
    _tensorrt.write(_onnx(job, optimize=True).SerializeToString(), job.text, file, shapes)


FORMATS: dict[str, Format] = {
    form.name: form
    for form in (
        Format(
            "onnx",
            (".onnx",),
            _write_onnx,
            _read_onnx,
            needs=("onnx", "onnxscript", "onnxruntime"),
            extra="export",
            has_opsets=True,
            portable=True,
            precisions=("float32", "int8"),
            layers=_onnx_layers,
            quantize=_quantize_onnx,
        ),
        Format(
            "openvino",
            (".xml",),
            _write_openvino,
            _openvino.read,
            needs=("onnx", "onnxscript", "openvino"),
            int8_needs="nncf",
            extra="openvino",
            portable=True,
            beside=(".bin",),
            precisions=("float32", "float16", "int8"),
            layers=_openvino.layers,
            quantize=_openvino.quantize,
        ),
        Format("torch-export", (".pt2",), _write_program, _read_program),
        Format("torchscript", (".pt", ".ts"), _write_torchscript, _read_torchscript),
        Format(
            "aot-inductor",
            (".pt2",),
            _write_compiled,
            _read_compiled,
            needs_compiler=True,
            bytes_per_tensor=24 << 10,  # source and machine code
        ),
        Format(
            "tensorrt",
            (".engine",),
            _write_tensorrt,
            lambda file, dtype: _tensorrt.read(file),
            needs=("onnx", "onnxscript", "tensorrt"),
            extra="tensorrt",
            beside=(_tensorrt.FACTS,),
            bytes_per_tensor=64 << 10,  # machine code
        ),
    )
}
"""Name to format."""
