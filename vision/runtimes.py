"""Networks run by other software than PyTorch: exported once, kept, and called as before."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import importlib
import inspect
import math
import secrets
import tempfile
import warnings
from collections.abc import Callable, Collection, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..common.files import read_json, write_json
from ..common.progress import quiet
from ..common.system import installed_version, source_digest
from ..common.timing import measure_in_turns
from ..nas.efficiency.provenance import device_name
from ..nas.supernet import architecture_of
from ._export_formats import FORMATS, LOUD, Job
from .export import export
from .hub.download import cache_folder
from .inference import evaluating, folded, optimize, standalone
from .inputs import input_names, size_axes
from .int8 import Quantized, Sample, layers_in

__all__ = [
    "RUNTIMES",
    "Compiled",
    "Fastest",
    "check_runtime",
    "fingerprint",
    "of_one_size",
    "prepared",
    "quantized",
]

RUNTIMES = {"torch": None, "openvino": "openvino", "onnxruntime": "onnx"}
"""Name to the format of `export` that it reads; PyTorch takes the network itself."""

_TRACED = (256, 512)
"""Height and width of the images that networks are exported with; their files take any."""

_ALIKE = 4
"""Inputs of numbers of values within this factor have one fastest runtime."""

_REPETITIONS = 3
"""Calls of each runtime by which the fastest is chosen."""

_CALLED = tuple(Path(__file__).parents[1] / name for name in ("vision", "vision/ops", "nas"))
"""Folders with functions that any network's forward calls, and with what writes its file."""


def prepared(
    net: nn.Module,
    runtime: str = "torch",
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> nn.Module:
    """The form of a network in which it predicts fastest in a runtime.

    Of PyTorch `vision.inference.optimize`'s, of the others `Compiled`.

    Args:
        net: stays as it is; of a supernet it is the active subnet.
        runtime: one of `RUNTIMES`, or ``auto``: `Fastest` in float32 on the CPU, else PyTorch.
        dtype: of the computation.
        device: where it runs.

    Raises:
        ValueError, ImportError: as `check_runtime`.
    """
    device = torch.device(device)
    if runtime == "auto":
        # OpenVINO's bfloat16 errs more, and is compiled anew for each size.
        if device.type == "cpu" and dtype == torch.float32:
            return Fastest(net)
        runtime = "torch"
    check_runtime(runtime, device, dtype)
    if runtime == "torch":
        if any(x.device != device for x in (*net.parameters(), *net.buffers())):
            net = copy.deepcopy(net).to(device)
        return optimize(net, dtype)
    return Compiled(net, runtime, dtype)


def check_runtime(runtime: str, device: torch.device, dtype: torch.dtype) -> None:
    """Refuse what a runtime cannot do.

    Raises:
        ValueError: no such runtime, or one that does not run on the device or in the type.
        ImportError: it is not installed; the message says how to get it.
    """
    if runtime not in RUNTIMES:
        raise ValueError(f"runtime {runtime!r}: there are {', '.join(RUNTIMES)}")
    form = RUNTIMES[runtime]
    name = str(dtype).removeprefix("torch.")
    if form is None:
        if dtype == torch.int8:
            raise ValueError("runtime torch has no int8; openvino and onnxruntime do")
        return
    if device.type != "cpu":
        raise ValueError(f"runtime {runtime} runs on the cpu here, not on {device}")
    if runtime == "onnxruntime" and dtype not in (torch.float32, torch.int8):
        raise ValueError(f"runtime onnxruntime computes in float32, not in {name}; openvino does")
    FORMATS[form].check_installed(name)


def of_one_size(
    net: nn.Module,
    inputs: Sequence[Tensor],
    runtime: str,
    dtype: torch.dtype = torch.float32,
    float_parts: Collection[str] = (),
) -> Callable[..., list[Tensor]]:
    """What runs a network on inputs of these shapes alone; nothing is kept or compared.

    A few seconds a network where `Compiled` takes half a minute: for measuring many. In int8 it is
    as fast as a calibrated one, and predicts worse: its ranges are those of the inputs alone.

    Args:
        net: stays as it is; of a supernet it is the active subnet.
        inputs: on the CPU.
        runtime: one of `RUNTIMES`, not ``torch``.
        dtype: of the computation.
        float_parts: of int8, the network's parts that stay in float32.
    """
    form = FORMATS[str(RUNTIMES[runtime])]
    net = standalone(net)
    if dtype == torch.int8:
        net = folded(net)
    names = tuple(input_names(net)[: len(inputs)])
    job = Job(net, tuple(inputs), None, names, (), {}, None)
    with evaluating(net), tempfile.TemporaryDirectory() as folder, torch.no_grad(), quiet(LOUD):
        file = Path(folder) / f"network{form.suffixes[0]}"
        form.write(job, file)
        if dtype == torch.int8:
            file, plain, dtype = file.with_stem("int8"), file, torch.float32
            form.quantize(plain, file, [tuple(inputs)], layers_in(float_parts, form.layers(plain)))
        run, _ = form.read(file, dtype)
    return lambda *arguments: run(arguments)


def quantized(
    net: nn.Module,
    runtime: str,
    samples: Sequence[Sample],
    max_loss: float = 0.2,
    progress: Callable[[str], None] = lambda step: None,
) -> Quantized:
    """What int8 costs a network in a runtime, and which of its parts stay in float.

    Args:
        net: stays as it is; of a supernet it is the active subnet.
        runtime: one of `RUNTIMES`, not ``torch``.
        samples: of one size, see `vizoo.export`.
        max_loss: likewise.
        progress: told each step.

    Raises:
        ValueError, ImportError: as `vizoo.export`.
    """
    form = FORMATS[str(RUNTIMES[runtime])]
    with tempfile.TemporaryDirectory() as folder:
        exported = export(
            net,
            Path(folder) / f"network{form.suffixes[0]}",
            to=form.name,
            size=_TRACED,
            dynamic=True,
            precision="int8",
            calibrate=samples,
            max_loss=max_loss,
            progress=progress,
        )
    return cast("Quantized", exported.quantized)


class _Elsewhere(nn.Module):
    """A network whose methods run in other software."""

    _call: Callable[[str, tuple[Tensor, ...]], Any]

    def forward(self, *inputs: Tensor) -> Any:
        """The network's output: a tensor, or a tuple of the tensors in what it returns."""
        return self._call("forward", inputs)

    def predict(self, *inputs: Tensor) -> Any:
        """Likewise of the network's method of this name, where it has one."""
        return self._call("predict", inputs)


class Compiled(_Elsewhere):
    """A network in another runtime: the same arguments on the CPU, the same values.

    At the first call it is exported, which takes up to half a minute and is compared with PyTorch;
    the file stays in a folder beside that of downloaded weights.

    Args:
        net: copied; of a supernet it is the active subnet.
        runtime: one of `RUNTIMES`, not ``torch``.
        dtype: of the computation.
    """

    def __init__(self, net: nn.Module, runtime: str, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.runtime, self.dtype = runtime, dtype
        self.net = copy.deepcopy(standalone(net)).cpu().eval().requires_grad_(False)
        self._runs: dict[str, Callable[[tuple[Tensor, ...]], list[Tensor]]] = {}

    @torch.inference_mode()
    def _call(self, method: str, inputs: tuple[Tensor, ...]) -> Any:
        if hasattr(self.net, "example_views"):  # by which it is exported, for that many alone
            setattr(self.net, "example_views", inputs[0].shape[1])  # noqa: B010
        fixed = [
            [n for axis, n in enumerate(x.shape[1:], 1) if axis not in axes]
            for x, axes in zip(inputs, size_axes(self.net, *_TRACED), strict=True)
        ]
        key = f"{method} {fixed}"
        if key not in self._runs:
            self._runs[key] = self._open(method, key)
        # Files take one image at once: what more there are would change a file's every line.
        singles = (tuple(x[i : i + 1] for x in inputs) for i in range(len(inputs[0])))
        outputs = [torch.cat(x) for x in zip(*map(self._runs[key], singles), strict=True)]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _open(self, method: str, key: str) -> Callable[[tuple[Tensor, ...]], list[Tensor]]:
        """What runs the file of a method and fixed sizes, which is exported if it is not there."""
        form = FORMATS[str(RUNTIMES[self.runtime])]
        path = _file(self.net, f"{key} {_version(self.runtime)}", form.suffixes[0])
        if not path.is_file():
            export(_calling(self.net, method), path, to=form.name, size=_TRACED, dynamic=True)
        try:
            return form.read(path, self.dtype)[0]
        except Exception as error:
            raise ValueError(
                f"{path}: {self.runtime} cannot read it; delete it, and it is made anew"
            ) from error


class Fastest(_Elsewhere):
    """A network in the runtime that is fastest on this processor, among those that are installed.

    At the first call of a size all are measured, a minute where the network has to be exported;
    what came of it is kept beside the exported files, for the processor, its threads, the network
    and inputs of about this size, and said in a warning. Where nothing can be kept PyTorch is left.

    Args:
        net: copied; of a supernet it is the active subnet.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = standalone(net)
        self.forms = {name: prepared(self.net, name) for name in RUNTIMES if _usable(name)}
        self._software = [f"{name} {_version(name)}" for name in self.forms]
        self._chosen: dict[str, str] = {}

    def _call(self, method: str, inputs: tuple[Tensor, ...]) -> Any:
        values = round(math.log(sum(x.numel() for x in inputs), _ALIKE))
        key = f"{method} {_ALIKE}^{values} {torch.get_num_threads()}"
        if key not in self._chosen:
            self._chosen[key] = self._choose(method, inputs, key)
        return getattr(self.forms[self._chosen[key]], method)(*inputs)

    def _choose(self, method: str, inputs: tuple[Tensor, ...], key: str) -> str:
        here = f"{key} {device_name(torch.device('cpu'))} {self._software}"
        path = times = None
        with contextlib.suppress(OSError):
            path = _file(self.net, here, ".json")
            times = read_json(path) if path.is_file() else None
        if times is None or not times.keys() & self.forms.keys():
            times = self._measure(method, inputs)
            if path is not None and len(self.forms) == len(self._software):
                with contextlib.suppress(OSError):
                    write_json(path, times)
        # Kept times may name a runtime that this process had to do without at another size.
        ranked = sorted(filter(self.forms.__contains__, times), key=times.__getitem__)
        told = ", ".join(f"{runtime} {times[runtime]:.3g} ms" for runtime in ranked)
        shape = "x".join(map(str, inputs[0].shape))
        warnings.warn(f"runtime auto: {ranked[0]} about {shape} ({told})", stacklevel=2)
        return ranked[0]

    def _measure(self, method: str, inputs: tuple[Tensor, ...]) -> dict[str, float]:
        """Milliseconds of each runtime that the network can be exported to.

        A runtime whose file cannot be kept is none of `forms` any more.
        """
        calls = {}
        for runtime, form in list(self.forms.items()):
            calls[runtime] = partial(getattr(form, method), *inputs)
            try:
                calls[runtime]()
            except ValueError:
                if runtime == "torch":
                    raise
                del calls[runtime]
            except OSError as error:
                del calls[runtime], self.forms[runtime]
                warnings.warn(
                    f"runtime auto goes without {runtime} ({error}); set VIZOO_HOME to a folder "
                    "that can be written",
                    stacklevel=2,
                )
        timings = measure_in_turns(list(calls.values()), warmup=1, repetitions=_REPETITIONS)
        return {name: timing.p10 for name, timing in zip(calls, timings, strict=True)}


def _usable(runtime: str) -> bool:
    try:
        check_runtime(runtime, torch.device("cpu"), torch.float32)
    except (ValueError, ImportError):
        return False
    return True


def _calling(net: nn.Module, method: str) -> nn.Module:
    """The network with one of its methods as `forward`."""
    twin = copy.copy(net)
    twin.__class__ = type(type(net).__name__, (type(net),), {"forward": getattr(type(net), method)})
    return twin


def _file(net: nn.Module, key: str, suffix: str) -> Path:
    """Where something of a network is kept; the name comes of all that it depends on."""
    kinds = {*type(net).__mro__[:-1], *(type(part) for part in net.modules())}
    sources = sorted({*map(_source, kinds), *map(source_digest, _CALLED)})
    facts = (fingerprint(net), key, torch.__version__, installed_version(), *sources)
    digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
    name = architecture_of(net).get("name", type(net).__name__)
    return cache_folder().with_name("runtimes") / f"{name}-{digest}{suffix}"


@cache
def _source(kind: type) -> str:
    """The file that a class stands in, or of this package the folder, whose functions it calls.

    Of a class that was typed it is what nothing is kept by.
    """
    try:
        file = Path(inspect.getfile(kind))
        own = kind.__module__.partition(".")[0] == __name__.partition(".")[0]
        return source_digest(file.parent) if own else file.read_text(encoding="utf-8")
    except (TypeError, OSError):
        return secrets.token_hex()


@cache
def _version(runtime: str) -> str:
    return importlib.import_module(runtime).__version__


def fingerprint(net: nn.Module) -> str:
    """Of a network's weights and architecture: a hexadecimal number."""
    digest = hashlib.sha256(repr(getattr(net, "architecture", type(net).__name__)).encode())
    for name, tensor in sorted(net.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]
