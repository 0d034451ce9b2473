"""What keeps a search through interruptions: evaluations in a journal, its state in a file."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ....common.files import read_json, write_json
from ...search.population import Progress
from ...space import Architecture
from .executor import Executor

__all__ = ["Evaluator", "SavedSearch"]


class Evaluator:
    """An objective for the searches that an executor evaluates, and a journal remembers.

    A search that was killed, even within a generation, and starts again evaluates only what the
    journal lacks, and ends with the same result.

    Args:
        executor: evaluates the architectures.
        journal: file with a line for each evaluation; None to keep them in memory alone.
        origin: what scores depend on besides the architecture, such as a digest of weights and
            data; a journal of another origin is refused.

    Raises:
        ValueError: the file is no journal, or of another origin.
    """

    def __init__(
        self, executor: Executor, journal: str | os.PathLike[str] | None = None, origin: str = ""
    ) -> None:
        self.executor = executor
        self.journal = None if journal is None else Path(journal)
        self.scores: dict[Architecture, float] = {}
        if self.journal is not None:
            self._read(self.journal, origin)

    def __call__(self, architectures: Sequence[Architecture]) -> list[float]:
        """Scores, in order."""
        new = [item for item in dict.fromkeys(architectures) if item not in self.scores]

        def keep(index: int, score: float) -> None:
            self.scores[new[index]] = score
            self._append({"architecture": dict(new[index]), "score": score})

        if new:
            self.executor.run(new, keep)
        return [self.scores[architecture] for architecture in architectures]

    def _append(self, entry: dict[str, Any]) -> None:
        if self.journal is None:
            return
        self.journal.parent.mkdir(parents=True, exist_ok=True)
        with open(self.journal, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def _read(self, journal: Path, origin: str) -> None:
        head = {"journal": "vizoo evaluations", "origin": origin}
        text = journal.read_text("utf-8", errors="replace") if journal.exists() else ""
        if json.dumps(head).startswith(text):  # none, or killed before its first line was whole
            if text:
                os.truncate(journal, 0)
            self._append(head)
            return
        whole, _, torn = text.rpartition("\n")
        try:
            head, *entries = [json.loads(line) for line in whole.split("\n")]
            other = head["origin"]
            for entry in entries:
                self.scores[Architecture(entry["architecture"])] = float(entry["score"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{journal}: no journal of evaluations; name another") from error
        if other != origin:
            raise ValueError(
                f"{journal}: evaluations of {other!r}, and these are of {origin!r}; name another "
                "journal"
            )
        if torn:  # the process was killed while it wrote
            with open(journal, "r+b") as file:
                file.truncate(len(whole.encode()) + 1)


class SavedSearch:
    """The state of a search in a file, written after each generation.

    Example:
        >>> saved = SavedSearch("search.json")
        >>> evolve(space, objective, seed=0, resume=saved.state, on_generation=saved)
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @property
    def state(self) -> dict[str, Any] | None:
        """What to resume from; None where there is no file yet."""
        return read_json(self.path, "the state of a search") if self.path.exists() else None

    def __call__(self, progress: Progress) -> None:
        """Write the file."""
        write_json(self.path, progress.state())
