"""`vizoo serve`: a page to try stereo on, in the browser."""

from __future__ import annotations

import argparse
import contextlib
import time

from ..common.interrupts import noted_signals
from ._work import check_least, warn

_PORTS = 65535


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "--model",
        nargs="+",
        default=[],
        metavar="NAME|FILE",
        help="networks to choose from: NAME or NAME.TAG of `vizoo models --pretrained`, "
        "hf-hub:ORG/NAME, or weight files; of a supernet the page also cuts subnets for a time "
        "limit (default: all stereo networks that have trained weights)",
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 ...")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen at (default: 127.0.0.1, which this machine alone reaches)",
    )
    parser.add_argument(
        "--name",
        nargs="+",
        default=[],
        help="names by which browsers may call the page besides addresses, localhost and this "
        "machine's own name, such as that of a proxy in front",
    )
    parser.add_argument("--port", type=int, default=7860, help="default: 7860")
    parser.add_argument(
        "--max-upload", type=int, default=20, metavar="MB", help="of one image (default: 20)"
    )
    parser.add_argument(
        "--max-pixels",
        type=int,
        default=4_000_000,
        metavar="N",
        help="of one image (default: 4 million)",
    )
    parser.add_argument(
        "--max-kept",
        type=int,
        default=2000,
        metavar="MB",
        help="of all uploads and results, which lie in the folder for temporary files; the oldest "
        "go first, and all after an hour (default: 2000)",
    )


def run(args: argparse.Namespace) -> int:
    """Serve the page until Ctrl+C, SIGTERM or the end of the terminal; return 0."""
    check_least(args, port=1, max_upload=1, max_pixels=1, max_kept=1)
    if args.port > _PORTS:
        raise ValueError(f"--port {args.port}: must be at most {_PORTS}")
    from rich.console import Console

    from ..vision.serving import check_free, is_local, page_folder, served

    check_free(args.host, args.port)  # networks are loaded only for a page that can be served
    from ..stereo.page import build_page

    with contextlib.suppress(KeyboardInterrupt), noted_signals() as noted, page_folder() as folder:
        with Console(stderr=True).status("loading"):
            page = build_page(folder, args.model, args.device, args.max_pixels)
        limits = {"max_upload": 1e6 * args.max_upload, "max_kept": 1e6 * args.max_kept}
        where = {"host": args.host, "port": args.port, "names": args.name}
        with served(page, folder, **where, **limits) as address:
            if not is_local(args.host):
                warn(f"--host {args.host}: anyone who can reach this machine may use the page")
            print(f"{address} (Ctrl+C ends it)", flush=True)
            while not noted:
                time.sleep(0.1)
    return 0
