"""What messages take: found in its own figures, measured between processes, used by a plan."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import distributed_link as remote
import pytest
from ranks import run_ranks
from torch.multiprocessing.spawn import start_processes

from vizoo.__main__ import main
from vizoo.nas.distributed.schedule.link import LINKS, SIZES, Link, fit_link

MODEL = ("--model", "fadnet_plus_micro", "--input", "64x128", "--batch", "1", "--steps", "1")


def test_a_link_is_found_in_its_messages():
    sizes = [1e3, 1e4, 1e5, 1e6, 1e7]
    found = fit_link(sizes, [5e-4 + 8e-10 * size for size in sizes])
    assert found == pytest.approx((5e-4, 8e-10), rel=1e-6)
    with pytest.raises(ValueError, match="at least two sizes"):
        fit_link([1.0], [1.0])


def test_neither_is_negative():
    alpha, beta = fit_link([1e3, 1e6], [1e-6, 1e-2])
    assert alpha == 0 and 1e-9 < beta < 1e-8
    alpha, beta = fit_link([1e3, 1e6], [1e-2, 1e-3])
    assert beta == 0 and 1e-3 < alpha < 1e-2


def test_messages_that_show_no_bandwidth_are_no_link():
    assert Link.fitted(4, [(1e3, 2e-3), (1e6, 1.002)]).beta == pytest.approx(1e-6, rel=1e-2)
    with pytest.raises(ValueError, match="took no longer than small ones: measure again"):
        Link.fitted(4, [(1e3, 1e-2), (1e6, 1e-3)])


def test_long_messages_decide_on_bytes():
    """A shaper lets short messages pass faster than its rate; long ones take 20 % more a byte."""
    sizes = [4e3, 1.6e4, 6.5e4, 2.6e5, 1e6, 4e6]
    seconds = [6e-3, 8e-3, 1.2e-2, 3e-2, 1e-1, 4.8e-1]
    alpha, beta = fit_link(sizes, seconds)
    assert alpha + beta * 4e6 == pytest.approx(4.8e-1, rel=0.08)
    assert alpha + beta * 8e6 == pytest.approx(9.6e-1, rel=0.08)


def test_the_same_wires_among_others():
    link = Link(4, 4e-4, 3e-9)
    assert link.hop == pytest.approx(1e-4) and link.byte == pytest.approx(2e-9)
    more = link.at(1024)
    assert more.alpha == pytest.approx(5 * link.alpha)
    assert more.beta == pytest.approx(2 * 1023 / 1024 * link.byte)
    again = more.at(4)
    assert (again.alpha, again.beta) == pytest.approx((link.alpha, link.beta))


def test_the_slowest_process_counts():
    (found, count), other = run_ranks(2, remote.timed, 2.0)
    assert (found, count) == tuple(other)
    assert [size for size, _ in found] == list(SIZES)
    assert [time for _, time in found] == pytest.approx([3e-3 + 1e-9 * size for size in SIZES])
    assert fit_link(*zip(*found, strict=True)) == pytest.approx((3e-3, 1e-9), rel=1e-4)
    # Two to find how many, then as many as take the time but three at least, each behind a start.
    repeats = [max(3, int(0.01 / time)) for _, time in found]
    assert count == sum(2 * (2 + repeat) + 2 for repeat in repeats)
    (found, _), _ = run_ranks(2, remote.timed, 1e-3)
    assert len(found) == 5  # each takes longer


def test_a_measured_link_is_written_and_planned_with(tmp_path, monkeypatch, capsys):
    """By processes that are forked from one with all imports done."""

    def spawn(function, arguments, nprocs):
        given = function, tmp_path / "said.txt", *arguments
        start_processes(remote.printed, given, nprocs, start_method="forkserver")
        print((tmp_path / "said.txt").read_text())

    monkeypatch.setattr(sys.modules[start_processes.__module__], "spawn", spawn)
    path = tmp_path / "link.json"
    words = ["comm", "measure", "--processes", "2", "--seconds", "0.01", "--out", str(path)]
    code = main([*words, "--json"])
    said = capsys.readouterr()
    if code:
        assert code == 2 and "took no longer than small ones: measure again" in said.err
        pytest.skip("this machine is too busy to measure a link")
    report = json.loads(said.out)
    written = json.loads(path.read_text())
    assert written == report and len(report["messages"]) >= 5 and report["processes"] == 2
    assert all(message["seconds"] > 0 for message in report["messages"])
    link = Link.load(path)
    assert (link.alpha, link.beta) == (report["alpha"], report["beta"])
    assert main(["comm", "plan", *MODEL, "--link", str(path), "--processes", "64", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert (planned["processes"], planned["beta"]) == (64, link.at(64).beta)


@pytest.mark.slow
def test_processes_of_torchrun_measure_once(tmp_path):
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "vizoo"]
    path = tmp_path / "link.json"
    found = subprocess.run(
        [sys.executable, *words, "comm", "measure", "--seconds", "0.01", "--out", str(path)],
        capture_output=True,
        text=True,
        timeout=1200,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    if found.returncode and "took no longer than small ones: measure again" in found.stderr:
        pytest.skip("this machine is too busy to measure a link")
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("all-reduce among 2 processes (gloo): alpha") == 1
    assert Link.load(path).processes == 2


def test_a_plan_of_a_published_link(capsys):
    assert main(["comm", "plan", *MODEL, "--link", "10gbe-8", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    steps = report["step_ms"]
    assert steps["merged"] <= min(steps["plain"], steps["tensors"], steps["single"])
    link = LINKS["10gbe-8"]
    assert (report["processes"], report["alpha"], report["beta"]) == (8, link.alpha, link.beta)
    assert min(steps.values()) >= report["around_ms"] + report["backward_ms"] - 0.01
    assert steps[report["best"]] == min(steps.values())
    assert all(report["computing_ms"][way] > 0 for way in ("topk", "acpsgd", "powersgd"))


def test_a_plan_of_a_supernet_counts_what_subnets_use(capsys):
    words = ["--model", "mbnet", "--input", "32x32", "--batch", "2", "--steps", "1"]
    assert main(["comm", "plan", *words, "--alpha", "1e-3", "--beta", "1e-6"]) == 0
    said = capsys.readouterr().out
    shares = {
        line.split()[5]: float(line.split()[2])
        for line in said.splitlines()
        if " ms " in line and " x plain " in line
    }
    assert shares["plain"] == 1 and shares["subnet"] > 1.2 and "powersgd" not in shares
    assert "would win; of those that change no gradient, subnet" in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["plan", *MODEL], "give the link: --link, or --alpha and --beta"),
        (["plan", *MODEL, "--link", "10gbe-8", "--beta", "1"], "give the link once"),
        (["plan", *MODEL, "--link", "none.json"], "--link none.json: no such file"),
        (
            ["plan", *MODEL, "--link", "10gbe-8", "--processes", "1"],
            "--processes 1: must be at least 2",
        ),
        (["plan", *MODEL, "--link", "10gbe-8", "--density", "0"], "--density 0.0: more than 0"),
        (["plan", *MODEL, "--alpha", "1", "--beta", "-1"], "alpha 1.0, beta -1.0: seconds"),
        (["plan", "--model", "fadnet", "--link", "10gbe-8", "--input", "big"], "big"),
        (["measure", "--processes", "1"], "--processes 1: must be at least 2"),
        (["measure", "--seconds", "0"], "--seconds: '0' is not above 0"),
        (["measure", "--device", "cuda", "--processes", "99"], "99 processes here want a GPU each"),
        (["measure", "--out", "/dev/null/link.json"], "/dev/null is a file; name a folder"),
    ],
)
def test_bad_input_is_one_line(capsys, words, says):
    assert main(["comm", *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("vizoo: error: ") and says in said and said.count("\n") == 1


def test_a_file_that_is_no_link_is_named(tmp_path):
    path = tmp_path / "link.json"
    path.write_text('{"processes": 2, "alpha": 0.1}')
    with pytest.raises(ValueError, match="link.json: not a measured link .'beta'.; `vizoo comm"):
        Link.load(path)


def test_help_names_the_published_links(capsys):
    """Spelled out there, because their module takes seconds to import."""
    assert main(["comm", "plan", "--help"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in LINKS)
