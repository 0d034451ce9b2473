"""README and the pages of docs/: links lead somewhere, commands parse, Python compiles."""

import argparse
import ast
import contextlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from vizoo.__main__ import COMMANDS, Command
from vizoo.vision.configs.builtin import list_configs

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if not {"reference", "_build"} & set(page.parts)]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
EVERY = pytest.mark.parametrize("page", PAGES, ids=NAMES)


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and content of each block of code."""
    return re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


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
            continue
        if "..." in rest:  # and so on
            continue
        parser = argparse.ArgumentParser(prog=f"vizoo {words[0]}")
        row.load().add_arguments(parser)
        with contextlib.suppress(SystemExit):
            parser.parse_args(rest)
            continue
        pytest.fail(f"{shlex.join(words)}: {capsys.readouterr().err}")


@EVERY
def test_python_compiles(page):
    for language, text in blocks(page):
        if language == "python":
            ast.parse(text)


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


def test_readme_is_one_page():
    assert (ROOT / "README.md").read_text().count("\n") <= 150


def test_figures_in_the_readme_are_those_of_the_results(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    import _reference

    text = (ROOT / "README.md").read_text()
    assert _reference.quoted() and [x for x in _reference.quoted() if x not in text] == []
    speed = next(x for x in _reference.measured() if x["title"] == "FADNet on a processor")
    assert "\n".join(_reference.table(speed)) in (ROOT / "docs/guides/speed.md").read_text()
    for record in _reference.measured():
        assert {len(row) for row in record["rows"]} == {len(record["columns"])}
        assert all(record[key] for key in ("title", "command", "machine", "commit", "date"))


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("sphinx")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    run = subprocess.run(
        [*command, "docs", str(tmp_path / "html")], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert "vizoo.best_subnet" in (tmp_path / "html/reference/api.html").read_text()
    assert "# vizoo" in (tmp_path / "html/llms.txt").read_text()
