"""The `vizoo` command: a table of names; a command's module is imported when it is called."""

from __future__ import annotations

import argparse
import atexit
import difflib
import gc
import importlib
import io
import itertools
import os
import platform
import re
import sys
import traceback
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any, NoReturn

from .common.memory import keep_freed_memory, ran_out_of_memory

__all__ = ["lightning", "main"]

atexit.register(gc.unfreeze)  # libraries complain of what is left when Python ends


class Command:
    """One row of the table.

    Args:
        module: inside the package; has ``add_arguments(parser)`` and ``run(args) -> int``, or,
            where ``raw``, only ``run(words) -> int``.
        help: what it does, in half a line.
        *examples: command lines.
        raw: the module parses its own words and has its own examples.
        whole: the module's ``run`` also takes this table.
        resumes: typed again after Ctrl+C, it goes on; not of those that are ``raw``.
        alone: several processes, as torchrun starts them, would each do all of its work.
    """

    def __init__(
        self,
        module: str,
        help: str,
        *examples: str,
        raw: bool = False,
        whole: bool = False,
        resumes: bool = False,
        alone: bool = False,
    ) -> None:
        self.module, self.help, self.examples = module, help, examples
        self.raw, self.whole, self.resumes, self.alone = raw, whole, resumes, alone

    def load(self) -> ModuleType:
        """Its module."""
        if (name := f"{__package__}.{self.module}") in sys.modules:
            return sys.modules[name]
        collects = gc.isenabled()
        # What modules make stays: to look for garbage in it takes a fifth of the start.
        gc.disable()
        try:
            return importlib.import_module(name)
        finally:
            gc.freeze()
            if collects:
                gc.enable()


COMMANDS: dict[str, Command | dict[str, Command]] = {
    "demo": Command(
        "cli.demo",
        "what the zoo can do on this machine, or with a pair of yours, as one page",
        "vizoo demo",
        "vizoo demo left.png right.png --calib calib.txt",
        "vizoo demo --train --out my_demo",
    ),
    "serve": Command(
        "cli.serve",
        "a page in the browser to try stereo on: two images in, disparity and a cloud out",
        "vizoo serve",
        "vizoo serve --model easnet_small last.ckpt --port 8000",
        "vizoo serve --model supernet.safetensors --device cuda",
        "vizoo serve --host 0.0.0.0 --name stereo.example.org --max-upload 50",
    ),
    "fit": Command("cli.fit", "train a model from a config", raw=True),
    "validate": Command("cli.fit", "run the validation set through a model", raw=True),
    "test": Command("cli.fit", "run the test set through a model", raw=True),
    "predict": Command("cli.fit", "run the prediction set through a model", raw=True),
    "infer": {
        "stereo": Command(
            "cli.infer_stereo",
            "disparity, depth and a point cloud of stereo pairs",
            "vizoo infer stereo left.png right.png --out result",
            "vizoo infer stereo left.png right.png --calib calib.txt --out result",
            "vizoo infer stereo 'left/*.png' 'right/*.png' --model last.ckpt --out result",
            "vizoo infer stereo left right --raw camchain.yaml --out result",
        ),
        "video": Command(
            "cli.infer_video",
            "disparity of a stereo video, folder, camera or ROS bag, as a video or frames",
            "vizoo infer video left.mp4 right.mp4 --out result",
            "vizoo infer video stereo.mp4 --layout side-by-side --steady --out result",
            "vizoo infer video camera:0 camera:1 --format video png --out result",
            "vizoo infer video bag --topics /left/image_raw /right/image_raw --format rrd "
            "--out result",
        ),
        "mvs": Command(
            "cli.infer_mvs",
            "depth maps and a fused cloud of photographs with cameras",
            "vizoo infer mvs scan9 --out result",
            "vizoo infer mvs scan9 --model last.ckpt --size 576x768 --views 7 "
            "--range 425 935 --out result",
            resumes=True,
        ),
        "panorama": Command(
            "cli.infer_panorama",
            "depth, a point cloud and a surface of equirectangular panoramas",
            "vizoo infer panorama room.jpg --out result",
            "vizoo infer panorama 'rooms/*.png' --model spheredepth.safetensors "
            "--format exr --out result",
        ),
        "image": Command(
            "cli.infer_image",
            "class of images, and where the networks looked (research software)",
            "vizoo infer image lesion.jpg --model last.ckpt --out result",
            "vizoo infer image photos --model ensemble.json --tta --out result --csv all.csv",
        ),
        "ct": Command(
            "cli.infer_ct",
            "class of chest CT scans, and where the network looked (research software)",
            "vizoo infer ct series --model last.ckpt --out result",
            "vizoo infer ct 'scans/*.nii.gz' --model last.ckpt --out result --csv scans.csv",
            "vizoo infer ct series --model last.ckpt --out result --method grad-cam "
            "--layer stages.1 --class NCP",
        ),
    },
    "rectify": Command(
        "cli.rectify",
        "raw pairs of a calibrated rig as rectified ones",
        "vizoo rectify calibration.yml 'left/*.png' 'right/*.png' --out rectified",
        "vizoo rectify camchain.yaml left right --cameras 0 1 --fov 90 --out rectified",
    ),
    "calibrate": {
        "stereo": Command(
            "cli.calibrate_stereo",
            "a stereo rig by pictures of a board of squares",
            "vizoo calibrate stereo 'left/*.png' 'right/*.png' --board charuco --squares 8x6 "
            "--square 30mm --marker 22mm --out calibration",
            "vizoo calibrate stereo left right --board chessboard --squares 10x7 --square 25mm "
            "--lens fisheye --out calibration",
        ),
    },
    "tune": {
        "stereo": Command(
            "cli.tune_stereo",
            "weights tuned on pairs of your own, without true disparities, where that helps",
            "vizoo tune stereo 'left/*.png' 'right/*.png' --out mine.safetensors",
            "vizoo tune stereo pairs --from easnet_small.worlds --minutes 30 --out m.safetensors",
        ),
    },
    "evaluate": {
        "mvs": Command(
            "cli.evaluate_mvs",
            "how near a cloud is to true points: F-score, or the DTU benchmark's distances",
            "vizoo evaluate mvs result/cloud.ply truth.ply --distance 0.01",
            "vizoo evaluate mvs result/cloud.ply 'DTU/MVS Data' --scan 9",
        ),
    },
    "ensemble": Command(
        "cli.ensemble",
        "several image classifiers as one, calibrated on validation data",
        "vizoo ensemble a.ckpt b.ckpt --data classification/skin10.yaml --out ensemble.json",
        "vizoo ensemble a.ckpt detector.ckpt --method weighted --data mine.yaml --tta "
        "--out ensemble.json",
    ),
    "world": Command(
        "cli.world",
        "write generated rooms, homes, streets and table tops as stereo pairs, views or panoramas",
        "vizoo world out/pairs --count 20",
        "vizoo world out/views --camera views --place room --views 12 --layout colmap",
        "vizoo world out/panoramas --camera panorama --place room --textures my/photographs",
    ),
    "scene": Command(
        "cli.scene",
        "write a generated room as a multi-view scene, with exact depth, in a published layout",
        "vizoo scene out/scene",
        "vizoo scene out/colmap --layout colmap --views 12 --truth out/truth.ply",
    ),
    "rooms": Command(
        "cli.rooms",
        "write generated panoramas of rooms to disk, with exact depth, in a published layout",
        "vizoo rooms out/rooms --layout matterport3d",
        "vizoo rooms out/rooms --layout 3d60 --rooms 100 10 10 --size 256x512",
    ),
    "scans": Command(
        "cli.scans",
        "write generated CT scans of chests to disk, with lesions of known place",
        "vizoo scans out/scans --layout dicom",
        "vizoo scans out/scans --layout mosmed --scans 100 20 20 --size 128x128 --slices 40",
    ),
    "models": Command(
        "cli.models",
        "list the models with their size, cost and weights",
        "vizoo models",
        "vizoo models 'stereo/*'",
        "vizoo models 'fadnet_plus_*' --json",
        "vizoo models --pretrained --fetch",
    ),
    "bench": Command(
        "cli.bench",
        "time a model on this machine",
        "vizoo bench fadnet_plus_tiny",
        "vizoo bench fadnet_plus_tiny --size 384x1280 --threads 2 --dtype bfloat16 --json",
        "vizoo bench ops --device cuda --dtype bfloat16",
    ),
    "comm": {
        "measure": Command(
            "cli.comm_measure",
            "what messages between processes take: here, or among the processes of torchrun",
            "vizoo comm measure --processes 4 --out link.json",
            "torchrun --nnodes 2 --nproc-per-node 8 ... -m vizoo comm measure --device cuda "
            "--out link.json",
        ),
        "plan": Command(
            "cli.comm_plan",
            "how gradients should travel: plain, merged or compressed, on a given link",
            "vizoo comm plan --model easnet_light --link 10gbe-8",
            "vizoo comm plan --model easnet_light --link link.json --processes 64",
            "vizoo comm plan --model fadnet_plus_tiny --device cuda --processes 16 "
            "--alpha 1e-4 --beta 1e-10",
        ),
    },
    "latency": {
        "build": Command(
            "cli.latency_build",
            "measure subnets of a supernet here, as a table that predicts others",
            "vizoo latency build --model easnet_extended --input 288x576 --threads 2 "
            "--out easnet_cpu.json",
            "vizoo latency build --model easnet_extended --device cuda --dtype float16 "
            "--out easnet_gpu.json",
            resumes=True,
        ),
        "show": Command(
            "cli.latency_show",
            "what a latency table says, and how well it predicts",
            "vizoo latency show easnet_cpu.json",
            "vizoo latency show easnet_cpu.json --json",
        ),
    },
    "subnet": Command(
        "cli.subnet",
        "the best subnet of a trained supernet that is fast or small enough",
        "vizoo subnet --supernet last.ckpt --max-latency 200ms --table easnet_cpu.json "
        "--out small.safetensors",
        "vizoo subnet --supernet last.ckpt --max-params 2M --recalibrate "
        "search/easnet_shrinking_generated.yaml --out small.safetensors",
        "vizoo subnet --supernet last.ckpt --architecture small.json --out same.safetensors",
        alone=True,
    ),
    "search": Command(
        "cli.search",
        "the best subnets for every latency or size, as a table and a picture",
        "vizoo search --supernet last.ckpt --data search/easnet_shrinking_generated.yaml "
        "--metric val/epe --table easnet_cpu.json --out front",
        "vizoo search --tree leaves/tree.json --data search/nas_lid_nasbench201.yaml "
        "--metric val/loss --direct --input 32x32 --out front",
        resumes=True,
    ),
    "split": Command(
        "cli.split",
        "part a supernet where its values want different weights, as a tree of splits",
        "vizoo split --supernet last.ckpt --data search/nas_lid_nasbench201.yaml --out tree.json",
        "vizoo split --supernet easnet_light.generated --data "
        "search/easnet_light_generated.yaml --choices 'stages.0.*' --k 5 --batch-size 8 "
        "--batches 2 --out tree.json",
        alone=True,
    ),
    "rank": Command(
        "cli.rank",
        "subnets by what they reach with inherited weights, compared with a benchmark's truth",
        "vizoo rank --tree leaves/tree.json --data search/nas_lid_nasbench201.yaml "
        "--metric val/accuracy --truth accuracy.npz --benchmark nasbench201 --out ranking",
        resumes=True,
        alone=True,
    ),
    "compare": Command(
        "cli.compare",
        "networks made by hand against searched ones, by one recipe and several seeds",
        "vizoo compare --config compare/generated.yaml --out report",
        "vizoo compare --config compare/cifar10.yaml --out report --json",
        resumes=True,
        alone=True,
    ),
    "convert": Command(
        "cli.convert",
        "turn a published checkpoint into safetensors",
        "vizoo convert model_best.pth fadnet_plus_tiny.safetensors",
    ),
    "release": Command(
        "cli.release",
        "trained weights as a folder to publish, with config and model card",
        "vizoo release last.ckpt --out fadnet_release --licence Apache-2.0 "
        "--trained-on 'generated scenes'",
        "vizoo release last.ckpt --out fadnet_release --licence Apache-2.0 "
        "--trained-on 'Scene Flow' --metric sceneflow:epe=0.8 "
        "--command 'vizoo test --config stereo/fadnet_sceneflow.yaml' --push org/fadnet",
    ),
    "export": Command(
        "cli.export",
        "write a model as ONNX, OpenVINO, torch.export or other formats, checked",
        "vizoo export fadnet_plus_tiny --to onnx --dynamic --out tiny.onnx",
        "vizoo export last.ckpt --to torch-export --size 384x1280 --out net.pt2",
    ),
    "doctor": Command(
        "cli.doctor",
        "what works on this machine, and how to get the rest",
        "vizoo doctor",
        "vizoo doctor --json",
    ),
    "completion": Command(
        "cli.completion",
        "commands, options and files by the Tab key, in bash, zsh and tcsh",
        "vizoo completion bash",
        "vizoo completion zsh",
        whole=True,
    ),
}
_PACKAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")
_pythons_format = warnings.formatwarning
_LIGHTNING = ("fit", "validate", "test", "predict")
_ABOUT = "A vision model zoo and neural-architecture-search toolkit on PyTorch and Lightning."
_WELCOME = f"""\
{_ABOUT} Try:

  vizoo demo                                         all it can do, on one page, in two minutes
  vizoo infer stereo LEFT RIGHT --out result         disparity of your own images, as files
  vizoo fit --config stereo/fadnet_generated.yaml    train a network; nothing to download

All commands: vizoo --help. One of them, with examples: vizoo COMMAND --help"""


def main(args: list[str] | None = None) -> int:
    """Run a command.

    Args:
        args: what was typed after `vizoo`; None takes it from the command line.

    Returns:
        The exit code: 0; 1 where some of several inputs failed; 2 for what the user can put
        right, said in one line on stderr; 130 after Ctrl+C.
    """
    words = list(sys.argv[1:] if args is None else args)
    _open_streams()
    if os.environ.get("NO_COLOR"):
        # Plain text: without colours alone, rich would still write bold text and redraw bars.
        os.environ["TERM"] = "dumb"
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    show = "--traceback" in words or os.environ.get("VIZOO_TRACEBACK", "0") not in ("", "0")
    words = [word for word in words if word != "--traceback"]
    # Lightning's own, said anew for every loader: the user can do nothing about it.
    warnings.filterwarnings("ignore", message=".*isinstance\\(treespec, LeafSpec\\)")
    # The bar and its lines show what is logged in short epochs; workers are the config's.
    warnings.filterwarnings("ignore", message="The number of training batches|This DataLoader will")
    warnings.formatwarning = _format_warning
    try:
        code = _dispatch(words)
        sys.stdout.flush()
        return code
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except KeyboardInterrupt:
        print("\nvizoo: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader has gone (`vizoo models | head`); Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        if not _is_users(error):
            raise
        if show:
            traceback.print_exc()
        print(f"vizoo: error: {_one_line(error)}", file=sys.stderr)
        return 2


def lightning(args: list[str] | None = None) -> int:
    """The `lightning` command: ours for fit, validate, test and predict, else Lightning's SDK."""
    words = list(sys.argv[1:] if args is None else args)
    if words and words[0] in _LIGHTNING:
        return main(words)
    sdk = _lightning_sdk()
    if sdk is not None:
        sys.argv = ["lightning", *words]
        return sdk() or 0
    asked = words[0] if words else ""
    usage = f"`lightning {'|'.join(_LIGHTNING)}` runs as `vizoo` does"
    if asked in ("", "-h", "--help"):
        print(f"{usage}; other words need `pip install lightning-sdk`. See `vizoo --help`.")
        return 0
    print(
        f"lightning: error: {asked!r} is a command of lightning-sdk, which is not installed "
        f"(pip install lightning-sdk); {usage}",
        file=sys.stderr,
    )
    return 2


def _open_streams() -> None:
    """Let nothing that is printed fail: with stdout or stderr closed, or of few characters."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # what is meant for a closed stderr would go to stdout
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def _format_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """Our own for people, in one line; those of libraries with the place, as Python has them."""
    inside = filename.removeprefix(_PACKAGE)
    if category is UserWarning and inside != filename and "site-packages" not in inside:
        return f"vizoo: warning: {message}\n"
    return _pythons_format(message, category, filename, lineno, line)


def _dispatch(words: list[str]) -> int:
    if not words:
        print(_WELCOME)
        return 0
    if words[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if words[0] in ("-v", "-V", "--version"):
        print(_version())
        return 0
    name, *rest = words
    entry = _look_up(name, COMMANDS, "vizoo")
    if isinstance(entry, dict):
        if not rest or rest[0] in ("-h", "--help"):
            print(_table_help(name, entry))
            return 0 if rest else 2
        kind, *rest = rest
        entry, name = _look_up(kind, entry, f"vizoo {name}"), f"{name} {kind}"
    if name == "fit":
        # Threads that spin while they wait would take the cores of the data workers.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    module = entry.load()
    keep_freed_memory()
    if entry.raw:
        return module.run([name, *rest])
    parsed = _parser(name, entry, module).parse_args(rest)
    if entry.alone and os.environ.get("WORLD_SIZE", "1") != "1":
        how = "start it without torchrun (WORLD_SIZE); fit, search and comm measure use several"
        raise ValueError(f"vizoo {name} runs in one process: {how}")
    try:
        return module.run(parsed, COMMANDS) if entry.whole else module.run(parsed)
    except KeyboardInterrupt:
        if not entry.resumes:
            raise
        anew = [f" without --{word}" for word in ("force", "restart") if vars(parsed).get(word)]
        how = f"run it again{''.join(anew)} to go on from what is finished"
        print(f"\nvizoo: interrupted; {how}", file=sys.stderr)
        return 130


def _look_up(name: str, table: dict, prefix: str) -> Any:
    if name in table:
        return table[name]
    near = difflib.get_close_matches(name, table, n=1, cutoff=0.5)
    hint = f"did you mean `{prefix} {near[0]}`?" if near else f"there are {', '.join(table)}"
    raise ValueError(f"{prefix} has no command {name!r}; {hint}")


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line and name the nearest option."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Look for unknown options first: where a required one is mistyped, it seems to miss.

        Options may stand between arguments; behind a ``--`` there are none.
        """
        for word in itertools.takewhile("--".__ne__, args):
            if re.match("--[a-z]", word) and (
                word.partition("=")[0] not in self._option_string_actions
            ):
                self.error(f"unrecognized arguments: {word}")
        parsed, left = self.parse_known_args(args, namespace)
        if not left:
            return parsed
        # What is behind a -- would be taken for options there, until Python 3.12.8.
        again = super().parse_args if "--" in args else super().parse_intermixed_args
        return again(args, namespace)

    def error(self, message: str) -> NoReturn:
        hint = ""
        if message.startswith("unrecognized arguments: -"):
            word = message.split()[2].partition("=")[0]
            near = difflib.get_close_matches(word, self._option_string_actions, 1, 0.7)
            hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"{message}{hint} (see `{self.prog} --help`)")


def _parser(name: str, entry: Command, module: ModuleType) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=f"vizoo {name}",
        description=f"{entry.help[0].upper()}{entry.help[1:]}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.add_arguments(parser)
    parser.epilog = parser.epilog or _examples(entry.examples)
    return parser


def _examples(lines: tuple[str, ...]) -> str:
    return "\n".join(("examples:", *(f"  {line}" for line in lines)))


def _table_help(name: str, table: dict[str, Command]) -> str:
    rows = (f"  {kind:<10} {entry.help}" for kind, entry in table.items())
    lines = tuple(line for entry in table.values() for line in entry.examples)
    head = f"usage: vizoo {name} {{{','.join(table)}}} ..."
    return "\n".join((head, "", "commands:", *rows, "", _examples(lines)))


def _version() -> str:
    from importlib.metadata import version

    from . import __version__

    return f"vizoo {__version__} (Python {platform.python_version()}, torch {version('torch')})"


def _overview() -> str:
    rows: list[str] = []
    for name, entry in COMMANDS.items():
        table = {"": entry} if isinstance(entry, Command) else entry
        rows += (f"  {f'{name} {kind}':<16} {row.help}" for kind, row in table.items())
    listed = "\n".join(rows)
    return f"""\
usage: vizoo COMMAND ...

{_ABOUT}

commands:
{listed}

options:
  -h, --help     show this, or a command's own help after its name
  -v, --version  show the version, and those of Python and PyTorch
  --traceback    show where an error came from (or VIZOO_TRACEBACK=1)

examples:
  vizoo demo
  vizoo infer stereo left.png right.png --out result
  vizoo fit --config stereo/fadnet_generated.yaml
  vizoo models 'stereo/*'
  vizoo doctor"""


def _is_users(error: Exception) -> bool:
    if isinstance(error, (ValueError, OSError, ImportError)) or ran_out_of_memory(error):
        return True
    return "MisconfigurationException" in {kind.__name__ for kind in type(error).__mro__}


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    text = " ".join(str(error).split()) or type(error).__name__
    frames = list(traceback.walk_tb(error.__traceback__))
    where = frames[-1][0].f_globals.get("__name__", "") if frames else ""
    if where == __name__ or where.startswith(f"{__package__}.") or isinstance(error, OSError):
        return text
    return f"{text} ({type(error).__name__}; --traceback shows where)"


def _lightning_sdk() -> Callable[[], Any] | None:
    from importlib.metadata import entry_points

    for point in entry_points(group="console_scripts", name="lightning"):
        if point.value.startswith("lightning_sdk"):
            return point.load()
    try:
        return importlib.import_module("lightning_sdk.cli.entrypoint").main_cli
    except (ImportError, AttributeError):
        return None


if __name__ == "__main__":
    sys.exit(main())
