"""Networks as files that run without vizoo, each compared with PyTorch before it gets its name.

What a file is (model, architecture, names and ranges of its inputs) stands in the file itself.

>>> export("fadnet_plus_tiny", "tiny.onnx", to="onnx", dynamic=True).maximum
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from ..common.arguments import checked
from ..common.files import atomic_write
from ..common.progress import quiet
from ..common.system import installed_version
from ..nas.supernet import architecture_of
from ._export_formats import LOUD, METADATA, Format, Job, find_format
from .hub.registry import model_info
from .inference import evaluating, folded, standalone
from .inputs import example_inputs, input_names, size_axes
from .int8 import Quantized, Sample, check_parts, check_samples, quantize

__all__ = ["Check", "Exported", "export", "open_named", "stored_bytes", "tensors", "weight_bytes"]


@dataclass(frozen=True)
class Exported:
    """What `export` wrote."""

    path: Path  #: the file
    to: str  #: its format
    bytes: int  #: its size, with those of the files that belong to it
    weight_bytes: int  #: size of the network's parameters and buffers
    checks: tuple[Check, ...]  #: comparisons with PyTorch, that at the exported size first
    seconds: float  #: of the whole export
    metadata: Mapping[str, Any] = field(hash=False, repr=False)  #: what the file says of itself
    quantized: Quantized | None = field(default=None, hash=False)  #: what int8 cost

    @property
    def maximum(self) -> float:
        """The largest difference from PyTorch of all checks."""
        return max(check.maximum for check in self.checks)

    @property
    def mean(self) -> float:
        """The largest mean difference of all checks."""
        return max(check.mean for check in self.checks)


@checked("model", "path", "to", "size", "calibrate", "max_loss", "float_parts", "progress", batch=1)
def export(
    model: nn.Module | str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    to: str,
    size: tuple[int, int] = (384, 1280),
    dynamic: bool = False,
    batch: int = 1,
    opset: int | None = None,
    inputs: Tensor | Iterable[Tensor] | None = None,
    weights: str | None = None,
    precision: str = "float32",
    calibrate: Sequence[Sample] = (),
    max_loss: float = 0.2,
    float_parts: Sequence[str] | None = None,
    progress: Callable[[str], None] = lambda step: None,
) -> Exported:
    """Write a network as a file that runs without vizoo.

    The file is read back and run on inputs that it was not traced with (but for given ones, which
    serve for both); it gets its name only if it predicts what the network does and holds little
    more than the network's weights. Of a supernet the active subnet is extracted.

    Args:
        model: a network, on the device on which the file shall run; or a registered name, with
            trained weights if it has any, a file of weights, ``hf-hub:…`` or ``local-dir:…``.
        path: the file, ending in .onnx, .xml (openvino; a .bin file lies beside it), .pt2
            (torch-export and aot-inductor), .pt (torchscript) or .engine (tensorrt).
        to: ``"onnx"``, ``"openvino"``, ``"torch-export"``, ``"torchscript"``, ``"aot-inductor"`` or
            ``"tensorrt"``, whose dynamic sizes go from a quarter to four times `size`.
        size: height and width of the images.
        dynamic: let the file take any height and width; it is traced at `size`.
        batch: images at once, always fixed.
        opset: of ONNX; None takes PyTorch's own choice.
        inputs: example arguments of ``forward``, or its one argument, in place of random images of
            `size`.
        weights: where the network's weights come from, for the metadata.
        precision: ``float32``; of openvino also ``float16``, in which weights are stored; of
            openvino and onnx ``int8``, see `vizoo.vision.int8`.
        calibrate: for int8, inputs such as the network will get, with truth where there is any.
        max_loss: for int8, the mean absolute error that may be added, in the unit of the output.
        float_parts: for int8, the parts that stay in float; by default they are found.
        progress: told each step.

    Returns:
        The file, its size, and how far it is from PyTorch.

    Raises:
        ValueError: an unknown format, a wrong suffix, a size that the network does not take, a
            network that cannot be exported, a file that differs or is too large, or int8 that
            costs more than `max_loss`.
        ImportError: the format needs a package that is missing; the message installs it.
    """
    start = time.perf_counter()
    path, form = Path(path), find_format(to)
    form.check(path, opset, precision)
    if min(batch, *size) < 1:
        raise ValueError(f"batch {batch}, size {size[0]}x{size[1]}: must be at least 1")
    if dynamic and inputs is not None:
        raise ValueError("inputs of one size do not tell which axes are dynamic; give size instead")
    if precision != "int8" and (calibrate or float_parts is not None):
        raise ValueError(f"calibrate and float_parts are for precision 'int8', not {precision!r}")
    if max_loss < 0:
        raise ValueError(f"max_loss {max_loss:g}: must be at least 0")
    if inputs is not None:
        inputs = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    progress("loading")
    if not isinstance(model, nn.Module):
        model, weights = open_named(model)
    net = standalone(getattr(model, "_orig_mod", model))  # of what `torch.compile` wraps
    if precision == "int8":
        net = folded(net)
        check_parts(net, float_parts or ())
    with evaluating(net), torch.no_grad(), quiet(LOUD), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        progress("running in PyTorch")
        trials = _trials(net, size, batch, inputs, dynamic)
        job = Job(
            net=net,
            inputs=_inputs(net, *size, batch, inputs, seed=2),
            axes=size_axes(net, *size, batch) if dynamic else None,
            input_names=tuple(input_names(net)[: len(trials[0].inputs)]),
            output_names=_output_names(net, trials[0].output),
            metadata={},
            opset=opset,
            half=precision == "float16",
        )
        job.metadata.update(_facts(net, job, weights), precision=precision)
        if precision == "int8":
            check_samples(calibrate, [entry["shape"] for entry in job.metadata["inputs"]])
        with atomic_write(path, form.beside) as temporary:
            _check_room(temporary, net, precision)
            checks, metadata = _write(job, form, temporary, trials, progress)
            quantized = None
            if precision == "int8":
                with _one_line(f"{job.metadata['model']} cannot be quantised"):
                    quantized = quantize(
                        form, temporary, calibrate, max_loss, progress, float_parts
                    )
            files = (temporary, *map(temporary.with_suffix, form.beside))
            sizes = sum(file.stat().st_size for file in files), weight_bytes(net)
    spent = time.perf_counter() - start
    return Exported(path, form.name, *sizes, checks, spent, metadata, quantized)


def _check_room(file: Path, net: nn.Module, precision: str) -> None:
    """Raise an OSError where the disk cannot hold the weights, before minutes of work."""
    least = weight_bytes(net) // (2 if precision == "float16" else 1)  # int8 is made of float32
    disk = shutil.disk_usage(file.parent)
    if disk.total and disk.free < least:  # some file systems say nothing
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _write(
    job: Job, form: Format, file: Path, trials: Sequence[_Trial], progress: Callable[[str], None]
) -> tuple[tuple[Check, ...], dict[str, Any]]:
    """Write a file, read it back and run the trials: how they compare, and the file's metadata.

    Raises:
        ValueError: it cannot be written or run, differs, or has more bytes than the weights, 2 MiB,
            and `bytes_per_tensor` for each tensor.
    """
    name = job.metadata["model"]
    progress(f"writing {form.name}")
    with _one_line(f"{name} cannot be exported to {form.name}"):
        form.write(job, file)
    what = f"{name} as {form.name}"
    size, need = stored_bytes(file), weight_bytes(job.net)
    slack = _SLACK + form.bytes_per_tensor * len(_owned(job.net))
    if size > need + slack:
        raise ValueError(
            f"{what}: it would have {size:,} bytes, but the network {need:,} bytes of weights "
            f"(and {slack:,} are allowed beside them), so it holds something else too; nothing "
            "was written"
        )
    progress("comparing with PyTorch")
    with _one_line(f"{what} was written, but does not run"):
        run, metadata = form.read(file, torch.float32)
        outputs = [run(trial.inputs) for trial in trials]
    kind = torch.float16 if job.half else torch.float32
    pairs = zip(trials, outputs, strict=True)
    return tuple(trial.compare(output, what, kind) for trial, output in pairs), metadata


def open_named(source: str | os.PathLike[str]) -> tuple[nn.Module, str]:
    """A network on the CPU, and where its weights come from.

    Args:
        source: whatever `vizoo.vision.hub.create.open_model` takes.

    Returns:
        The network in evaluation mode, and the file's name, the source, or ``"random"``.
    """
    from .hub.create import is_name, open_model

    net, trained = open_model(source, untrained=True)
    name = os.fspath(source)
    if trained and is_name(source):
        entry = model_info(name)
        name = name if entry.tag else entry.tagged_names[0]
    elif os.path.exists(name):
        name = Path(name).name
    return net, name if trained else "random"


def _inputs(
    net: nn.Module, height: int, width: int, batch: int, given: Sequence[Tensor] | None, seed: int
) -> tuple[Tensor, ...]:
    """The given inputs, or random ones on the network's device and in its type."""
    if given is not None:
        return tuple(given)
    like = next((x for x in net.parameters() if x.is_floating_point()), torch.empty(0))
    with torch.random.fork_rng([like.device] if like.is_cuda else []):
        torch.manual_seed(seed)
        return example_inputs(net, height, width, batch=batch, device=like.device, dtype=like.dtype)


def _trials(
    net: nn.Module, size: tuple[int, int], batch: int, given: Sequence[Tensor] | None, dynamic: bool
) -> list[_Trial]:
    """One at the exported size; where that is dynamic one at another, as odd as the network takes.

    Raises:
        ValueError: the network does not take the size.
    """
    trials = [_Trial.run(net, _inputs(net, *size, batch, given, seed=1))]
    height, width = size
    others = [(height // 2 + 5, width + 37), (2 * height, width), (height, 2 * width)]
    while dynamic and len(trials) < 2:
        try:
            trials.append(_Trial.run(net, _inputs(net, *others.pop(0), batch, None, seed=1)))
        except ValueError:
            if not others:
                raise
    return trials


def _output_names(net: nn.Module, output: Any) -> tuple[str, ...]:
    """The network's `output_names`, else the keys of the tensors it returns, else numbers."""
    count = len(tensors(output))
    held = output.items() if isinstance(output, dict) else ()
    keys = [str(key) for key, value in held if isinstance(value, Tensor)]
    names = getattr(net, "output_names", keys)
    if len(names) == count:
        return tuple(names)
    return ("output",) if count == 1 else tuple(f"output_{index}" for index in range(count))


def _facts(net: nn.Module, job: Job, weights: str | None) -> dict[str, Any]:
    """What the file says of itself: JSON values."""
    architecture = architecture_of(net)
    inputs = []
    for index, (name, x) in enumerate(zip(job.input_names, job.inputs, strict=True)):
        axes = job.axes[index] if job.axes else {}
        shape = [axes.get(axis, length) for axis, length in enumerate(x.shape)]
        facts = {"name": name, "shape": shape, "dtype": str(x.dtype).removeprefix("torch.")}
        if x.dim() == 4 and x.shape[1] == 3 and 0 <= x.min() <= x.max() <= 1:
            facts |= {"channels": "RGB", "range": [0, 1]}
        inputs.append(facts)
    return {
        "model": architecture.pop("name", type(net).__name__),
        "architecture": architecture,
        "weights": weights or "unknown",
        "reach": getattr(net, "reach", None),
        "max_disparity": getattr(net, "max_disparity", None),
        "inputs": inputs,
        "outputs": list(job.output_names),
        "device": job.inputs[0].device.type if job.inputs else "cpu",
        "metadata": METADATA,
        "vizoo": installed_version(),
        "torch": torch.__version__,
    }


@contextlib.contextmanager
def _one_line(what: str) -> Iterator[None]:
    """Whatever an exporter or a runtime raises becomes one line."""
    try:
        yield
    except (OSError, MemoryError):
        raise
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise ValueError(f"{what}: {lines[0] if lines else type(error).__name__}") from error


_TOLERANCE = 1e-4
"""Of the largest value: what another order of summation may change."""

_AMPLIFICATION = 30
"""Times what one rounding of the inputs changes: what all layers' roundings may."""

_SLACK = 2 << 20
"""Bytes that a file may have beside the weights, however few those are."""


@dataclass(frozen=True)
class Check:
    """One comparison of a file with the network that it was made of."""

    shapes: tuple[tuple[int, ...], ...]  #: of the inputs
    maximum: float  #: largest difference of an output value
    mean: float  #: of all differences, without their signs
    scale: float  #: largest output value, without its sign
    allowed: float  #: what `maximum` had to keep to


@dataclass(frozen=True)
class _Trial:
    """Inputs, what the network makes of them, and how much of that is rounding."""

    inputs: tuple[Tensor, ...]
    output: Any
    rounding: float

    @classmethod
    def run(cls, net: nn.Module, inputs: tuple[Tensor, ...]) -> _Trial:
        """Run the network, and once more on inputs moved by a rounding.

        Raises:
            ValueError: it does not take them, or predicts values that are not finite.
        """
        with _one_line(f"{type(net).__name__} does not take inputs of {_shapes(inputs)}"):
            output = net(*inputs)
        wanted = _values(tensors(output))
        if not wanted.isfinite().all():
            raise ValueError("the network predicts values that are not finite in PyTorch already")
        moved = _values(tensors(net(*map(_moved, inputs))))
        return cls(inputs, output, float((moved - wanted).abs().max()))

    def compare(self, output: Any, what: str, stored: torch.dtype) -> Check:
        """Compare with what a file made of the inputs, whose weights are stored in a type.

        An error calls the file `what`.

        Raises:
            ValueError: other shapes, or values too far off.
        """
        given, wanted = tensors(output), tensors(self.output)
        shapes = tuple(tuple(x.shape) for x in self.inputs)
        at = ", ".join(dict.fromkeys("x".join(map(str, shape)) for shape in shapes))
        if [x.shape for x in given] != [x.shape for x in wanted]:
            raise ValueError(
                f"{what}: for inputs of {at} its outputs have shapes {_shapes(given)} instead of "
                f"{_shapes(wanted)}; nothing was written"
            )
        scale = float(_values(wanted).abs().max())
        precision = max(_precision(x.dtype) for x in (*self.inputs, *wanted))
        coarse = max(precision, _precision(stored))
        amplified = _AMPLIFICATION * self.rounding * (coarse / precision if precision else 1)
        allowed = max(_TOLERANCE, 16 * coarse) * scale + amplified
        differences = (_values(given) - _values(wanted)).abs()
        maximum = float(differences.max())
        mean = float(differences.sum()) / max(1, len(differences) - 1)
        if not maximum <= allowed:
            raise ValueError(
                f"{what}: for inputs of {at} it differs from PyTorch by up to {maximum:.3g}, on "
                f"average {mean:.3g}, where {allowed:.3g} is allowed; nothing was written"
            )
        return Check(shapes, maximum, mean, scale, allowed)


def stored_bytes(path: Path) -> int:
    """Bytes of a file, without a graph that it spells out as JSON.

    An exported program with symbolic sizes spells out every node's, in more bytes than a small
    network has.
    """
    if not zipfile.is_zipfile(path):
        return path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        return sum(e.file_size for e in archive.infolist() if not e.filename.endswith(".json"))


def weight_bytes(net: nn.Module) -> int:
    """Bytes of the parameters and buffers."""
    return sum(x.numel() * x.element_size() for x in _owned(net))


def tensors(output: Any) -> list[Tensor]:
    """The tensors in what a network returns, on the CPU."""
    leaves = _pytree.tree_leaves(output)
    return [leaf.detach().cpu() for leaf in leaves if isinstance(leaf, Tensor)]


def _owned(net: nn.Module) -> list[Tensor]:
    return [*net.parameters(), *net.buffers()]


def _moved(x: Tensor) -> Tensor:
    """Every value moved by about the distance to the next, up or down."""
    if not x.is_floating_point():
        return x
    signs = torch.randint(0, 2, x.shape, generator=torch.Generator().manual_seed(0)) * 2 - 1
    return x + x * signs.to(x) * _precision(x.dtype)


def _precision(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps if dtype.is_floating_point else 0.0


def _values(outputs: Sequence[Tensor]) -> Tensor:
    """All values, after a 0 for where there are none."""
    return torch.cat([torch.zeros(1).double(), *(x.double().flatten() for x in outputs)])


def _shapes(outputs: Sequence[Tensor]) -> str:
    return ", ".join("x".join(map(str, x.shape)) for x in outputs)
