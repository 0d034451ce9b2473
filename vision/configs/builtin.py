"""The configs that come with the package, found by name from any folder."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Any

import yaml

from ...common.files import shortened

__all__ = ["CONFIGS", "list_configs", "read_config", "resolve_config"]

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


def list_configs() -> list[str]:
    """Names of the built-in configs, such as ``stereo/fadnet_sceneflow.yaml``."""
    return sorted(path.relative_to(CONFIGS).as_posix() for path in CONFIGS.rglob("*.yaml"))


def resolve_config(name: str | os.PathLike[str]) -> str:
    """The path of a config: a file from here if there is one, else the built-in one of that name.

    Args:
        name: a path, a built-in name (the suffix may be left out), or YAML itself in braces.

    Raises:
        FileNotFoundError: neither; the message names the nearest.
        ValueError: a file that is no config, or something that names none.
    """
    if not isinstance(name, (str, os.PathLike)):
        raise ValueError(
            f"config {shortened(name)}: give a file, the name of a built-in config, or YAML or "
            "JSON in braces, as json.dumps makes of a mapping"
        )
    name = os.fspath(name)
    if _is_yaml(name) or "://" in name:
        return name
    if Path(name).is_file():
        _read(name)
        return name
    if name == "-" or os.path.exists(name) and not os.path.isdir(name):
        raise ValueError(
            f"{name}: a config is read more than once, so it cannot come from standard input or a "
            "pipe: write it to a file and name that"
        )
    names = list_configs()
    for candidate in (name, f"{name}.yaml"):
        if candidate in names:
            return str(CONFIGS / candidate)
    last = {candidate.rpartition("/")[2]: candidate for candidate in names}
    wanted = name if name.endswith(".yaml") else f"{name}.yaml"
    near = difflib.get_close_matches(wanted, names, n=3, cutoff=0.6) or [
        last[word] for word in difflib.get_close_matches(wanted.rpartition("/")[2], list(last), n=3)
    ]
    hint = f"did you mean {', '.join(near)}?" if near else f"built in: {', '.join(names) or 'none'}"
    raise FileNotFoundError(f"{name}: no such config here or built in; {hint}")


def read_config(name: str | os.PathLike[str]) -> dict[str, Any]:
    """What a config says.

    Args:
        name: as `resolve_config` takes it, but no address.

    Raises:
        FileNotFoundError: there is none; the message names the nearest.
        ValueError: a file, or YAML in braces, that is no config; an address, or something that
            names none.
    """
    path = resolve_config(name)
    if "://" in path and not _is_yaml(path):
        raise ValueError(f"{name}: an address: fetch the file, and give its path")
    return _read(path)


def _is_yaml(name: str) -> bool:
    return name.lstrip().startswith("{")


def _read(path: str) -> dict[str, Any]:
    """The keys of a file or of YAML itself; says which of several files is no config.

    The parser's message names none.
    """
    try:
        text = path if _is_yaml(path) else Path(path).read_text(encoding="utf-8")
        content = yaml.safe_load(text)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a config: not text at byte {error.start}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise ValueError(f"{path}{where}: not YAML: {getattr(error, 'problem', error)}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: not a config: it holds no keys such as `model:` or `data:`")
    return content
