"""What hooks count as sent is what formulas say, and what goes over the wire."""

from __future__ import annotations

import math
import subprocess
from functools import partial

import pytest
import ranks
import wire
from distributed_gradients import HOOKS

_UP = "ip link set lo up"


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_the_count_is_the_formula_and_what_the_wire_carries(benchmark, monkeypatch, processes):
    prefix, reason = benchmark("_links").private_network(_UP)
    if prefix is None:
        pytest.skip(reason)
    # Its processes are forked from the one that has imported all.
    words = [*prefix, "sh", "-c", f"{_UP} && echo up && exec cat"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as network:
        assert network.stdout.readline() == b"up\n"
        monkeypatch.setattr(ranks, "_main", partial(wire.in_network_of, network.pid))
        found = ranks.run_ranks(processes, wire.sent)
    sizes = [math.prod(shape) for shape in wire.SHAPES]
    total, steps, share = sum(sizes), 2, 2 * (processes - 1) / processes
    kept, others = math.ceil(0.05 * total), processes - 1
    # That of the second matrix is given its own density.
    layers = sum(math.ceil((0.01 if i == 2 else 0.05) * size) for i, size in enumerate(sizes))
    factors = [8 * (rows + columns) for rows, columns in (wire.SHAPES[0], wire.SHAPES[2])]
    small = sizes[1] + sizes[3]
    # ACP-SGD sends the first factor of both matrices in even steps, the second in odd ones.
    turns = [sum(4 * wire.SHAPES[layer][side] for layer in (0, 2)) for side in (0, 1)]
    formulas = {
        "dense": 4 * total * share * steps,
        "fp16": 2 * total * share * steps,
        "bf16": 2 * total * share * steps,
        "powersgd": 4 * (sum(factors) + small) * share * steps,
        "topk": 8 * kept * others * steps,
        "gaussian": 8 * math.ceil(4 * kept / 3) * others * steps,
        "lags": 8 * layers * others * steps,
        "gtopk": 8 * kept * math.log2(processes) * steps,
        "acpsgd": 4 * (sum(turns) + 2 * small) * share,
        "efsign": (math.ceil(total / 8) + 4 * len(sizes)) * others * steps,
    }
    assert formulas.keys() == {"dense", "fp16", "bf16", "powersgd", *HOOKS}
    for name, expected in formulas.items():
        assert {own for own, _ in (values[name] for values in found)} == {expected}, name
        carried = max(values[name][1] for values in found)
        # Beside 5 %, barriers, and headers from each process to each.
        assert 0.95 * processes * expected <= carried, name
        assert carried <= 1.05 * processes * expected + 4_096 * processes**2, name
