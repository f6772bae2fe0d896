"""`bushel report`: one HTML file with plots."""

from __future__ import annotations

import argparse
import contextlib
import os
from typing import TYPE_CHECKING, Any

from bushel._src.cli.parser import Commands, add_storage_option, parse_setting

if TYPE_CHECKING:
    from bushel._src.inspection.sample_pictures import Picture


def add_report(commands: Commands) -> None:
    """Adds the parser of `bushel report`."""
    parser = commands.add_parser(
        "report",
        help="saves what is known of a data set, or of a run, as one HTML file",
        description="Writes one HTML file with tables and plots, which needs nothing else to be shown. TARGET is a "
        "data set or a pipeline, the profile of bushel bench, or the address of a running program "
        "(bushel.serve_report).",
    )
    parser.add_argument("target", help="a file, a folder, train.py:make_dataset, a profile, or an address")
    parser.add_argument("output", nargs="?", default="report.html", help="the file to write (default: report.html)")
    parser.add_argument("--scan", action="store_true", help="read all of it: counts, checksums, each damaged record")
    parser.add_argument("--stats", action="store_true", help="with statistics of all elements")
    parser.add_argument("--bench", action="store_true", help="with measured runs of the pipeline")
    parser.add_argument(
        "--pictures",
        type=int,
        default=8,
        metavar="N",
        help="how many elements to show, if they have pictures (default: 8)",
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="the time of each measured run (default: 3)")
    parser.add_argument("--limit", type=int, metavar="N", help="statistics of the first N elements only")
    parser.add_argument("--split", help="of a TFDS or robot data set")
    add_storage_option(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(run=_report)


def _report(options: argparse.Namespace) -> int:
    from bushel._src.inspection import html_report
    from bushel._src.inspection.benchmark import measure_pipeline
    from bushel._src.inspection.inspector import inspect_pipeline, inspect_target
    from bushel._src.inspection.statistics import measure_target
    from bushel._src.view.attachment import Attachment
    from bushel._src.view.scripts import is_python_target, show_target
    from bushel._src.view.targets import as_dataset, load_target

    settings = dict(map(parse_setting, options.storage_option))
    snapshot = facts = statistics = benchmark = None
    pictures: list[Picture] = []
    if html_report.is_snapshot(options.target):
        snapshot = Attachment(options.target).read()
    else:
        arguments = options.script_arguments
        given = None
        if is_python_target(options.target) or arguments:  # a script runs once, for all parts of the report
            given = load_target(options.target, split=options.split, storage_options=settings, arguments=arguments)
            facts = inspect_pipeline(given, show_target(options.target, arguments))
        else:
            facts = inspect_target(options.target, storage_options=settings, scan=options.scan)
        pictures = _take_pictures(options, given, settings) if options.pictures > 0 else []
        if options.stats or options.bench:
            if given is None:
                given = load_target(options.target, split=options.split, storage_options=settings)
            shown = not options.quiet
            if options.stats:
                statistics = measure_target(given, limit=options.limit, split=options.split, progress=shown)
            if options.bench:
                dataset = as_dataset(given, options.split)
                benchmark = measure_pipeline(dataset, facts.target, seconds=options.seconds, progress=shown)
    page = html_report.build_page(
        facts, statistics=statistics, benchmark=benchmark, snapshot=snapshot, pictures=pictures
    )
    with open(options.output, "w", encoding="utf-8") as file:
        file.write(page)
    print(f"{options.output}: {os.path.getsize(options.output) / 1e3:,.0f} KB")
    return 0


def _take_pictures(options: argparse.Namespace, given: Any, settings: dict[str, Any]) -> list[Picture]:
    """Pictures of some elements. What keeps them from being read is in the report anyway: it is no error here."""
    from bushel._src.inspection.record_formats import READ_ERRORS
    from bushel._src.inspection.sample_pictures import take_pictures
    from bushel._src.view.session import Session
    from bushel._src.view.targets import as_dataset, load_target

    try:
        if given is None:
            given = load_target(options.target, split=options.split, storage_options=settings)
        with contextlib.closing(Session(as_dataset(given, options.split))) as session:
            return take_pictures(session, options.pictures)
    except (*READ_ERRORS, ImportError, TypeError):
        return []
