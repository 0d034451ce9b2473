"""What the `infer` commands share: one loop over what they were given, maps, and one end."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..classification import NOTICE
from ..common.devices import DTYPES
from ..common.memory import ran_out_of_memory
from ..common.progress import progress_bar
from ..common.warned import collect_warnings
from ._work import RUNTIMES, check_file, warn

if TYPE_CHECKING:
    from ..classification.ct_infer import CTPredictor
    from ..classification.image_infer import ImagePredictor

T = TypeVar("T")
_FAILURES = ValueError, OSError, MemoryError, RuntimeError


def add_pairs(parser: argparse.ArgumentParser) -> None:
    """Add what names pairs; `_pairs.asked_pairs` finds them."""
    parser.add_argument(
        "images",
        nargs="*",
        metavar="LEFT RIGHT",
        help="images, folders or globs: the left ones, then as many right ones; or one folder of "
        "pairs (im0 im1, left right, view1 view5, image_0 image_1, image_2 image_3: as names of "
        "images in folders of their own, or of folders of images)",
    )
    parser.add_argument("--list", metavar="FILE", help="lines LEFT RIGHT [CALIBRATION] instead")


def add_model(parser: argparse.ArgumentParser, default: str | None = None, told: str = "") -> None:
    """Add ``--model``; what is told comes before checkpoints."""
    known = "NAME or NAME.TAG of `vizoo models --pretrained`, hf-hub:ORG/NAME, a weight file"
    text = f"{known}{told}, or a checkpoint of `vizoo fit`"
    text += f" (default: {default})" if default else ""
    parser.add_argument("--model", metavar="NAME|FILE", default=default, help=text)


def add_run_arguments(parser: argparse.ArgumentParser, *, runtime: bool = True) -> None:
    """Declare the arguments that all of them have, and of most what runs the network."""
    if runtime:
        parser.add_argument(
            "--runtime",
            default="torch",
            choices=(*RUNTIMES, "auto"),
            help="what runs the network: torch; on the CPU also openvino, onnxruntime, or auto: "
            "the fastest that is installed, measured once (default: torch)",
        )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 ...")
    parser.add_argument(
        "--dtype",
        default="float32",
        choices=DTYPES,
        help="float16 on a GPU, bfloat16 on a CPU that has it (default: float32)",
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def infer_items(
    kind: str,
    sources: Mapping[str, Mapping[str, Path]],
    work: Callable[[str], T],
    show: Callable[[dict[str, Any]], None] | None = None,
    *,
    out: Path | None = None,
    finish: Callable[[dict[str, Any]], Iterable[dict[str, Any]]] = dict.values,
    batch: int = 1,
) -> list[dict[str, Any]]:
    """Work on all, with a bar; one of several that fails is said in a line and passed over.

    Ctrl+C ends it early, for `end_run` to tell what was finished.

    Args:
        kind: what they are, such as ``pairs``.
        sources: of each, by its name, the files that it is made from, as its summary names them.
        work: called with a name.
        show: called with the summary of each that did not fail.
        out: folder of the results; summaries then say how many earlier files were replaced.
        finish: called with what `work` returned for a batch, by name; returns the summaries.
        batch: so many at a time.

    Returns:
        The summaries in order: of those that failed with ``error``; fewer if interrupted.

    Raises:
        SystemExit: Ctrl+C before the first was finished, which is said.
        ValueError: the only one failed.
    """
    names, items = list(sources), []
    told = {name: {key: str(path) for key, path in sources[name].items()} for name in names}
    failed: dict[str, str] = {}
    # Of a scan's results some lie in a folder.
    before = set() if out is None else {*out.glob("*"), *out.glob("*/*")}

    @contextmanager
    def noting(name: str) -> Iterator[None]:
        try:
            yield
        except _FAILURES as error:
            failed[name] = _named(_reason(error), told[name].values())
            if len(names) == 1:
                raise ValueError(failed[name]) from error
            print(f"vizoo: error: {failed[name]}", file=sys.stderr)

    def finished(done: dict[str, T]) -> dict[str, dict[str, Any]]:
        """The summaries of a batch; where it fails as a whole, of each that does not fail alone."""
        if len(done) > 1:
            with suppress(*_FAILURES):
                return dict(zip(done, finish(done), strict=True))
        alone = {}
        for name in done:
            with noting(name):
                (alone[name],) = finish({name: done[name]})
        return alone

    with suppress(KeyboardInterrupt), progress_bar(kind) as tell:
        for start in range(0, len(names), batch):
            part, done = names[start : start + batch], {}
            for name in part:
                with noting(name):
                    done[name] = work(name)
            summaries = finished(done)
            for name in part:
                item: dict[str, Any] = {"name": name, **told[name]}
                item |= {"error": failed[name]} if name in failed else summaries[name]
                if out is not None and name not in failed:
                    item["replaced"] = sum(Path(file) in before for file in item["files"])
                items.append(item)
                for note in item.get("warnings", ()):
                    warn(_named(note, list(told[name].values())[:1]))
                if show is not None and name not in failed:
                    show(item)
                tell(len(items), len(names))
    if names and not items:
        _say_interrupted(f"0 of {len(names)} {kind} finished; no summary is written")
        raise SystemExit(130)
    return items


def infer_one(
    name: str, infer: Callable[[], Any], save: Callable[[Any, list[str]], list[Path]]
) -> dict[str, Any]:
    """Infer one thing, save the result, with the warnings so far, to files; return its summary."""
    from ..common.summaries import item_summary

    said: list[str] = []
    started = time.perf_counter()
    try:
        with collect_warnings() as notes:
            result = infer()
        seconds = time.perf_counter() - started
        with collect_warnings() as said:
            files = save(result, notes)
    except Exception:
        for note in notes + said:  # they may tell why
            warn(f"{name}: {note}")
        raise
    return item_summary(name, result.summary(), seconds, files, notes + said)


def end_run(
    summary: dict[str, Any], out: Path | None, as_json: bool, asked: int | None = None
) -> int:
    """Write ``summary.json`` and print it, or where it is; say what was replaced.

    Returns:
        The status: 1 for failures, 130 where Ctrl+C left fewer items than were asked for.
    """
    from ..common.files import write_json

    interrupted = asked is not None and len(summary["items"]) < asked
    if interrupted:
        summary = {"interrupted": True, **summary}
    if out is not None:
        write_json(out / "summary.json", summary)
    if as_json:
        print(json.dumps(summary, indent=2))
    elif out is not None:
        print(out / "summary.json")
    if replaced := sum(item.get("replaced", 0) for item in summary["items"]):
        files = f"{replaced} file{'s' * (replaced > 1)}"
        print(f"vizoo: replaced {files} of an earlier run in {out}", file=sys.stderr)
    failed = ["error" in item for item in summary["items"]]
    if any(failed):
        told = f"{sum(failed)} of {len(failed)} {summary['kind']} failed"
        print(f"vizoo: error: {told}", file=sys.stderr)
    if interrupted:
        _say_interrupted(f"{len(failed)} of {asked} {summary['kind']} finished")
    return 130 if interrupted else int(any(failed))


def _say_interrupted(told: str) -> None:
    print(f"\nvizoo: interrupted with {told}", file=sys.stderr)


def _reason(error: Exception) -> str:
    """Why it failed; what is neither the user's nor memory's fault is raised again."""
    if ran_out_of_memory(error):
        return "there is not enough memory for it: make it smaller"
    if not isinstance(error, (ValueError, OSError)):
        raise error
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _named(text: str, files: Collection[str]) -> str:
    """A line that names what it is about."""
    return text if any(file in text for file in files) else f"{' and '.join(files)}: {text}"


def add_map(parser: argparse.ArgumentParser, methods: Sequence[str], told: str, layer: str) -> None:
    """Add --method, --layer and --class, of maps of where a network looked."""
    parser.add_argument("--method", default="auto", choices=methods, help=f"of the map: {told}")
    parser.add_argument("--layer", metavar="NAME", help=f"of grad-cam, such as {layer}")
    parser.add_argument(
        "--class",
        dest="explained",
        metavar="NAME",
        help="the class that the map is for (default: the most probable one)",
    )


def check_written(args: argparse.Namespace, overlays: bool) -> bool:
    """Whether maps are drawn; refuses their options where not, and a --csv it could not write."""
    if args.csv is not None:
        check_file(Path(args.csv), option="--csv")
    drawn = overlays and args.out is not None
    if not drawn and (args.layer or args.explained or args.method != "auto"):
        raise ValueError(
            "--method, --layer and --class are for the map: give --out DIR, without --no-overlays"
        )
    return drawn


def check_class(args: argparse.Namespace, classes: Sequence[str]) -> None:
    """Raise a ValueError where --class is none of the network's."""
    if args.explained is not None and args.explained not in classes:
        raise ValueError(f"--class {args.explained}: none of {', '.join(classes)}")


def end_classified(
    args: argparse.Namespace,
    predictor: CTPredictor | ImagePredictor,
    what: str,
    items: list[dict[str, Any]],
    asked: int,
    counts: Sequence[str] = (),
    **scores: Any,
) -> int:
    """`end_run`, after the table of --csv; `counts` are more columns of it, scores more facts."""
    from ..common.summaries import run_summary

    if args.csv is not None:
        from ..classification.reports import write_results

        write_results(args.csv, what, predictor.classes, items, predictor.name, counts)
    facts = {"network": predictor.name, "notice": NOTICE, **scores}
    summary = run_summary(predictor, args.model, f"{what}s", items, **facts)
    out = None if args.out is None else Path(args.out)
    status = end_run(summary, out, args.json, asked)
    if not args.json:
        lines = [args.csv] if args.csv else []
        if scores:
            each = ", ".join(f"{name} {share:.3f}" for name, share in scores["accuracy_of"].items())
            count = f"{scores['labelled']} images of known class"
            lines.append(f"accuracy {scores['accuracy']:.3f} of {count} ({each})")
        print(*lines, NOTICE, sep="\n")
    return status
