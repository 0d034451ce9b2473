"""Files of `vizoo export` as networks: a predictor takes one in place of weights."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from ..common.files import existing
from ._export_formats import FORMATS, METADATA
from .hub.create import check_task
from .hub.registry import list_models
from .runtimes import RUNTIMES, check_runtime

__all__ = ["ExportedNetwork", "is_exported"]

_SUFFIXES = {FORMATS[form].suffixes[0]: name for name, form in RUNTIMES.items() if form}
"""Of files to the runtime that they are for."""


def is_exported(model: Any) -> TypeGuard[str | os.PathLike[str]]:
    """Whether a predictor's model is a file of `vizoo export`, by its name: .xml or .onnx."""
    return isinstance(model, (str, os.PathLike)) and Path(model).suffix.lower() in _SUFFIXES


class ExportedNetwork(nn.Module):
    """A file as a network: the same arguments on the CPU, of any size, the same output.

    Of a network that scores candidates a file has the disparity alone, so the confidence that a
    predictor gives knows less.

    Args:
        path: of OpenVINO or ONNX.
        task: refuse networks of other tasks.
        runtime: ``torch`` or ``auto`` for the file's own, or its name.
        dtype: of the computation, where the file leaves that open.
        device: has to be the CPU.

    Attributes:
        architecture: of the network that it was made of; empty of one that is not registered.
        reach: likewise, see `vizoo.StereoPredictor`; None where it was not measured.
        runtime: what runs it.

    Raises:
        FileNotFoundError: no such file.
        ImportError: its runtime is not installed; the message says how to get it.
        ValueError: another runtime, type or device than the file's, or a file that cannot be read,
            was not written by this version of `vizoo export`, or takes one size or several pairs
            alone.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        task: str,
        runtime: str = "torch",
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        path = existing(path)
        self.runtime = _SUFFIXES[path.suffix.lower()]
        if runtime not in ("torch", "auto", self.runtime):
            raise ValueError(f"{path}: is run by {self.runtime}, not by {runtime}")
        check_runtime(self.runtime, torch.device(device), dtype)
        try:
            self._run, facts = FORMATS[str(RUNTIMES[self.runtime])].read(path, dtype)
        except FileNotFoundError:
            raise
        except Exception as error:
            raise ValueError(f"{path}: {self.runtime} cannot read it; export it again") from error
        if not facts:
            raise ValueError(
                f"{path}: does not say what it is; `vizoo export` writes files that do"
            )
        if facts.get("metadata") != METADATA:
            raise ValueError(f"{path}: written by another version of vizoo; export it again")
        if any(isinstance(length, int) for x in facts["inputs"] for length in x["shape"][-2:]):
            size = "x".join(map(str, facts["inputs"][0]["shape"][-2:]))
            raise ValueError(f"{path}: takes images of {size} alone; export it with --dynamic")
        if (count := facts["inputs"][0]["shape"][0]) != 1:
            raise ValueError(f"{path}: takes {count} pairs at once; export it with --batch 1")
        name, registered = facts["model"], facts["model"] in list_models()
        if registered:
            check_task(name, task, f"{path}: holds {name}, which")
        self.architecture = {"name": name, **facts["architecture"]} if registered else {}
        self.reach = facts["reach"]
        if facts.get("max_disparity") is not None:  # a subnet's may be another than its supernet's
            self.max_disparity = facts["max_disparity"]

    @torch.inference_mode()
    def forward(self, *inputs: Tensor) -> Any:
        """The network's output: a tensor, or a tuple of the tensors in what it returned."""
        outputs = self._run(inputs)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)
