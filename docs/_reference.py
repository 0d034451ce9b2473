"""Pages that are made of the code: public names, commands, configs, models, floors; llms.txt."""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import json
import re
from pathlib import Path

import vizoo
from vizoo.__main__ import COMMANDS, Command
from vizoo.vision.configs.builtin import CONFIGS, list_configs
from vizoo.vision.hub.registry import list_models, model_info
from vizoo.vision.hub.sharing import facts_table, metrics_table

ROOT = Path(vizoo.__file__).parent
RESULTS = Path(__file__).parent / "results"
COMMERCIAL = {"Apache-2.0": "yes"}
"""What licences of weights say of it."""
TASKS = {
    "stereo": "Stereo",
    "stereo-fusion": "Fusion of disparities, for guided stereo",
    "mvs": "Multi-view stereo",
    "mvs-fusion": "Fusion of depths, for guided multi-view stereo",
    "panorama": "Panoramas",
    "classification": "Chest CT and images",
}
"""Tasks in the order and the words of the page of models."""
FLOORS = [
    ("the door", ["__init__", "__main__", "hubconf"]),
    ("cli", ["cli"]),
    ("rooms", ["stereo", "mvs", "panorama", "classification"]),
    ("datasets", ["datasets"]),
    ("vision", ["vision"]),
    ("nas", ["nas"]),
    ("common", ["common"]),
]
PUBLIC = {
    "vizoo": "The door",
    "vizoo.vision.training": "What tasks share",
    "vizoo.vision.lora": "Fine-tuning by adapters",
    "vizoo.stereo.task": "Training stereo networks",
    "vizoo.stereo.guided": "Guided stereo",
    "vizoo.stereo.sequences": "Stereo sequences",
    "vizoo.stereo.streaming": "Disparity of sequences",
    "vizoo.stereo.steadiness": "Less flicker",
    "vizoo.stereo.rectify": "Rectifying raw pairs",
    "vizoo.stereo.auto_rectify": "Rectifying by matches",
    "vizoo.stereo.board_calibration": "Calibrating by a board",
    "vizoo.stereo.samples": "Pairs to calibrate int8 with",
    "vizoo.vision.int8": "Networks in eight bits",
    "vizoo.stereo.page": "A page to try stereo on",
    "vizoo.vision.serving": "Serving a page",
    "vizoo.stereo.tuning": "Tuning stereo networks without true disparities",
    "vizoo.mvs.task": "Training multi-view networks",
    "vizoo.panorama.task": "Training panorama networks",
    "vizoo.classification.task": "Training classifiers",
    "vizoo.datasets.stereo": "Stereo data",
    "vizoo.datasets.stereo.calibration": "Rectified cameras",
    "vizoo.datasets.stereo.rigs": "Raw rigs",
    "vizoo.vision.lenses": "Lenses",
    "vizoo.datasets.mvs": "Multi-view data",
    "vizoo.datasets.panorama": "Panorama data",
    "vizoo.datasets.ct": "CT data",
    "vizoo.datasets.images": "Image data",
    "vizoo.datasets.worlds.stereo": "Generated pairs",
    "vizoo.datasets.worlds.sequence": "Generated sequences",
    "vizoo.datasets.worlds.views": "Generated views",
    "vizoo.datasets.worlds.panorama": "Generated panoramas",
    "vizoo.datasets.worlds.writers": "Writing generated worlds",
    "vizoo.nas": "The search engine",
    "vizoo.nas.elastic": "Elastic layers",
    "vizoo.nas.training": "Training supernets",
    "vizoo.nas.search": "Searching",
    "vizoo.nas.differentiable": "Differentiable search",
    "vizoo.nas.lid": "NAS-LID",
    "vizoo.nas.distributed": "Many processes",
    "vizoo.nas.distributed.schedule.ways": "How gradients should travel",
    "vizoo.nas.distributed.schedule.link": "Links between processes",
    "vizoo.nas.efficiency.table": "Latency tables",
    "vizoo.classification.ensemble_fit": "Fitting ensembles",
    "vizoo.classification.ensemble_file": "Ensembles on disk",
    "vizoo.mvs.evaluation": "Scores of clouds",
    "vizoo.mvs.poses": "Poses that agree with the images",
    "vizoo.vision.health": "What works here",
    "vizoo.vision.io.ply": "Point clouds on disk",
    "vizoo.vision.hub.published": "Published checkpoints",
    "vizoo.vision.hub.weights": "Weight files",
    "vizoo.vision.ops": "Operators",
}
"""Modules whose `__all__` is the reference, and their headings."""


def write(folder: Path) -> None:
    """Write all pages into a folder, those alone that change."""
    (folder / "results").mkdir(parents=True, exist_ok=True)
    pages = {f"results/{name}.md": result(record) for name, record in measured().items()}
    for old in (folder / "results").glob("*.md"):
        if f"results/{old.name}" not in pages:
            old.unlink()
    pages |= {
        "api.md": api(),
        "commands.md": commands(),
        "configs.md": configs(),
        "models.md": models(),
        "metrics.md": metrics(),
        "architecture.md": architecture(),
        "results.md": results(),
    }
    for name, text in pages.items():
        page = folder / name
        if not page.exists() or page.read_text() != text:
            page.write_text(text)


def api() -> str:
    """Every public name with its docstring."""
    lines = ["# Python", "", "Every public name, by the module that holds it."]
    shown = set()
    for module, heading in PUBLIC.items():
        lines += ["", f"## {heading}: `{module}`"]
        for name in getattr(importlib.import_module(module), "__all__", ()):
            thing = getattr(importlib.import_module(module), name)
            kind = "class" if inspect.isclass(thing) else "function"
            if not callable(thing) or id(thing) in shown:
                continue
            shown.add(id(thing))
            members = ["   :members:", "   :exclude-members: forward"] if kind == "class" else []
            lines += ["", "```{eval-rst}", f".. auto{kind}:: {module}.{name}", *members, "```"]
    return "\n".join([*lines, ""])


def commands() -> str:
    """Every command with its help, from the parsers."""
    lines = ["# Commands", "", "`vizoo COMMAND --help` prints these pages."]
    for name, row in COMMANDS.items():
        rows = {"": row} if isinstance(row, Command) else row
        for word, command in rows.items():
            words = f"vizoo {name} {word}".strip()
            lines += ["", f"## {words}", "", f"{command.help[0].upper()}{command.help[1:]}."]
            if command.raw:
                lines += [
                    "",
                    "Its options are those of Lightning and of the config: `--help` behind a",
                ]
                lines += ["`--config` lists them. See [training](../guides/training.md)."]
                lines += ["", "```text", command.load()._EXAMPLES.format(name=name).rstrip(), "```"]
                continue
            parser = argparse.ArgumentParser(prog=words)
            command.load().add_arguments(parser)
            lines += ["", "```text", *command.examples, "```"] if command.examples else []
            lines += ["", "```text", _help(parser), "```"]
    return "\n".join([*lines, ""])


def configs() -> str:
    """Every built-in config: what its first comment says, where it is from, and the file."""
    lines = [
        "# Configs",
        "",
        "`vizoo fit --config NAME` finds them from any folder; several merge.",
    ]
    rows: dict[str, list[str]] = {}
    files: dict[str, list[str]] = {}
    for name in sorted(list_configs()):
        text = (Path(CONFIGS) / name).read_text(encoding="utf-8")
        about, source = _comment(text)
        folder, _, short = name.partition("/")
        mark = short.removesuffix(".yaml")
        rows.setdefault(folder, []).append(f"| [{mark}](#{folder}-{mark}) | {_linked(source)} |")
        files.setdefault(folder, []).extend(
            [f"({folder}-{mark})=", f"### {name}", "", about, "", f"Source: {_linked(source)}.", ""]
            + [":::{dropdown} The file", "```yaml", _body(text), "```", ":::", ""]
        )
    for folder, listed in rows.items():
        lines += ["", f"## {folder}", "", "| config | source |", "|---|---|", *listed, ""]
        lines += files[folder]
    return "\n".join([*lines, ""])


def _comment(text: str) -> tuple[str, str]:
    """What a config's first comment says, and its source."""
    said = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        said.append(line.removeprefix("#").strip())
    return " ".join(said[:-1]), said[-1].removeprefix("Source:").strip().rstrip(".")


def _body(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("#"))


def _linked(text: str) -> str:
    return re.sub(r"arXiv (\d{4}\.\d{5})", r"[arXiv \1](https://arxiv.org/abs/\1)", text)


def models() -> str:
    """Every model: cost, latency here, weights, licence, paper and arguments, from the registry."""
    measured = json.loads((RESULTS / "models.json").read_text(encoding="utf-8"))
    costs = {row[0].strip("`"): row[1:] for row in measured["rows"]}
    lines = ["# Models", "", "`vizoo models` prints what is counted, for any size of the images;"]
    lines += ["`vizoo bench NAME` measures on your machine.", "", measured["about"], ""]
    lines += [f"`{measured['command']}`, {measured['machine']}, {measured['date']}."]
    names = sorted(list_models(), key=lambda each: (model_info(each).task, each))
    by_task: dict[str, list[str]] = {}
    for name in names:
        by_task.setdefault(model_info(name).task, []).append(name)
    for task in sorted(by_task, key=list(TASKS).index):
        listed = by_task[task]
        head = ["model", *measured["columns"][1:], "weights", "published"]
        lines += ["", f"## {TASKS[task]}", "", f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
        for name in listed:
            info = model_info(name)
            paper = f"[{info.paper.published}]({info.paper.url})" if info.paper else "-"
            tags = ", ".join(f"`.{tag}`" for tag in info.weights) or "-"
            cells = [f"[`{name}`](#model-{name})", *costs.get(name, ["-"] * 4), tags, paper]
            lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "## Trained weights", "", "Files are checked by these hashes.", ""]
    lines += [
        "| weights | MB | licence | commercial use | from | SHA-256 |",
        "|---|---|---|---|---|---|",
    ]
    for name in list_models(pretrained=True):
        record = model_info(name).record
        use = COMMERCIAL.get(record.licence, "see the licence")
        row = [f"`{name}`", f"{record.size / 1e6:.1f}", record.licence, use]
        row += ["<br>".join(f"`{source}`" for source in record.sources), f"`{record.sha256[:16]}…`"]
        lines.append(f"| {' | '.join(row)} |")
    lines += ["", "## One by one"]
    for name in names:
        info = model_info(name)
        lines += ["", f"(model-{name})=", f"### {name}", "", inspect.getdoc(info.function) or ""]
        given = ", ".join(f"`{key}={value!r}`" for key, value in info.defaults.items())
        lines += ["", f"Arguments: {given}."] if given else []
        for tag, record in info.weights.items():
            lines += ["", f"Weights `{name}.{tag}`:", "", *facts_table(record), ""]
            lines += [*metrics_table(record)] if record.metrics else []
    return "\n".join([*lines, ""])


def metrics() -> str:
    """What every metric is, from the docstrings of those that count them."""
    lines = ["# Metrics"]
    for module in ("stereo", "mvs", "panorama", "classification"):
        lines += ["", f"## {module}"]
        for name in importlib.import_module(f"vizoo.{module}.metrics").__all__:
            thing = getattr(importlib.import_module(f"vizoo.{module}.metrics"), name)
            if callable(thing):
                kind = "class" if inspect.isclass(thing) else "function"
                target = f"vizoo.{module}.metrics.{name}"
                lines += ["", "```{eval-rst}", f".. auto{kind}:: {target}", "```"]
    return "\n".join([*lines, ""])


def architecture() -> str:
    """The floors and who imports whom, counted in the files."""
    counts = _imports()
    lines = [
        "# How the house is laid out",
        "",
        "The repository's root *is* the package `vizoo`: `stereo/fadnet.py` is",
        "`vizoo.stereo.fadnet`. A folder imports only from lower floors; rooms of one floor never",
        "import each other; no file imports itself by way of others. Tests hold these rules. Old",
        "names of moved modules go on working (`common/renamed.py`).",
        "",
        "```{raw} html",
        drawing(counts),
        "```",
        "",
        "| floor | folder | what is there | files | imports from |",
        "|---|---|---|---|---|",
    ]
    for number, (_, rooms) in enumerate(FLOORS):
        for room in rooms:
            about = inspect.getdoc(
                importlib.import_module(f"vizoo.{room}".removesuffix(".__init__"))
            )
            about = (about or "").split("\n\n")[0].replace("\n", " ")
            files = len(list((ROOT / room).rglob("*.py"))) or 1
            below = ", ".join(f"`{k}` {v}" for k, v in sorted(counts.get(room, {}).items()))
            row = f"{len(FLOORS) - 1 - number} | `{room}` | {about} | {files} | {below}"
            lines.append(f"| {row} |")
    lines += ["", "Numbers are those of import statements."]
    return "\n".join([*lines, ""])


def drawing(counts: dict[str, dict[str, int]]) -> str:
    """The floors as an SVG, and an arrow for each import from one floor to another."""
    wide, high, gap = 640, 34, 52
    spots: dict[str, tuple[float, int]] = {}
    boxes = []
    for number, (name, rooms) in enumerate(FLOORS):
        y = 4 + number * (high + gap)
        rooms = rooms if name == "rooms" else [name]
        for place, room in enumerate(rooms):
            width = 132 if len(rooms) > 1 else 180
            x = wide / 2 if len(rooms) == 1 else wide * (place + 0.5) / len(rooms)
            spots[room] = (x, y)
            boxes.append(
                f'<rect x="{x - width / 2}" y="{y}" width="{width}" height="{high}" rx="4" '
                'fill="var(--color-background-primary)" stroke="currentColor"/>'
                f'<text x="{x}" y="{y + 22}" text-anchor="middle" fill="currentColor">{room}</text>'
            )
    arrows: dict[tuple[str, str], int] = {}
    for source, targets in counts.items():
        door = "the door" if source in FLOORS[0][1] else source
        for target, count in targets.items():
            arrows[door, target] = arrows.get((door, target), 0) + count
    lines = []
    for (source, target), count in arrows.items():
        (a, top), (b, low) = spots[source], spots[target]
        level = round((low - top) / (high + gap))
        side = 0 if level == 1 else (250 + 12 * level) * (1 if a >= wide / 2 else -1)
        middle = (a + b) / 2 + side
        lines.append(
            f'<path d="M{a} {top + high} Q{middle} {(top + high + low) / 2} {b} {low}" fill="none" '
            f'stroke="currentColor" opacity="0.45" stroke-width="{min(4, 0.5 + count / 40):.1f}">'
            f"<title>{source} imports {target}: {count}</title></path>"
        )
    height = len(FLOORS) * (high + gap) - gap + 8
    style = "max-width:100%;font-family:var(--font-stack);font-size:14px"
    label = "floors of the house and their imports"
    head = f'<svg viewBox="0 0 {wide} {height}" style="{style}" role="img" aria-label="{label}">'
    return "\n".join([head, *lines, *boxes, "</svg>"])


def results() -> str:
    """The list of what was measured."""
    lines = [
        "# Results",
        "",
        "What was measured: a page each with the table, the command, the machine,",
    ]
    lines += ["the date, and the commit that holds the figures. More stands in the guides.", ""]
    names = sorted(measured(), key=lambda name: measured()[name]["title"])
    lines += [f"- [{measured()[name]['title']}](results/{name}.md)" for name in names]
    lines += ["", "```{toctree}", ":hidden:", *(f"results/{name}" for name in names), "```"]
    return "\n".join([*lines, ""])


def result(record: dict) -> str:
    """A record's page."""
    lines = [f"# {record['title']}", "", record["about"], "", *table(record), ""]
    lines += [f"Command: `{record['command']}`", "", f"Machine: {record['machine']}", ""]
    lines += [f"Commit {record['commit']}; {record['date']}"]
    return "\n".join([*lines, ""])


def measured() -> dict[str, dict]:
    """The records of docs/results, by their files' names."""
    files = sorted(RESULTS.glob("*.json"))
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}


def table(record: dict) -> list[str]:
    """A record's table in Markdown."""
    rows = [record["columns"], ["---"] * len(record["columns"]), *record["rows"]]
    return [f"| {' | '.join(map(str, row))} |" for row in rows]


def quoted() -> list[str]:
    """The rows of README's table: figures by row and column of a record's table."""
    rows = [(record, *row) for record in measured().values() for row in record["quoted"]]
    return [f"| {what} | {filled(record, figures)} |" for record, what, figures in rows]


def told() -> list[tuple[str, str]]:
    """Pages, and what they say with figures of a record's table."""
    rows = [(record, *row) for record in measured().values() for row in record.get("told", [])]
    return [(page, filled(record, text)) for record, page, text in rows]


def filled(record: dict, text: str) -> str:
    """Text with the figures of a record where it has `{row.column}`; deviations are left out."""
    for place, row, column in re.findall(r"(\{(\d+)\.(\d+)\})", text):
        figure = str(record["rows"][int(row)][int(column)])
        text = text.replace(place, figure.partition(" ±")[0])
    return text


def _imports() -> dict[str, dict[str, int]]:
    rooms = [room for _, names in FLOORS for room in names]
    counts: dict[str, dict[str, int]] = {}
    for room in rooms:
        files = (
            [ROOT / f"{room}.py"] if (ROOT / f"{room}.py").exists() else (ROOT / room).rglob("*.py")
        )
        for file in files:
            depth = len(file.relative_to(ROOT).parts)
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and node.level == depth and node.module:
                    to = node.module.split(".")[0]
                    if to in rooms and to != room:
                        counts.setdefault(room, {})[to] = counts.get(room, {}).get(to, 0) + 1
    return counts


def _help(parser: argparse.ArgumentParser) -> str:
    return re.sub(r"^usage: ", "", parser.format_help()).rstrip()


def write_llms(app: object, error: Exception | None) -> None:
    """`llms.txt`, the list of pages, and `llms-full.txt`, all their text."""
    if error is not None:
        return
    out, pages = Path(app.outdir), sorted(app.env.found_docs - {"index"})
    about = "A vision model zoo and neural-architecture-search toolkit on PyTorch and Lightning."
    listed = [f"- [{app.env.titles[page].astext()}]({page}.html)" for page in pages]
    (out / "llms.txt").write_text("\n".join(["# vizoo", "", f"> {about}", "", *listed, ""]))
    texts = [app.env.get_doctree(page).astext() for page in pages]
    (out / "llms-full.txt").write_text("\n\n".join(texts))
