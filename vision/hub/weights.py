"""Weight files: safetensors that say what they are, strictly loaded.

A file carries, as JSON under the metadata key ``vizoo``, the model's name and architecture
arguments, so that :func:`load_weights` needs nothing but the path. Lightning checkpoints of a
task are read too. Pickles are read with ``weights_only=True`` and without a fallback.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from ...common.arguments import checked
from ...common.files import atomic_write, few
from ...common.system import installed_version
from ...nas.supernet import activate_part, architecture_of
from ._low_rank import merged_state
from ._pickles import load_pickle, stand_in
from .record import WeightsRecord
from .registry import TIMM, build_model, model_info

__all__ = [
    "StoredWeights",
    "build",
    "check_finite",
    "check_state",
    "check_stored",
    "describe",
    "described",
    "load_state",
    "load_weights",
    "names_its_model",
    "read_weights",
    "save_weights",
    "weights_of",
    "write_weights",
]

_KEY = "vizoo"
_FORMAT = 1
_COMPILED = "_orig_mod."  # in names of tensors of what `torch.compile` wraps


@dataclass(frozen=True)
class StoredWeights:
    """What a weight file holds."""

    name: str  #: the model's registered name
    architecture: dict[str, Any]  #: arguments for `create_model`
    state: dict[str, Tensor]  #: tensor name to tensor, on the CPU
    #: whatever else was saved with them (data set, error, step …); of a classifier `classes`, the
    #: names of its outputs in order, and `input`, how its inputs are prepared; of a part of a
    #: supernet `subspace`, the search space that it was trained for
    facts: dict[str, Any] = field(default_factory=dict)


@checked("path")
def save_weights(model: nn.Module, path: str | os.PathLike[str], **facts: Any) -> Path:
    """Write a network's weights as safetensors, atomically.

    Args:
        model: from `create_model` (it needs ``model.architecture``).
        path: ends in ``.safetensors``.
        **facts: JSON values kept in the file, such as ``trained_on="generated scenes"``, besides
            the `classes`, `input` and `subspace` that the model has (see `describe`).

    Returns:
        The path.

    Raises:
        ValueError: another suffix, a model without ``architecture``, facts JSON cannot hold.
    """
    return write_weights(weights_of(model, **facts), path)


def weights_of(model: nn.Module, **facts: Any) -> StoredWeights:
    """What `save_weights` writes of a network, whose tensors it shares; adapters are merged.

    Raises:
        ValueError: a model without ``architecture``.
    """
    architecture = architecture_of(model)
    name = architecture.pop("name", None)
    if not name:
        raise ValueError(
            f"{type(model).__name__} has no `architecture` with a name; build it by create_model"
        )
    state = merged_state({key.replace(_COMPILED, ""): t for key, t in model.state_dict().items()})
    return StoredWeights(name, architecture, state, {**described(model), **facts})


def write_weights(stored: StoredWeights, path: str | os.PathLike[str]) -> Path:
    """Write a file as `save_weights` does, without a network."""
    path = Path(path)
    if path.suffix.lower() != ".safetensors":
        raise ValueError(f"{path}: weights are written as .safetensors; choose such a name")
    header = {
        "format": _FORMAT,
        "name": stored.name,
        "architecture": stored.architecture,
        "facts": stored.facts,
        "version": installed_version(),
    }
    try:
        text = json.dumps(header, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: facts and architecture must be JSON values: {error}") from error
    # A view would drag its whole storage into the file; tied tensors would be refused.
    tensors = {
        key: value.detach().cpu().clone().contiguous() for key, value in stored.state.items()
    }
    with atomic_write(path) as temporary:
        temporary.touch()
        mode = temporary.stat().st_mode
        try:
            save_file(tensors, os.fspath(temporary), metadata={"format": "pt", _KEY: text})
        except SafetensorError as error:
            raise OSError(f"{path}: {error}") from error
        _sort_metadata(temporary)
        temporary.chmod(mode)  # safetensors makes files that only their owner can read
    return path


def _sort_metadata(file: Path) -> None:
    """Let the same weights be the same bytes: safetensors writes metadata in a random order."""
    with file.open("r+b") as stream:
        size = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode().ljust(size)
        if len(text) == size:
            stream.seek(8)
            stream.write(text)


@checked("path")
def load_weights(path: str | os.PathLike[str]) -> nn.Module:
    """The network that a file was saved from, on the CPU in evaluation mode, strictly loaded.

    The file is a `.safetensors` of `save_weights`, or a Lightning checkpoint of a task.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not such a file, or tensors that are missing, surplus or misshapen.
    """
    return build(read_weights(path), os.fspath(path))


def build(stored: StoredWeights, source: str) -> nn.Module:
    """The network that weights are for, with them, in evaluation mode.

    Raises:
        ValueError: no such model or arguments, or tensors that do not fit; it begins with `source`.
    """
    try:
        model = describe(build_model(stored.name, stored.architecture), stored.facts)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error
    load_state(model, stored.state, source)
    return model.eval()


def describe(model: nn.Module, facts: Mapping[str, Any]) -> nn.Module:
    """Give a network what is known of it, as attributes beside `architecture`.

    Args:
        model: gets `classes`, names in the order of the outputs, `input`, the settings by which
            its inputs are prepared, and `subspace`, the part of its search space that it was
            trained for and whose largest subnet it runs, and `reach`, the largest disparity in
            pixels up to which it was measured to work; each only where the facts hold it.
        facts: those of a `StoredWeights`.

    Returns:
        The model.

    Raises:
        ValueError: one of them is of a wrong type, or `subspace` no part of the model's space.
    """
    kinds: dict[str, Any] = {"classes": (list, tuple), "reach": (int, float)}
    kinds |= {"input": Mapping, "subspace": Mapping}
    for name, kind in kinds.items():
        value = facts.get(name)
        if not value:
            continue
        if not isinstance(value, kind):
            raise ValueError(f"its {name!r} is of a wrong type, {type(value).__name__}")
        if kind is Mapping:
            value = dict(value)
        setattr(model, name, tuple(map(str, value)) if name == "classes" else value)
    if facts.get("subspace"):
        activate_part(model, facts["subspace"])
    return model


def described(model: nn.Module) -> dict[str, Any]:
    """What `describe` gave a network, as JSON values; a subnet has no `subspace` any more."""
    facts = {"classes": list(getattr(model, "classes", ())), "input": getattr(model, "input", {})}
    facts["reach"] = getattr(model, "reach", None)
    if "subnet" not in architecture_of(model):
        facts["subspace"] = getattr(model, "subspace", {})
    return {name: value for name, value in facts.items() if value}


def read_weights(path: str | os.PathLike[str], *, adapter: bool = False) -> StoredWeights:
    """Read a file of `save_weights` or a task's Lightning checkpoint without building a network.

    Args:
        path: the file.
        adapter: it is one of adapters instead, see `vision.lora`.

    Raises:
        FileNotFoundError: no such file.
        ValueError: any other kind of file, or one that is damaged.
    """
    path = existing_file(path)
    read = _read_safetensors if path.suffix.lower() == ".safetensors" else _read_lightning
    stored = read(path)
    if ("adapter" in stored.facts) != adapter:
        raise ValueError(
            f"{path}: holds weights of {stored.name}, and no adapters"
            if adapter
            else f"{path}: holds adapters alone: vizoo.vision.lora.load_adapters(net, path) gives "
            f"them to the {stored.name} that they were trained on"
        )
    return stored


def names_its_model(path: str | os.PathLike[str]) -> bool:
    """Whether `read_weights` is for this file: one of `save_weights`, or a Lightning checkpoint.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not a checkpoint of any kind.
    """
    path = existing_file(path)
    if path.suffix.lower() == ".safetensors":
        with open_safetensors(path) as file:
            return _KEY in (file.metadata() or {})
    content = load_pickle(path, mmap=zipfile.is_zipfile(path))
    return isinstance(content, Mapping) and "pytorch-lightning_version" in content


def load_state(model: nn.Module, state: Mapping[str, Tensor], source: str) -> None:
    """Load a state dict strictly, as `check_state` takes it; on a misfit the model stays as it was.

    Raises:
        ValueError: see there; also where values are not finite.
    """
    check_state(model, state, source)
    check_finite(state, source)
    model.load_state_dict(dict(state), strict=True)


def check_finite(state: Mapping[str, Tensor], source: str) -> None:
    """Raise ValueError where values are not finite; it names the tensors."""
    broken = [k for k, v in state.items() if v.is_floating_point() and not v.isfinite().all()]
    if broken:
        raise ValueError(
            f"{source}: {len(broken)} tensors hold values that are not finite ({few(broken)}): the "
            "training that wrote them diverged; take an earlier file"
        )


def check_state(model: nn.Module, state: Mapping[str, Tensor], source: str) -> None:
    """Compare a state dict's names and shapes with a network's; it may be on the meta device.

    Args:
        model: what the state should fit.
        state: tensor name to tensor.
        source: what the error calls the state, such as its path.

    Raises:
        ValueError: names of the tensors that are missing, surplus, misshapen or of another type,
            such as integers for floating-point values (the first few of each).
    """
    own = model.state_dict()
    pairs = [(key, state[key], own[key]) for key in own if key in state]
    faults = {
        "missing": [key for key in own if key not in state],
        "surplus": [key for key in state if key not in own],
        "misshapen": [
            f"{key} {_shape(a)} instead of {_shape(b)}" for key, a, b in pairs if a.shape != b.shape
        ],
        "of another type": [
            f"{key} {_type(a)} instead of {_type(b)}"
            for key, a, b in pairs
            if not _casts(a.dtype, b.dtype)
        ],
    }
    parts = [f"{len(names)} {word} ({few(names)})" for word, names in faults.items() if names]
    if parts:
        name = architecture_of(model).get("name", type(model).__name__)
        raise ValueError(f"{source}: does not fit {name}: tensors {'; '.join(parts)}")


def check_stored(stored: StoredWeights, path: str | os.PathLike[str]) -> None:
    """Compare weights with the model that they name, without memory for a second copy.

    Raises:
        ValueError: no such model or arguments, or tensors that do not fit it.
    """
    try:
        with torch.device("meta"):
            model = build_model(stored.name, stored.architecture)
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)}: {error}") from error
    check_state(model, stored.state, os.fspath(path))


def _read_safetensors(path: Path) -> StoredWeights:
    with open_safetensors(path) as file:
        text = (file.metadata() or {}).get(_KEY)
        if text is None:
            raise ValueError(
                f"{path}: has no '{_KEY}' metadata, so it does not say which model it is for; "
                f"`vizoo convert {path.name} NEW.safetensors` may recognise it"
            )
        try:
            header = json.loads(text)
            name, architecture = header["name"], header["architecture"]
            facts = header.get("facts") or {}
            kinds = (str, name), (dict, architecture), (dict, facts)
            if not all(isinstance(value, kind) for kind, value in kinds):
                raise TypeError("name, architecture or facts of a wrong type")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{path}: its '{_KEY}' metadata is damaged: {error}") from error
        if header.get("format", _FORMAT) != _FORMAT:
            raise ValueError(
                f"{path}: of format {header['format']!r}, and this vizoo reads {_FORMAT}: "
                "pip install --upgrade vizoo"
            )
        state = all_tensors(file)
    return StoredWeights(name, architecture, state, facts)


def _read_lightning(path: Path) -> StoredWeights:
    checkpoint = load_pickle(path)
    if not isinstance(checkpoint, Mapping) or "pytorch-lightning_version" not in checkpoint:
        raise ValueError(
            f"{path}: neither weights of vizoo nor a Lightning checkpoint; a published checkpoint "
            f"is converted first: vizoo convert {path.name} NEW.safetensors; a state dict does not "
            "say its model: load it into the network, then vizoo.save_weights(net, NEW.safetensors)"
        )
    parameters, prefix = checkpoint.get("hyper_parameters") or {}, "net."
    if isinstance(parameters.get("task"), Mapping):  # a task within one that trains its subnets
        parameters, prefix = parameters["task"].get("init_args") or {}, "task.net."
    known = checkpoint.get("architecture")
    if isinstance(known, Mapping) and "name" in known:
        arguments = dict(known)
        name = arguments.pop("name")
    else:
        name, arguments = parameters.get("model"), dict(parameters.get("model_args") or {})
    if not name or not isinstance(name, str):
        raise ValueError(
            f"{path}: its hyper-parameters name no model, nor does the checkpoint: the task has to "
            "make its network by vizoo.create_model, where register_model gives your own a name; "
            "in Python, vizoo.save_weights(task.net, FILE) writes one that has a name"
        )
    state = merged_state(
        {
            key[len(prefix) :].replace(_COMPILED, ""): value
            for key, value in checkpoint.get("state_dict", {}).items()
            if key.startswith(prefix)
        }
    )
    kept = ("epoch", "global_step", "classes", "input", "subspace")
    facts = {key: checkpoint[key] for key in kept if key in checkpoint}
    name, architecture = _untagged(path, name, arguments)
    return StoredWeights(name, architecture, state, facts)


def _untagged(path: Path, name: str, arguments: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """A model as it is registered, without its tag: what was trained has weights of its own."""
    if name.startswith(TIMM):
        return "image_classifier", {"backbone": name.removeprefix(TIMM), **arguments}
    if "." not in name:
        return name, arguments
    try:
        entry = model_info(name)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return entry.name, {**cast("WeightsRecord", entry.record).arguments, **arguments}


def existing_file(path: str | os.PathLike[str]) -> Path:
    """The path, if a file is there.

    Raises:
        FileNotFoundError: nothing is there.
        ValueError: a folder is there.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such weight file")
    if path.is_dir():
        raise ValueError(f"{path}: is a folder; name the weight file in it")
    return path


def open_safetensors(path: Path) -> Any:
    """A `safe_open` handle.

    Raises:
        ValueError: another kind of file, or one cut short.
    """
    try:
        return safe_open(os.fspath(path), framework="pt")
    except SafetensorError as error:
        what = stand_in(path) or f"not a safetensors file, or cut short ({error})"
        raise ValueError(f"{path}: {what}") from error


def all_tensors(file: Any) -> dict[str, Tensor]:
    """Every tensor of an `open_safetensors` handle."""
    return {name: file.get_tensor(name) for name in file.keys()}


def _casts(given: torch.dtype, own: torch.dtype) -> bool:
    """Whether values keep their kind: only their precision may change."""
    if given.is_floating_point or own.is_floating_point:
        return given.is_floating_point and own.is_floating_point
    return given.is_complex == own.is_complex and (given == torch.bool) == (own == torch.bool)


def _type(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "scalar"
