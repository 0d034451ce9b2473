"""`vizoo fit`, `validate`, `test`, `predict`: LightningCLI in subclass mode.

Public hooks only. What it adds to Lightning: built-in configs are found by name, a checkpoint may
not silently override the config, every fit leaves a ``last.ckpt``, errors are one line.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import logging
import os
import pydoc
import shlex
import signal
import sys
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch
import yaml
from jsonargparse import DefaultHelpFormatter, Namespace
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.callbacks import Checkpoint, RichModelSummary, RichProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.utilities.exceptions import SIGTERMException
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from ..common.memory import keep_freed_memory
from ..vision.callbacks import KeepLast, StopTogether, WholeCheckpoints
from ..vision.configs.builtin import resolve_config
from ..vision.configs.messages import condense, own_words
from ..vision.hub.weights import load_pickle
from ..vision.progress import EpochProgressBar, ParameterTable, ProgressLines
from ..vision.training import read_subnet

__all__ = ["VizooCLI", "run"]

SUBCOMMANDS = {
    "fit": "train a model",
    "validate": "run the validation set through a model",
    "test": "run the test set through a model",
    "predict": "run the prediction set through a model",
}
_EXAMPLES = """\
examples:
  vizoo {name} --config stereo/fadnet_generated.yaml
  vizoo {name} --config stereo/fadnet_generated.yaml --trainer.max_epochs 5 --data.batch_size 2
  vizoo {name} --config mine.yaml --ckpt_path lightning_logs/version_0/checkpoints/last.ckpt
  vizoo {name} --config stereo/fadnet_generated.yaml --print_config > mine.yaml

configs: a file here, or a built-in one by name from any folder; several merge from left to right.
callbacks: a later config replaces the earlier one's list; write `trainer: {{callbacks+: [...]}}`
  (or --trainer.callbacks+=...) to add to it. The progress bar and last.ckpt always stay.
checkpoints: --ckpt_path resumes a run, and its hyper-parameters must agree with the config; to
  start a new stage from earlier weights, give --model.init_weights FILE instead.
seed: 0 unless --seed_everything says otherwise (true: a random one).
"""


_OWN = {RichProgressBar: EpochProgressBar, RichModelSummary: ParameterTable}
"""What takes the place of Lightning's defaults."""

_START = "init_weights"
"""The hyper-parameter that names the weights to start from."""

_STARTS = (f"model.init_args.{_START}", f"model.init_args.task.init_args.{_START}")
"""Where it stands: in the model, or in a task that the model trains."""


class _Help(argparse.RawDescriptionHelpFormatter, DefaultHelpFormatter):
    """Keeps the line breaks of the examples."""


class VizooCLI(LightningCLI):
    """LightningCLI that stops where a checkpoint would override what the user wrote."""

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse, then compare the checkpoint's hyper-parameters with the ones given.

        Raises:
            ValueError: they differ; the message names each key.
            FileNotFoundError: no such checkpoint.
        """
        self.config = parser.parse_args(args)
        options = self.config[self.config.subcommand]
        checkpoint = options.get("ckpt_path")
        if not checkpoint or checkpoint in ("best", "last", "hpc") or "://" in str(checkpoint):
            return
        # Without defaults only what the user wrote is left; a default never contradicts.
        given = parser.parse_args(args, defaults=False)[self.config.subcommand].get("model")
        given = given.as_dict() if hasattr(given, "as_dict") else given or {}
        _compare(Path(checkpoint), given, self.config.subcommand)

    def before_instantiate_classes(self) -> None:
        """A checkpoint replaces the weights a stage started from; that file may be gone by now."""
        options = self.config[self.subcommand]
        for inner in _inner_modules(options.get("model.init_args")):
            # Lightning would give it the whole model's hyper-parameters for its own.
            self.parser.add_instantiator(_instantiate, inner, subclasses=False, prepend=True)
        starts = [key for key in _STARTS if options.get(key)]
        trained = options.get("ckpt_path") or starts
        if self.subcommand != "fit" and not trained:
            print(
                f"vizoo: warning: no trained weights: {self.subcommand} runs a random network; "
                f"give --ckpt_path or --model.{_START}",
                file=sys.stderr,
            )
        if options.get("ckpt_path"):
            for key in starts:
                options[key] = None

    def instantiate_trainer(self, **kwargs: Any) -> lightning.pytorch.Trainer:
        """Leave out what is switched off; show epochs, lines and the model in our own way."""
        options = self.config_init[self.subcommand]["trainer"]
        if options.get("enable_checkpointing") is False:
            callbacks = self.trainer_defaults["callbacks"]
            others = [callback for callback in callbacks if not isinstance(callback, Checkpoint)]
            self.trainer_defaults = {"callbacks": others}
        given = options.get("callbacks") or []
        given = list(given) if isinstance(given, list) else [given]  # the trainer adds to the list
        with warnings.catch_warnings():
            # TensorBoard is an extra: metrics.csv is what a fit writes without it.
            warnings.filterwarnings("ignore", message=".*`tensorboardX` has been removed")
            trainer = super().instantiate_trainer(**kwargs)
        # Here, because among the defaults they would stay where they are switched off.
        trainer.callbacks = [
            _OWN[type(callback)]() if type(callback) in _OWN and callback not in given else callback
            for callback in trainer.callbacks
        ]
        if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:
            trainer.strategy.checkpoint_io = WholeCheckpoints()
        return trainer


def run(args: list[str]) -> int:
    """Run one subcommand.

    Args:
        args: the subcommand's name and its arguments, as typed.

    Returns:
        0, or 130 after an interrupt and 143 after SIGTERM.

    Raises:
        ValueError: whatever the user can put right, in one line.
    """
    if len(args) == 1:
        raise ValueError(
            f"{args[0]}: give a --config, such as vizoo {args[0]} --config "
            f"stereo/fadnet_generated.yaml (see `vizoo {args[0]} --help`)"
        )
    logging.getLogger("lightning.pytorch.utilities.rank_zero").addFilter(_no_advertisement)
    if any(word in ("-h", "--help") for word in args[1:]):
        return _help(resolve_configs(args))
    keep_freed_memory()
    keeper = KeepLast()
    handler = signal.getsignal(signal.SIGINT)
    try:
        _cli(resolve_configs(args), keeper)
    except argparse.ArgumentError as error:
        raise ValueError(condense(str(error))) from error
    except (Exception, SIGTERMException) as error:
        _tell_how_to_resume(args, keeper)
        # A signal to the whole group kills what loads data first, which fails in several ways.
        if keeper.terminated or isinstance(error, SIGTERMException):
            return 143
        if isinstance(error, ValueError):
            raise ValueError(condense(str(error))) from error
        if isinstance(error, FileNotFoundError) and error.strerror is None:
            raise FileNotFoundError(own_words(str(error))) from error
        raise
    except SystemExit:
        # Lightning turns Ctrl+C into exit code 1 and leaves the signal ignored.
        if not isinstance(keeper.interruption, KeyboardInterrupt):
            raise
        signal.signal(signal.SIGINT, handler)
        _tell_how_to_resume(args, keeper)
        return 130
    if keeper.written and rank_zero_only.rank == 0:
        print(f"last checkpoint: {keeper.path}")
    return 0


def resolve_configs(args: list[str]) -> list[str]:
    """Replace the names of built-in configs by their paths.

    Raises:
        FileNotFoundError: a config is neither a file nor built in; the nearest are named.
    """
    args = list(args)
    for index, word in enumerate(args):
        flag, equals, value = word.partition("=")
        if flag not in ("-c", "--config"):
            continue
        if equals:
            args[index] = f"{flag}={resolve_config(value)}"
        elif index + 1 < len(args):
            args[index + 1] = resolve_config(args[index + 1])
    return args


def _help(args: list[str]) -> int:
    """Print a subcommand's help, then the options of the model and the data that configs name."""
    classes = {}
    for path in _values(args, ("-c", "--config")):
        for part, described in yaml.safe_load(Path(path).read_text(encoding="utf-8")).items():
            if part in ("model", "data") and isinstance(described, dict):
                classes[part] = described.get("class_path", classes.get(part))
    pages = [[args[0], "--help"]]
    pages += [[args[0], f"--{part}.help={name}"] for part, name in classes.items() if name]
    for words in pages:
        with contextlib.suppress(SystemExit):  # how a parser ends after its help
            _cli(words, KeepLast())
    return 0


def _values(args: list[str], flags: tuple[str, ...]) -> list[str]:
    """What is given to an option, each time it stands there."""
    values = []
    for word, following in itertools.zip_longest(args, args[1:]):
        flag, equals, value = word.partition("=")
        if flag in flags and (equals or following is not None):
            values.append(value if equals else following)
    return values


def _cli(args: list[str], keeper: KeepLast) -> VizooCLI:
    # An abbreviated option would be taken for another one by the next version that has more.
    common = {"exit_on_error": False, "formatter_class": _Help, "allow_abbrev": False}
    return VizooCLI(
        LightningModule,
        LightningDataModule,
        subclass_mode_model=True,
        subclass_mode_data=True,
        seed_everything_default=0,
        # Without it the second run into a folder fails.
        save_config_kwargs={"overwrite": True},
        trainer_defaults={"callbacks": [keeper, ProgressLines(), StopTogether()]},
        auto_configure_optimizers=False,
        parser_kwargs={
            "prog": "vizoo",
            **common,
            **{
                name: {
                    "usage": f"vizoo {name} --config FILE [options]",
                    "description": f"{text}.\n\n{_EXAMPLES.format(name=name)}",
                    **common,
                }
                for name, text in SUBCOMMANDS.items()
            },
        },
        args=args,
    )


def _compare(path: Path, given: dict[str, Any], subcommand: str) -> None:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such checkpoint")
    stored = load_pickle(path, mmap=zipfile.is_zipfile(path))
    if not isinstance(stored, dict) or "pytorch-lightning_version" not in stored:
        raise ValueError(
            f"{path}: not a Lightning checkpoint, so nothing can resume from it; "
            f"weights are given by --model.{_START}"
        )
    stored = dict(stored.get("hyper_parameters") or {})
    wanted = {**given.get("init_args", {}), **given.get("dict_kwargs", {})}
    if "class_path" in given:
        wanted["_class_path"] = given["class_path"]
    differing = [
        difference
        for key, value in sorted(wanted.items())
        if key in stored
        for difference in _differences(f"model.{key.removeprefix('_')}", value, stored[key])
    ]
    if differing:
        instead = "start a new stage from" if subcommand == "fit" else f"{subcommand} with"
        raise ValueError(
            f"{path}: the checkpoint would override your config: {'; '.join(differing)}; make them "
            f"agree, or {instead} its weights alone by --model.{_START} instead of --ckpt_path"
        )


def _differences(key: str, mine: Any, theirs: Any, described: bool = False) -> Iterator[str]:
    """Where two arguments differ, by name; what is left to its default does not contradict."""
    if key.endswith(f".{_START}"):
        return
    if isinstance(mine, dict) and isinstance(theirs, dict):
        # A checkpoint has all arguments of its network, also those that init_weights brought.
        described = described or key.endswith(".model_args")
        if "class_path" in mine and mine["class_path"] == theirs.get("class_path"):
            mine, theirs = mine.get("init_args") or {}, theirs.get("init_args") or {}
            described = True
        if described:
            for name, value in mine.items():
                yield from _differences(f"{key}.{name}", value, theirs.get(name))
            return
    if isinstance(mine, list) and isinstance(theirs, list) and len(mine) == len(theirs):
        if mine and all(isinstance(entry, dict) for entry in (*mine, *theirs)):
            for index, pair in enumerate(zip(mine, theirs, strict=True)):
                yield from _differences(f"{key}.{index}", *pair, described=True)
            return
    if key.endswith(".model_args.subnet") and isinstance(mine, str):
        if not os.path.exists(mine):
            return  # the checkpoint has what was in that file
        mine = read_subnet(mine)
    if not _same(mine, theirs):
        yield f"{key} is {mine!r} here and {theirs!r} there"


def _same(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, (list, tuple)) and isinstance(theirs, (list, tuple)):
        return len(mine) == len(theirs) and all(map(_same, mine, theirs))
    return mine == theirs or str(mine) == str(theirs)


def _inner_modules(config: Any) -> Iterator[type[LightningModule]]:
    """The classes of LightningModules that arguments of a model describe, at any depth."""
    if isinstance(config, (list, tuple)):
        for entry in config:
            yield from _inner_modules(entry)
    elif isinstance(config, (dict, Namespace)):
        for key, value in vars(config).items() if isinstance(config, Namespace) else config.items():
            found = pydoc.locate(value) if key == "class_path" else None
            if isinstance(found, type) and issubclass(found, LightningModule):
                yield found
            yield from _inner_modules(value)


def _instantiate(class_type: type, *args: Any, **kwargs: Any) -> Any:
    return class_type(*args, **kwargs)


def _tell_how_to_resume(args: list[str], keeper: KeepLast) -> None:
    if not keeper.written or rank_zero_only.rank != 0:
        return
    kept = []
    words = iter(args)
    for word in words:
        if word == "--ckpt_path":
            next(words, None)
        elif not word.startswith("--ckpt_path="):
            kept.append(word)
    command = shlex.join(["vizoo", *kept, "--ckpt_path", os.fspath(keeper.path)])
    print(f"vizoo: stopped; resume with: {command}", file=sys.stderr)


def _no_advertisement(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("💡")
