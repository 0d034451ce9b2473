"""Messages of jsonargparse, said in one line."""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
from pathlib import Path

from jsonargparse import ArgumentParser
from lightning.pytorch import Trainer

from ...common.renamed import REPLACED

__all__ = ["condense", "own_words"]

_NOISE = (
    "Does not validate against any of the Union subtypes",
    "Subtypes:",
    "Errors:",
    "Expected a <class 'NoneType'>",
    "Given value type:",
    "Subclass types expect one of:",
    "a class path (str)",
    "a dict with",
)


def condense(message: str) -> str:
    r"""Leave of a many-line message what the user can act on.

    Args:
        message: from jsonargparse, which tries every subtype of a union and reports all of them.

    Returns:
        One line; for an unknown option with the nearest known one.

    Example:
        >>> condense('Parser key "a":\n  Errors:\n    - Option \'b\' is not accepted')
        'Parser key "a": Option \'b\' is not accepted'
    """
    message = own_words(message)
    lines = [line.strip().removeprefix("- ") for line in message.splitlines()]
    kept = [line for line in dict.fromkeys(lines) if line and not line.startswith(_NOISE)]
    kept = [line for line in kept if not re.fullmatch(r"Not a valid subclass of \w+", line)]
    if "subtypes" in message:
        kept = [line for line in kept if not line.startswith("Given value:")]
    said = r"Problem with given class_path|Expected a dot import path|Not a valid subclass"
    if re.search(said, " ".join(kept)):
        kept = [line for line in kept if not line.startswith("Expected a path but")]
    text = " ".join(kept) or message.strip()
    text = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", text)
    text = re.sub(r"Expected an? (\w+)\.? (?:Got|Given) value:", r"expected \1, got", text)
    text = re.sub(r"Expected a typing\.Literal\[(.*?)\]", r"expected one of \1", text)
    text = re.sub(r"Expected an? (\w+) expected one of", r"expected \1 or one of", text)
    inner = re.search(r"Got value: Namespace\(class_path='([\w.]+)\.(\w+)'", text)
    owners = [(inner[1], inner[2])] if inner else re.findall(r"class_path '([\w.]+)\.(\w+)'", text)
    hint = _nearest_option(text, owners[-1]) if owners else ""
    text = re.sub(
        r"Type \S*Callable\S*(?: \S+)* expects a function or a callable class: ", "", text
    )
    text = re.sub(r"\. Got value: Namespace\(.*", "", text)
    return text + (hint or _nearest_name(text))


def own_words(message: str) -> str:
    """Leave of an error that a process that loads data sent the error's own message.

    PyTorch puts that process's whole traceback into the message; the error stands in its last line.
    """
    message = message.strip()
    if message.startswith("Caught ") and " in DataLoader worker process " in message:
        return message.splitlines()[-1].partition(": ")[2]
    return message


def _nearest_option(text: str, owner: tuple[str, str]) -> str:
    option = re.search(r"(?:Option '|unrecognized arguments: --)(\w+)", text)
    if not option:
        return ""
    cls = getattr(importlib.import_module(owner[0]), owner[1], None)
    if not inspect.isclass(cls):
        return ""
    names = ArgumentParser().add_class_arguments(cls, fail_untyped=False)
    if option[1] in names:
        return ""
    near = difflib.get_close_matches(option[1], (*names, "class_path", "init_args"), n=1)
    return f"; did you mean '{near[0]}'?" if near else f"; it takes {', '.join(names) or 'none'}"


def _nearest_name(text: str) -> str:
    """Hint at a class of a module, or at an option of the trainer or the command."""
    if match := re.search(r"module '([\w.]+)' has no attribute '(\w+)'", text):
        if instead := REPLACED.get(".".join(match.groups())):
            return f"; take {instead}"
        module = importlib.import_module(match[1])
        names = getattr(module, "__all__", dir(module))
    elif match := re.search(r"(?:not accept option '|arguments: --)(trainer)\.(\w[\w-]*)", text):
        names = list(inspect.signature(Trainer).parameters)
    elif match := re.search(r"(?:not accept option '|arguments: --)()(\w[\w-]*)", text):
        names = ["ckpt_path", "config", "data", "model", "print_config", "seed_everything"]
        names += ["trainer"]
    elif match := re.search(r"expected one of (.*)\. Got value: (\w+)$", text):
        names = re.findall(r"'([^']*)'", match[1])
    elif (match := re.search(r"No module named '(\w+)'", text)) and Path(f"{match[1]}.py").exists():
        return "; `python -m vizoo` in place of `vizoo` finds modules of this folder"
    else:
        return ""
    near = difflib.get_close_matches(match[2].replace("-", "_"), names, n=1)
    return f"; did you mean '{near[0]}'?" if near else ""
