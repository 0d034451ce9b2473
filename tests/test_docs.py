"""README and the pages of docs/: links lead somewhere, commands parse, Python compiles and runs.

Blocks of Python that open with ```` ```python run ```` are run, those of a page as one program;
with ```` ```python run slow ```` in it that is a slow test.
"""

import argparse
import ast
import contextlib
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from vizoo.__main__ import COMMANDS, Command, main
from vizoo.vision.configs.builtin import list_configs
from vizoo.vision.hub.registry import list_models, model_info

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if not {"reference", "_build"} & set(page.parts)]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
EVERY = pytest.mark.parametrize("page", PAGES, ids=NAMES)


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and content of each block of code, of those in lists too."""
    found = re.findall(r"^( *)```([\w ]*)\n(.*?)^\1```", page.read_text(), re.DOTALL | re.MULTILINE)
    return [(language, textwrap.dedent(text)) for _, language, text in found]


def commands(page: Path) -> list[list[str]]:
    """The words behind `vizoo` of each command line; what stands for something else is left out."""
    lines = []
    for language, text in blocks(page):
        if language not in ("", "text", "bash"):
            continue
        for line in text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if "vizoo" in words and words[0] != "pip":
                lines.append(words[words.index("vizoo") + 1 :])
    return lines


@EVERY
def test_links_and_pictures_are_there(page):
    text = page.read_text()
    assert "@@" not in text  # a placeholder for a figure
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text)]
    gone = [x for x in links if x and "://" not in x and not (page.parent / x).exists()]
    assert [x for x in gone if "reference/" not in x] == []


@EVERY
def test_commands_parse(page, capsys):
    for words in commands(page):
        row = COMMANDS.get(words[0])
        assert row is not None, words
        rest = words[1:]
        if not isinstance(row, Command):
            row, rest = row[rest[0]], rest[1:]
        if row.raw:
            configs = [b for a, b in zip(rest, rest[1:], strict=False) if a == "--config"]
            built_in = [x for x in configs if "/" in x and not x.startswith("benchmarks/")]
            assert set(built_in) <= set(list_configs()), words
            continue  # its options: `test_options_of_trainings_parse`
        if "..." in rest:  # and so on
            continue
        parser = argparse.ArgumentParser(prog=f"vizoo {words[0]}")
        row.load().add_arguments(parser)
        with contextlib.suppress(SystemExit):
            parser.parse_args(rest)
            continue
        pytest.fail(f"{shlex.join(words)}: {capsys.readouterr().err}")


def trainings() -> dict[str, list[str]]:
    """Each different line of `vizoo fit` and its like whose configs are there, as it is parsed.

    What only stands for a file is left out, and so are configs that a reader writes.
    """
    found = {}
    for page in PAGES:
        for words in commands(page):
            row = COMMANDS[words[0]]
            if not isinstance(row, Command) or not row.raw:
                continue
            pairs = list(zip(words, [*words[1:], ""], strict=True))
            files = [value for option, value in pairs if option == "--config"]
            known = [file for file in files if file in list_configs() or (ROOT / file).is_file()]
            options = [x for x in words[1:] if x != "--print_config"]
            for file in set(files) - set(known):
                place = options.index(file)
                del options[place - 1 : place + 1]
            if "--ckpt_path" in options:
                place = options.index("--ckpt_path")
                del options[place : place + 2]
            if known and len(options) > 2 * len(known):
                found[shlex.join(words)] = [words[0], *options, "--print_config"]
    return found


TRAININGS = trainings()


@pytest.mark.parametrize("words", TRAININGS.values(), ids=TRAININGS)
def test_options_of_trainings_parse(words, capsys, monkeypatch):
    """Configs alone are parsed where they are tested."""
    monkeypatch.chdir(ROOT)
    assert main(words) == 0, capsys.readouterr().err


@EVERY
def test_python_compiles(page):
    for language, text in blocks(page):
        if language.split()[:1] == ["python"]:
            ast.parse(text)


def programs() -> list:
    """The pages with Python that is run, those with slow blocks as slow tests."""
    rows = []
    for page, name in zip(PAGES, NAMES, strict=True):
        marked = [(language, text) for language, text in blocks(page) if " run" in language]
        if marked:
            slow = [pytest.mark.slow] if any("slow" in language for language, _ in marked) else []
            program = "\n".join(text for _, text in marked)
            rows.append(pytest.param(program, id=name, marks=slow))
    return rows


@pytest.mark.parametrize("program", programs())
def test_python_runs(program, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(program, "page", "exec"), {"__name__": "page"})


def test_a_config_of_ones_own_names_what_its_page_defines():
    texts = blocks(ROOT / "docs/guides/own_network.md")
    trees = [ast.parse(text) for language, text in texts if language.startswith("python")]
    defined = {node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}
    configs = "".join(text for language, text in texts if language == "yaml")
    named = set(re.findall(r"mytask\.(\w+)", configs))
    assert named and named <= defined


def test_the_reference_holds_what_the_page_of_python_imports(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    import _reference

    modules = re.findall(r"^from (vizoo[\w.]*) import", (ROOT / "docs/python.md").read_text(), re.M)
    assert modules and set(modules) <= set(_reference.PUBLIC)


def test_every_page_is_in_the_contents():
    index = (ROOT / "docs/index.md").read_text()
    listed = set(re.findall(r"^(\S+/?\S*)$", index, re.MULTILINE))
    pages = {str(p.relative_to(ROOT / "docs").with_suffix("")) for p in PAGES[1:]}
    assert pages - {"index"} <= listed


def test_changes_have_each_heading_once_and_lists_in_one_piece():
    for version in (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1:]:
        headings = re.findall(r"^### (.+)$", version, re.M)
        assert len(headings) == len(set(headings))
        assert version.count("\n\n- ") == len(headings)


def test_readme_is_one_page():
    assert (ROOT / "README.md").read_text().count("\n") <= 150


def test_figures_are_those_of_the_results(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    import _reference

    text = (ROOT / "README.md").read_text()
    assert _reference.quoted() and [x for x in _reference.quoted() if x not in text] == []
    for page, said in _reference.told():
        assert said in " ".join((ROOT / page).read_text().split()), page
    records = _reference.measured()
    for name, page in (("fadnet_speed", "speed"), ("tabular_search", "search")):
        table = "\n".join(_reference.table(records[name]))
        assert table in (ROOT / f"docs/guides/{page}.md").read_text()
    for record in records.values():
        assert {len(row) for row in record["rows"]} == {len(record["columns"])}
        assert all(record[key] for key in ("title", "command", "machine", "commit", "date"))


def test_pages_name_results_that_are_there():
    for page in PAGES:
        for link in re.findall(r"\]\((\S*reference/results/\w+\.md)\)", page.read_text()):
            folder, name = (page.parent / link).resolve().parent, Path(link).stem
            assert folder == ROOT / "docs/reference/results", f"{page}: {link}"
            assert (ROOT / f"docs/results/{name}.json").is_file(), f"{page}: {link}"


def test_every_model_is_measured_and_every_config_names_its_source(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    import _reference

    rows = _reference.measured()["models"]["rows"]
    assert [row[0].strip("`") for row in rows] == sorted(
        list_models(), key=lambda name: (model_info(name).task, name)
    )
    for name in list_configs():
        comment = re.match(r"(#.*\n)+", (ROOT / "configs" / name).read_text())
        assert comment and comment[0].splitlines()[-1].startswith("# Source: "), name


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("sphinx")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    run = subprocess.run(
        [*command, "docs", str(tmp_path / "html")], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert "vizoo.best_subnet" in (tmp_path / "html/reference/api.html").read_text()
    assert "3DV 2022" in (tmp_path / "html/reference/models.html").read_text()
    assert "# vizoo" in (tmp_path / "html/llms.txt").read_text()
