"""Runs a function in several processes that form a gloo group on this machine."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
from datetime import timedelta

context = multiprocessing.get_context("forkserver")
# One process imports these once; all others are forked from it.
context.set_forkserver_preload(["torch", "vizoo.nas.training", "vizoo.cli.fit"])


def run_ranks(world_size, function, *args):
    """Call ``function(rank, *args)`` in each process.

    Args:
        world_size: how many.
        function: of an importable module; returns plain values.
        args: the same for all.

    Returns:
        What they returned, by rank.

    Raises:
        AssertionError: one of them failed; with its traceback.
    """
    results = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(
                target=_main, args=(rank, world_size, folder, results, function, args), daemon=True
            )
            for rank in range(world_size)
        ]
        for process in processes:
            process.start()
        try:
            found = _collect(results, processes)
        finally:
            for process in processes:
                process.kill()
                process.join()
    return [found[rank] for rank in range(world_size)]


def _collect(results, processes):
    found = {}
    while len(found) < len(processes):
        rank, value, error = results.get()
        if error:
            raise AssertionError(f"process {rank}:\n{error}")
        found[rank] = value
    return found


def _main(rank, world_size, folder, results, function, args):
    import torch
    import torch.distributed as dist

    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_WORLD_SIZE=str(world_size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29500",  # not used: the group below is there already
        TORCHELASTIC_RUN_ID="test",  # Lightning starts no processes of its own then
        GLOO_SOCKET_IFNAME="lo",
    )
    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/store",
            rank=rank,
            world_size=world_size,
            timeout=timedelta(minutes=30),
        )
        value = function(rank, *args)
        dist.barrier()
        dist.destroy_process_group()
        results.put((rank, value, None))
    except BaseException:
        results.put((rank, None, traceback.format_exc()))
    os._exit(0)  # without waiting for whatever threads are left
