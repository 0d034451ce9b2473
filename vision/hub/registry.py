"""The registry of networks: names are strings until somebody asks for one.

A model file registers its variants with :func:`register_model`; ``FAMILIES`` says which file a
name lives in (the family is the name's first word), so that nothing but that file is imported.
Packages that are installed beside this one name their modules as entry points of the group
``vizoo.models``; these are imported for a name that is not found here, and for lists of all.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from importlib.metadata import entry_points
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from ...common.arguments import check_arguments, checked

if TYPE_CHECKING:
    from torch import nn

    from .record import WeightsRecord

__all__ = [
    "FAMILIES",
    "REMOTE",
    "TIMM",
    "ModelEntry",
    "Paper",
    "build_model",
    "family_modules",
    "has_scheme",
    "hub_spelling",
    "is_path",
    "list_models",
    "model_info",
    "refusal",
    "register_model",
]

_PACKAGE = __name__.rpartition(".vision.")[0]
FAMILIES: dict[str, str] = {
    "covidnet3d": "classification.covidnet3d",
    "densenet3d": "classification.ct_baselines",
    "depth_fusion": "mvs.depth_fusion",
    "disparity_fusion": "stereo.disparity_fusion",
    "dispmvs": "mvs.dispmvs",
    "easnet": "stereo.easnet",
    "easnet_elastic": "stereo.easnet_elastic",
    "easnet_scaled": "stereo.easnet_scaled",
    "easnet_light": "stereo.easnet_elastic",
    "fadnet": "stereo.fadnet",
    "image_classifier": "classification.backbones",
    "mbnet": "classification.spaces.mbnet",
    "mc3": "classification.ct_baselines",
    "nasbench201": "classification.spaces.nasbench201",
    "ofa_mobilenet": "classification.spaces.ofa_mobilenet",
    "proxyless": "classification.spaces.proxyless",
    "resnet3d": "classification.ct_baselines",
    "spheredepth": "panorama.spheredepth",
}
"""Family (first words of a model's name) to the module that registers it, inside the package."""


class Paper(NamedTuple):
    """Where a network was published."""

    published: str  #: what and when, such as ``"FADNet, ICRA 2020"``
    arxiv: str  #: its number there

    @property
    def url(self) -> str:
        """Where it can be read."""
        return f"https://arxiv.org/abs/{self.arxiv}"


_PAPERS: dict[str, Paper] = {
    "covidnet3d": Paper("CovidNet3D, AAAI 2021", "2101.05442"),
    "densenet3d": Paper("DenseNet, CVPR 2017", "1608.06993"),
    "dispmvs": Paper("DispMVS, AAAI 2023", "2211.16905"),
    "easnet": Paper("EASNet, ECCV 2022", "2207.09796"),
    "fadnet": Paper("FADNet, ICRA 2020", "2003.10758"),
    "fadnet_plus": Paper("FADNet++, 2021", "2110.02582"),
    "mc3": Paper("MC3, CVPR 2018", "1711.11248"),
    "nasbench201": Paper("NAS-Bench-201, ICLR 2020", "2001.00326"),
    "ofa_mobilenet": Paper("Once-for-All, ICLR 2020", "1908.09791"),
    "proxyless": Paper("ProxylessNAS, ICLR 2019", "1812.00332"),
    "resnet3d": Paper("ResNet3D, CVPR 2018", "1711.09577"),
    "spheredepth": Paper("SphereDepth, 3DV 2022", "2208.13714"),
}
"""First words of a model's name to the paper that its network is of."""
REMOTE = ("hf-hub:", "local-dir:")
"""How names of what is not registered here begin."""
TIMM = "timm/"
"""How names of timm's networks begin, which `image_classifier` builds."""

_ENTRIES: dict[str, ModelEntry] = {}
_FILE_SUFFIXES = (".safetensors", ".ckpt", ".pth", ".pt", ".tar", ".bin")
_TAG = re.compile(r"[a-z0-9][a-z0-9_-]*")


@dataclass(frozen=True)
class ModelEntry:
    """One registered network, or one of its sets of trained weights."""

    name: str  #: what `create_model` takes, without a tag
    task: str  #: for example ``"stereo"``
    function: Callable[..., nn.Module]  #: builds the network from its architecture arguments
    #: tag to record, of all its trained weights; the first is the usual one
    weights: Mapping[str, WeightsRecord] = field(default_factory=dict)
    tag: str | None = None  #: the tag that was asked for, or None

    @property
    def module(self) -> str:
        """The module that registered it."""
        return self.function.__module__

    @property
    def paper(self) -> Paper | None:
        """Where its network was published; None if it was not."""
        ours = self.module.startswith(f"{_PACKAGE}.")
        return _PAPERS.get(_longest(self.name, _PAPERS) or "") if ours else None

    @property
    def record(self) -> WeightsRecord | None:
        """The record of the tag that was asked for, else of the first; None if there is none."""
        return self.weights.get(self.tag or next(iter(self.weights), ""))

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the architecture arguments."""
        return tuple(inspect.signature(self.function).parameters)

    @property
    def defaults(self) -> dict[str, Any]:
        """Architecture arguments that need not be given."""
        parameters = inspect.signature(self.function).parameters.values()
        return {p.name: p.default for p in parameters if p.default is not p.empty}

    @property
    def tagged_names(self) -> tuple[str, ...]:
        """``name.tag`` of all its trained weights."""
        return tuple(f"{self.name}.{tag}" for tag in self.weights)


def register_model(
    *, task: str, weights: Mapping[str, WeightsRecord] | None = None
) -> Callable[[Callable[..., nn.Module]], Callable[..., nn.Module]]:
    """Register the decorated function as the model of its own name.

    Args:
        task: the task's name, such as ``"stereo"``.
        weights: tag to record; ``create_model("name.tag")`` takes one of them, and
            ``pretrained=True`` the first.

    Raises:
        ValueError: another function holds the name, the function is in this package and the name's
            first words are no family, a tag of another form than small letters, digits, ``_`` and
            ``-``, a record without a source, or one whose architecture the function does not take.
    """
    weights = dict(weights or {})

    def register(function: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
        name = function.__name__
        ours = function.__module__.startswith(f"{_PACKAGE}.")
        if ours and _longest(name, FAMILIES) is None:
            raise ValueError(
                f"model {name!r}: its first words are no family: add a line for its module to "
                f"FAMILIES in {__file__}"
            )
        held = _ENTRIES.get(name)
        if held is not None and held.module != function.__module__:
            raise ValueError(f"model {name!r} is registered by {held.module} already")
        entry = ModelEntry(name, task, function, MappingProxyType(weights))
        for tag, record in weights.items():
            _check_weights(entry, tag, record)
        _ENTRIES[name] = entry
        return function

    return register


@checked("pattern")
def list_models(pattern: str = "*", *, pretrained: bool = False) -> list[str]:
    """Names of the registered models, sorted; or of their trained weights.

    Args:
        pattern: shell pattern on the name (``"fadnet_plus_*"``) or on ``task/name``
            (``"stereo/*"``); on trained weights also on ``name.tag``.
        pretrained: ``name.tag`` of every set of trained weights instead, those of one model in
            the order in which they are registered.
    """
    family_modules()
    names = []
    for entry in sorted(_ENTRIES.values(), key=lambda entry: entry.name):
        room = f"{entry.task}/" if "/" in pattern else ""
        whole = fnmatchcase(room + entry.name, pattern)
        spelled = entry.tagged_names if pretrained else (entry.name,)
        names += [name for name in spelled if whole or fnmatchcase(room + name, pattern)]
    return names


def model_info(name: str, task: str | None = None) -> ModelEntry:
    """The entry of one model; imports its family's module and no other of this package.

    Args:
        name: a model's, or ``NAME.TAG``, whose entry has that `tag` and `record`.
        task: the error for an unknown name proposes models for this one alone.

    Raises:
        ValueError: no such model or tag; the message names the nearest, or how what was given is
            loaded.
    """
    if isinstance(name, os.PathLike):
        raise ValueError(_of_a_path(os.fspath(name)))
    if not isinstance(name, str):
        raise TypeError(f"a model's name is a string, got {type(name).__name__}")
    bare, dot, tag = name.partition(".")
    family = _longest(bare, FAMILIES)
    if family is not None:
        importlib.import_module(f"{_PACKAGE}.{FAMILIES[family]}")
    if bare not in _ENTRIES:
        _load_plugins()
    entry = _ENTRIES.get(bare)
    if entry is None or (dot and tag not in entry.weights):
        raise ValueError(refusal(name, task))
    return replace(entry, tag=tag) if dot else entry


def _longest(name: str, table: Iterable[str]) -> str | None:
    """The longest of the first words in a table that the name begins with."""
    fitting = (words for words in table if f"{name}_".startswith(f"{words}_"))
    return max(fitting, key=len, default=None)


def family_modules() -> list[ModuleType]:
    """The modules that register models, imported."""
    names = dict.fromkeys(FAMILIES.values())
    ours = [importlib.import_module(f"{_PACKAGE}.{name}") for name in names]
    return ours + _load_plugins()


def _load_plugins() -> list[ModuleType]:
    """The modules of other packages that register models, imported; broken ones are warned of."""
    modules = []
    for point in entry_points(group="vizoo.models"):
        try:
            modules.append(importlib.import_module(point.module))
        except Exception as error:
            warnings.warn(
                f"{point.value}, which is installed with models for vizoo, cannot be imported: "
                f"{type(error).__name__}: {error}",
                stacklevel=3,
            )
    return modules


def build_model(
    name: str,
    architecture: Mapping[str, Any],
    load: Callable[[nn.Module], object] = lambda model: None,
) -> nn.Module:
    """A registered network with fresh weights, whatever the name's tag; uses no network.

    Args:
        name: of the model.
        architecture: its arguments; with `convert` it becomes a supernet (see `as_supernet`), or
            with `subnet` too a subnet of that.
        load: gives the model its weights, before it is converted unless a plan says how.

    Raises:
        ValueError: unknown name or argument, or a model that cannot be converted.
    """
    entry, given = model_info(name), dict(architecture)
    settings = given.pop("convert", None)
    if settings is None:
        model = _build(entry, given)
        load(model)
        return model
    subnet = given.pop("subnet", None)
    from .converted import built  # brings torch, which a list of models does without

    return built(lambda: _build(entry, given), settings, subnet, load)


def _build(entry: ModelEntry, architecture: dict[str, Any]) -> nn.Module:
    check_arguments(entry.name, entry.function, architecture)
    model: Any = entry.function(**architecture)
    model.architecture = {"name": entry.name, **architecture}
    return model


def is_path(name: str) -> bool:
    """Whether a string is written as a path to a file or folder, not as a model's name."""
    return name.lower().endswith(_FILE_SUFFIXES) or any(c in name for c in {"/", os.sep})


def refusal(name: str, task: str | None = None) -> str:
    """Why `name` is no model, with the right spelling or the nearest names, of a task if given."""
    if name.startswith(REMOTE):
        return f"{name!r} is not registered here; create_model takes it, its README describes it"
    if name.startswith(TIMM):
        backbone = name.removeprefix(TIMM)
        return f"{name!r} is not registered here: it is image_classifier, backbone={backbone!r}"
    if has_scheme(name):
        if match := _ON_THE_HUB.match(name):
            return f"{name!r} is an address; the model is spelled 'hf-hub:{match[1]}'"
        kinds = "hf-hub:ORG/NAME[@REVISION] or local-dir:FOLDER"
        return f"{name!r} is no model's name; what comes from elsewhere is spelled {kinds}"
    names = list_models()
    bare, dot, tag = name.partition(".")
    if dot and bare in names and not is_path(name):
        tags = list(_ENTRIES[bare].weights)
        near = difflib.get_close_matches(tag, tags, n=1, cutoff=0.4)
        hint = f"did you mean {bare}.{near[0]}?" if near else f"there are {', '.join(tags)}"
        hint = hint if tags else f"it has no trained weights; weights=FILE loads a file for {bare}"
        return f"{bare} has no weights called {tag!r}; {hint}"
    last = re.split(r"[/\\]", name)[-1]
    if (is_path(name) or os.path.exists(name)) and last not in names:
        return _of_a_path(name)
    named = f"{task or '*'}/*"
    names = list_models(named) + (list_models(named, pretrained=True) if dot else [])
    if _longest(bare, FAMILIES) is None and _in_timm(name):
        return (
            f"no model is called {name!r} here, but timm has a network of this name: take "
            f"image_classifier with backbone={name!r}, or {TIMM}{name}"
        )
    near = difflib.get_close_matches(last.lower().replace("-", "_"), names, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(names)}"
    return f"no model is called {name!r}; {hint}"


def _in_timm(name: str) -> bool:
    try:
        import timm  # takes a second, which only a refusal may
    except ImportError:  # torch.hub's entry points do without it
        return False
    return timm.is_model(name)


_ON_THE_HUB = re.compile(r"https?://huggingface\.co/([\w.-]+/[\w.-]+)")


def has_scheme(name: str) -> bool:
    """Whether a string begins as an address does; a single letter is a drive of Windows."""
    return re.match(r"[A-Za-z][\w+.-]+:", name) is not None


def _of_a_path(name: str) -> str:
    if os.path.isdir(name) or name.endswith(("/", os.sep)):
        return (
            f"{name!r} is a folder, not a model's name; one of save_pretrained is loaded by "
            f"create_model('local-dir:{name}')"
        )
    file = name.lower().endswith(_FILE_SUFFIXES)
    folder = "" if file else f", a folder of save_pretrained by 'local-dir:{name}'"
    return (
        f"{name!r} is a path, not a model's name; a file is loaded with load_weights({name!r}) "
        f"or create_model(NAME, weights={name!r}){folder}{hub_spelling(name)}"
    )


def hub_spelling(name: str) -> str:
    """End of a message about a missing path that could be a repository, else empty."""
    if not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name) or name.lower().endswith(_FILE_SUFFIXES):
        return ""
    return f", one on the Hugging Face Hub by 'hf-hub:{name}'"


def _check_weights(entry: ModelEntry, tag: str, record: WeightsRecord) -> None:
    if not _TAG.fullmatch(tag) or f".{tag}".endswith(_FILE_SUFFIXES):
        raise ValueError(
            f"model {entry.name!r}: a tag has small letters, digits, _ and -, and is no file's "
            f"ending, not {tag!r}"
        )
    if not record.sources:
        raise ValueError(f"{entry.name}.{tag}: its record has no sources: say where the file is")
    check_arguments(f"{entry.name}.{tag}", entry.function, record.arguments)
