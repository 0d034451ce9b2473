"""Searches on spaces whose every network has been trained: which finds more in as many evaluations.

    python -m benchmarks.tabular_search --nasbench201 FILE --mbnet FILE [--seeds 50]
        [--gp-seeds 5 3] [--json docs/results/tabular_search.json]

The files are those that `vizoo.nas.tabular` reads. For every method the first m different networks
count that it looked at, chosen and judged by test accuracy. Evolution and NSGA-II are made for m,
with populations of a fifth of it; the others would go on, but REINFORCE, which may end before.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from statistics import fmean, stdev

from benchmarks._machine import arguments, record, start, table
from vizoo.nas.differentiable import search_by_score
from vizoo.nas.search import evolve, propose
from vizoo.nas.search.population import Evaluated
from vizoo.nas.tabular import Tabular, mbnet, nasbench201

BUDGETS = (50, 200)
COLUMNS = ("cifar10_test", "cifar100_test", "imagenet16_120_test")

Search = Callable[..., Sequence[Evaluated]]


def _random(space, objective, *, evaluations, seed):
    chosen = random.Random(seed).sample(list(space.enumerate()), evaluations)
    scores = objective(chosen)
    return [Evaluated(a, (score,), 0) for a, score in zip(chosen, scores, strict=True)]


def _evolve(space, objective, *, evaluations, seed):
    population = max(4, evaluations // 5)
    born = population - round(population / 4)  # a generation, in place of those that went
    generations = math.ceil((evaluations - population) / born)
    settings = {"population": population, "generations": generations}
    return evolve(space, objective, seed=seed, **settings).evaluated


def _by_score(space, objective, *, evaluations, seed):
    return search_by_score(space, objective, evaluations=evaluations, seed=seed).evaluated


def _proposed(sampler: str) -> Search:
    def search(space, objective, *, evaluations, seed):
        settings = {"evaluations": evaluations, "population": max(4, evaluations // 5)}
        found = propose(space, {"error": objective}, sampler=sampler, seed=seed, **settings)
        return found.evaluated

    return search


METHODS: dict[str, Search] = {"random": _random, "evolution": _evolve, "REINFORCE": _by_score}
METHODS |= {sampler: _proposed(sampler) for sampler in ("nsga2", "tpe", "gp")}
MADE_FOR_M = ("evolution", "nsga2")


def best(
    method: str, tabular: Tabular, column: str, seed: int, budgets: Sequence[int]
) -> list[float]:
    """The best accuracy, in %, of the first m different networks that a search looked at."""

    def accuracies(evaluations: int) -> list[float]:
        search, errors = METHODS[method], tabular.errors(column)
        evaluated = search(tabular.space, errors, evaluations=evaluations, seed=seed)
        return list({item.architecture: 100 - item.scores[0] for item in evaluated}.values())

    if method in MADE_FOR_M:
        return [max(accuracies(budget)[:budget]) for budget in budgets]
    found = accuracies(max(budgets))
    return [max(found[:budget]) for budget in budgets]


def compare(
    title: str, tabular: Tabular, column: str, seeds: dict[str, Sequence[int]]
) -> list[list[str]]:
    """A row for each m: mean, deviation and regret of what each method found.

    Of seeds there are by method so many for each of `BUDGETS`, ever fewer.
    """
    top = float(tabular.columns[column].max())
    rows = [[title, str(budget)] for budget in BUDGETS]
    for method, counts in seeds.items():
        start = time.perf_counter()
        found = []
        for seed in range(counts[0]):
            budgets = [b for b, n in zip(BUDGETS, counts, strict=True) if seed < n]
            found.append(best(method, tabular, column, seed, budgets))
        for place, (row, count) in enumerate(zip(rows, counts, strict=True)):
            values = [bests[place] for bests in found[:count]]
            row.append(f"{fmean(values):.2f} ± {stdev(values):.2f} ({top - fmean(values):.2f})")
        told = ", ".join(row[-1] for row in rows)
        print(f"{title}, {method}: {told}; {time.perf_counter() - start:.0f} s", flush=True)
    return [[*row, f"{top:.2f}"] for row in rows]


def main() -> None:
    parser = arguments(__doc__, threads=1, seeds=50)
    parser.add_argument("--nasbench201", metavar="FILE")
    parser.add_argument("--mbnet", metavar="FILE")
    parser.add_argument("--gp-seeds", type=int, nargs=2, default=[5, 3], help="it is slow")
    parser.add_argument("--json", metavar="FILE", help="gets the table as a record")
    options, console = start(parser, width=170)
    if not (options.nasbench201 or options.mbnet):
        print("give the file of a table: --nasbench201 or --mbnet")
        return
    seeds = dict.fromkeys(METHODS, [options.seeds] * 2) | {"gp": options.gp_seeds}
    rows = []
    if options.mbnet:
        rows += compare("MBNet, CIFAR-10", mbnet(options.mbnet), COLUMNS[0], seeds)
    if options.nasbench201:
        tabular = nasbench201(options.nasbench201)
        for column, data in zip(COLUMNS, ("CIFAR-10", "CIFAR-100", "ImageNet16-120"), strict=True):
            rows += compare(f"NASBench-201, {data}", tabular, column, seeds)
    columns = ["data", "evaluations", *seeds, "best of all"]
    console.print(table(columns, rows, "Best accuracy found, % ± deviation (regret)"))
    if options.json:
        record(
            options.json,
            "Searches on tables of trained networks",
            "The best test accuracy among the first different networks that a search "
            f"looked at, in %: mean ± deviation of {options.seeds} seeds (gp: "
            f"{options.gp_seeds[0]}, of 200 evaluations {options.gp_seeds[1]}), and in brackets "
            "how far the mean is from the best of the table.",
            "tabular_search --nasbench201 FILE --mbnet FILE",
            columns,
            rows,
        )


if __name__ == "__main__":
    main()
