"""The `vizoo` and `lightning` commands: table, help, errors."""

import argparse
import gc
import importlib
import io
import itertools
import os
import platform
import shlex
import subprocess
import sys
import types
import warnings
from importlib.metadata import version
from unittest import mock

import pytest
from terminal import run_in_terminal

from vizoo import __main__ as command
from vizoo import __version__
from vizoo.panorama import infer as panorama
from vizoo.stereo import result, sinks
from vizoo.vision.runtimes import RUNTIMES

OWN = ["models", "bench", "convert", "doctor", "demo", "infer stereo"]
OWN += ["latency build", "latency show", "subnet", "search", "completion"]


def vizoo(*words, **options):
    options = {"capture_output": True, "text": True, **options}
    return subprocess.run([sys.executable, "-m", "vizoo", *words], **options)


def test_overview(capsys):
    for words in (["--help"], ["-h"], ["help"]):
        assert command.main(words) == 0
        said = capsys.readouterr().out
        assert all(name.split()[0] in said for name in command.COMMANDS)
        assert "examples:\n  vizoo demo" in said


def test_version(capsys):
    for word in ("--version", "-V", "-v"):
        assert command.main([word]) == 0
        python = platform.python_version()
        said = f"vizoo {__version__} (Python {python}, torch {version('torch')})\n"
        assert capsys.readouterr().out == said


def test_alone_says_what_to_do_next(capsys):
    assert command.main([]) == 0
    said = capsys.readouterr().out
    lines = [line.split("   ")[0].split() for line in said.splitlines() if line[:2] == "  "]
    assert len(lines) == 3 and len(said.splitlines()) < 10 and "vizoo --help" in said
    for line in lines:
        assert line[0] == "vizoo"
        check_example(line[1:], capsys)


@pytest.mark.parametrize("plain", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {"NO_COLOR": ""}])
def test_plain_terminals_get_plain_text(tmp_path, plain):
    """No colours and no bar that is redrawn; NO_COLOR counts where it is not empty."""
    code = """
import sys, types
from vizoo import __main__ as door

def run(words):
    from rich.console import Console
    from vizoo.common.progress import progress, progress_bar
    Console().print("[bold red]words")
    with progress() as report, progress_bar("subnets") as tell:
        for done in range(1, 4):
            report("pairs", done, 3)
            tell(done, 3)
    return 0

sys.modules["vizoo.bars"] = types.ModuleType("vizoo.bars")
sys.modules["vizoo.bars"].run = run
door.COMMANDS["bars"] = door.Command("bars", "draw", raw=True)
sys.exit(door.main(["bars"]))
"""
    done, said = run_in_terminal([sys.executable, "-c", code], **plain)
    assert done == 0 and "words" in said
    if any(plain.values()):
        assert said == "words\r\n"
    else:
        assert "\x1b[1;31mwords" in said and "subnets" in said


@pytest.mark.parametrize("name", OWN)
def test_help_shows_examples(capsys, name):
    assert command.main([*name.split(), "--help"]) == 0
    assert f"examples:\n  vizoo {name}" in capsys.readouterr().out


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from vizoo.__main__ import main; main(['--help']);"
        "heavy = {'torch', 'lightning', 'numpy', 'cv2', 'open3d', 'rich'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_a_wrong_value_imports_nothing_heavy():
    """None waits for the start of what would take the right one."""
    code = (
        "import sys; from vizoo.__main__ import main;"
        "stereo = ['infer', 'stereo', 'l.png', 'r.png', '--out', 'out'];"
        "words = [['--dtype', 'float61'], ['--format', 'exr'], ['--runtime', 'tensorrt']];"
        "wrong = [*([*stereo, *pair] for pair in words), ['serve', '--port', '99999']];"
        "codes = [main(line) for line in wrong];"
        "heavy = {'torch', 'lightning', 'numpy', 'cv2', 'rich'} & set(sys.modules);"
        "sys.exit(0 if codes == [2] * 4 and not heavy else f'{codes}, imported {heavy}')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--port 99999: must be at most 65535" in done.stderr


@pytest.mark.parametrize(
    ("module", "option", "known"),
    [
        ("infer_stereo", "--format", result.FORMATS),
        ("infer_video", "--format", sinks.FORMATS),
        ("infer_panorama", "--format", panorama.FORMATS),
        ("infer_stereo", "--runtime", (*RUNTIMES, "auto")),
        ("subnet", "--runtime", tuple(RUNTIMES)),
    ],
)
def test_choices_are_what_is_known(module, option, known):
    parser = argparse.ArgumentParser()
    importlib.import_module(f"vizoo.cli.{module}").add_arguments(parser)
    (choices,) = (action.choices for action in parser._actions if option in action.option_strings)
    assert choices == known


def test_garbage_is_not_looked_for_while_a_command_is_imported(monkeypatch):
    seen = []

    def load(name):
        seen.append((name, gc.isenabled()))
        return types.ModuleType(name)

    monkeypatch.setattr("importlib.import_module", load)
    row = command.Command("cli.none_such", "fail")
    assert row.load().__name__ == "vizoo.cli.none_such"
    assert seen == [("vizoo.cli.none_such", False)] and gc.isenabled()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["modls"], "vizoo has no command 'modls'; did you mean `vizoo models`?"),
        (["qqqqqq"], "vizoo has no command 'qqqqqq'; there are "),
        (["infer", "sterio"], "did you mean `vizoo infer stereo`?"),
        (["convert", "a.pth", "--outt", "r"], "unrecognized arguments: --outt"),
        (["subnet", "--outt", "r"], "unrecognized arguments: --outt; did you mean --out?"),
        (["doctor", "--jsn"], "unrecognized arguments: --jsn; did you mean --json?"),
        (["bench"], "the following arguments are required: model (see `vizoo bench --help`)"),
    ],
)
def test_errors_are_one_line(capsys, words, says):
    assert command.main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("vizoo: error: ") and says in said and said.count("\n") == 1


@pytest.mark.parametrize("name", ["rank", "split", "subnet", "compare"])
def test_a_command_of_one_process_refuses_several(capsys, monkeypatch, name):
    monkeypatch.setenv("WORLD_SIZE", "2")
    words = {
        "rank": "--supernet a --data b --metric c --out d",
        "split": "--supernet a --data b --out d",
        "subnet": "--supernet a --max-macs 1G --out d",
        "compare": "--config a --out d",
    }[name]
    assert command.main([name, *words.split()]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"vizoo {name} runs in one process: start it without " in said
    for harmless in ([name, "--help"], ["completion", "bash"]):
        assert command.main(harmless) == 0


def test_options_stand_between_arguments_and_none_behind_two_dashes():
    row = command.COMMANDS["rectify"]
    parser = command._parser("rectify", row, row.load())
    for words in ("rig.json --out r a.png b.png", "--out r rig.json a.png b.png"):
        parsed = parser.parse_args(words.split())
        assert (parsed.calibration, parsed.images) == ("rig.json", ["a.png", "b.png"])
    parsed = parser.parse_args(["--out", "r", "--", "rig.json", "-a.png", "--out"])
    assert (str(parsed.out), parsed.images) == ("r", ["-a.png", "--out"])


def test_infer_alone_lists_what_there_is(capsys):
    assert command.main(["infer"]) == 2
    assert "usage: vizoo infer {stereo,video,mvs,panorama,image,ct}" in capsys.readouterr().out


@pytest.fixture
def faulty(monkeypatch):
    """A command that raises what a test puts into it."""
    module = types.ModuleType("vizoo.faulty")
    monkeypatch.setitem(sys.modules, "vizoo.faulty", module)
    row = command.Command("faulty", "fail", "vizoo faulty", raw=True)
    monkeypatch.setitem(command.COMMANDS, "faulty", row)

    def fail(error):
        def run(words):
            raise error

        module.run = run

    return fail


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ValueError("two\n  lines"), "two lines"),
        (FileNotFoundError("x.png: no such image"), "x.png: no such image"),
        (FileNotFoundError(2, "No such file or directory", "x.png"), "x.png: No such file"),
        (PermissionError(13, "Permission denied", "/x"), "/x: Permission denied"),
        (ImportError("libusb-1.0.so.0: cannot open"), "libusb-1.0.so.0: cannot open"),
        (type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory"), "CUDA out of memory"),
    ],
)
def test_the_users_errors(capsys, faulty, error, says):
    faulty(error)
    assert command.main(["faulty"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"vizoo: error: {says}") and said.count("\n") == 1


def test_traceback_on_request(capsys, faulty, monkeypatch):
    faulty(ValueError("odd"))
    assert command.main(["faulty", "--traceback"]) == 2
    assert "Traceback" in capsys.readouterr().err
    monkeypatch.setenv("VIZOO_TRACEBACK", "1")
    assert command.main(["faulty"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_our_own_faults_are_not_hidden(faulty):
    faulty(KeyError("a bug"))
    with pytest.raises(KeyError):
        command.main(["faulty"])


def test_interrupt(capsys, faulty):
    faulty(KeyboardInterrupt())
    assert command.main(["faulty"]) == 130
    assert capsys.readouterr().err == "\nvizoo: interrupted\n"


@pytest.mark.parametrize(
    "words",
    [
        ("infer", "mvs", "scene", "--out", "r"),
        ("latency", "build", "--model", "easnet", "--out", "t.json"),
        ("search", "--supernet", "easnet", "--data", "d.yaml", "--metric", "m", "--out", "r"),
        ("rank", "--supernet", "easnet", "--data", "d.yaml", "--metric", "m", "--out", "r"),
        ("compare", "--config", "c.yaml", "--out", "r"),
    ],
)
def test_what_goes_on_after_an_interrupt_says_so(capsys, monkeypatch, words):
    entry = command.COMMANDS[words[0]]
    entry = entry[words[1]] if isinstance(entry, dict) else entry
    monkeypatch.setattr(entry.load(), "run", mock.Mock(side_effect=KeyboardInterrupt))
    assert command.main(list(words)) == 130
    again = "run it again to go on from what is finished"
    assert capsys.readouterr().err == f"\nvizoo: interrupted; {again}\n"


@pytest.mark.skipif(os.name != "posix", reason="pipes")
def test_the_reader_may_leave():
    reader, writer = os.pipe()
    os.close(reader)
    done = vizoo("--help", capture_output=False, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert done.returncode == 141 and done.stderr == ""


@pytest.mark.parametrize("closed", [1, 2])
def test_without_stdout_or_stderr(closed):
    """As cron jobs and daemons may start it."""
    word = "modls" if closed == 2 else "--version"
    done = vizoo(word, preexec_fn=lambda: os.close(closed))
    assert done.returncode == (0 if closed == 1 else 2)
    assert done.stdout == done.stderr == ""


def test_what_an_encoding_lacks_is_spelled_out(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    monkeypatch.setattr(command, "_dispatch", lambda words: print("für → …") or 0)
    assert command.main([]) == 0
    assert sys.stdout.buffer.getvalue() == rb"f\xfcr \u2192 \u2026" + os.linesep.encode()


def test_python_m_vizoo():
    done = vizoo("modls")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and done.stdout == ""


def test_lightning_runs_ours(capsys):
    assert command.lightning(["fit"]) == 2
    assert capsys.readouterr().err.startswith("vizoo: error: ")


def test_lightning_without_the_sdk(capsys, monkeypatch):
    monkeypatch.setattr(command, "_lightning_sdk", lambda: None)
    assert command.lightning(["run", "x"]) == 2
    assert "lightning-sdk, which is not installed" in capsys.readouterr().err
    assert command.lightning(["--help"]) == 0
    assert "fit|validate|test|predict" in capsys.readouterr().out


def test_lightning_hands_over(monkeypatch):
    heard = []
    sdk = types.ModuleType("lightning_sdk.cli.entrypoint")
    sdk.main_cli = lambda: heard.append(list(sys.argv))
    for name in ("lightning_sdk", "lightning_sdk.cli"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "lightning_sdk.cli.entrypoint", sdk)
    monkeypatch.setattr(sys, "argv", ["lightning"])
    assert command.lightning(["run", "job"]) == 0
    assert heard == [["lightning", "run", "job"]]
    del sdk.main_cli  # a later version may call it otherwise
    assert command.lightning(["run", "job"]) == 2


def examples(capsys, *words: str) -> list[list[str]]:
    """Split the example lines of a command's help; what a shell would redirect is left out."""
    assert command.main([*words, "--help"]) == 0
    text = capsys.readouterr().out
    lines = text[text.index("examples:\n") :].splitlines()[1:]
    lines = list(itertools.takewhile(lambda line: line.startswith("  "), lines))
    assert lines
    split = [shlex.split(line.partition(" > ")[0]) for line in lines]
    assert all(line[0] == "vizoo" for line in split)
    return [line[1:] for line in split]


def check_example(words: list[str], capsys) -> None:
    """Parse an example, without running it."""
    name, *rest = words
    entry = command.COMMANDS[name]
    if isinstance(entry, dict):
        kind, *rest = rest
        entry, name = entry[kind], f"{name} {kind}"
    if not entry.raw:
        module = importlib.import_module(f"vizoo.{entry.module}")
        command._parser(name, entry, module).parse_args(rest)
    elif "mine.yaml" not in rest:  # a file of the reader's own
        rest = [word for word in rest if word != "--print_config"]
        assert command.main([name, *rest, "--print_config"]) == 0
        assert "class_path: " in capsys.readouterr().out


@pytest.mark.parametrize("name", ["", *OWN, "infer", "fit", "test"])
def test_examples_parse(capsys, name):
    for words in examples(capsys, *name.split()):
        check_example(words, capsys)


def test_warnings_of_ours_are_for_people_and_others_keep_their_place(root, monkeypatch, capsys):
    """Also those of a library that lies in the checkout's own environment."""
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    assert command.main(["--version"]) == 0
    ours, libraries = root / "nas/space.py", root / ".venv/lib/site-packages/torch/nn.py"
    said = [warnings.formatwarning("Low.", UserWarning, str(p), 7) for p in (ours, libraries)]
    assert said[0] == "vizoo: warning: Low.\n" and said[1].startswith(f"{libraries}:7: UserWarning")
    assert warnings.formatwarning("Low.", FutureWarning, str(ours), 7).startswith(f"{ours}:7: ")
