"""What is known of one set of trained weights: where to get them, what they are, what they score.

A record is one entry of the dictionary that a model file hands to `register_model`, and it is
what ``config.json`` of a released folder holds.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

__all__ = ["REPOSITORY", "Frozen", "Source", "WeightsRecord", "parse_source", "thaw"]

_SHA256 = re.compile(r"[0-9a-f]{64}")
REPOSITORY = r"\w(?:[\w.-]*\w)?/\w(?:[\w.-]*\w)?"
"""Pattern of ``ORG/NAME`` on the Hugging Face Hub."""


class Frozen(Mapping):
    """An immutable, hashable mapping of JSON values; lists in it become tuples.

    Example:
        >>> Frozen({"mean": [0.5], "size": {"height": 1}})["size"]["height"]
        1
    """

    __slots__ = ("_items",)

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self._items = {str(key): _freeze(value) for key, value in dict(values or {}).items()}

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return repr(self._items)

    def __reduce__(self) -> tuple:
        return Frozen, (thaw(self),)


@dataclass(frozen=True)
class Source:
    """One place that weights can be had from."""

    kind: str  #: ``package``, ``hf-hub`` or ``url``
    path: str  #: the file inside the package or the repository, or the whole URL
    repository: str = ""  #: ``org/name`` on the Hugging Face Hub, else empty
    revision: str = ""  #: branch, tag or commit there, else empty

    @property
    def file_name(self) -> str:
        """Last part of the path, without a URL's query."""
        path = re.split(r"[?#]", self.path)[0] if self.kind == "url" else self.path
        return path.rstrip("/").rsplit("/", 1)[-1]


def parse_source(text: str) -> Source:
    """Read ``package:PATH``, ``hf-hub:ORG/NAME[@REVISION]/FILE`` or an http(s) URL.

    Raises:
        ValueError: another form, or a path that leads out of its folder.
    """
    kind, _, rest = str(text).partition(":")
    if kind in ("http", "https") and re.match(r"//[^/?#]+/.", rest):
        source = Source("url", text)
    elif kind == "package" and rest:
        source = Source("package", rest)
    elif kind == "hf-hub" and (parts := re.fullmatch(r"([^/@]+/[^/@]+)(?:@([^/]+))?/(.+)", rest)):
        source = Source("hf-hub", parts[3], parts[1], parts[2] or "")
        if not re.fullmatch(REPOSITORY, source.repository):
            raise ValueError(f"{text!r}: {source.repository!r} is no repository ORG/NAME")
    else:
        raise ValueError(
            f"{text!r} is no source of weights: write package:PATH, "
            "hf-hub:ORG/NAME[@REVISION]/FILE or an https:// address of a file"
        )
    if source.kind != "url":
        if "\\" in source.path or {"", ".", ".."} & set(source.path.split("/")):
            raise ValueError(f"{text!r}: {source.path!r} must stay in its folder")
    return source


@dataclass(frozen=True)
class WeightsRecord:
    """One set of trained weights. Immutable and hashable; mappings in it become `Frozen`.

    Raises:
        ValueError: a field of a wrong form; the message names it.

    Example:
        >>> record = WeightsRecord(
        ...     sources=("package:stereo/weights/tiny.safetensors",),
        ...     sha256="0" * 64,
        ...     size=6_612_345,
        ...     licence="Apache-2.0",
        ...     trained_on="generated scenes",
        ... )
        >>> WeightsRecord.from_json(record.to_json()) == record
        True
    """

    #: where the file is, tried in this order: ``package:stereo/weights/x.safetensors`` (inside the
    #: package), ``hf-hub:org/name@revision/model.safetensors``, ``https://…``
    sources: tuple[str, ...]
    sha256: str  #: of the whole file, 64 lower-case hexadecimal digits; always checked
    size: int  #: of the file, bytes
    licence: str  #: an SPDX name such as ``Apache-2.0``, or what the authors say
    trained_on: str  #: the data, in words
    #: data set to metric to value, such as ``{"kitti2015/val": {"epe": 0.7}}``
    metrics: Mapping[str, Mapping[str, float]] = Frozen()
    command: str = ""  #: the command line that made the metrics
    training: str = ""  #: the command line that made the weights, or empty
    origin: str = ""  #: where the weights come from if they are not ours (a URL, a paper), or empty
    #: what the network was fed in training. Usual keys: ``mean`` and ``std`` (a value a channel, of
    #: images in [0, 1]; networks here normalise inside), ``divisor`` (sizes are padded inside to
    #: multiples of it), ``size`` (height and width), ``max_disparity``; of a classifier all
    #: settings by which its inputs are prepared.
    input: Mapping[str, Any] = Frozen()
    architecture: Mapping[str, Any] = Frozen()  #: arguments for `create_model`
    #: which part of a supernet it is, for `create_model`'s argument ``subnet``, or None
    subnet: Mapping[str, Any] | None = None
    classes: tuple[str, ...] = ()  #: of a classifier the names of its outputs, in order
    #: of a stereo network the largest disparity, pixels, up to which it was measured to work, or
    #: None: in every band of 8 px below it, at most a third of the pixels of fresh generated scenes
    #: are wrong by more than 3 px and 5 % (`python -m benchmarks.stereo_reach`)
    reach: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.sources, (list, tuple)):
            raise ValueError("sources is a tuple of strings, or a list")
        object.__setattr__(self, "sources", tuple(self.sources))
        for source in self.sources:
            parse_source(source)
        if not (isinstance(self.sha256, str) and _SHA256.fullmatch(self.sha256)):
            raise ValueError(f"sha256 has 64 lower-case hexadecimal digits, not {self.sha256!r}")
        if isinstance(self.size, bool) or not isinstance(self.size, int) or self.size < 1:
            raise ValueError(f"size is a number of bytes, not {self.size!r}")
        for name in ("licence", "trained_on", "command", "training", "origin"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"{name} is a string, not {getattr(self, name)!r}")
        for name in ("licence", "trained_on"):
            if not getattr(self, name).strip():
                raise ValueError(f"{name} is empty: say what holds, or that it is unknown")
        for name in ("metrics", "input", "architecture", "subnet"):
            value = getattr(self, name)
            if name == "subnet" and value is None:
                continue
            if not isinstance(value, Mapping):
                raise ValueError(f"{name} is a mapping, not {value!r}")
            try:
                json.dumps(thaw(frozen := Frozen(value)), allow_nan=False)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{name} must hold JSON values: {error}") from error
            object.__setattr__(self, name, frozen)
        listed = isinstance(self.classes, (list, tuple))
        if not listed or not all(isinstance(name, str) for name in self.classes):
            raise ValueError(f"classes are names, a list of strings, not {self.classes!r}")
        object.__setattr__(self, "classes", tuple(self.classes))
        if not (self.reach is None or _is_number(self.reach) and self.reach > 0):
            raise ValueError(f"reach is a positive number of pixels, not {self.reach!r}")
        if "subnet" in self.architecture:
            raise ValueError("the subnet stands in the field of that name, not in architecture")
        for data, values in self.metrics.items():
            numbers = values.values() if isinstance(values, Mapping) else [None]
            if not all(_is_number(value) for value in numbers):
                raise ValueError(f"metrics: {data!r} must map metrics to numbers")
        if self.metrics and not self.command.strip():
            raise ValueError("metrics need `command`, the command line that made them")

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments for `create_model`: the architecture and, if there is one, the subnet."""
        subnet = {} if self.subnet is None else {"subnet": thaw(self.subnet)}
        return {**thaw(self.architecture), **subnet}

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries and lists, without the fields that are empty."""
        values = {field.name: thaw(getattr(self, field.name)) for field in fields(self)}
        return {k: v for k, v in values.items() if k in _REQUIRED or v not in (None, "", {}, [])}

    @classmethod
    def from_json(cls, values: Any) -> WeightsRecord:
        """The record that `to_json` described.

        Raises:
            ValueError: fields that are missing, unknown or of a wrong form.
        """
        if not isinstance(values, Mapping):
            raise ValueError(f"a record is a mapping, not {type(values).__name__}")
        names = {field.name for field in fields(cls)}
        for word, wrong in (
            ("lacks", _REQUIRED - set(values)),
            ("has unknown", set(values) - names),
        ):
            if wrong:
                raise ValueError(f"the record {word} {', '.join(sorted(map(str, wrong)))}")
        return cls(**values)


_REQUIRED = {"sources", "sha256", "size", "licence", "trained_on"}


def _freeze(value: Any) -> Any:
    if isinstance(value, Mapping):
        return value if isinstance(value, Frozen) else Frozen(value)
    if isinstance(value, (list, tuple)):
        return tuple(map(_freeze, value))
    return value


def thaw(value: Any) -> Any:
    """The value with plain dictionaries and lists."""
    if isinstance(value, Mapping):
        return {key: thaw(inner) for key, inner in value.items()}
    if isinstance(value, tuple):
        return [thaw(inner) for inner in value]
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
