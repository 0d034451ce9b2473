"""`vizoo comm plan`: how the gradients of a network should travel on a given link.

The backward pass and what compressing computes are measured here; what messages take is computed
from the link.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from ._work import check_least, parse_size

if TYPE_CHECKING:
    from ..nas.distributed.schedule.link import Link


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--model", required=True, help="see `vizoo models`")
    parser.add_argument(
        "--input", metavar="HxW", default="256x512", help="size of the images (default 256x512)"
    )
    parser.add_argument("--batch", type=int, default=2, help="samples a process (default 2)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda … (default cpu)")
    parser.add_argument(
        "--processes", type=int, help="how many, 2 and more (default: those of the link)"
    )
    parser.add_argument(
        "--link",
        metavar="NAME|FILE",
        help="10gbe-8, 10gbe-16, 56gbib-8 or 56gbib-16 (published), or a file of "
        "`vizoo comm measure`",
    )
    parser.add_argument("--alpha", type=float, help="seconds a message of an all-reduce")
    parser.add_argument("--beta", type=float, help="seconds a byte of it")
    parser.add_argument(
        "--density", type=float, default=0.001, help="of top-k and gTop-k (default 0.001)"
    )
    parser.add_argument("--rank", type=int, default=4, help="of PowerSGD and ACP-SGD (default 4)")
    parser.add_argument("--steps", type=int, default=5, help="to measure (default 5)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")


def run(args: argparse.Namespace) -> int:
    """Measure a step and print what each way would take."""
    from ..common.devices import choose_device
    from ..common.progress import progress_bar
    from ..nas.distributed.schedule.ways import compare_ways
    from ..vision.hub.create import create_model
    from ..vision.inputs import example_inputs

    check_least(args, batch=1, steps=1, rank=1, processes=2)
    if not 0 < args.density <= 1:
        raise ValueError(f"--density {args.density}: more than 0 and at most 1")
    link = _link(args)
    height, width = parse_size(args.input)
    device = choose_device(args.device)
    net = create_model(args.model).to(device)
    inputs = example_inputs(net, height, width, batch=args.batch, device=device)
    with progress_bar("measurements") as tell:
        ways = compare_ways(
            net, inputs, link, density=args.density, rank=args.rank, steps=args.steps, report=tell
        )
    report = {
        "model": args.model,
        "input": [args.batch, height, width],
        "device": str(device),
        **{name: getattr(link, name) for name in ("processes", "alpha", "beta")},
        "around_ms": round(1e3 * ways.step.around, 3),
        "backward_ms": round(1e3 * ways.step.backward, 3),
        "gradient_bytes": int(sum(ways.step.sizes)),
        "computing_ms": {way: round(1e3 * time, 3) for way, time in ways.computing.items()},
        "step_ms": {way: round(1e3 * time, 3) for way, time in ways.seconds.items()},
        "messages": ways.messages,
        "best_exact": ways.best_exact,
        "best": ways.best,
    }
    print(json.dumps(report, indent=2) if args.json else _lines(report))
    return 0


def _link(args: argparse.Namespace) -> Link:
    """The link of the words, among as many processes as they say."""
    from pathlib import Path

    from ..nas.distributed.schedule.link import LINKS, Link

    given = args.alpha is not None, args.beta is not None
    if args.link is None and not all(given):
        raise ValueError("give the link: --link, or --alpha and --beta")
    if args.link is not None and any(given):
        raise ValueError("give the link once: --link, or --alpha and --beta")
    if args.link is None:
        return Link(args.processes or 8, args.alpha, args.beta)
    if args.link not in LINKS and not Path(args.link).is_file():
        raise FileNotFoundError(
            f"--link {args.link}: no such file, and no published link ({', '.join(LINKS)}); "
            "`vizoo comm measure --out FILE` measures one"
        )
    link = LINKS[args.link] if args.link in LINKS else Link.load(args.link)
    return link if args.processes is None else link.at(args.processes)


def _lines(report: dict[str, Any]) -> str:
    from ..nas.distributed.schedule.simulator import WAYS

    lines = [
        f"{report['model']}: {report['gradient_bytes'] / 1e6:.2f} MB of gradients, backward pass "
        f"{report['backward_ms']:.1f} ms and the rest {report['around_ms']:.1f} ms on "
        f"{report['device']}; {report['processes']} processes, "
        f"{1e6 * report['alpha']:.0f} us a message, {1e9 * report['beta']:.2f} ns a byte"
    ]
    times = report["step_ms"]
    for way, time in sorted(times.items(), key=lambda item: item[1]):
        share = times["plain"] / time
        lines.append(f"  {time:10.1f} ms  {share:5.2f} x plain  {way:8} {WAYS[way]}")
    lines.append(f"  best messages: {len(report['messages'])}")
    best, exact = report["best"], report["best_exact"]
    if times["plain"] < 1.1 * times[best]:
        lines.append("  plain would do: nothing is a tenth faster")
    elif times[exact] < 1.1 * times[best]:
        lines.append(f"  {exact} would win: no compression is a tenth faster")
    else:
        lines.append(f"  {best} would win; of those that change no gradient, {exact}")
    return "\n".join(lines)
