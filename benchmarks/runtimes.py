"""Trained stereo networks in each runtime and precision: time, size, memory and error.

    python -m benchmarks.runtimes [--models easnet_small …] [--json docs/results/runtimes.json]

All forms of a network take turns on one pair in one process: the least of several calls counts, and
its ratio to PyTorch's in float32. The memory is the peak of a process that opens the file, or the
weights, and runs a pair three times. Errors are means over generated scenes: how far the disparity
is from PyTorch's in float32, and from the truth.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks._machine import apart, arguments, in_turns, peak_megabytes, record, start, table
from vizoo.common.timing import milliseconds
from vizoo.datasets.stereo.scenes import generate_scenes
from vizoo.stereo.samples import calibration_samples
from vizoo.vision._export_formats import FORMATS, Format
from vizoo.vision.export import export
from vizoo.vision.hub.create import create_model
from vizoo.vision.inference import folded, optimize
from vizoo.vision.int8 import quantize

REST = "int8, rest bfloat16"
MODELS = (
    "easnet_scaled.two_thirds",
    "fadnet_plus_tiny.worlds",
    "easnet_small.worlds",
    "easnet_light",
)
FORMS = {
    "onnxruntime": {"float32": torch.float32, "int8": torch.float32},
    "openvino": {
        "float32": torch.float32,
        "bfloat16": torch.bfloat16,
        "float16": torch.float32,  # stored, not computed
        "int8": torch.float32,
        REST: torch.bfloat16,
    },
}
TITLE = "Stereo networks in other runtimes"
COLUMNS = [
    "network",
    "runtime",
    "precision",
    "ms",
    "times PyTorch",
    "file, MB",
    "memory, MB",
    "from float32, px",
    "EPE, px",
    "in float",
]
CALIBRATION = (192, 384)
SCENES = 4


def opened(model: str, runtime: str, precision: str, file: Path | None) -> Callable[..., Tensor]:
    """A network in a runtime, called with a pair."""
    if file is None:
        return optimize(create_model(model, pretrained=True).eval(), getattr(torch, precision))
    form = FORMATS["onnx" if runtime == "onnxruntime" else runtime]
    run, _ = form.read(file, FORMS[runtime][precision])
    return lambda *views: run(views)[0]


def peak(size: tuple[int, int], *form: object) -> float:
    """The largest memory of this process, in units of 2**20 bytes, after calls with one pair."""
    with torch.inference_mode():
        run, pair = opened(*form), torch.rand(2, 1, 3, *size)
        for _ in range(3):  # OpenVINO compiles for a size that comes again
            run(*pair)
    return peak_megabytes()


def files(model: str, folder: Path, max_loss: float, tell: Callable[[str], None]) -> dict:
    """Of each runtime and precision its file, and the parts that int8 leaves in float.

    Where a precision is refused there is no file, and why in place of the parts.
    """
    net = folded(create_model(model, pretrained=True))
    samples = calibration_samples(net, size=CALIBRATION, count=8)
    found = {}
    for runtime, precisions in FORMS.items():
        form = FORMATS["onnx" if runtime == "onnxruntime" else runtime]
        for precision in precisions:
            if precision == REST:
                found[runtime, precision] = found[runtime, "int8"]
                continue
            file = folder / f"{model}_{precision}{form.suffixes[0]}"
            plain = folder / f"{model}_float32{form.suffixes[0]}"
            tell(f"{model}: {runtime}, {precision}")
            try:
                found[runtime, precision] = written(net, form, file, plain, precision)
                if precision == "int8":
                    kept = quantize(form, file, samples, max_loss, tell).float_parts
                    found[runtime, precision] = file, ", ".join(kept)
            except ValueError as error:
                found[runtime, precision] = None, str(error)
    return found


def written(
    net: nn.Module, form: Format, file: Path, plain: Path, precision: str
) -> tuple[Path, str]:
    """A file in a precision, of int8 still a copy of that in float32, which comes first."""
    if precision in ("bfloat16", "int8") and not plain.is_file():
        raise ValueError("there is no file in float32")
    if precision == "bfloat16":
        return plain, ""
    if precision == "int8":
        for path in (plain, *(plain.with_suffix(s) for s in form.beside)):
            shutil.copy(path, file.with_suffix(path.suffix))
    else:
        how = {"size": CALIBRATION, "dynamic": True, "precision": precision}
        export(net, file, to=form.name, **how)
    return file, ""


@torch.inference_mode()
def rows(
    model: str, size: tuple[int, int], repeat: int, max_loss: float, tell: Callable[[str], None]
) -> list[list[str]]:
    """A network's lines."""
    limit = min(create_model(model, pretrained=True).reach, 192)
    scenes = generate_scenes(SCENES, *size, seed=7, max_disparity=limit, clutter=0.3)
    pairs = [(scenes["left"][i : i + 1], scenes["right"][i : i + 1]) for i in range(SCENES)]
    with tempfile.TemporaryDirectory() as folder:
        forms = {("torch", name): (None, "") for name in ("float32", "bfloat16")}
        made = files(model, Path(folder), max_loss, tell)
        forms |= {key: form for key, form in made.items() if form[0] is not None}
        runs = {key: opened(model, *key, file) for key, (file, _) in forms.items()}
        maps = {key: [run(*pair) for pair in pairs] for key, run in runs.items()}
        calls = {key: partial(run, *pairs[0]) for key, run in runs.items()}
        times = in_turns(calls, repeat, milliseconds, warmup=0)
        lines = []
        for key, (file, kept) in forms.items():
            beside = () if file is None else (file, file.with_suffix(".bin"))
            stored = sum(path.stat().st_size for path in beside if path.is_file())
            least = min(times[key])
            far = torch.cat(maps[key]) - torch.cat(maps["torch", "float32"])
            off = (torch.cat(maps[key]) - scenes["disparity"]).abs()[scenes["valid"]]
            figures = [
                f"{least:.0f}",
                f"{min(times['torch', 'float32']) / least:.2f}",
                f"{stored / 1e6:.2f}" if stored else "",
                f"{apart(peak, size, model, *key, file) * 2**20 / 1e6:.0f}",
                f"{float(far.abs().mean()):.2g}",
                f"{float(off.mean()):.3f}",
            ]
            lines.append([f"`{model}`", *key, *figures, kept])
        blank = [""] * (len(COLUMNS) - 4)
        refused = {key: why for key, (file, why) in made.items() if file is None}
        lines += [[f"`{model}`", *key, *blank, why] for key, why in refused.items()]
    return lines


def main() -> None:
    parser = arguments(__doc__, threads=1, size=(384, 1280), repeat=8)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--max-loss", type=float, default=0.2, help="of int8, pixels")
    parser.add_argument("--json", type=Path, help="write the table with where it comes from")
    options, console = start(parser, width=140)
    lines = []
    for model in options.models:
        lines += rows(model, tuple(options.size), options.repeat, options.max_loss, console.log)
        if options.json:  # each network takes minutes
            command = f"runtimes --threads {options.threads}"
            record(options.json, TITLE, about(options), command, COLUMNS, lines)
    console.print(table(COLUMNS, lines, left=3))


def about(options: argparse.Namespace) -> str:
    height, width = options.size
    return (
        f"{height}x{width}, batch 1: the least of {options.repeat} calls in turns within "
        "one process, and how many times as fast as PyTorch's float32 that is; the peak memory of "
        f"a process that runs a pair; mean errors over {SCENES} generated scenes. Float16 is how "
        "OpenVINO's weights are stored, bfloat16 what it computes in, or in `int8, rest bfloat16` "
        "what is not in int8. Of int8 the last column says which parts stayed in float to "
        f"keep to {options.max_loss:g} px; and of what a network refuses, why."
    )


if __name__ == "__main__":
    main()
