"""Processes on links of a given bandwidth, on one machine: network namespaces, veth and tbf.

Each process has a network of its own, whose one interface leads to a common bridge; both ends of
it are shaped. All of it lives in a private network and ends with it: no interface of the machine
is touched. Works as root, and for users where the kernel lets them have namespaces.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

_NEW_NETWORK = 0x40000000

_TRY = (
    "ip link set lo up && ip link add hub type bridge && ip link add v0 type veth peer name e0 && "
    "tc qdisc add dev v0 root tbf rate 20mbit burst 16kb latency 100ms"
)
_PREFIXES = (["unshare", "-Urn"], ["unshare", "-n"])


def private_network(shell: str = _TRY) -> tuple[list[str] | None, str]:
    """The words before a command that give it a private network; None, and why there are none.

    Args:
        shell: what has to work in it; by default shaping a link.
    """
    for tool in ("unshare", "nsenter", "ip", "tc"):
        if shutil.which(tool) is None:
            return None, f"there is no {tool} on this machine (packages util-linux and iproute2)"
    reason = ""
    for prefix in _PREFIXES:
        tried = subprocess.run([*prefix, "sh", "-c", shell], capture_output=True, text=True)
        if tried.returncode == 0:
            return prefix, ""
        reason = reason or f"{' '.join(prefix)}: {' '.join(tried.stderr.split())}"
    return None, f"the kernel refuses a private network ({reason})"


def run_shaped(function: Callable[..., None], arguments: Sequence[tuple], megabits: int) -> None:
    """Call a function in as many processes, each on a link of this bandwidth, its `e0`.

    Within a private network. The processes are forked, so that they need import nothing.

    Raises:
        RuntimeError: one of them failed.
    """
    _run("ip link set lo up")
    if subprocess.run(["ip", "link", "show", "hub"], capture_output=True).returncode:
        _run("ip link add hub type bridge")
        _run("ip link set hub up")
    # What passes unshaped after a pause: a millisecond's worth, but a few packets at least.
    burst = max(16_000, megabits * 125)
    shape = f"root tbf rate {megabits}mbit burst {burst} latency 100ms"
    context, processes = multiprocessing.get_context("fork"), []
    try:
        for rank, words in enumerate(arguments):
            has_network, go = context.Event(), context.Event()
            process = context.Process(target=_linked, args=(has_network, go, function, words))
            process.start()
            processes.append((process, go))
            if not has_network.wait(30):
                raise RuntimeError(f"process {rank} has no network of its own")
            inside, port = f"nsenter -t {process.pid} -n", f"v{megabits}-{rank}"
            _run(f"ip link add {port} type veth peer name e0 netns {process.pid}")
            _run(f"ip link set {port} master hub up")
            _run(f"tc qdisc add dev {port} {shape}")
            _run(f"{inside} ip addr add 10.0.0.{rank + 1}/24 dev e0")
            _run(f"{inside} ip link set e0 up")
            _run(f"{inside} ip link set lo up")
            _run(f"{inside} tc qdisc add dev e0 {shape}")
        for _, go in processes:
            go.set()
        while any(process.is_alive() for process, _ in processes):
            if any(process.exitcode for process, _ in processes):
                break  # the others would wait for it
            time.sleep(0.05)
        if any(process.exitcode for process, _ in processes):
            raise RuntimeError(f"a process on the link of {megabits} Mb/s failed")
    finally:
        for process, _ in processes:
            process.kill()
            process.join()


def _linked(has_network: Any, go: Any, function: Callable[..., None], words: tuple) -> None:
    # Python has os.unshare from 3.12 on.
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "unshare")
    has_network.set()
    go.wait()
    function(*words)
    os._exit(0)  # without waiting for whatever threads are left


def sent_bytes(interface: str = "e0") -> int:
    """What an interface of this process's network has sent so far."""
    with open("/proc/net/dev", encoding="ascii") as lines:
        for line in lines:
            name, _, numbers = line.partition(":")
            if name.strip() == interface:
                return int(numbers.split()[8])
    raise ValueError(f"there is no interface {interface}")


def _run(words: str) -> None:
    subprocess.run(words.split(), check=True)
