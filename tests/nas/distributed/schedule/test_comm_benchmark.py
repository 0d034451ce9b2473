"""The benchmark of ways on slow links: its tables, and what it says where links are refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict

import pytest

from vizoo.nas.distributed.schedule.simulator import Step

ROWS = [
    {"model": "net", "megabits": megabits, "way": way, "ms": ms, "predicted_ms": 0.9 * ms}
    | {"counted": size, "wire": size, "loss": 0.5}
    for megabits, way, ms, size in (
        (20, "plain", 400.0, 950_000),
        (20, "topk", 100.0, 9_000),
        (1000, "plain", 10.0, 950_000),
        (1000, "topk", 20.0, 9_000),
    )
]


def test_tables_have_a_line_for_each_way(benchmark):
    comm = benchmark("comm")
    head, lines = comm.cells(ROWS, "net", [20, 1000])
    assert head == ["net", "20 Mb/s", "1 Gb/s", "kB a step", "on the wire", "loss"]
    assert lines[0] == ["plain", "400 (360)", "10 (9)", "950", "950", "0.500"]
    assert comm.cells(ROWS[:3], "net", [20, 1000])[1][1][2] == ""  # not measured yet
    page = comm.markdown(head, lines).splitlines()
    assert page[1] == "|" + " --- |" * 6 and page[3].startswith("| topk | 100 (90) |")
    assert len(page) == 4 and comm.table(head, lines, "ms").row_count == 2


def test_the_best_way_is_told_and_only_full_wires_count(benchmark):
    said = benchmark("comm").verdicts(ROWS, [20, 1000])
    assert said == [
        "net at 20 Mb/s: topk is 4.00 times as fast as plain; simulator up to 10 % off in 1 bound "
        "rows",
        "net at 1000 Mb/s: topk is 0.50 times as fast as plain; simulator up to 10 % off in 1 "
        "bound rows",
    ]
    assert benchmark("comm").verdicts(ROWS[1:2], [20]) == []  # nothing to compare with


def test_simulated_curves_are_of_all_links_and_processes(benchmark):
    comm = benchmark("comm")
    step = Step(0.05, 0.1, [0.05, 0.1], [[512, 512], [256, 512]])
    found = comm.curves({"net": {"step": asdict(step), "computing": {"topk": 0.01}}}, 30.0)
    assert len(found) == 2 * 2 * 5
    head, lines = comm.curve_cells(found, "net", 30.0)
    assert len(lines) == 10 and all(len(line) == len(head) for line in lines)
    slower = [float(line[2]) for line in comm.curve_cells(found, "net", 1.0)[1]]
    assert all(float(line[2]) < ms for line, ms in zip(lines, slower, strict=True))


def test_a_reason_is_given_where_links_are_refused(benchmark, monkeypatch, tmp_path):
    links = benchmark("_links")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert links.private_network()[1].startswith("there is no unshare on this machine")
    for tool in ("unshare", "nsenter", "ip", "tc"):
        (tmp_path / tool).write_text("#!/bin/sh\necho not permitted >&2\nexit 1\n")
        (tmp_path / tool).chmod(0o755)
    prefix, reason = links.private_network()
    assert prefix is None
    assert reason == "the kernel refuses a private network (unshare -Urn: not permitted)"


def test_without_links_it_simulates(benchmark, monkeypatch, capsys):
    comm = benchmark("comm")
    for name in ("OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME", "TORCH_CPP_LOG_LEVEL"):
        monkeypatch.setenv(name, "")  # taken back behind the test
    monkeypatch.setattr(comm, "private_network", lambda: (None, "refused"))
    ranks = benchmark("_comm_rank")
    measure_alone, steps = ranks.measure_alone, []

    def counted(model, rank, count):
        steps.append(count)
        return measure_alone(model, rank, count)

    monkeypatch.setattr(ranks, "measure_alone", counted)
    words = ["comm", "--models", "lcnet_075", "--alone-steps", "1", "--markdown"]
    monkeypatch.setattr(sys, "argv", words)
    comm.main()
    assert steps == [1]
    said = capsys.readouterr().out
    assert "nothing measured: refused" in said and "ms a step among" not in said
    assert said.count("lcnet_075, SIMULATED: times as fast as plain") == 2
    assert said.count("| 100 Gb/s | 1024 |") == 2


@pytest.mark.slow
def test_it_measures_where_links_can_be_shaped(root, benchmark, tmp_path):
    if benchmark("_links").private_network()[0] is None:
        pytest.skip("the kernel refuses private networks")
    words = ["--models", "lcnet_075", "--links", "1000", "--steps", "4", "--alone-steps", "2"]
    words += ["--out", str(tmp_path / "comm.json"), "--folder", str(tmp_path)]
    found = subprocess.run(
        [sys.executable, "-m", "benchmarks.comm", *words],
        cwd=root,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert found.returncode == 0, found.stderr
    report = json.loads((tmp_path / "comm.json").read_text())
    ways = {row["way"]: row for row in report["rows"]}
    assert {"plain", "merged", "topk", "acpsgd"} <= ways.keys() and len(report["simulated"]) == 20
    assert ways["topk"]["wire"] < 0.5 * ways["plain"]["wire"]
    # What a full queue drops is sent again.
    assert 0.95 < ways["plain"]["wire"] / ways["plain"]["counted"] < 1.5
