"""`vizoo serve`: a page to try stereo on, in the browser."""

from __future__ import annotations

import argparse
import contextlib
import signal
import threading

from ._work import check_least, warn


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "--model",
        nargs="+",
        default=[],
        metavar="NAME|FILE",
        help="networks to choose from: NAME or NAME.TAG of `vizoo models --pretrained`, "
        "hf-hub:ORG/NAME, or weight files (default: all stereo networks that have trained weights)",
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 ...")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen at (default: 127.0.0.1, which this machine alone reaches)",
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


def run(args: argparse.Namespace) -> int:
    """Serve the page until Ctrl+C; return 0."""
    check_least(args, port=1, max_upload=1, max_pixels=1)
    from ..stereo.page import build_page
    from ..vision.serving import is_local, page_folder, served

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), page_folder() as folder:
        page = build_page(folder, args.model, args.device, args.max_pixels)
        where = {"host": args.host, "port": args.port, "max_upload": 1e6 * args.max_upload}
        with served(page, folder, **where) as address:
            if not is_local(args.host):
                warn(f"--host {args.host}: anyone who can reach this machine may use the page")
            print(f"{address} (Ctrl+C ends it)", flush=True)
            threading.Event().wait()
    return 0
