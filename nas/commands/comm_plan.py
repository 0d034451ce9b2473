"""`vizoo comm plan`: how the gradients of a network should travel on a given link.

The backward pass is measured here; what messages take is computed from the link.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["add_arguments", "run"]

_WAYS = {
    "plain": "PyTorch's buckets of 25 MB",
    "tensors": "a message for each parameter",
    "single": "one message",
    "merged": "the best messages (MG-WFBP)",
    "fp16": "half precision",
    "topk": "top-k, a thousandth",
    "gtopk": "gTop-k, a thousandth",
    "acpsgd": "ACP-SGD, rank 4",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    from ..distributed.planner import LINKS

    parser.add_argument("--model", required=True, help="see `vizoo models`")
    parser.add_argument(
        "--input", metavar="HxW", default="256x512", help="size of the images (default 256x512)"
    )
    parser.add_argument("--batch", type=int, default=2, help="samples a process (default 2)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda … (default cpu)")
    parser.add_argument("--processes", type=int, default=8, help="how many (default 8)")
    parser.add_argument("--link", choices=tuple(LINKS), help="a published link")
    parser.add_argument("--alpha", type=float, help="seconds a message of an all-reduce")
    parser.add_argument("--beta", type=float, help="seconds a byte of it")
    parser.add_argument("--steps", type=int, default=5, help="to measure (default 5)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")


def run(args: argparse.Namespace) -> int:
    """Measure the backward pass and print what each way would take.

    Raises:
        ValueError: a bad option, or an unknown model.
    """
    from ...vision.commands._sizes import parse_size
    from ...vision.complexity import example_inputs
    from ...vision.device import choose_device
    from ...vision.hub.registry import create_model
    from ..distributed.planner import LINKS, plan_groups, predict

    if args.processes < 2 or args.batch < 1 or args.steps < 1:
        raise ValueError(
            f"--processes {args.processes}, --batch {args.batch}, --steps {args.steps}: at least "
            "2, 1 and 1"
        )
    if args.link is None and (args.alpha is None or args.beta is None):
        raise ValueError("give the link: --link, or --alpha and --beta")
    alpha, beta = LINKS[args.link] if args.link else (args.alpha, args.beta)
    alpha, beta = args.alpha or alpha, args.beta or beta
    if alpha < 0 or beta <= 0:
        raise ValueError(f"--alpha {alpha}, --beta {beta}: seconds, at least 0 and more than 0")
    height, width = parse_size(args.input)
    device = choose_device(args.device)
    net = create_model(args.model).to(device).train()
    inputs = example_inputs(net, height, width, batch=args.batch, device=device)
    forward, backward, ready, shapes = _measured(net, inputs, args.steps, device)
    ends = predict(ready, shapes, args.processes, alpha, beta)
    sizes = [4.0 * size.numel() for size in shapes]
    groups = plan_groups(ready, sizes, alpha, beta)
    report = {
        "model": args.model,
        "input": [args.batch, height, width],
        "device": str(device),
        "processes": args.processes,
        "alpha": alpha,
        "beta": beta,
        "forward_ms": round(1e3 * forward, 3),
        "backward_ms": round(1e3 * backward, 3),
        "gradient_bytes": int(sum(sizes)),
        "step_ms": {
            way: round(1e3 * (forward + max(end, backward)), 3) for way, end in ends.items()
        },
        "messages": groups,
    }
    print(json.dumps(report, indent=2) if args.json else _lines(report))
    return 0


def _measured(
    net: nn.Module, inputs: tuple[Any, ...], steps: int, device: torch.device
) -> tuple[float, float, list[float], list[torch.Size]]:
    """Seconds of both passes, and of when each gradient is ready, medians; shapes in that order."""
    import statistics
    import time

    import torch

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    times: dict[str, list[float]] = {}
    shapes = {name: parameter.shape for name, parameter in net.named_parameters()}
    started = 0.0
    for name, parameter in net.named_parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda _, name=name: times.setdefault(name, []).append(now() - started)
        )
    passes = []
    for step in range(steps + 1):
        net.zero_grad()
        begin = now()
        loss = sum(output.float().mean() for output in _tensors(net(*inputs)))
        started = now()
        loss.backward()
        passes.append((started - begin, now() - started))
        if step == 0:
            times.clear()  # the first pass allocates
    ready = {name: statistics.median(found) for name, found in times.items()}
    order = sorted(ready, key=ready.__getitem__)
    forward, backward = (statistics.median(found) for found in zip(*passes[1:], strict=True))
    return forward, backward, [ready[name] for name in order], [shapes[name] for name in order]


def _tensors(value: Any) -> list[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        return [value] if value.requires_grad else []
    values = value.values() if isinstance(value, dict) else value
    return [tensor for entry in values for tensor in _tensors(entry)]


def _lines(report: dict[str, Any]) -> str:
    found = [
        f"{report['model']}: {report['gradient_bytes'] / 1e6:.2f} MB of gradients, forward "
        f"{report['forward_ms']:.1f} ms, backward {report['backward_ms']:.1f} ms on "
        f"{report['device']}; {report['processes']} processes, "
        f"{1e6 * report['alpha']:.0f} us a message, {1e9 * report['beta']:.2f} ns a byte"
    ]
    times = report["step_ms"]
    for way, time in sorted(times.items(), key=lambda item: item[1]):
        share = times["plain"] / time
        found.append(f"  {time:10.1f} ms  {share:5.2f} x plain  {way:8} {_WAYS[way]}")
    found.append(
        f"  best messages: {len(report['messages'])}; compressors' own computation is not counted"
    )
    return "\n".join(found)
