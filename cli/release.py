"""`vizoo release`: trained weights as a folder to publish, and the record to register."""

from __future__ import annotations

import argparse
import json
import pprint
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..common.files import read_json
from ._work import check_folder

if TYPE_CHECKING:
    from ..vision.hub.record import WeightsRecord


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("source", metavar="FILE", help=".ckpt of `vizoo fit`, or .safetensors")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write")
    parser.add_argument("--licence", required=True, help="such as Apache-2.0")
    parser.add_argument("--trained-on", required=True, metavar="TEXT", help="the data, in words")
    parser.add_argument(
        "--metric",
        action="append",
        default=[],
        metavar="DATA:NAME=VALUE",
        help="such as kitti2015:epe=0.71; may be repeated",
    )
    parser.add_argument(
        "--metrics", type=Path, metavar="FILE", help='JSON: {"data set": {"metric": value}}'
    )
    parser.add_argument("--command", default="", help="the command line that made the metrics")
    parser.add_argument("--training", default="", help="the command line that made the weights")
    parser.add_argument("--origin", default="", help="where weights of others come from")
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="KEY=JSON",
        help="what the network was fed, such as max_disparity=192; may be repeated",
    )
    parser.add_argument(
        "--reach",
        type=int,
        metavar="PX",
        help="of a stereo network: the largest disparity up to which it was measured to work",
    )
    parser.add_argument(
        "--dtype",
        choices=("float16", "bfloat16"),
        help="of matrices in the file, for half the size (default: as they are)",
    )
    parser.add_argument(
        "--mirror",
        action="append",
        default=[],
        metavar="SOURCE",
        help="where the file will be had: package:PATH, hf-hub:ORG/NAME/FILE, https://…; "
        "may be repeated, in the order in which they are tried",
    )
    parser.add_argument("--push", metavar="ORG/NAME", help="publish it on the Hugging Face Hub")
    parser.add_argument("--private", action="store_true", help="--push makes a private repository")
    parser.add_argument("--force", action="store_true", help="replace what is in the folder")
    parser.add_argument("--json", action="store_true", help="print the record as JSON")


def run(args: argparse.Namespace) -> int:
    """Write the folder and print the record."""
    metrics, fed = _metrics(args), dict(_pair(text, "--input") for text in args.input)
    if args.private and not args.push:
        raise ValueError("--private goes with --push ORG/NAME")
    if args.out.is_dir() and any(args.out.iterdir()) and not args.force:
        raise FileExistsError(f"{args.out}: has files already; --force replaces those of a release")
    check_folder(str(args.out))

    import torch

    from ..vision.hub.record import parse_source
    from ..vision.hub.sharing import from_pretrained, push_to_hub, save_pretrained
    from ..vision.hub.weights import load_weights

    for source in args.mirror:
        parse_source(source)
    if args.push and len(args.push.split("/")) != 2:
        raise ValueError(f"--push {args.push}: a repository is spelled ORG/NAME")
    net = load_weights(args.source)
    record = save_pretrained(
        net,
        args.out,
        licence=args.licence,
        trained_on=args.trained_on,
        metrics=metrics,
        command=args.command,
        training=args.training,
        origin=args.origin,
        input={**getattr(net, "input", {}), **fed},
        reach=args.reach,
        dtype=getattr(torch, args.dtype) if args.dtype else None,
    )
    state, read = net.state_dict(), from_pretrained(args.out).state_dict()
    same = state.keys() == read.keys() and all(state[key].equal(read[key]) for key in state)
    if args.dtype is None and not same:
        raise OSError(f"{args.out}: what was written differs from {args.source}: a faulty disk?")
    sources = list(args.mirror)
    if args.push:
        sources.append(push_to_hub(args.out, args.push, private=args.private))
    record = replace(record, sources=tuple(sources))
    name = cast("dict[str, Any]", net.architecture)["name"]
    if args.json:
        content = {"model": name, "folder": str(args.out), "record": record.to_json()}
        print(json.dumps(content, indent=2))
        return 0
    size = f"{record.size / 1e6:.1f} MB"
    print(f"{args.out}: {name}, {size}; loaded by create_model('local-dir:{args.out}')")
    where = "" if sources else "; fill in its sources"
    print(f"To register it, hand this to {name}'s register_model(weights=…){where}:\n")
    print(_python_record(record))
    return 0


def _python_record(record: WeightsRecord) -> str:
    """A record as the entry of the dictionary that a model file hands to `register_model`."""
    lines = ['    "TAG": WeightsRecord(']
    for key, value in {**record.to_json(), "sources": record.sources}.items():
        text = f"{value:_}" if key == "size" else pprint.pformat(value, width=78, sort_dicts=False)
        text = text.replace("\n", "\n" + " " * (9 + len(key)))
        lines.append(f"        {key}={text},")
    return "\n".join([*lines, "    ),"])


def _metrics(args: argparse.Namespace) -> dict[str, dict[str, float]]:
    metrics: dict[str, dict[str, float]] = {}
    if args.metrics is not None:
        metrics = read_json(args.metrics, "metrics")
        if not isinstance(metrics, dict) or not all(isinstance(v, dict) for v in metrics.values()):
            raise ValueError(f'{args.metrics}: must hold {{"data set": {{"metric": value}}}}')
    for text in args.metric:
        data, _, rest = text.rpartition(":")
        name, value = _pair(rest, "--metric") if data else ("", None)
        if not name or isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"--metric {text}: write DATA:NAME=VALUE, as in kitti2015:epe=0.71")
        metrics.setdefault(data, {})[name] = value
    if metrics and not args.command:
        raise ValueError("metrics need --command, the command line that made them")
    return metrics


def _pair(text: str, option: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    try:
        return key, json.loads(value if equals and key else "")
    except ValueError as error:
        raise ValueError(f"{option} {text}: write KEY=VALUE, the value as JSON") from error
