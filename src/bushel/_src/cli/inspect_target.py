"""`bushel inspect`: what is in a file, a folder or a pipeline."""

from __future__ import annotations

import argparse
import contextlib
import json

from bushel._src.base.progress import on_progress
from bushel._src.cli.parser import Commands, add_storage_option, parse_setting


def add_inspect(commands: Commands) -> None:
    """Adds the parser of `bushel inspect`."""
    parser = commands.add_parser(
        "inspect",
        help="shows what is in a file, a folder or a pipeline",
        description="Prints the format, the number of records, sizes, entries with their types, splits and checksums; "
        "of robot data sets the episodes, their lengths, rates and instructions; of a pipeline its steps. Only "
        "metadata and a few records are read, unless --scan is given. The exit code is 1 if something is damaged.",
    )
    parser.add_argument("target", help="a file, a pattern, a folder or a URL; or train.py:make_dataset, module:ds")
    parser.add_argument("--scan", action="store_true", help="read all of it: counts, checksums, each damaged record")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_storage_option(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(run=_inspect)


def _inspect(options: argparse.Namespace) -> int:
    from bushel._src.inspection.inspector import inspect_target
    from bushel._src.inspection.text import describe

    settings = dict(map(parse_setting, options.storage_option))
    with on_progress(None) if options.quiet else contextlib.nullcontext():
        facts = inspect_target(
            options.target, storage_options=settings, scan=options.scan, arguments=options.script_arguments
        )
    print(json.dumps(facts.as_json(), indent=2) if options.json else describe(facts), end="\n" if options.json else "")
    return 1 if facts.damage else 0
