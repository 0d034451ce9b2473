"""`vizoo export`: a network as a file for another runtime, compared with PyTorch on the way."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._int8 import add_int8, calibration, check_int8
from ._work import add_size, check_file, check_least, parse_size

if TYPE_CHECKING:
    from ..vision.export import Exported
    from ..vision.int8 import Quantized


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "model",
        help="a model's name (with its trained weights, if there are any), a file of weights or of "
        "`vizoo subnet`, hf-hub:ORG/NAME or local-dir:FOLDER",
    )
    parser.add_argument(
        "--to",
        metavar="FORMAT",
        required=True,
        help="onnx, openvino, torch-export, torchscript, aot-inductor (compiled for this "
        "processor) or tensorrt (with --device cuda, for this GPU)",
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        type=Path,
        required=True,
        help="the file: .onnx; .xml of openvino; .pt2 of torch-export and aot-inductor; .pt of "
        "torchscript; .engine of tensorrt",
    )
    add_size(parser, "384x1280", "size of the images")
    parser.add_argument(
        "--dynamic", action="store_true", help="let the file take any height and width"
    )
    parser.add_argument("--batch", type=int, default=1, help="images at once (default 1)")
    parser.add_argument(
        "--precision",
        default="float32",
        help="float32; float16 (openvino: weights in half the bytes); or int8 (openvino, onnx), "
        "whose error is measured (default float32)",
    )
    add_int8(parser)
    parser.add_argument(
        "--float-parts",
        metavar="PART,…",
        help="what stays in float in int8, such as features,refinement, or '' for nothing "
        "(default: found by what each part costs)",
    )
    parser.add_argument("--opset", type=int, metavar="N", help="of ONNX (default: PyTorch's own)")
    parser.add_argument(
        "--device",
        help="where the file shall run: cpu, cuda … (default cpu; an ONNX file runs anywhere)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")


def run(args: argparse.Namespace) -> int:
    """Export and print what came of it."""
    size = parse_size(args.size)
    check_least(args, batch=1)
    if args.out.exists() and Path(args.model).exists() and args.out.samefile(args.model):
        raise ValueError(f"--out {args.out}: is the model itself; choose another name")
    check_file(args.out)

    from rich.console import Console

    from ..common.devices import choose_device
    from ..vision._export_formats import find_format
    from ..vision.export import export, open_named

    form = find_format(args.to)
    form.check(args.out, args.opset, args.precision)
    check_int8(args, args.precision)
    if args.precision == "int8" and args.batch > 1:
        raise ValueError(f"--batch {args.batch}: int8 is calibrated by single pairs; leave it out")
    if form.portable and args.device is not None:
        raise ValueError(f"--device {args.device}: {form.name} files run anywhere; leave it out")
    device = choose_device(args.device or "cpu")
    with Console(stderr=True).status("loading") as status:
        net, weights = open_named(args.model)
        how = {}
        if args.precision == "int8":
            how = calibration(args, args.model, net, None if args.dynamic else size)
            if args.float_parts is not None:
                parts = map(str.strip, args.float_parts.split(","))
                how["float_parts"] = [part for part in parts if part]
        exported = export(
            net.to(device),
            args.out,
            to=args.to,
            size=size,
            dynamic=args.dynamic,
            batch=args.batch,
            opset=args.opset,
            weights=weights,
            precision=args.precision,
            **how,
            progress=lambda step: status.update(f"{args.model}: {step}"),
        )
    report = _report(exported)
    print(json.dumps(report, indent=2) if args.json else _lines(report))
    return 0


def _report(exported: Exported) -> dict[str, Any]:
    return {
        "file": str(exported.path),
        "to": exported.to,
        "bytes": exported.bytes,
        "weight_bytes": exported.weight_bytes,
        **exported.metadata,
        "largest_difference": exported.maximum,
        "mean_difference": exported.mean,
        "checks": [
            {
                "shapes": [list(shape) for shape in check.shapes],
                "largest_difference": check.maximum,
                "mean_difference": check.mean,
                "allowed": check.allowed,
                "largest_value": check.scale,
            }
            for check in exported.checks
        ],
        **({} if exported.quantized is None else {"int8": _quantized(exported.quantized)}),
        "seconds": round(exported.seconds, 1),
    }


def _quantized(int8: Quantized) -> dict[str, Any]:
    """As it is written: None for a loss that is not finite, which JSON has no number for."""
    parts = {part: x if math.isfinite(x) else None for part, x in int8.parts.items()}
    return {**asdict(int8), "parts": parts}


def _lines(report: dict[str, Any]) -> str:
    subnet = " (a subnet)" if "subnet" in report["architecture"] else ""
    lines = [
        f"{report['file']}: {report['model']}{subnet} as {report['to']}, "
        f"{report['bytes'] / 1e6:.1f} MB ({report['weight_bytes'] / 1e6:.1f} MB of weights), "
        f"{report['seconds']:.0f} s"
    ]
    for entry in report["inputs"]:
        shape = " x ".join(map(str, entry["shape"]))
        kind = f", {entry['channels']} in [0, 1]" if "channels" in entry else ""
        lines.append(f"  {entry['name']:<12} {entry['dtype']} {shape}{kind}")
    lines.append(f"  {'->':<12} {', '.join(report['outputs'])}")
    for check in report["checks"]:
        shapes = dict.fromkeys("x".join(map(str, shape)) for shape in check["shapes"])
        lines.append(
            f"differs from PyTorch by up to {check['largest_difference']:.2g}, on average "
            f"{check['mean_difference']:.2g}, in values up to {check['largest_value']:.3g}, at "
            f"{', '.join(shapes)}"
        )
    if "int8" in report:
        lines += _cost(report["int8"])
    if report["weights"] == "random":
        lines.append(
            f"weights: RANDOM, since {report['model']} has no trained ones here: good for timing, "
            "not for predictions; name a file of weights instead"
        )
    else:
        lines.append(f"weights: {report['weights']}")
    if report["to"] == "aot-inductor":
        lines.append(f"runs on processors like this one, with PyTorch {report['torch']}")
    return "\n".join(lines)


def _cost(int8: dict[str, Any]) -> list[str]:
    """What int8 costs, part by part."""
    where = "" if int8["error"] is None else ", where float32 errs least"
    lines = [f"int8, mean error over {int8['samples']} samples{where}:"]
    for part in {**int8["parts"], **dict.fromkeys(int8["float_parts"])}:
        loss = int8["parts"].get(part)
        cost = "makes numbers that are none" if loss is None else f"{loss:+.3f}"
        alone = f"alone {cost}  " if part in int8["parts"] else ""
        stays = "stays in float" if part in int8["float_parts"] else ""
        lines.append(f"  {part:<20} {alone}{stays}".rstrip())
    if int8["error"] is None:
        lines.append(f"  together {int8['loss']:.3f} from float32")
    else:
        after = int8["error"] + int8["loss"]
        lines.append(f"  together {int8['error']:.3f} in float32, {after:.3f} in int8")
    return lines
