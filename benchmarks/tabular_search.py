"""Searches on spaces whose every network has been trained, against random search.

    python -m benchmarks.tabular_search --nasbench201 FILE --mbnet FILE [--seeds 50]

The files are those that `vizoo.nas.tabular` reads. For every method the first m different networks
count that it looked at, chosen and judged by test accuracy. Random search's mean is exact, of draws
that may repeat themselves.
"""

from __future__ import annotations

import argparse
import math
from statistics import fmean, stdev

from rich.console import Console
from rich.table import Table

from vizoo.nas.differentiable import search_by_score
from vizoo.nas.search import SearchResult, evolve
from vizoo.nas.tabular import Tabular, mbnet, nasbench201

BUDGETS = (10, 50, 100)


def _evolve(space, objective, *, evaluations, seed):
    population = max(4, evaluations // 5)
    born = population - round(population / 4)  # a generation, in place of those that went
    generations = math.ceil((evaluations - population) / born)
    settings = {"population": population, "generations": generations}
    return evolve(space, objective, seed=seed, **settings)


def _best(result: SearchResult, budget: int) -> float:
    """The best accuracy, in %, of the first different networks that a search looked at."""
    scores = {item.architecture: item.scores[0] for item in result.evaluated}
    if len(scores) < budget:
        raise ValueError(f"the search looked at {len(scores)} different networks, not {budget}")
    return 100 - min(list(scores.values())[:budget])


def compare(title: str, tabular: Tabular, columns: list[str], seeds: int) -> Table:
    """Mean and standard deviation of the best accuracy found."""
    table = Table(title=f"{title}: best accuracy of m networks, %, {seeds} seeds")
    for column in ("data", "m", "random", "evolution", "REINFORCE", "best of all"):
        table.add_column(column, justify="right")
    for column in columns:
        objective = tabular.errors(column)
        for budget in BUDGETS:
            settings = {"space": tabular.space, "objective": objective, "evaluations": budget}
            by_score, evolved = (
                [_best(search(**settings, seed=seed), budget) for seed in range(seeds)]
                for search in (search_by_score, _evolve)
            )
            table.add_row(
                column,
                str(budget),
                f"{tabular.expected_best(column, budget):.2f}",
                f"{fmean(evolved):.2f} ± {stdev(evolved):.2f}",
                f"{fmean(by_score):.2f} ± {stdev(by_score):.2f}",
                f"{tabular.columns[column].max():.2f}",
            )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nasbench201", metavar="FILE")
    parser.add_argument("--mbnet", metavar="FILE")
    parser.add_argument("--seeds", type=int, default=50)
    options = parser.parse_args()
    console = Console(width=120)
    if options.nasbench201:
        table = nasbench201(options.nasbench201)
        columns = ["cifar10_test", "cifar100_test", "imagenet16_120_test"]
        console.print(compare("NASBench-201", table, columns, options.seeds))
    if options.mbnet:
        console.print(compare("MBNet", mbnet(options.mbnet), ["cifar10_test"], options.seeds))
    if not (options.nasbench201 or options.mbnet):
        console.print("give the file of a table: --nasbench201 or --mbnet")


if __name__ == "__main__":
    main()
