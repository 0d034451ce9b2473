"""Mixing data sets, reproducibly: the same seed gives the same samples in the same order.

What is drawn depends on the seed, the epoch and the position in the epoch, and on nothing else:
not on the number of workers, not on whether they persist, not on PyTorch's global random state.
The epoch reaches the workers inside the index (``epoch * len(mixture) + position``), which
``EpochSampler`` makes; a worker's copy of a data set could not be told otherwise.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset, DistributedSampler, default_collate

from .draws import Draws

__all__ = [
    "EpochSampler",
    "LabelledSamples",
    "Mixture",
    "Part",
    "Samples",
    "ShareSampler",
    "TrainingLoader",
    "check_disjoint",
    "check_listed",
    "collate",
    "draw",
    "split_by_seed",
]


class Samples(Protocol):
    """A data set with a length."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> dict: ...


class LabelledSamples(Samples, Protocol):
    """A data set whose samples each have a class."""

    @property
    def labels(self) -> Sequence[int]:
        """The class of every sample."""

    @property
    def classes(self) -> Sequence[str]:
        """Names of the classes."""

    def with_preset(self, preset: Any, /) -> LabelledSamples:
        """The same samples prepared in another way."""


class Mixture(Dataset):
    """Data sets mixed into epochs of fixed length.

    In each epoch every set fills a fixed number of positions. It is gone through in random order
    and only begun again when all of its samples have been used, across epochs. A set that has a
    method ``draw(index, generator)`` is asked by it, so that it can choose at random what goes
    into a sample.

    Args:
        datasets: the sets.
        weights: the sets' shares of an epoch; by default in proportion to their sizes.
        length: positions in an epoch; by default the sum of the sizes.
        augment: called as ``augment(sample, generator)``.
        seed: of everything random here.

    Raises:
        ValueError: there is no set, a set is empty, or the weights do not fit.
    """

    def __init__(
        self,
        datasets: Sequence[Samples],
        weights: Sequence[float] | None = None,
        length: int | None = None,
        augment: Callable | None = None,
        seed: int = 0,
    ) -> None:
        sizes = [len(dataset) for dataset in datasets]
        if not sizes or 0 in sizes:
            raise ValueError(f"nothing to mix: data sets of sizes {sizes}")
        if weights is not None and len(weights) != len(sizes):
            raise ValueError(f"{len(weights)} weights for {len(sizes)} training sets")
        if weights is not None and (min(weights) < 0 or sum(weights) <= 0):
            raise ValueError(f"weights {list(weights)}: none may be negative, one must be positive")
        if length is not None and length < 1:
            raise ValueError(f"{length} samples per epoch: there must be at least one")
        self.datasets = list(datasets)
        self.augment = augment
        self.seed = seed
        self.length = sum(sizes) if length is None else length
        self.counts = _apportion(self.length, sizes if weights is None else weights)
        self._ends = list(itertools.accumulate(self.counts))
        self._epoch, self._orders = 0, dict[tuple[int, int], Tensor]()

    def __len__(self) -> int:
        return self.length

    def locate(self, index: int) -> tuple[int, int]:
        """Return (number of the data set, index within it) for an index of any epoch."""
        epoch, position = divmod(index, self.length)
        if epoch != self._epoch:  # orders of past epochs are of no use
            self._epoch, self._orders = epoch, {}
        which = bisect.bisect_right(self._ends, position)
        drawn = epoch * self.counts[which] + position - (self._ends[which] - self.counts[which])
        turn, place = divmod(drawn, len(self.datasets[which]))
        return which, int(self._order(which, turn)[place])

    def __getitem__(self, index: int) -> dict:
        which, inner = self.locate(index)
        generator = torch.Generator().manual_seed(_hash(self.seed, "augment", index))
        sample = draw(self.datasets[which], inner, generator)
        return sample if self.augment is None else self.augment(sample, generator)

    def _order(self, which: int, turn: int) -> Tensor:
        if (which, turn) not in self._orders:
            generator = torch.Generator().manual_seed(_hash(self.seed, "order", which, turn))
            size = len(self.datasets[which])
            self._orders[which, turn] = torch.randperm(size, generator=generator)
        return self._orders[which, turn]


class EpochSampler(DistributedSampler):
    """Shuffled positions of a ``Mixture``, each carrying its epoch; divided among processes.

    Lightning keeps a distributed sampler as it is and calls ``set_epoch`` before each epoch.

    Attributes:
        skipped: positions that the next iteration, and only that one, leaves out at its start.
    """

    dataset: Mixture
    skipped = 0

    def __iter__(self) -> Iterator[int]:
        start, skipped, self.skipped = self.epoch * len(self.dataset), self.skipped, 0
        return (
            start + position for position in itertools.islice(super().__iter__(), skipped, None)
        )


class TrainingLoader(DataLoader):
    """Batches of an ``EpochSampler``; a fit that stops within an epoch goes on where it was.

    Lightning keeps ``state_dict`` in its checkpoints.

    Attributes:
        trained: gives the number of batches of this epoch that the fit is through with.
    """

    sampler: EpochSampler
    batch_size: int
    trained: Callable[[], int]

    def state_dict(self) -> dict[str, int]:
        """How many samples of this epoch the fit is through with."""
        return {"samples": self.trained() % len(self) * self.batch_size}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Begin the next iteration behind that many samples."""
        self.sampler.skipped = state["samples"]


class ShareSampler(DistributedSampler):
    """One process's share of a data set, in order: every sample once, whatever the processes.

    PyTorch's own sampler repeats samples until the shares are equal, so that a mean over all
    processes counts some twice. Here shares differ by one at most.

    Raises:
        ValueError: fewer samples than processes; one without any would leave the rest waiting.
    """

    dataset: ConcatDataset

    def __init__(self, dataset: ConcatDataset, processes: int, rank: int) -> None:
        if len(dataset) < processes:
            raise ValueError(
                f"{len(dataset)} samples to evaluate on {processes} processes: take fewer "
                f"(trainer.devices {max(1, len(dataset))})"
            )
        super().__init__(dataset, processes, rank, shuffle=False)
        self.num_samples = len(range(rank, len(dataset), processes))

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.rank, len(self.dataset), self.num_replicas))


def draw(dataset: Samples, index: int, generator: torch.Generator) -> dict:
    """Return a sample of a data set, chosen with a generator where the set can."""
    chooses = getattr(dataset, "draw", None)
    return dataset[index] if chooses is None else chooses(index, generator)


class Part(Dataset):
    """Some samples of a data set, by their indices."""

    def __init__(self, dataset: Samples, indices: Sequence[int]) -> None:
        self.dataset: Any = dataset  # what it has besides samples is asked for by name
        self.indices = list(indices)

    @property
    def has_truth(self) -> bool:
        """Whether the whole has ground truth."""
        return getattr(self.dataset, "has_truth", True)

    @property
    def groups(self) -> list | None:
        """What each sample belongs to, if the whole says it."""
        whole = getattr(self.dataset, "groups", None)
        return None if whole is None else [whole[index] for index in self.indices]

    @property
    def keep_on(self) -> Callable:
        """What keeps samples of the whole on a shelf, if it can; see `Kept.keep_on`."""
        return self.dataset.keep_on

    @property
    def labels(self) -> list[int]:
        """The class of every sample, if the whole says it."""
        whole = self.dataset.labels
        return [whole[index] for index in self.indices]

    @property
    def classes(self) -> Sequence[str]:
        """Names of the classes, if the whole has them."""
        return self.dataset.classes

    @property
    def preset(self) -> object:
        """How samples are prepared, if the whole says it."""
        return self.dataset.preset

    def with_preset(self, preset: object) -> Part:
        """The same samples prepared in another way, if the whole can."""
        return Part(self.dataset.with_preset(preset), self.indices)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> dict:
        return self.dataset[self.indices[index]]

    def draw(self, index: int, generator: torch.Generator) -> dict:
        """Return a sample, chosen with a generator where the whole can."""
        return draw(self.dataset, self.indices[index], generator)


def split_by_seed(dataset: Samples, share: float, seed: int = 0) -> tuple[Part, Part]:
    """Split a data set at random, by a seed, into a training and a validation part.

    Where the set has ``groups``, one a sample, a group goes as a whole into one of the parts. A
    group may be a tuple, as of a scene and a view: where all samples are of one scene, its views
    are the groups. The share is that of the validation part; each part gets a sample, or a group,
    at least.
    """
    members = _members(getattr(dataset, "groups", None) or range(len(dataset)))
    if not 0 < share < 1 or len(members) < 2:
        what = f"{len(dataset)} samples"
        what += f" of {len(members)} groups" if len(members) < len(dataset) else ""
        raise ValueError(
            f"cannot split {what} with a validation share of {share}: it takes two at least, and a "
            "share between 0 and 1; a val_share of 0 holds none out"
        )
    generator = torch.Generator().manual_seed(_hash(seed, "split"))
    order = torch.randperm(len(members), generator=generator).tolist()
    shuffled = [members[place] for place in order]
    sizes = list(itertools.accumulate(len(group) for group in shuffled))
    wanted = round(len(dataset) * share)
    held_out = min(range(1, len(shuffled)), key=lambda count: abs(sizes[count - 1] - wanted))
    parts = (shuffled[held_out:], shuffled[:held_out])
    train, held = (sorted(itertools.chain.from_iterable(part)) for part in parts)
    return Part(dataset, train), Part(dataset, held)


def _members(groups: Iterable[object]) -> list[list[int]]:
    """The indices of each group: of tuples by as many of their first entries as tell any apart."""
    names = [group if isinstance(group, tuple) else (group,) for group in groups]
    members: dict[object, list[int]] = {}
    for length in range(1, max(map(len, names), default=0) + 1):
        members = {}
        for index, name in enumerate(names):
            members.setdefault(name[:length], []).append(index)
        if len(members) > 1:
            break
    return list(members.values())


def check_disjoint(roles: Mapping[str, Sequence], what: str = "patients") -> None:
    """Refuse groups, such as patients, that are in two roles (``train``, ``val``, ``test``).

    Raises:
        ValueError: a group has two roles; the message counts them and names the first.
    """
    seen: dict[str, str] = {}
    for role, sets in roles.items():
        groups = dict.fromkeys(
            name for part in sets for name in getattr(part, "groups", None) or ()
        )
        both = [name for name in groups if seen.get(name, role) != role]
        if both:
            raise ValueError(
                f"{len(both)} {what} are in both {seen[both[0]]} and {role}, first {both[0]}: "
                "take them out of one of the lists"
            )
        seen |= dict.fromkeys(groups, role)


def check_listed(role: str, sets: object) -> None:
    """Raise a ValueError where one data set stands in place of a list of such."""
    if sets is not None and not isinstance(sets, Sequence):
        raise ValueError(f"{role}: give a list of data sets, not a {type(sets).__name__} alone")


def collate(samples: Sequence[dict]) -> dict:
    """Stack samples into a batch; entries that only some of them have are left out.

    An image is what they call ``left`` or ``image``, ``images`` of several views, or a ``volume``.

    Raises:
        ValueError: the sizes or the numbers of views differ.
    """
    shared = set.intersection(*(set(sample) for sample in samples))
    image = next(key for key in ("left", "image", "images", "volume") if key in samples[0])
    shapes = {tuple(sample[image].shape) for sample in samples}
    if len({shape[-2:] for shape in shapes}) > 1:
        listed = ", ".join(f"{shape[-2]}x{shape[-1]}" for shape in sorted(shapes))
        raise ValueError(
            f"samples of different sizes in one batch ({listed}): crop them to one size, or use "
            "batches of one"
        )
    if len(shapes) > 1:
        axis, what = (1, "slices") if image == "volume" else (0, "views")
        listed = " and ".join(str(shape[axis]) for shape in sorted(shapes))
        raise ValueError(f"samples of {listed} {what} in one batch: give all sets one number")
    keys = [key for key in samples[0] if key in shared]
    return default_collate([{key: sample[key] for key in keys} for sample in samples])


def _apportion(total: int, weights: Sequence[float]) -> list[int]:
    """Divide a total by weights into whole numbers (largest remainders first)."""
    whole = sum(weights)
    exact = [total * weight / whole for weight in weights]
    counts = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda which: counts[which] - exact[which])
    for which in by_remainder[: total - sum(counts)]:
        counts[which] += 1
    return counts


def _hash(*parts: int | str) -> int:
    # Seeds that differ by one give generators whose first draws are alike in some bits.
    return Draws(*parts).state >> 1
