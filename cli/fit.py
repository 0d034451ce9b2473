"""`vizoo fit`, `validate`, `test`, `predict`: LightningCLI in subclass mode.

Public hooks only. What it adds to Lightning: built-in configs are found by name, a checkpoint may
not silently override the config, every fit leaves a ``last.ckpt``, errors are one line.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.utilities.exceptions import SIGTERMException
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from ..common.interrupts import raised_interrupts
from ..vision.callbacks import KeepLast, StopTogether
from ..vision.configs.builtin import read_config, resolve_config
from ..vision.configs.messages import condense, own_words
from ..vision.progress import ProgressLines
from ._lightning import HelpFormatter, SavedConfig, VizooCLI

_SUBCOMMANDS = {
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
seeds: 0 unless --seed_everything (weights; true: a random one) and --data.seed (order of samples,
  augmentation, held-out share) say otherwise.
"""


def run(args: list[str]) -> int:
    """Run one subcommand, by its name and arguments as typed.

    Returns:
        0, or 130 after an interrupt and 143 after SIGTERM.
    """
    if len(args) == 1:
        raise ValueError(
            f"{args[0]}: give a --config, such as vizoo {args[0]} --config "
            f"stereo/fadnet_generated.yaml (see `vizoo {args[0]} --help`)"
        )
    logging.getLogger("lightning.pytorch.utilities.rank_zero").addFilter(_no_advertisement)
    if any(word in ("-h", "--help") for word in args[1:]):
        return _help(_resolve_configs(args))
    keeper = KeepLast()
    try:
        with raised_interrupts():
            _cli(_resolve_configs(args), keeper)
    except argparse.ArgumentError as error:
        raise ValueError(condense(str(error))) from error
    except (Exception, SIGTERMException) as error:
        _tell_how_to_resume(args, keeper, _unless_started_again())
        # A signal to the whole group kills what loads data first, which fails in several ways.
        if keeper.terminated or isinstance(error, SIGTERMException):
            return 143
        # Lightning says a metric that `EarlyStopping` misses by a RuntimeError.
        if isinstance(error, ValueError) or str(error).startswith("Early stopping conditioned on"):
            raise ValueError(condense(str(error))) from error
        if isinstance(error, FileNotFoundError) and error.strerror is None:
            raise FileNotFoundError(own_words(str(error))) from error
        raise
    except KeyboardInterrupt:
        if keeper.interruption is None or args[0] != "fit":  # before any training
            raise
        if keeper.written:
            _tell_how_to_resume(args, keeper)
        else:
            rank_zero_only(print)(
                "vizoo: stopped before last.ckpt was written: start it again", file=sys.stderr
            )
        return 130
    finally:
        keeper.remove_empty_runs()
    if keeper.written:
        rank_zero_only(print)(f"last checkpoint: {keeper.path}")
    return 0


def _resolve_configs(args: list[str]) -> list[str]:
    """Replace the names of built-in configs by their paths."""
    args = list(args)
    for index, prefix, name in _configs(args):
        args[index] = prefix + resolve_config(name)
    return args


def _configs(args: list[str]) -> Iterator[tuple[int, str, str]]:
    """Which words name a config, what stands before the name there, and the name."""
    for index, word in enumerate(args):
        flag, equals, value = word.partition("=")
        if flag in ("-c", "--config"):
            if equals:
                yield index, f"{flag}=", value
            elif index + 1 < len(args):
                yield index + 1, "", args[index + 1]


def _help(args: list[str]) -> int:
    """Print a subcommand's help, then the options of the model and the data that configs name."""
    classes: dict[str, str | None] = {}
    for _, _, config in _configs(args):
        for part, described in read_config(config).items():
            if part in ("model", "data") and isinstance(described, dict):
                classes[part] = described.get("class_path", classes.get(part))
    pages = [[args[0], "--help"]]
    pages += [[args[0], f"--{part}.help={name}"] for part, name in classes.items() if name]
    for words in pages:
        with contextlib.suppress(SystemExit):  # how a parser ends after its help
            _cli(words, KeepLast())
    return 0


def _cli(args: list[str], keeper: KeepLast) -> VizooCLI:
    # An abbreviated option would be taken for another one by the next version that has more.
    common = {"exit_on_error": False, "formatter_class": HelpFormatter, "allow_abbrev": False}
    name = args[0]
    return VizooCLI(
        name,
        model_class=LightningModule,
        datamodule_class=LightningDataModule,
        subclass_mode_model=True,
        subclass_mode_data=True,
        seed_everything_default=0,
        save_config_callback=SavedConfig,
        # Without it the second run into a folder fails.
        save_config_kwargs={"overwrite": True},
        trainer_defaults={"callbacks": [keeper, ProgressLines(), StopTogether()]},
        auto_configure_optimizers=False,
        parser_kwargs={
            "prog": "vizoo",
            **common,
            name: {
                "usage": f"vizoo {name} --config FILE [options]",
                "description": f"{_SUBCOMMANDS[name]}.\n\n{_EXAMPLES.format(name=name)}",
                **common,
            },
        },
        args=args,
    )


def _unless_started_again() -> str:
    """What is said first where torchrun may start the processes again after one that failed."""
    restarts = (os.environ.get(f"TORCHELASTIC_{n}", 0) for n in ("RESTART_COUNT", "MAX_RESTARTS"))
    done, most = map(int, restarts)
    return "if torchrun does not start it again, " if done < most else ""


def _tell_how_to_resume(args: list[str], keeper: KeepLast, first: str = "") -> None:
    if keeper.path is None or not keeper.written:
        return
    kept = []
    words = iter(args)
    for word in words:
        if word == "--ckpt_path":
            next(words, None)
        elif not word.startswith("--ckpt_path="):
            kept.append(word)
    # `-m` finds classes of the current folder, which may be what is trained.
    by_module = Path(sys.argv[0]).resolve() == Path(__file__).resolve().parents[1] / "__main__.py"
    program = ["python", "-m", "vizoo"] if by_module else ["vizoo"]
    command = shlex.join([*program, *kept, "--ckpt_path", os.fspath(keeper.path)])
    rank_zero_only(print)(f"vizoo: stopped; {first}resume with: {command}", file=sys.stderr)


def _no_advertisement(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("💡")
