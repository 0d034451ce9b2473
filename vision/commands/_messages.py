"""Messages of jsonargparse, said in one line."""

from __future__ import annotations

import difflib
import importlib
import inspect
import re

__all__ = ["condense", "own_words"]

_NOISE = (
    "Does not validate against any of the Union subtypes",
    "Subtypes:",
    "Errors:",
    "Expected a <class 'NoneType'>",
    "Given value type:",
)


def condense(message: str) -> str:
    """Leave of a many-line message what the user can act on.

    Args:
        message: from jsonargparse, which tries every subtype of a union and reports all of them.

    Returns:
        One line; for an unknown option with the nearest known one.

    Example:
        >>> condense('Parser key "a":\\n  Errors:\\n    - Option \\'b\\' is not accepted')
        'Parser key "a": Option \\'b\\' is not accepted'
    """
    message = own_words(message)
    lines = [line.strip().removeprefix("- ") for line in message.splitlines()]
    kept = [line for line in lines if line and not line.startswith(_NOISE)]
    if "subtypes" in message:
        kept = [line for line in kept if not line.startswith("Given value:")]
    if any("Problem with given class_path" in line for line in kept):
        kept = [line for line in kept if not line.startswith("Expected a path but")]
    text = " ".join(kept) or message.strip()
    text = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", text)
    text = re.sub(r"Expected an? (\w+)\.? (?:Got|Given) value:", r"expected \1, got", text)
    return text + _nearest_option(text)


def own_words(message: str) -> str:
    """Leave of an error that a process that loads data sent the error's own message.

    PyTorch puts that process's whole traceback into the message; the error stands in its last line.
    """
    message = message.strip()
    if message.startswith("Caught ") and " in DataLoader worker process " in message:
        return message.splitlines()[-1].partition(": ")[2]
    return message


def _nearest_option(text: str) -> str:
    option = re.search(r"Option '(\w+)' is not accepted", text)
    owners = re.findall(r"class_path '([\w.]+)\.(\w+)'", text)
    if not option or not owners:
        return ""
    cls = getattr(importlib.import_module(owners[-1][0]), owners[-1][1], None)
    if not inspect.isclass(cls):
        return ""
    names = [name for name in inspect.signature(cls).parameters if name != "self"]
    near = difflib.get_close_matches(option[1], names, n=1)
    return f"; did you mean '{near[0]}'?" if near else f"; it takes {', '.join(names) or 'none'}"
