"""`vizoo completion`: a script by which a shell completes commands, options and files."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..vision.configs.builtin import list_configs

_SHELLS = ("bash", "zsh", "tcsh")
_INSTALL = """\
To install, run the line of your shell and open a new one:
  echo 'eval "$(vizoo completion bash)"' >> ~/.bashrc
  echo 'autoload -Uz compinit; compinit; eval "$(vizoo completion zsh)"' >> ~/.zshrc
  vizoo completion tcsh > ~/.vizoo.tcsh; echo 'source ~/.vizoo.tcsh' >> ~/.tcshrc"""
_CONFIG = {"bash": "_vizoo_config_file", "zsh": "_vizoo_config_file", "tcsh": "f:*.yaml"}
_PREAMBLES = {
    "bash": """\
_vizoo_config_file() {{
  compgen -f -X '!*.yaml' -- "$1"
  compgen -d -- "$1"
  compgen -W "{names}" -- "$1"
}}""",
    "zsh": """\
_vizoo_config_file() {{
  _alternative 'files:file:_files -g "*.yaml"' 'configs:built-in config:({names})'
}}""",
    "tcsh": "",
}
_PATHS = {"cloud", "images", "left", "members", "model", "right", "scans", "scene", "truth"}
"""Positional arguments: a file, a folder or a glob, whatever the help calls it."""

_OPTIONS_OF_RUNS = {
    "-c --config": "CONFIG",
    "--ckpt_path": "FILE",
    "--model.init_weights": "FILE",
    "--data.batch_size": "N",
    "--trainer.max_epochs": "N",
    "--trainer.accelerator": "NAME",
    "--trainer.devices": "N",
    "--trainer.logger.save_dir": "DIR",
    "--seed_everything": "N",
}
"""Of `fit`, `validate`, `test` and `predict`, whose own parser takes seconds to import."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.description = f"{parser.description}\n\n{_INSTALL}"
    parser.add_argument("shell", choices=_SHELLS, help="that reads the script")


def run(args: argparse.Namespace, commands: Mapping[str, Any]) -> int:
    """Print the script."""
    print(script(args.shell, commands))
    return 0


def script(shell: str, commands: Mapping[str, Any]) -> str:
    """The script for a shell and a table of commands: by name a row, or a table of rows."""
    import shtab

    parser = argparse.ArgumentParser(prog="vizoo")
    parser.add_argument("-V", "--version", action="store_true", help="show the version")
    _add_commands(parser, commands)
    preamble = _PREAMBLES[shell].format(names=" ".join(list_configs()))
    return shtab.complete(parser, shell, preamble=preamble)


def _add_commands(parser: argparse.ArgumentParser, commands: Mapping[str, Any]) -> None:
    group = parser.add_subparsers()
    for name, entry in commands.items():
        if isinstance(entry, Mapping):
            _add_commands(group.add_parser(name, help=", ".join(entry)), entry)
            continue
        inner = group.add_parser(name, help=entry.help, description=entry.help)
        if entry.raw:
            inner.add_argument("--print_config", action="store_true")
            for options, metavar in _OPTIONS_OF_RUNS.items():
                inner.add_argument(*options.split(), metavar=metavar)
        else:
            entry.load().add_arguments(inner)
        for action in inner._actions:
            _complete_paths(action)


def _complete_paths(action: Any) -> None:
    """Mark what takes a file, a folder or a config, by what stands for it in the help."""
    import shtab

    metavar, action.metavar = action.metavar, None  # zsh would read the colon of `DATA:NAME`
    words = metavar.split("|") if isinstance(metavar, str) else []
    if action.choices or action.nargs == 0:
        return
    if "DIR" in words or "OUT" in words:
        action.complete = shtab.DIRECTORY
    elif "CONFIG" in words:
        action.complete = _CONFIG
    elif "FILE" in words or action.type is Path:
        action.complete = shtab.FILE
    elif not action.option_strings and action.dest in _PATHS:
        action.complete = shtab.FILE
