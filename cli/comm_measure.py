"""`vizoo comm measure`: what messages between processes take, for `vizoo comm plan`.

Starts processes on this machine, or takes those that `torchrun` has started, on any machines.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._work import check_file, check_least, positive

if TYPE_CHECKING:
    from ..nas.distributed.schedule.link import Link


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "--processes", type=int, help="to start here (default 2); under torchrun there are enough"
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="gloo or NCCL (default cpu)"
    )
    parser.add_argument(
        "--seconds", type=positive, default=0.5, help="for each of eight sizes (default 0.5)"
    )
    parser.add_argument("--out", metavar="FILE", help="write the link, for `comm plan --link FILE`")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    """Measure all-reduces of several sizes and fit alpha and beta."""
    if args.out and int(os.environ.get("RANK", "0")) == 0:  # which writes it
        check_file(Path(args.out))
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        if args.processes is not None:
            raise ValueError("--processes: torchrun has started them, leave it out")
        _check_device(args.device, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        _measure(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "env://", args)
        return 0
    check_least(args, processes=2)
    processes = args.processes or 2
    _check_device(args.device, processes)
    from torch.multiprocessing.spawn import ProcessException, spawn

    with tempfile.TemporaryDirectory() as folder:
        try:
            spawn(_measure, (processes, f"file://{folder}/store", args), nprocs=processes)
        except ProcessException as error:
            said = [line for line in str(error).splitlines() if line.strip()]
            raise ValueError(f"a process could not measure: {said[-1]}") from None
    return 0


def _check_device(device: str, processes: int) -> None:
    import torch

    if device == "cuda" and torch.cuda.device_count() < processes:
        raise ValueError(
            f"--device cuda: {processes} processes here want a GPU each, and there are "
            f"{torch.cuda.device_count()}"
        )


def _measure(rank: int, processes: int, store: str, args: argparse.Namespace) -> None:
    """What each process does; the first prints and writes."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    from ..common.progress import progress_bar
    from ..nas.distributed.schedule.link import SIZES, Link, measure_all_reduce

    torch.set_num_threads(1)
    device = torch.device("cpu")
    if args.device == "cuda":
        local = rank if store != "env://" else int(os.environ.get("LOCAL_RANK", "0"))
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    if store != "env://" and sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    backend = "nccl" if device.type == "cuda" else "gloo"
    try:
        wait = timedelta(seconds=120)
        dist.init_process_group(
            backend, init_method=store, rank=rank, world_size=processes, timeout=wait
        )
        with progress_bar("messages") if rank == 0 else nullcontext(lambda *_: None) as tell:
            times = measure_all_reduce(device, sizes=SIZES, seconds=args.seconds, tell=tell)
        dist.barrier()
        dist.destroy_process_group()
    except RuntimeError as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(f"the processes do not reach each other: {lines[0]}") from error
    if rank:
        return
    link = Link.fitted(processes, times)
    report = {
        "backend": backend,
        "messages": [{"bytes": size, "seconds": time} for size, time in times],
        # The worst of the model's relative errors.
        "error": max(abs((link.alpha + link.beta * n) / time - 1) for n, time in times),
    }
    if args.out:
        link.save(args.out, **report)
    whole = {"processes": processes, "alpha": link.alpha, "beta": link.beta, **report}
    print(json.dumps(whole, indent=2) if args.json else _lines(link, report, args.out))
    sys.stdout.flush()


def _lines(link: Link, report: dict[str, Any], out: str | None) -> str:
    lines = [f"{'bytes':>12} {'ms':>10} {'fit, ms':>10} {'MB/s':>8}"]
    for message in report["messages"]:
        size, time = message["bytes"], message["seconds"]
        fit = link.alpha + link.beta * size
        lines.append(f"{size:12d} {1e3 * time:10.3f} {1e3 * fit:10.3f} {size / time / 1e6:8.1f}")
    lines.append(
        f"all-reduce among {link.processes} processes ({report['backend']}): alpha "
        f"{link.alpha:.3g} s a message, beta {link.beta:.3g} s a byte; the fit is up to "
        f"{100 * report['error']:.0f} % off"
    )
    if out:
        name = Path(out)
        lines.append(f"written to {name}: vizoo comm plan --model NAME --link {name}")
    return "\n".join(lines)
