"""Networks run by other software than PyTorch: exported once, kept, and called as before."""

from __future__ import annotations

import copy
import hashlib
import inspect
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..common.progress import quiet
from ..common.system import installed_version
from ._export_formats import FORMATS, LOUD, Format, Job
from .export import export
from .hub.download import cache_folder
from .inference import optimize, standalone
from .inputs import input_names, size_axes

__all__ = ["RUNTIMES", "Compiled", "check_runtime", "fingerprint", "prepared"]

RUNTIMES = {"torch": None, "openvino": "openvino", "onnxruntime": "onnx"}
"""Name to the format of `export` that it reads; PyTorch takes the network itself."""

_TRACED = (256, 512)
"""Height and width of the images that networks are exported with; their files take any."""


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
        runtime: one of `RUNTIMES`.
        dtype: of the computation.
        device: where it runs.

    Raises:
        ValueError, ImportError: as `check_runtime`.
    """
    device = torch.device(device)
    check_runtime(runtime, device, dtype)
    if runtime == "torch":
        return optimize(net.to(device), dtype)
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
    if form is None:
        return
    if device.type != "cpu":
        raise ValueError(f"runtime {runtime} runs on the cpu here, not on {device}")
    if runtime == "onnxruntime" and dtype != torch.float32:
        name = str(dtype).removeprefix("torch.")
        raise ValueError(f"runtime onnxruntime computes in float32, not in {name}; openvino does")
    FORMATS[form].check_installed()


def of_one_size(
    net: nn.Module, inputs: Sequence[Tensor], runtime: str, dtype: torch.dtype = torch.float32
) -> Callable[..., list[Tensor]]:
    """What runs a network on inputs of these shapes alone; nothing is kept or compared.

    A few seconds a network where `Compiled` takes half a minute: for measuring many.

    Args:
        net: stays as it is; of a supernet it is the active subnet.
        inputs: on the CPU.
        runtime: one of `RUNTIMES`, not ``torch``.
        dtype: of the computation.
    """
    form = FORMATS[str(RUNTIMES[runtime])]
    net = standalone(net).eval()
    names = tuple(input_names(net)[: len(inputs)])
    job = Job(net, tuple(inputs), None, names, (), {}, None)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad(), quiet(LOUD):
        file = Path(folder) / f"network{form.suffixes[0]}"
        form.write(job, file)
        run, _ = form.read(file, dtype)
    return lambda *arguments: run(arguments)


class Compiled(nn.Module):
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
    def forward(self, *inputs: Tensor) -> Any:
        """The network's output: a tensor, or a tuple of the tensors in what it returns."""
        return self._call("forward", inputs)

    @torch.inference_mode()
    def predict(self, *inputs: Tensor) -> Any:
        """Likewise of the network's method of this name, where it has one."""
        return self._call("predict", inputs)

    def _call(self, method: str, inputs: tuple[Tensor, ...]) -> Any:
        run = self._run(method, inputs)
        # Files take one image at once: what more there are would change a file's every line.
        each = [run(tuple(x[i : i + 1] for x in inputs)) for i in range(len(inputs[0]))]
        outputs = [torch.cat(parts) for parts in zip(*each, strict=True)]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _run(self, method: str, inputs: tuple[Tensor, ...]) -> Callable:
        if hasattr(self.net, "example_views"):
            setattr(self.net, "example_views", inputs[0].shape[1])  # noqa: B010
        lengths = zip(inputs, size_axes(self.net, *_TRACED), strict=True)
        fixed = [
            [n for axis, n in enumerate(x.shape[1:], 1) if axis not in axes] for x, axes in lengths
        ]
        key = f"{method} {fixed}"
        if key not in self._runs:
            form = FORMATS[str(RUNTIMES[self.runtime])]
            path = _file(self.net, key, form)
            if not path.is_file():
                export(_calling(self.net, method), path, to=form.name, size=_TRACED, dynamic=True)
            self._runs[key] = form.read(path, self.dtype)[0]
        return self._runs[key]


def _calling(net: nn.Module, method: str) -> nn.Module:
    """The network with one of its methods as `forward`."""
    twin = copy.copy(net)
    twin.__class__ = type(type(net).__name__, (type(net),), {"forward": getattr(type(net), method)})
    return twin


def _file(net: nn.Module, key: str, form: Format) -> Path:
    """Where a network's exported call is kept; its name comes of all that it depends on."""
    files = {inspect.getfile(kind) for kind in type(net).__mro__[:-1]}
    files |= {inspect.getfile(type(part)) for part in net.modules()}
    sources = [Path(file).read_text(encoding="utf-8") for file in sorted(files)]
    facts = (fingerprint(net), key, torch.__version__, installed_version(), *sources)
    digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
    name = getattr(net, "architecture", {}).get("name", type(net).__name__)
    return cache_folder().with_name("runtimes") / f"{name}-{digest}{form.suffixes[0]}"


def fingerprint(net: nn.Module) -> str:
    """Of a network's weights and architecture: a hexadecimal number."""
    digest = hashlib.sha256(repr(getattr(net, "architecture", type(net).__name__)).encode())
    for name, tensor in sorted(net.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]
