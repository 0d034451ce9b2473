"""LightningCLI as the commands that run a config use it."""

from __future__ import annotations

import argparse
import os
import pydoc
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch
from jsonargparse import DefaultHelpFormatter, Namespace
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import (
    BasePredictionWriter,
    Checkpoint,
    ModelCheckpoint,
    RichModelSummary,
    RichProgressBar,
)
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.plugins.io import TorchCheckpointIO

from ..vision.callbacks import WholeCheckpoints
from ..vision.configs.agreement import START, check_agreement
from ..vision.hub.registry import model_info
from ..vision.progress import EpochProgressBar, ParameterTable
from ._work import check_folder, warn

_OWN = {RichProgressBar: EpochProgressBar, RichModelSummary: ParameterTable}
"""What takes the place of Lightning's defaults."""

_PLACES = ("model.init_args", "model.init_args.task.init_args")
"""Where a task's arguments stand: in the model, or in a task that the model trains."""


class _Parser(LightningArgumentParser):
    """Lets an entry of a list take over nothing from an earlier config's of another class.

    jsonargparse keeps what both classes have, such as the height of a generated set for one's own,
    and has no public hook for it.
    """

    def _check_value_key(
        self, action: Any, value: Any, key: str, cfg: Namespace | None, append: bool = False
    ) -> Any:
        earlier = cfg.get(key) if cfg else None
        if cfg and isinstance(value, list) and isinstance(earlier, list):
            if not append and len(value) == len(earlier):
                cfg = cfg.clone()
                pairs = zip(earlier, value, strict=True)
                cfg[key] = [old if _class(new) in ("", _class(old)) else None for old, new in pairs]
        return super()._check_value_key(action, value, key, cfg, append=append)


class HelpFormatter(argparse.RawDescriptionHelpFormatter, DefaultHelpFormatter):
    """Keeps the line breaks of the examples."""


class SavedConfig(SaveConfigCallback):
    """Writes what a run goes by, but never over the files that say so."""

    def setup(self, trainer: lightning.pytorch.Trainer, *args: Any, **kwargs: Any) -> None:
        """Write ``config.yaml``, or ``run_config.yaml`` where that is a file that was named."""
        folder = trainer.log_dir or ""  # broadcasts: every rank asks
        named = {os.path.realpath(str(file)) for file in self.config.get("config") or ()}
        while os.path.realpath(os.path.join(folder, self.config_filename)) in named:
            self.config_filename = f"run_{self.config_filename}"
        try:
            super().setup(trainer, *args, **kwargs)
        except TypeError as error:
            if type(error).__name__ != "PathError":  # jsonargparse's
                raise
            raise OSError(f"the run's config cannot be written: {error}") from error


class VizooCLI(LightningCLI):
    """LightningCLI that stops where a checkpoint would override what the user wrote.

    Args:
        command: the only subcommand whose parser is made, each of which takes as long.
        **settings: LightningCLI's.
    """

    def __init__(self, command: str, **settings: Any) -> None:
        self._command = command
        super().__init__(parser_class=_Parser, **settings)

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]
        """The one that was typed, and the arguments that it skips."""
        return {self._command: LightningCLI.subcommands()[self._command]}

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse, and refuse a checkpoint whose hyper-parameters differ from the ones given."""
        self.config = parser.parse_args(args)
        options = self.config[self.config.subcommand]
        checkpoint = options.get("ckpt_path")
        if checkpoint == "best":
            raise _unnamed(checkpoint)
        if not checkpoint or checkpoint in ("last", "hpc") or "://" in str(checkpoint):
            return
        # Without defaults only what the user wrote is left; a default never contradicts.
        given = parser.parse_args(args, defaults=False)[self.config.subcommand].get("model")
        given = given.as_dict() if hasattr(given, "as_dict") else given or {}
        check_agreement(Path(checkpoint), given, self.config.subcommand)

    def before_instantiate_classes(self) -> None:
        """A checkpoint replaces the weights a stage started from; that file may be gone by now."""
        options = self.config[self.subcommand]
        for inner in _inner_modules(options.get("model.init_args")):
            # Lightning would give it the whole model's hyper-parameters for its own.
            self.parser.add_instantiator(_instantiate, inner, subclasses=False, prepend=True)
        starts = [f"{place}.{START}" for place in _PLACES if options.get(f"{place}.{START}")]
        named = any(_brings_weights(options.get(f"{place}.model")) for place in _PLACES)
        if self.subcommand != "fit" and not (options.get("ckpt_path") or starts or named):
            warn(
                f"no trained weights: {self.subcommand} runs a random network; give --ckpt_path or "
                f"--model.{START}"
            )
        if options.get("ckpt_path") not in (None, "last"):  # where no last one lies a fit starts
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
            trainer: Any = super().instantiate_trainer(**kwargs)  # its type knows no callbacks
        if self.config_init[self.subcommand].get("ckpt_path") == "last" and not any(
            isinstance(callback, ModelCheckpoint) and (callback.dirpath or not trainer.loggers)
            for callback in trainer.checkpoint_callbacks
        ):
            raise _unnamed("last")
        # Here, because among the defaults they would stay where they are switched off.
        trainer.callbacks = [
            _OWN[type(callback)]() if type(callback) in _OWN and callback not in given else callback
            for callback in trainer.callbacks
        ]
        if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:
            trainer.strategy.checkpoint_io = WholeCheckpoints()
        # A trial run writes no files, nor do the other processes.
        if self.subcommand == "fit" and trainer.is_global_zero and not trainer.fast_dev_run:
            _check_folders(trainer)
        writes = any(isinstance(callback, BasePredictionWriter) for callback in trainer.callbacks)
        if self.subcommand == "predict" and not writes and trainer.is_global_zero:
            warn(
                "predictions are written nowhere: --trainer.callbacks+= a writer, such as "
                "vizoo.stereo.task.DisparityWriter or "
                "vizoo.classification.callbacks.PredictionTable; `vizoo infer` has its own"
            )
        return trainer


def _check_folders(trainer: Any) -> None:
    """Refuse places where a run could not write its files; an address is nobody's folder."""
    root = trainer.default_root_dir
    for place in [logger.save_dir for logger in trainer.loggers] or [root]:
        if place and "://" not in str(place):
            option = "default_root_dir" if str(place) == root else "logger"
            check_folder(str(place), f"--trainer.{option}")


def _unnamed(checkpoint: str) -> ValueError:
    """What to raise where Lightning looks among the new run's files, which are not there yet."""
    return ValueError(
        f"--ckpt_path {checkpoint}: name the file, such as "
        "lightning_logs/version_0/checkpoints/last.ckpt"
    )


def _brings_weights(model: Any) -> bool:
    """Whether a model's name is one of trained weights, ``NAME.TAG``."""
    try:
        return isinstance(model, str) and model_info(model).tag is not None
    except ValueError:
        return False


def _inner_modules(config: Any) -> Iterator[type[LightningModule]]:
    """The classes of LightningModules that arguments of a model describe, at any depth."""
    if isinstance(config, (list, tuple)):
        for entry in config:
            yield from _inner_modules(entry)
    elif isinstance(config, (dict, Namespace)):
        for key, value in vars(config).items() if isinstance(config, Namespace) else config.items():
            described = pydoc.locate(value) if key == "class_path" else None
            if isinstance(described, type) and issubclass(described, LightningModule):
                yield described
            yield from _inner_modules(value)


def _instantiate(class_type: type, *args: Any, **kwargs: Any) -> Any:
    return class_type(*args, **kwargs)


def _class(entry: Any) -> str:
    """The last word of its class path, which alone will do; empty where it names no class."""
    path = entry.get("class_path") if isinstance(entry, (dict, Namespace)) else entry
    return path.rpartition(".")[2] if isinstance(path, str) else ""
