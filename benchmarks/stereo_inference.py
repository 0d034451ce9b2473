"""FADNet's inference on the CPU: `vision.inference.optimize` against the published wiring.

    python -m benchmarks.stereo_inference [--variants tiny micro …] [--weights FILE] [--compile]

All forms of a network take turns on the same pair, so that a busy machine disturbs all alike:
median milliseconds, and the median over the turns of how many times as fast each is. The floor is
the network's multiply-adds at the rate of a large matrix product measured here. `--weights` also
compares the end-point error on generated scenes. With `--threads 1` times are CPU times of the
process, which other work on the machine disturbs less.
"""

from __future__ import annotations

import shutil
from statistics import median

import torch
from rich.table import Table
from torch import nn

from benchmarks._machine import (
    arguments,
    copy_rate,
    gemm_rate,
    measured,
    settled,
    start,
    table,
    times_as_fast,
)
from benchmarks._published import published
from vizoo.common.counts import count
from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.weights import load_weights
from vizoo.vision.inference import optimize

VARIANTS = {name: f"fadnet_plus_{name}" for name in ("micro", "tiny", "slight", "mobile", "full")}
VARIANTS["fadnet"] = "fadnet"
VARIANTS["x"] = "fadnet_plus_x"


def forms(net: nn.Module, compiled: bool) -> dict[str, nn.Module]:
    found = {
        "published": published(net),
        "float32": optimize(net),
        "bfloat16": optimize(net, torch.bfloat16),
    }
    if compiled:
        found["torch.compile"] = torch.compile(net)
    return found


def accuracy(path: str, scenes: int) -> Table:
    """End-point error of a trained network in each type, on generated scenes."""
    from vizoo.datasets.stereo.scenes import generate_scenes

    net = load_weights(path).eval()
    networks = {"as trained": net, "float32": optimize(net)}
    networks["bfloat16"] = optimize(net, torch.bfloat16)
    totals = dict.fromkeys(networks, 0.0)
    for index in range(scenes):
        scene = generate_scenes(1, 320, 640, seed=20_000, first=index)
        for form, network in networks.items():
            with torch.no_grad():
                error = (network(scene["left"], scene["right"]) - scene["disparity"]).abs()
            totals[form] += error[scene["valid"]].mean().item() / scenes
    title = f"End-point error of {path} on {scenes} generated scenes of 320x640, px"
    return table([*totals], [[f"{total:.4f}" for total in totals.values()]], title, left=0)


def main() -> None:
    parser = arguments(__doc__, repeat=7, size=(384, 1280), scenes=16)
    default = [name for name in VARIANTS if name != "x"]
    parser.add_argument("--variants", nargs="*", choices=list(VARIANTS), default=default)
    parser.add_argument("--weights", help="trained network to compare the types' errors on")
    parser.add_argument("--compile", action="store_true", help="also torch.compile (minutes)")
    options, console = start(parser)
    if options.compile and not (shutil.which("g++") or shutil.which("clang++")):
        parser.error("--compile needs a C++ compiler (g++ or clang++)")
    rate = gemm_rate()
    height, width = options.size
    console.print(
        f"{rate / 1e9:.0f} GMAC/s in float32, {gemm_rate(torch.bfloat16) / 1e9:.0f} "
        f"in bfloat16, copies {copy_rate() / 1e9:.0f} GB/s"
    )
    columns = ["variant", "floor", "published", "float32", "times", "difference", "bfloat16"]
    columns += ["× float32", *(("torch.compile", "times") if options.compile else ())]
    rows = []
    for variant in options.variants:
        left, right = torch.rand(2, 1, 3, height, width)
        torch.manual_seed(0)
        networks = forms(settled(create_model(VARIANTS[variant])), options.compile)
        results = measured(networks, (left, right), options.repeat)
        ms = {form: 1e3 * median(times) for form, (times, _) in results.items()}

        def ratio(slow: str, fast: str, results: dict = results) -> str:
            return f"{times_as_fast(results[slow][0], results[fast][0]):.2f}"

        wanted = results["published"][1]
        difference = (results["float32"][1] - wanted).abs().max() / wanted.abs().max()
        with torch.device("meta"):
            macs = count(create_model(VARIANTS[variant]), left, right).macs
        row = [f"{1e3 * macs / rate:.0f}", f"{ms['published']:.0f}", f"{ms['float32']:.0f}"]
        row += [ratio("published", "float32"), f"{difference:.0e}"]
        row += [f"{ms['bfloat16']:.0f}", ratio("float32", "bfloat16")]
        if options.compile:
            row += [f"{ms['torch.compile']:.0f}", ratio("published", "torch.compile")]
        rows.append([variant, *row])
    title = f"FADNet, batch 1, {height}x{width}: median ms, and times as fast"
    console.print(table(columns, rows, title))
    if options.weights:
        console.print(accuracy(options.weights, options.scenes))


if __name__ == "__main__":
    main()
