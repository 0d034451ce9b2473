"""The rules of the house: who may import whom, what ``import vizoo`` may load, cheap style."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import itertools
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import vizoo
from vizoo.__main__ import COMMANDS, Command

FLOORS = {
    "common": 0,
    "nas": 1,
    "vision": 2,
    "datasets": 3,
    "classification": 4,
    "mvs": 4,
    "panorama": 4,
    "stereo": 4,
    "cli": 5,
    "": 6,  # the door: __init__.py, __main__.py, hubconf.py
}
LAZY_DOORS = {"common.lazy", "common.renamed", "vision.hub.registry", "__main__", "hubconf"}
"""Who may look a module of ours up by its name: public names, models, commands, torch.hub."""
NOT_THE_PACKAGE = {"tests", "benchmarks", "scripts", "configs", "build", "dist", "demo", "runs"}
NOT_THE_PACKAGE |= {"docs"}


def modules(root: Path) -> dict[str, Path]:
    """Every module of the package below ``root``: dotted name without ``vizoo`` → file."""
    folders = [p for p in root.iterdir() if p.is_dir() and p.name not in NOT_THE_PACKAGE]
    # An environment among them has as many files as twenty packages.
    inside = (p.rglob("*.py") for p in folders if not p.name.startswith("."))
    found = {}
    for file in sorted(itertools.chain(root.glob("*.py"), *inside)):
        parts = file.relative_to(root).with_suffix("").parts
        if not any(part.startswith(".") for part in parts):
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def room(module: str) -> str:
    """The folder at the top that holds ``module``; the door for a root module."""
    return module.split(".")[0] if "." in module or module in FLOORS else ""


@functools.cache
def read(module: str, text: str) -> tuple[list[ast.Import | ast.ImportFrom], list[str]]:
    """The imports of a module, at its top or within functions, and the lines of bad style."""
    # Syntax of the oldest Python that the package runs on, whichever runs the tests.
    tree = ast.parse(text, module, feature_version=(3, 10))
    nodes = [*ast.walk(tree)]
    found = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    return found, _style(module, tree, nodes)


def imports(module: str, file: Path, known: dict[str, Path]) -> set[str]:
    """The modules of the package that ``file`` imports, at its top or within functions."""
    package = ["vizoo", *module.split(".")] if module else ["vizoo"]
    if file.name != "__init__.py":
        package = package[:-1]
    found = set()
    for node in read(module, file.read_text())[0]:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        else:
            base = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*base, *(node.module.split(".") if node.module else [])])
            # `from .. import stereo` names a module, `from ..stereo import x` may name a function.
            for alias in node.names:
                if (base, alias.name) == ("vizoo", "__version__"):
                    continue  # the one word that every room may ask at the door
                inner = f"{base}.{alias.name}".removeprefix("vizoo.")
                found.add(f"vizoo.{inner}" if inner in known else base)
    return {
        name.removeprefix("vizoo").removeprefix(".")
        for name in found
        if name == "vizoo" or name.startswith("vizoo.")
    }


def broken_floors(root: Path) -> list[str]:
    """One line for each import that goes sideways or up; empty if the house stands."""
    known, lines = modules(root), []
    for module, file in known.items():
        here = room(module)
        if here not in FLOORS:
            lines.append(f"{file.relative_to(root)}: no floor is given for {here}/")
            continue
        for other in sorted(imports(module, file, known)):
            there = room(other)
            if there != here and FLOORS.get(there, 9) >= FLOORS[here]:
                lines.append(f"{file.relative_to(root)}: imports vizoo.{other}".rstrip("."))
    return lines


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("vision/io/bad.py", "from ...stereo.net import f"),
        ("vision/bad.py", "from ..datasets import x"),
        ("vision/bad.py", "def g():\n    from .. import stereo"),
        ("vision/bad.py", "import vizoo"),
        ("vision/bad.py", "import vizoo.datasets.x"),
        ("common/bad.py", "from ..nas import space"),
        ("nas/bad.py", "from vizoo.vision import ops"),
        ("datasets/bad.py", "from ..stereo import net"),
        ("stereo/bad.py", "class A:\n    def g(self):\n        import vizoo.mvs.net as net"),
        ("stereo/__init__.py", "from ..mvs import net"),
        ("garage/bad.py", ""),
    ],
)
def test_a_planted_import_is_found(tmp_path, file, line):
    for name in ("common", "vision", "vision/io", "nas", "datasets", "stereo", "mvs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "stereo/net.py").write_text(
        "from ..vision.io import files\nfrom ..datasets import x\nfrom vizoo.nas import space\n"
        "from . import net\nfrom .. import __version__\nimport torch.vision\n"
    )
    (tmp_path / "__init__.py").write_text("from .stereo import net\n")
    assert broken_floors(tmp_path) == []
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(line)
    assert [report.split(":")[0] for report in broken_floors(tmp_path)] == [file]


def test_floors(root):
    assert broken_floors(root) == []


def circles(root: Path) -> list[list[str]]:
    """Modules that import each other, directly or by way of others; packages' doors left out."""
    known = modules(root)
    files = {name: file for name, file in known.items() if file.name != "__init__.py"}
    graph = {name: imports(name, file, known) & files.keys() for name, file in files.items()}
    beyond = {name: set(graph[name]) for name in graph}
    for middle in graph:
        for reached in beyond.values():
            if middle in reached:
                reached |= beyond[middle]
    rings = {tuple(sorted(o for o in beyond[n] if n in beyond[o])) for n in graph if n in beyond[n]}
    return sorted(map(list, rings))


def test_no_circles(root, tmp_path):
    assert circles(root) == []
    for name, line in {
        "a": "from .b import x",
        "b": "def f():\n    from . import c",
        "c": "",
    }.items():
        (tmp_path / f"{name}.py").write_text(line)
    assert circles(tmp_path) == []
    (tmp_path / "c.py").write_text("if TYPE_CHECKING:\n    from .a import y")
    assert circles(tmp_path) == [["a", "b", "c"]]


def test_imports_name_files(root):
    """By the names of today, which old ones are only redirected to."""
    known = modules(root)
    named = {(name, other) for name, file in known.items() for other in imports(name, file, known)}
    assert sorted(pair for pair in named if pair[1] not in known) == []


def test_modules_are_imported_plainly(root):
    """None of ours is looked up by its name, but where names are kept on purpose."""
    looked = re.compile(r"sys\.modules|import_module\(f?[\"'](?!cuda|lightning)")
    found = {
        name
        for name, file in modules(root).items()
        if looked.search(file.read_text()) and name not in LAZY_DOORS
    }
    assert found == {"vision._export_formats"}  # which asks whether a runtime is loaded


def test_lazy_names_are_no_modules(root):
    """Importing a module below would put it in the place of a lazy name that is spelled alike."""
    known = modules(root)
    lazy = re.compile(r"= lazy\(\s*__name__")
    doors = [name for name, file in known.items() if lazy.search(file.read_text())]
    clashes = {
        f"{door}.{name}"
        for door in doors
        for name in importlib.import_module(f"vizoo.{door}".rstrip(".")).__all__
        if f"{door}.{name}".lstrip(".") in known
    }
    assert len(doors) > 5 and not clashes


def test_import_loads_little():
    """No model, no task, no heavy library, not even PyTorch, so CUDA is not touched either."""
    code = """
import sys
before = set(sys.modules)
import vizoo
after = set(sys.modules) - before
heavy = {"open3d", "cv2", "matplotlib", "lightning", "timm", "torch", "torchvision",
         "torchmetrics", "tensorboard", "jsonargparse", "rich"}
rooms = ("vizoo.stereo", "vizoo.datasets", "vizoo.nas", "vizoo.mvs", "vizoo.panorama")
bad = [m for m in sorted(after) if m.split(".")[0] in heavy or m.startswith(rooms)]
assert not bad, bad
assert vizoo.__version__
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def _style(module: str, tree: ast.Module, nodes: Sequence[ast.AST]) -> list[str]:
    """What style.md of this project forbids and a parser can see, as ``line: what``."""
    found = []
    prints = module.split(".")[0] in ("", "__main__", "cli")
    for node in nodes:
        called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id
        if called == "eval" or (called == "print" and not prints):
            found.append(f"{node.lineno}: {called}()")
        elif isinstance(node, ast.ExceptHandler) and node.type is None:
            found.append(f"{node.lineno}: bare except")
        elif isinstance(node, ast.Assert):
            found.append(f"{node.lineno}: assert (raise an exception instead)")
    # Module level: a filter set on import changes the warnings of the whole process.
    for node in tree.body:
        if isinstance(node, ast.Expr) and "warnings.filterwarnings" in ast.unparse(node):
            found.append(f"{node.lineno}: global warning filter")
    if ast.get_docstring(tree) is None and tree.body:
        found.append("1: no docstring")
    return found


def test_style(root):
    lines = []
    for module, file in modules(root).items():
        text = file.read_text()
        lines += [f"{file.relative_to(root)}:{line}" for line in read(module, text)[1]]
        if (length := text.count("\n")) > 600:
            lines.append(f"{file.relative_to(root)}: {length} lines, at most 600")
    assert lines == []


def test_style_checker_sees():
    bad = "print(eval('1'))\ntry:\n    assert 1\nexcept:\n    pass\n"
    bad += "import warnings\nwarnings.filterwarnings('ignore')\n"
    assert len(read("vision.x", bad)[1]) == 6
    assert read("cli.x", "'''doc'''\nprint(1)")[1] == []


def commands() -> dict[str, Command]:
    """Every command by the words that are typed."""
    rows = {}
    for name, row in COMMANDS.items():
        inner = {"": row} if isinstance(row, Command) else row
        rows |= {f"{name} {word}".strip(): command for word, command in inner.items()}
    return rows


@pytest.mark.parametrize("words", sorted(commands()))
def test_a_command_parses_calls_and_prints(root, words):
    """A command's file is short and has no class: its work lies below, for programs to call."""
    text = (root / f"{commands()[words].module.replace('.', '/')}.py").read_text()
    assert text.count("\n") <= 200
    tree = ast.parse(text)
    assert [n.name for n in ast.walk(tree) if isinstance(n, ast.ClassDef)] == []
    attributes = (n for n in ast.walk(tree) if isinstance(n, ast.Attribute))
    stored = (n for n in attributes if not isinstance(n.ctx, ast.Load))
    changed = [n for n in stored if ast.unparse(n.value) == "args"]
    assert changed == []


TERMINAL_ALONE = {"demo", "completion"}


@pytest.mark.parametrize("words", sorted(commands().keys() - TERMINAL_ALONE))
def test_a_command_has_its_lines_of_python(root, words):
    """docs/python.md shows each command's work as a program, by names that are there."""
    page = (root / "docs/python.md").read_text()
    sections = dict(re.findall(r"^## vizoo ([\w ]+)\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.M))
    tree = ast.parse("\n".join(re.findall(r"```python\n(.*?)```", sections[words], re.DOTALL)))
    assert tree.body
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module)
            assert [n.name for n in node.names if not hasattr(module, n.name)] == []
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "vizoo":
            assert hasattr(vizoo, node.attr), node.attr
        if isinstance(node, ast.Call):
            check_arguments(node, page_names(tree))


def page_names(tree: ast.Module) -> dict[str, object]:
    """What the imports of a program bring."""
    names: dict[str, object] = {"vizoo": vizoo}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module)
            names |= {n.name: getattr(module, n.name) for n in node.names}
    return names


def check_arguments(call: ast.Call, names: dict[str, object]) -> None:
    """Bind a call's arguments to the signature of what it names, where the page imports that."""
    words = ast.unparse(call.func).split(".")
    if words[0] not in names or not all(map(str.isidentifier, words)):
        return
    called = functools.reduce(getattr, words[1:], names[words[0]])
    if not any(isinstance(argument, ast.Starred) for argument in call.args):
        keywords = {keyword.arg: None for keyword in call.keywords}
        inspect.signature(called).bind(*[None] * len(call.args), **keywords)
