"""What a step takes among four processes on slow links, by the way in which gradients travel.

    python -m benchmarks.comm [--links 20 100 1000] [--seconds 6] [--out comm.json]

Each process has a link of its own, shaped to so many megabits a second (network namespaces and
`tbf`; where the kernel refuses them, that is said, and only the simulator runs). Beside each time
stands the simulator's, from alpha and beta fitted on that link, and from a step and the hooks'
computation measured without messages, all processes at once. Images are small, so that a step is
short beside its messages. Losses are those after equal steps, on the fastest link.

It goes on where it was stopped: what is in the folder `--folder` is not measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from benchmarks._links import private_network, run_shaped
from benchmarks._machine import machine, table

_PROCESSES = 4
_MODELS = ["fadnet_plus_tiny", "lcnet_075", "fadnet_plus_tiny, elastic"]
_BIG = 200_000
"""Bytes a step above which a step is called bound by bandwidth, if they take most of it."""


def measure(folder: Path, options: argparse.Namespace) -> None:
    """Measure what is not yet in the folder; in a private network."""
    from benchmarks._comm_rank import MODELS, run

    for megabits in options.links:
        rows = [row for row in _rows(folder) if row["megabits"] == megabits]
        done = [[row["model"], row["way"]] for row in rows]
        models = [
            model for model in options.models if any([model, w] not in done for w in MODELS[model])
        ]
        if not models:
            continue
        settings = {
            "megabits": megabits,
            "processes": _PROCESSES,
            "models": models,
            "done": done,
            "alone_steps": options.alone_steps,
            "sizes": [1 << power for power in range(12, 23, 2)],
            # On the fastest link all steps, for the losses.
            "seconds": 1000 if megabits == max(options.links) else options.seconds,
            "steps": options.steps,
        }
        (folder / f"store{megabits}").unlink(missing_ok=True)
        run_shaped(run, [(rank, folder, settings) for rank in range(_PROCESSES)], megabits)


def _alone(folder: Path, options: argparse.Namespace) -> None:
    """Measure a step in this process."""
    from benchmarks._comm_rank import measure_alone
    from vizoo.nas.distributed.schedule.timing import alone

    with alone():
        found = {model: measure_alone(model, 0, options.alone_steps) for model in options.models}
    (folder / "alone.json").write_text(json.dumps(found))


def _rows(folder: Path, name: str = "rows.jsonl") -> list[dict]:
    path = folder / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def cells(rows: list[dict], model: str, links: list[int]) -> tuple[list[str], list[list[str]]]:
    """A head and lines: times by link, the simulator's in brackets, bytes, losses."""
    names = [f"{m} Mb/s" if m < 1000 else f"{m / 1000:g} Gb/s" for m in links]
    head = [model, *names, "kB a step", "on the wire", "loss"]
    mine, lines = [row for row in rows if row["model"] == model], []
    for way in dict.fromkeys(row["way"] for row in mine):
        found = {row["megabits"]: row for row in mine if row["way"] == way}
        times = [
            f"{found[m]['ms']:.0f} ({found[m]['predicted_ms']:.0f})" if m in found else ""
            for m in links
        ]
        last = found[max(found)]
        sizes = [f"{last[name] / 1e3:.0f}" for name in ("counted", "wire")]
        lines.append([way, *times, *sizes, f"{last['loss']:.3f}"])
    return head, lines


def markdown(head: list[str], lines: list[list[str]]) -> str:
    """For a page."""
    rule = ["---"] * len(head)
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, rule, *lines))


def curves(measured: dict, faster: float) -> list[dict]:
    """Simulated steps of many processes on fast links, where computing takes as long as here.

    A second simulation divides all computation by `faster`.
    """
    from benchmarks._comm_rank import DENSITY, RANK
    from vizoo.nas.distributed.schedule.link import LINKS, Link
    from vizoo.nas.distributed.schedule.simulator import Step, simulate

    # Latency of 10 Gb/s Ethernet and of 56 Gb/s InfiniBand as published, bytes at nine tenths of
    # the bandwidth.
    links = {
        gigabits: Link(2, 2 * LINKS[name].hop, 8 / (0.9e9 * gigabits))
        for gigabits, name in ((10, "10gbe-8"), (100, "56gbib-8"))
    }
    found = []
    for model, data in measured.items():
        for factor in (1.0, faster):
            step = Step(**data["step"])
            step = replace(
                step,
                around=step.around / factor,
                backward=step.backward / factor,
                ready=[time / factor for time in step.ready],
            )
            computing = {way: time / factor for way, time in data["computing"].items()}
            for gigabits, link in links.items():
                for processes in (4, 16, 64, 256, 1024):
                    times = simulate(step, link.at(processes), DENSITY, RANK, computing)
                    ms = {way: round(1e3 * time, 3) for way, time in times.items()}
                    place = {"model": model, "gigabits": gigabits, "processes": processes}
                    found.append({**place, "computing_divided_by": factor, "simulated_ms": ms})
    return found


def curve_cells(found: list[dict], model: str, factor: float) -> tuple[list[str], list[list[str]]]:
    """A head and lines: simulated speed against plain."""
    mine = [row for row in found if (row["model"], row["computing_divided_by"]) == (model, factor)]
    ways = [way for way in mine[0]["simulated_ms"] if way not in ("tensors", "single")]
    lines = []
    for row in mine:
        times = row["simulated_ms"]
        shares = [f"{times['plain'] / times[way]:.2f}" for way in ways[1:]]
        place = [f"{row['gigabits']} Gb/s", str(row["processes"])]
        lines.append([*place, f"{times['plain']:.1f}", *shares])
    return ["link", "processes", "plain, ms", *ways[1:]], lines


def verdicts(rows: list[dict], links: list[int]) -> list[str]:
    """How much faster than plain the best compressed way is, and how far the simulator is off."""
    lines = []
    for model in dict.fromkeys(row["model"] for row in rows):
        for megabits in links:
            mine = {
                row["way"]: row
                for row in rows
                if (row["model"], row["megabits"]) == (model, megabits)
            }
            others = [way for way in mine if way not in ("plain", "merged")]
            if "plain" not in mine or not others:
                continue
            best = min(others, key=lambda way: mine[way]["ms"])
            ratio = mine["plain"]["ms"] / mine[best]["ms"]
            bound = [row for row in mine.values() if _bound(row)]
            off = [abs(row["predicted_ms"] / row["ms"] - 1) for row in bound]
            text = f"{model} at {megabits} Mb/s: {best} is {ratio:.2f} times as fast as plain"
            if off:
                text += f"; simulator up to {100 * max(off):.0f} % off in {len(off)} bound rows"
            lines.append(text)
    return lines


def _bound(row: dict) -> bool:
    """Whether the wire is busy for most of the step."""
    return row["wire"] * 8e-3 / row["megabits"] > 0.7 * row["ms"] and row["wire"] > _BIG


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--links", type=int, nargs="+", default=[20, 100, 1000], metavar="MBIT")
    parser.add_argument("--models", nargs="+", default=_MODELS, help="default: all")
    parser.add_argument("--seconds", type=float, default=6, help="a row on the slower links")
    parser.add_argument("--steps", type=int, default=40, help="a row at most (default 40)")
    parser.add_argument("--alone-steps", type=int, default=10, help="without messages")
    parser.add_argument("--faster", type=float, default=30, help="for the simulation of GPUs")
    parser.add_argument("--folder", type=Path, help="keeps what has been measured")
    parser.add_argument("--out", type=Path, help="write everything as JSON")
    parser.add_argument("--markdown", action="store_true", help="print tables for a page")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    # Links exist in the private network alone.
    interface = "e0" if options.inside else "lo"
    os.environ.update(
        OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME=interface, TORCH_CPP_LOG_LEVEL="ERROR"
    )
    if options.inside:
        return measure(options.inside, options)
    console = Console(width=120)
    console.print(machine())

    def show(content: tuple[list[str], list[list[str]]], title: str) -> None:
        if options.markdown:
            print(f"\n{title}\n\n{markdown(*content)}")
        else:
            console.print(table(*content, title))

    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        alone = folder / "alone.json"
        prefix, reason = private_network()
        if prefix is not None:
            words = [*prefix, sys.executable, "-m", "benchmarks.comm", "--inside", str(folder)]
            subprocess.run([*words, *sys.argv[1:]], check=True)
        elif not alone.is_file():
            _alone(folder, options)
        rows = _rows(folder)
        measured = json.loads(alone.read_text()) if alone.is_file() else {}
        links = _rows(folder, "links.jsonl")
    if reason:
        console.print(f"nothing measured: {reason}")
    found = curves(measured, options.faster)
    for model in dict.fromkeys(row["model"] for row in rows):
        show(cells(rows, model, options.links), f"ms a step among {_PROCESSES} (simulated)")
    for line in verdicts(rows, options.links):
        console.print(line)
    for model in measured:
        for factor in (1.0, options.faster):
            text = f"{model}, SIMULATED: times as fast as plain"
            text += f", computing {factor:g} times as fast" if factor > 1 else ""
            show(curve_cells(found, model, factor), text)
    if options.out is not None:
        report = {"machine": machine(), "links": links, "rows": rows, "simulated": found}
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
