"""Optuna beside a search: a study that mirrors it for `optuna-dashboard`, and its samplers.

Optuna comes with the extra `optuna` and is imported when it is asked for.
"""

from __future__ import annotations

import json
import math
import os
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...common.extras import from_extra
from ..space import Architecture, SearchSpace
from .constraints import Constraint, Limits
from .evolution import ParetoResult
from .population import Evaluated, Progress, Settings, bred, identity, restored, scored

if TYPE_CHECKING:
    import optuna

__all__ = ["SAMPLERS", "Mirror", "installed", "propose"]

SAMPLERS = ("tpe", "gp", "nsga2")
"""Of Optuna: Parzen estimators, a Gaussian process, and its own NSGA-II."""
_ASKS = 8
"""Proposals asked for each one wanted, as many were evaluated before; then those are mutated."""


def installed(sampler: str | None = None) -> Any:
    """Optuna, if need be with what one of its samplers takes.

    Args:
        sampler: one of `SAMPLERS`.

    Raises:
        ImportError: it is not installed, or what the sampler takes.
        ValueError: it has no such sampler.
    """
    if sampler not in (None, *SAMPLERS):
        raise ValueError(f"no sampler {sampler!r}; there are evolution, {', '.join(SAMPLERS)}")
    if sampler == "gp":
        from_extra("optuna", "scipy", "the sampler gp")
    return from_extra("optuna", "optuna", "a sampler" if sampler else "the storage of a search")


def _distributions(space: SearchSpace) -> dict[str, Any]:
    categorical = installed().distributions.CategoricalDistribution
    return {choice.name: categorical(choice.values) for choice in space}


def _params(architecture: Architecture) -> dict[str, Any]:
    return {name: value for name, value in architecture.items() if value is not None}


@contextmanager
def _quiet() -> Iterator[None]:
    """Without Optuna's words on studies it makes, and on what it calls experimental."""
    logging = installed().logging
    before = logging.get_verbosity()
    logging.set_verbosity(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(before)


def _is_entry(line: bytes) -> bool:
    try:
        return "op_code" in json.loads(line)
    except (TypeError, ValueError):
        return False


def _is_journal(file: Path) -> bool:
    """Whether each line is an entry, but for a last one that a killed process left unfinished.

    That one is dropped, as Optuna would write on in the same line.
    """
    lock = installed().storages.journal.JournalFileSymlinkLock(str(file))
    lock.acquire()  # another process may be in the midst of a line
    try:
        *lines, rest = file.read_bytes().split(b"\n")
        if not all(map(_is_entry, lines)) or rest and not lines:
            return False
        if _is_entry(rest):
            with file.open("ab") as whole:
                whole.write(b"\n")
        elif rest:
            os.truncate(file, file.stat().st_size - len(rest))
            warnings.warn(f"{file}: its last line was cut off and is dropped", stacklevel=4)
        return True
    finally:
        lock.release()


class Mirror:
    """An Optuna study of what a search evaluates, which `optuna-dashboard FILE` shows meanwhile.

    Trials have the choices that matter as parameters. A file that has the study already is gone on
    with, and an architecture that is in it is not added again.

    Args:
        path: Optuna's journal; made where there is none.
        space: that is searched.
        objectives: name → ``minimize`` or ``maximize``.
        constraints: shown as the cost beyond the limit, in this order.
        origin: what else the values depend on, as JSON; another one is another search.

    Raises:
        ImportError: Optuna is not installed.
        ValueError: the file is no journal, or its study is of another search.

    Example:
        >>> mirror = Mirror("journal.log", space, {"error": "minimize"})
        >>> mirror.add(space.largest(), [0.1], {"parameters": 2e6})
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        space: SearchSpace,
        objectives: Mapping[str, str],
        constraints: Sequence[Constraint] = (),
        origin: Mapping[str, Any] | None = None,
    ) -> None:
        self._optuna = installed()
        self.space, self.constraints = space, tuple(constraints)
        self.study = self._opened(Path(path), objectives)
        self._claim(path, {"search space": space.digest, **(origin or {})}, objectives)
        trials = self.study.get_trials(deepcopy=False)
        self._known = {space.validate(trial.params) for trial in trials}

    def __contains__(self, architecture: object) -> bool:
        return architecture in self._known

    def add(
        self,
        architecture: Architecture,
        values: Sequence[float],
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        """One evaluation: its values in the objectives' order; failed where one is not finite."""
        architecture = self.space.validate(architecture)
        if architecture in self._known:
            return
        self._known.add(architecture)
        params = _params(architecture)
        distributions, state = _distributions(self.space), self._optuna.trial.TrialState
        finite = all(map(math.isfinite, values))
        over = [c.cost(architecture) - c.limit for c in self.constraints]
        self.study.add_trial(
            self._optuna.trial.create_trial(
                state=state.COMPLETE if finite else state.FAIL,
                values=list(values) if finite else None,
                params=params,
                distributions={name: distributions[name] for name in params},
                user_attrs=dict(attributes or {}),
                # A list, without names, is what the dashboard knows.
                system_attrs={"constraints": over},
            )
        )

    def _opened(self, path: Path, objectives: Mapping[str, str]) -> optuna.Study:
        journal = self._optuna.storages.journal
        # A lock left by a process that was killed is a link, whose target has to be found.
        file = path.absolute()
        if file.exists() and not _is_journal(file):
            raise ValueError(f"{path}: no journal of Optuna: name another file")
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            with _quiet():
                study = self._optuna.create_study(
                    storage=self._optuna.storages.JournalStorage(
                        journal.JournalFileBackend(str(file))
                    ),
                    study_name=", ".join(objectives),
                    directions=list(objectives.values()),
                    load_if_exists=True,
                )
                study.set_metric_names(list(objectives))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path}: no journal of Optuna, or a damaged one: {error!r}"
            ) from error
        return study

    def _claim(
        self, path: str | os.PathLike[str], identity: dict[str, Any], objectives: Mapping[str, str]
    ) -> None:
        """Say whose study it is, or refuse that of another search."""
        study = self.study
        kept = study.user_attrs.get("search", {}) if study.get_trials(deepcopy=False) else identity
        directions = [direction.name.lower() for direction in study.directions]
        other = [key for key, wanted in identity.items() if kept.get(key) != wanted]
        if directions != list(objectives.values()):
            other.append("direction")
        if other:
            raise ValueError(
                f"{path}: its study {study.study_name!r} is of a search with another "
                f"{other[0]}; name another file"
            )
        study.set_user_attr("search", identity)
        study.set_user_attr("limits", {c.name: c.text(c.limit) for c in self.constraints})


def propose(
    space: SearchSpace,
    objectives: Mapping[str, Callable[[list[Architecture]], Sequence[float]]],
    *,
    sampler: str,
    constraints: Sequence[Constraint] = (),
    seed: int,
    evaluations: int = 80,
    at_once: int = 1,
    population: int = 16,
    resume: dict[str, Any] | None = None,
    on_generation: Callable[[Progress], None] | None = None,
) -> ParetoResult:
    """Minimise one objective or several by what a sampler of Optuna proposes, within constraints.

    The sampler is asked and told. A proposal over a limit is told as such, and evaluated as changed
    until it meets it; one that was evaluated before is asked for anew, at last mutated: no
    architecture is evaluated twice.

    Args:
        space: where to search.
        objectives: as those of `vizoo.nas.search.evolve_pareto`.
        sampler: one of `SAMPLERS`.
        constraints: what everything that is evaluated has to meet.
        seed: fixes the search, as far as objectives and costs are pure functions.
        evaluations: how many in all, or the whole space.
        at_once: proposals asked for before the first of them is told, to be evaluated in parallel.
        population: number of architectures in a generation of ``nsga2``.
        resume: ``Progress.state()`` of an interrupted search with the same arguments
            (``evaluations`` may differ): the sampler is asked again from the seed on, and told what
            is known.
        on_generation: told about each time that proposals were evaluated.

    Raises:
        ImportError: Optuna is not installed.
        UnreachableError: the constraints cannot be met.
        ValueError: an unknown sampler, ``resume`` belongs to another search, or not one
            architecture had finite scores.

    Example:
        >>> result = propose(space, {"error": each(error)}, sampler="tpe", seed=0, evaluations=50)
    """
    if evaluations < 1 or at_once < 1:
        raise ValueError(f"evaluations and at_once are 1 or more, not {evaluations} and {at_once}")
    limits = Limits(space, constraints)
    settings = Settings(seed, population, 0.5, 0.1)
    asked = _Asked(limits, sampler, settings, len(objectives))
    rng = random.Random(seed)
    same = identity(space, settings, constraints)
    same["settings"] |= {"sampler": sampler, "at_once": at_once}
    done, known = -1, {}
    if resume is not None:
        done, before, _ = restored(resume, same, space, random.Random())
        known = {item.architecture: item.scores for item in before}
    evaluated: list[Evaluated] = []
    last = math.ceil(evaluations / at_once) - 1
    for generation in range(last + 1):
        wanted = min(at_once, evaluations - len(evaluated))
        trials = asked.new(wanted, {item.architecture for item in evaluated}, rng)
        if new := [architecture for architecture in trials if architecture not in known]:
            known |= dict(zip(new, scored(objectives.values(), new), strict=True))
        for architecture, trial in trials.items():
            evaluated.append(Evaluated(architecture, known[architecture], generation))
            asked.study.tell(trial, known[architecture])
        if not trials:
            break
        if on_generation is not None and (new or generation > done):
            state = same, rng.getstate()
            on_generation(Progress(generation, last, (), tuple(evaluated), *state))
    return ParetoResult.of(objectives, evaluated)


class _Asked:
    """A sampler that is asked for architectures that are new and within the limits."""

    def __init__(self, limits: Limits, sampler: str, settings: Settings, objectives: int) -> None:
        optuna = installed(sampler)
        self._states = optuna.trial.TrialState
        self._limits, self._settings, self._refuge = limits, settings, limits.refuge()
        self._distributions = _distributions(limits.space)
        samplers = optuna.samplers
        made: dict[str, Callable[..., Any]] = {
            "tpe": partial(samplers.TPESampler, constant_liar=True),
            "gp": partial(samplers.GPSampler, deterministic_objective=True),
            "nsga2": partial(samplers.NSGAIISampler, population_size=settings.population),
        }
        with _quiet():
            self.study = optuna.create_study(
                sampler=made[sampler](seed=settings.seed), directions=["minimize"] * objectives
            )

    @_quiet()
    def new(
        self, wanted: int, seen: set[Architecture], rng: random.Random
    ) -> dict[Architecture, optuna.trial.Trial]:
        """Up to `wanted` architectures that are not in `seen`, and the trials to tell."""
        trials: dict[Architecture, optuna.trial.Trial] = {}
        again: list[Architecture] = []
        for _ in range(_ASKS * wanted):
            trial = self._ask()
            architecture = self._limits.space.validate(trial.params)
            over = self._limits.excess(architecture)
            if over:
                trial.set_constraint("limits", over)
                self.study.tell(trial, state=self._states.PRUNED)
                architecture = self._limits.repaired(architecture, self._refuge, rng)
            if architecture not in seen and architecture not in trials:
                trials[architecture] = self._ask(architecture) if over else trial
            else:
                again.append(architecture)
                if not over:
                    self.study.tell(trial, state=self._states.FAIL)
            if len(trials) == wanted:
                return trials
        missing, taken = wanted - len(trials), seen | set(trials)
        for architecture in bred(
            again, missing, taken, self._limits, self._refuge, self._settings, rng
        ):
            trials[architecture] = self._ask(architecture)
        return trials

    def _ask(self, wanted: Architecture | None = None) -> optuna.trial.Trial:
        if wanted is not None:
            self.study.enqueue_trial(_params(wanted))
        return self.study.ask(self._distributions)
