"""How long training stands still for a snapshot in memory, beside a checkpoint on the disk.

python -m benchmarks.snapshots [--processes 4] [--megabytes 64] [--repeat 5]

Each of the processes holds replicas of that many megabytes, as parameters and optimiser state are.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
import torch.multiprocessing

from benchmarks._machine import arguments, start, table
from vizoo.nas.distributed.recovery.payload import Shared
from vizoo.nas.distributed.recovery.store import SnapshotStore

WAYS = {"in memory": 1, "in memory, parity": 4, "torch.save to the disk": None}


def main() -> None:
    parser = arguments(__doc__, threads=1, processes=4, megabytes=64, repeat=5)
    parser.add_argument("--disk", help="folder of the checkpoint (default: a temporary one)")
    options, console = start(parser)
    # Left behind, it would keep its memory until the machine is started anew.
    shared = tempfile.TemporaryDirectory(
        dir="/dev/shm", prefix="vizoo-benchmark-", ignore_cleanup_errors=True
    )
    with tempfile.TemporaryDirectory(dir=options.disk) as folder, shared as memory:
        torch.multiprocessing.spawn(_rank, (folder, memory, options), options.processes)
        found = torch.load(f"{folder}/found.pt")
    shown = table(["", "training stands still, ms", "memory of a process, MB"])
    for name, (seconds, size) in found.items():
        shown.add_row(name, f"{1e3 * seconds:.0f}", f"{2 * size / 1e6:.0f}" if size else "")
    console.print(f"{options.processes} processes, {options.megabytes} MB that all of them hold")
    console.print(shown)


def _rank(rank: int, folder: str, memory: str, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    place = {"rank": rank, "world_size": options.processes}
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", **place)
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(250_000, generator=generator) for _ in range(options.megabytes)]
    found = {}
    for name, parity in WAYS.items():
        run = Path(memory) / str(parity)
        store = SnapshotStore(run, Path(folder), parity_group=parity) if parity else None
        times = []
        for step in range(options.repeat + 2):  # two buffers are made first
            dist.barrier()
            start = time.perf_counter()
            if store is not None:
                store.take(step + 1, torch.zeros(1000, dtype=torch.uint8), Shared(tensors))
            else:
                _save(tensors, Path(folder) / "checkpoint.pt", rank)
            times.append(time.perf_counter() - start)
        found[name] = median(times[2:]), store.bytes if store else 0
        if store is not None:
            store.forget()
    if rank == 0:
        torch.save(found, f"{folder}/found.pt")
    dist.barrier()
    dist.destroy_process_group()


def _save(tensors: list[torch.Tensor], path: Path, rank: int) -> None:
    if rank == 0:
        with open(path, "wb") as file:
            torch.save(tensors, file)
            file.flush()
            os.fsync(file.fileno())
    dist.barrier()


if __name__ == "__main__":
    main()
