"""`vizoo doctor`: what works on this machine, and how to get the rest."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from ..vision.health import examine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")


def run(args: argparse.Namespace) -> int:
    """Print the report; 1 if something is broken that nothing works without, else 0."""
    checks = list(examine())
    if args.json:
        print(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            print(f"{'ok' if check.ok else 'missing':<8} {check.name:<{width}}  {check.found}")
            if check.remedy:
                print(f"{'':<8} {'':<{width}}  -> {check.remedy}")
    return int(any(check.core and not check.ok for check in checks))
