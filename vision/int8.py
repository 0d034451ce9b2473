"""Files of networks in eight-bit integers: what that costs, part by part, and what stays in float.

Only convolutions and layers like them become integers. What lies between them stays in float:
correlation, cost volumes, soft-argmin, warps and upsampling lose too much.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from ._export_formats import Format

__all__ = ["Quantized", "Sample", "check_parts", "check_samples", "layers_in", "quantize"]

_TRUSTED = 0.75  # of the pixels, those where float32 errs least


@dataclass(frozen=True)
class Sample:
    """What a network is calibrated with, or measured by."""

    inputs: tuple[Tensor, ...]  #: arguments of ``forward``
    #: of the shape of the first output, NaN where it is not known; None where nothing is
    truth: Tensor | None = None


@dataclass(frozen=True)
class Quantized:
    """What eight bits cost. Errors are mean absolute ones, in the unit of the first output.

    Against the truth, those of the three quarters of the pixels where float32 errs least: elsewhere
    it guesses, and eight bits may be better or worse by more than all else by chance.
    """

    error: float | None  #: against the truth in float32; None without truth
    loss: float  #: by how much that grows in int8; without truth the difference from float32
    #: the loss where one part alone is in int8; not finite where its outputs are not
    parts: dict[str, float]
    float_parts: tuple[str, ...]  #: parts that stay in float, the most sensitive first
    samples: int  #: by which the loss was measured

    @property
    def growth(self) -> dict[str, float]:
        """Of each part in int8 the share by which it alone raises the error.

        Raises:
            ValueError: there was no truth to find errors by, or parts were not measured alone.
        """
        if not self.error or not self.parts:
            raise ValueError(
                "by how much int8 raises the error is known where each part was measured, by "
                "samples with truth"
            )
        inside = self.parts.keys() - {*self.float_parts}
        return {part: max(0.0, self.parts[part]) / self.error for part in sorted(inside)}


def quantize(
    form: Format,
    file: Path,
    samples: Sequence[Sample],
    max_loss: float,
    progress: Callable[[str], None] = lambda step: None,
    float_parts: Sequence[str] | None = None,
) -> Quantized:
    """Turn a file in float32 into one in eight bits.

    A part is a child of the network, such as encoder, aggregation or refinement. Each is measured
    alone; then the most sensitive ones are left in float, one more at a time, until all others
    together cost no more than `max_loss`.

    Args:
        form: of the file.
        file: what `export` wrote.
        samples: as `check_samples` takes them; every other one calibrates, the rest measures.
        max_loss: mean absolute error that may be added, in the unit of the first output.
        progress: told each step.
        float_parts: those that stay in float, where none have to be found.

    Raises:
        ValueError: no part can be in int8 at that loss, or there is no such part.
    """
    layers = form.layers(file)
    parts = list(dict.fromkeys(map(_part, layers)))
    if not parts:
        raise ValueError("there is nothing to quantise: the network has no convolutions")
    if unknown := [part for part in float_parts or () if part not in parts]:
        raise ValueError(f"no part is called {', '.join(unknown)}; there are {', '.join(parts)}")
    calibrating = [sample.inputs for sample in samples[::2]]
    measuring = samples[1::2]
    wanted, error, trusted = _outputs(form, file, measuring), None, None
    known = [s.truth for s in measuring if s.truth is not None and s.truth.isfinite().any()]
    if len(known) == len(measuring):
        errors, wanted = _errors(wanted, known), known
        trusted = errors <= errors.kthvalue(math.ceil(_TRUSTED * len(errors))).values
        error = _mean(errors, trusted)
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        trial = Path(folder) / file.name

        def loss(in_float: Sequence[str]) -> float:
            form.quantize(file, trial, calibrating, layers_in(in_float, layers))
            errors = _errors(_outputs(form, trial, measuring), wanted)
            return _mean(errors, trusted) - (error or 0.0)

        alone = {}
        for part in parts if float_parts is None else ():
            alone[part] = loss([other for other in parts if other != part])
            progress(f"{part} in int8 costs {alone[part]:.3g}")
        # What makes numbers that are none is the most sensitive.
        worst = {part: math.inf if math.isnan(cost) else cost for part, cost in alone.items()}
        sensitive = sorted(alone, key=worst.__getitem__, reverse=True) or list(float_parts or ())
        for count in range(len(parts)) if float_parts is None else [len(sensitive)]:
            together = loss(sensitive[:count])
            left = ", ".join(sensitive[:count])
            progress(f"int8 costs {together:.3g}" + (f" with {left} in float" if left else ""))
            if together <= max_loss:
                for path in Path(folder).iterdir():
                    os.replace(path, file.with_name(path.name))
                kept = tuple(sensitive[:count])
                return Quantized(error, together, alone, kept, len(measuring))
    told = ", ".join(f"{part} {alone[part]:.3g}" for part in sensitive if part in alone)
    why = f"whatever stays in float (parts alone: {told})" if alone else f"({together:.3g})"
    raise ValueError(f"int8 costs more than {max_loss:g} {why}; allow more loss, or take float16")


def _outputs(form: Format, file: Path, samples: Sequence[Sample]) -> list[Tensor]:
    run, _ = form.read(file, torch.float32)
    return [run(sample.inputs)[0] for sample in samples]


def _errors(outputs: Sequence[Tensor], wanted: Sequence[Tensor]) -> Tensor:
    """Absolute ones (N,), where it is known what is wanted."""
    pairs = zip(outputs, wanted, strict=True)
    return torch.cat([(mine - right)[right.isfinite()].abs() for mine, right in pairs]).double()


def _mean(errors: Tensor, trusted: Tensor | None) -> float:
    """The mean of those that are trusted, None for all; NaN where any is not finite."""
    kept = errors if trusted is None else errors[trusted]
    return float(kept.mean()) if errors.isfinite().all() else math.nan


def check_samples(samples: Sequence[Sample], shapes: Sequence[Sequence[int | str]]) -> None:
    """Refuse samples that a file with inputs of these shapes does not take; names are any length.

    Raises:
        ValueError: too few, or of another size; it says which, and what to do.
    """
    if len(samples) < 2:
        raise ValueError("int8 takes two samples at least: to calibrate with, and to measure by")
    for number, sample in enumerate(samples):
        for x, shape in zip(sample.inputs, shapes, strict=True):
            pairs = zip(x.shape, shape, strict=True) if x.dim() == len(shape) else [(0, 1)]
            if any(isinstance(wanted, int) and wanted != got for got, wanted in pairs):
                given, fixed = ("x".join(map(str, each)) for each in (x.shape, shape))
                raise ValueError(
                    f"calibration sample {number} is {given}, and the file takes {fixed} alone: "
                    "export with that size, or dynamic, and give samples of as many images as "
                    "`batch`"
                )


def check_parts(net: nn.Module, parts: Iterable[str]) -> None:
    """Refuse parts that a network does not have, before anything is written.

    Raises:
        ValueError: some are no children of it with weights.
    """
    known = [name for name, child in net.named_children() if any(True for _ in child.parameters())]
    if unknown := [part for part in parts if part not in known]:
        raise ValueError(f"no part is called {', '.join(unknown)}; there are {', '.join(known)}")


def layers_in(parts: Collection[str], layers: Sequence[str]) -> list[str]:
    """Those of a file's layers that lie in parts of the network."""
    return [layer for layer in layers if _part(layer) in parts]


def _part(layer: str) -> str:
    """The child of the network that a layer lies in; layers are called by their place in it."""
    return layer.partition("/")[0].partition(".")[0]
