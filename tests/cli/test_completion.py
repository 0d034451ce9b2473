"""`vizoo completion`: the scripts, and what bash completes by its own."""

import shutil
import subprocess
import sys

import pytest

from vizoo.__main__ import COMMANDS, main
from vizoo.cli.completion import _SHELLS, script
from vizoo.vision.configs.builtin import list_configs

_ASK = """
source script.bash
words=$(complete -p vizoo)
words=${words#*-F }
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
${words% vizoo}
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def complete(tmp_path, monkeypatch):
    """What bash offers when Tab follows some words."""
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    (tmp_path / "script.bash").write_text(script("bash", COMMANDS))
    monkeypatch.chdir(tmp_path)

    def ask(*words):
        command = ["bash", "--norc", "-c", _ASK, "bash", "vizoo", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout.split()

    return ask


def test_commands(complete):
    assert complete("inf") == ["infer"]
    assert complete("infer", "") == list(COMMANDS["infer"])
    assert complete("") == list(COMMANDS)
    assert complete("completion", "") == list(_SHELLS)


def test_options_and_choices(complete):
    limits = ["--max-latency", "--max-params", "--max-macs", "--max-memory", "--max-loss"]
    assert complete("subnet", "--max-") == limits
    assert complete("infer", "stereo", "--baseline-unit", "") == ["mm", "cm", "m"]
    assert "--json" in complete("infer", "stereo", "left.png", "right.png", "--j")


def test_files_and_folders(complete, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data.png").touch()
    assert sorted(complete("infer", "stereo", "da")) == ["data", "data.png"]
    assert sorted(complete("infer", "stereo", "a", "b", "--model", "da")) == ["data", "data.png"]
    assert complete("infer", "stereo", "--out", "da") == ["data"]
    assert sorted(complete("convert", "da")) == ["data", "data.png"]
    assert complete("models", "da") == []


@pytest.mark.parametrize("verb", ["fit", "validate", "test", "predict"])
def test_runs(complete, tmp_path, verb):
    (tmp_path / "mine.yaml").touch()
    (tmp_path / "last.ckpt").touch()
    for option in ("-c", "--config"):
        assert set(complete(verb, option, "")) == {"mine.yaml", *list_configs()}
    assert "stereo/fadnet_generated.yaml" in complete(verb, "--config", "stereo/fadnet_g")
    assert complete(verb, "--ckpt_path", "la") == ["last.ckpt"]
    assert complete(verb, "--trainer.max") == ["--trainer.max_epochs"]
    assert complete(verb, "--pr") == ["--print_config"]
    assert complete(verb, "--he") == ["--help"]


def test_options_of_runs_exist(capsys):
    """The list is not taken from the runs' own parser."""
    from vizoo.cli.completion import _OPTIONS_OF_RUNS

    assert main(["fit", "--help"]) == 0
    said = capsys.readouterr().out
    for option in " ".join(_OPTIONS_OF_RUNS).split():
        if option.count(".") < 2 and not option.startswith(("--model", "--data")):
            assert option in said


@pytest.mark.parametrize("shell", _SHELLS)
def test_the_shells_own_check(capsys, tmp_path, shell):
    assert main(["completion", shell]) == 0
    path = tmp_path / f"script.{shell}"
    path.write_text(capsys.readouterr().out)
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    subprocess.run([shell, "-n", str(path)], check=True)


def test_the_line_that_installs_it_for_zsh(tmp_path):
    if shutil.which("zsh") is None:
        pytest.skip("needs zsh")
    (tmp_path / "script").write_text(script("zsh", COMMANDS))
    code = 'autoload -Uz compinit; compinit -u -D; eval "$(cat script)"; print ${_comps[vizoo]}'
    done = subprocess.run(["zsh", "-f", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("_shtab_vizoo\n", "")


def test_it_imports_nothing_heavy():
    code = (
        "import sys; from vizoo.__main__ import main; main(['completion', 'bash']);"
        "heavy = {'torch', 'lightning', 'numpy', 'cv2', 'rich'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
